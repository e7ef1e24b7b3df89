"""ELF facts: of stubs, of this machine's libraries compared with readelf, and of damaged files."""

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvgraft.formats.elf import READ_LIMIT, ElfFacts, Library, read_facts, read_library
from nvgraft_cli.simulate.stubs import shared_object
from readelf import described


def facts_of(path: Path, *, sections: bool = True) -> ElfFacts:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_facts(fd, sections=sections)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("bits", "machine"), [(64, "EM_X86_64"), (32, "EM_386"), (64, "EM_AARCH64"), (32, "EM_ARM")]
)
def test_facts_of_a_library(tmp_path: Path, bits: int, machine: str) -> None:
    """Libraries of both classes and all machines give SONAME, NEEDED and ABI tag."""
    file = tmp_path / "lib.so"
    file.write_bytes(
        shared_object(bits, machine, "libx.so.1", ["libc.so.6", "libm.so.6"], (2, 3, 99))
    )
    assert facts_of(file) == ElfFacts(
        bits, machine, "libx.so.1", ("libc.so.6", "libm.so.6"), (2, 3, 99), None
    )
    assert facts_of(file, sections=False).abi_tag is None


def test_a_library_without_names(tmp_path: Path) -> None:
    """Absent facts are None or empty, and not an error."""
    file = tmp_path / "lib.so"
    file.write_bytes(shared_object(64, "EM_X86_64", None, [], None))
    assert facts_of(file) == ElfFacts(64, "EM_X86_64", None, (), None, None)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not an ELF file"),
        (b"#!/bin/sh\necho hello\n", "not an ELF file"),
        (b"\x7fELF\x02\x02" + bytes(60), "little-endian"),
        (b"\x7fELF\x02\x01" + bytes(20), "cut short"),
    ],
)
def test_a_file_that_is_not_a_library_raises_with_the_problem(
    tmp_path: Path, data: bytes, problem: str
) -> None:
    """A file that is not ELF, big-endian or truncated raises ValueError with the problem."""
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=problem):
        facts_of(file)


@settings(max_examples=300)
@given(st.integers(0, 900), st.binary(min_size=1, max_size=12))
def test_a_damaged_library_never_fails_otherwise(
    tmp_path_factory: pytest.TempPathFactory, offset: int, junk: bytes
) -> None:
    """Any overwritten bytes give other facts or ValueError, and no other exception."""
    data = bytearray(shared_object(64, "EM_X86_64", "libx.so.1", ["libc.so.6"], (2, 3, 99)))
    data[offset : offset + len(junk)] = junk
    file = tmp_path_factory.getbasetemp() / "damaged.so"
    file.write_bytes(data)
    for read in (facts_of, lambda path: library_of(path, isa_level=True)):
        try:
            assert read(file) is not None
        except ValueError as error:
            assert str(error)


@pytest.mark.requires("gcc")  # readelf comes with it
def test_this_machine_s_libraries_read_as_readelf_reads_them() -> None:
    """Facts of real libraries and programs agree with readelf's."""
    checked = 0
    for file, printed in described("-dlW", every=12):
        facts = facts_of(file)
        assert [facts.soname] == (re.findall(r"SONAME.*\[(.*)\]", printed) or [None]), file
        assert list(facts.needed) == re.findall(r"NEEDED.*\[(.*)\]", printed), file
        assert [facts.interp] == (re.findall(r"interpreter: (.*)\]", printed) or [None]), file
        checked += 1
    assert checked > 10


def test_tables_that_overlap_are_bounded(tmp_path: Path) -> None:
    """Segments that overlap a thousand times are not read as often (SECURITY R17)."""
    count = 5_000
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 3, 4, 0, 0, 0, 250_000, 250_000, 1)
    path = tmp_path / "library"
    path.write_bytes(header + segment * count)
    with pytest.raises(ValueError, match=f"more than {READ_LIMIT} bytes"):
        facts_of(path)


def library_of(path: Path, *, isa_level: bool = False) -> Library:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_library(fd, isa_level=isa_level)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("bits", "machine", "numbers"),
    [
        (64, "EM_X86_64", (62, 0)),
        (32, "EM_386", (3, 0)),
        (64, "EM_AARCH64", (183, 0)),
        (32, "EM_ARM", (40, 0x05000400)),
    ],
)
def test_facts_that_ldconfig_needs_of_a_library(
    tmp_path: Path, bits: int, machine: str, numbers: tuple[int, int]
) -> None:
    """read_library() gives class, machine and flags as numbers, and the SONAME if there is one."""
    file = tmp_path / "lib.so"
    for soname in ("libx.so.1", None):
        file.write_bytes(shared_object(bits, machine, soname, ["libc.so.6"], None))
        assert library_of(file, isa_level=True) == Library(bits, *numbers, soname, 0)


def test_a_file_that_no_loader_takes_is_refused(tmp_path: Path) -> None:
    """A fixed-position program and an object without a dynamic section are refused."""
    data = bytearray(shared_object(64, "EM_X86_64", "libx.so.1", [], None))
    file = tmp_path / "lib.so"
    file.write_bytes(data[:16] + b"\2" + data[17:])
    with pytest.raises(ValueError, match="it is not a shared object"):
        library_of(file)
    headers = int.from_bytes(data[32:40], "little")
    types = range(headers, headers + 56 * data[56], 56)
    (dynamic,) = [at for at in types if data[at] == 2]
    data[dynamic] = 0
    file.write_bytes(data)
    with pytest.raises(ValueError, match="it has no dynamic section"):
        library_of(file)


@pytest.mark.requires("gcc", "x86_64")
@pytest.mark.parametrize(
    ("option", "level"),
    [("x86-64-baseline", 0), ("x86-64-v2", 1), ("x86-64-v3", 2), ("x86-64-v4", 3)],
)
def test_the_isa_level_is_the_linkers(tmp_path: Path, option: str, level: int) -> None:
    """The ISA level is that of the linker's GNU property note, and read only when requested."""
    (tmp_path / "x.c").write_text("int x;")
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-z,{option}", "-o", "libx.so", "x.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert library_of(tmp_path / "libx.so", isa_level=True).isa_level == level
    assert library_of(tmp_path / "libx.so").isa_level == 0
