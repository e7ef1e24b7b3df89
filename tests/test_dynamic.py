"""The facts that a loader reads in a file: of stubs, real libraries, damaged files and records."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvgraft.formats.tree import open_tree_at
from nvgraft.host.snapshot import SnapshotTree
from nvgraft_cli.case.dynamic import BadElf, Dynamic, NotRecorded, SearchPaths, read_dynamic
from nvgraft_cli.simulate.stubs import Loading, shared_object
from readelf import described

NEEDED = {"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34"], "libm.so.6": ["GLIBC_2.29"]}
LOADING = Loading("$ORIGIN/a", "/opt/b:/c", 0x801, NEEDED, ["libx.so.1", "X_1", "X_2"])


def read(file: Path) -> Dynamic:
    tree = open_tree_at(str(file.parent))
    try:
        return read_dynamic(tree, f"/{file.name}")
    finally:
        tree.close()


@pytest.mark.parametrize(
    ("bits", "machine"), [(64, "EM_X86_64"), (32, "EM_386"), (64, "EM_AARCH64"), (32, "EM_ARM")]
)
def test_search_paths_and_versions_of_a_library(bits: int, machine: str, tmp_path: Path) -> None:
    """Both classes give search paths and versions; absent ones are empty, not unknown."""
    file = tmp_path / "libx.so.1"
    file.write_bytes(
        shared_object(bits, machine, "libx.so.1", ["libc.so.6", "libm.so.6"], None, None, LOADING)
    )
    facts = read(file)
    assert facts.search == SearchPaths("$ORIGIN/a", "/opt/b:/c", 0x801)
    assert facts.search.no_default_directories
    assert facts.versions_needed == (
        ("libc.so.6", "GLIBC_2.2.5"),
        ("libc.so.6", "GLIBC_2.34"),
        ("libm.so.6", "GLIBC_2.29"),
    )
    assert facts.versions_defined == ("libx.so.1", "X_1", "X_2")
    file.write_bytes(shared_object(bits, machine, "libx.so.1", ["libc.so.6"], None))
    bare = read(file)
    assert (bare.search, bare.versions_needed, bare.versions_defined) == (SearchPaths(), (), ())
    assert not SearchPaths().no_default_directories


def test_a_record_is_read_as_the_file_is(tmp_path: Path) -> None:
    """A record gives the same facts as the file; facts that it lacks are not recorded."""
    file = tmp_path / "libx.so.1"
    for loading in (LOADING, Loading()):
        file.write_bytes(
            shared_object(64, "EM_X86_64", "libx.so.1", ["libc.so.6"], None, None, loading)
        )
        facts = read(file)
        base: dict[str, Any] = {
            "bits": 64,
            "machine": "EM_X86_64",
            "soname": "libx.so.1",
            "needed": ["libc.so.6"],
            "abi_tag": None,
        }
        record = facts.record()
        assert recorded(base | record) == facts
        assert recorded(base) == Dynamic(
            64, "EM_X86_64", "libx.so.1", ("libc.so.6",), None, None, None, None
        )
        for key, lost in {
            "rpath": "search",
            "runpath": "search",
            "flags_1": "search",
            "versions_needed": "versions_needed",
            "versions_defined": "versions_defined",
        }.items():
            partial = recorded(
                base | {name: value for name, value in record.items() if name != key}
            )
            assert getattr(partial, lost) is None
            assert partial.record().keys() < record.keys()


def recorded(elf: dict[str, Any]) -> Dynamic:
    return read_dynamic(SnapshotTree({"/l": {"type": "file", "mode": "0644", "elf": elf}}), "/l")


def test_a_file_of_which_nothing_is_recorded_says_so() -> None:
    """A file without recorded facts raises NotRecorded, and not an error of the file."""
    with pytest.raises(NotRecorded, match="not recorded in the host snapshot"):
        read_dynamic(SnapshotTree({"/l": {"type": "file", "mode": "0644"}}), "/l")


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "file too short"), (b"x" * 100, "invalid ELF header")]
)
def test_a_file_that_is_not_a_library_has_the_words_of_dlopen(
    data: bytes, words: str, tmp_path: Path
) -> None:
    """A file that is not a library raises BadElf with the words of dlopen()."""
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(BadElf, match=words):
        read(tmp_path / "f")


@settings(max_examples=300)
@given(st.integers(0, 1400), st.binary(min_size=1, max_size=12))
def test_a_damaged_library_never_fails_otherwise(
    tmp_path_factory: pytest.TempPathFactory, offset: int, junk: bytes
) -> None:
    """Any overwritten bytes give other facts or BadElf, and no other exception."""
    data = bytearray(
        shared_object(64, "EM_X86_64", "libx.so.1", ["libc.so.6"], None, None, LOADING)
    )
    data[offset : offset + len(junk)] = junk
    file = tmp_path_factory.getbasetemp() / "damaged-dynamic.so"
    file.write_bytes(data)
    try:
        assert read(file)
    except BadElf as error:
        assert str(error)


def _endless_needed(data: bytearray, at: int) -> None:
    """Make each row of needed versions say that the next one begins one byte later."""
    data[at : at + 16] = struct.pack("<HHIII", 1, 1, 0, 0, 1)


def _endless_names(data: bytearray, at: int) -> None:
    data[at : at + 32] = struct.pack("<HHIIIIHHII", 1, 1, 0, 16, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("damage", [_endless_needed, _endless_names])
def test_tables_without_end_are_bounded(
    damage: Callable[[bytearray, int], None], tmp_path: Path
) -> None:
    """A chain of rows of any length is read up to a limit (SECURITY R17)."""
    data = bytearray(
        shared_object(64, "EM_X86_64", "libx.so.1", [], None, None, Loading(versions_needed=NEEDED))
    )
    at = data.index(
        struct.pack("<HHI", 1, 2, data.index(b"libc.so.6\0") - data.index(b"\0libx.so.1"))
    )
    damage(data, at)
    file = tmp_path / "l"
    file.write_bytes(data)
    with pytest.raises(BadElf, match="damaged: "):
        read(file)


@pytest.mark.requires("gcc")  # readelf comes with it
def test_this_machine_s_libraries_read_as_readelf_reads_them() -> None:
    """Versions and search paths of real libraries agree with readelf's."""
    checked = 0
    for file, printed in described("-dVW", every=15):
        facts = read(file)
        needs = printed.partition("Version needs section")[2]
        defines = printed.partition("Version definition section")[2].partition(
            "Version needs section"
        )[0]
        needed = []
        library = ""
        for line in needs.splitlines():
            if match := re.search(r"File: (\S+)", line):
                library = match[1]
            elif match := re.search(r"Name: (\S+)\s+Flags: (\S+)", line):
                needed += [(library, match[1])] if match[2] == "none" else []
        assert list(facts.versions_needed or ()) == needed, file
        assert list(facts.versions_defined or ()) == re.findall(
            r"Index: \d+\s+Cnt: \d+\s+Name: (\S+)", defines
        ), file
        assert facts.search is not None
        for tag, value in (("RPATH", facts.search.rpath), ("RUNPATH", facts.search.runpath)):
            assert ([] if value is None else [value]) == re.findall(
                rf"\({tag}\).*\[(.*)\]", printed
            ), file
        checked += 1
    assert checked > 10
