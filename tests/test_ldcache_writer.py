"""Loader caches that we write are read by the engine, by ldconfig, and by the loader's
bisection.
"""

import functools
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.formats import ldcache_entries
from nvgraft_cli.simulate import ldcache_writer
from nvgraft_specs import gallery
from nvgraft_specs.models.host import load_host


def library_compare(left: bytes, right: bytes) -> int:
    """Compare two SONAMEs as the loader's bisection does, written from its documentation."""
    i = j = 0
    while i < len(left):
        one, other = left[i : i + 1], right[j : j + 1]
        if one.isdigit() and other.isdigit():
            ends = []
            for text, start in ((left, i), (right, j)):
                end = start
                while text[end : end + 1].isdigit():
                    end += 1
                ends.append(end)
            difference = int(left[i : ends[0]]) - int(right[j : ends[1]])
            if difference:
                return difference
            i, j = ends
        elif one.isdigit():
            return 1
        elif other.isdigit():
            return -1
        elif one != other:
            return one[0] - (other[0] if other else 0)
        else:
            i, j = i + 1, j + 1
    return 0 - (right[j] if j < len(right) else 0)


def sonames(data: bytes) -> list[str]:
    """Return the SONAMEs in a cache in their order."""
    return [entry.soname for entry in ldcache_entries.parse(data)]


@given(st.lists(st.text(alphabet="ab.-_019", min_size=1, max_size=8), max_size=20, unique=True))
def test_rows_have_the_loaders_order(names: list[str]) -> None:
    """Rows are sorted in descending order of the loader's comparison, so that its bisection finds
    every name.
    """
    order = [
        name.encode()
        for name in sonames(
            ldcache_writer.cache([(name, "libc6,x86-64", f"/{name}") for name in names])
        )
    ]
    assert sorted(order) == sorted(name.encode() for name in names)
    assert order == sorted(order, key=functools.cmp_to_key(library_compare), reverse=True)


def test_numbers_compare_as_numbers() -> None:
    """libx.so.10 comes before libx.so.9, and a digit before any other character."""
    rows = [
        (name, "libc6,x86-64", "/l") for name in ("libx.so.9", "libx.so.10", "libx-2.so", "libx.so")
    ]
    assert sonames(ldcache_writer.cache(rows)) == [
        "libx.so.10",
        "libx.so.9",
        "libx.so",
        "libx-2.so",
    ]


def test_equal_names_keep_their_order_within_an_architecture() -> None:
    """64-bit rows of a SONAME come before 32-bit rows; rows of one architecture keep their
    order.
    """
    rows = [
        ("liba.so", "libc6", "/32"),
        ("liba.so", "libc6,x86-64", "/first"),
        ("liba.so", "libc6,x86-64", "/second"),
    ]
    assert [entry.path for entry in ldcache_entries.parse(ldcache_writer.cache(rows))] == [
        "/first",
        "/second",
        "/32",
    ]


def test_the_engine_reads_the_written_rows() -> None:
    """The engine reads SONAME, architecture and path of each row for every known architecture."""
    rows = [
        ("liba.so.1", "libc6,x86-64", "/64"),
        ("libb.so.1", "libc6", "/32"),
        ("libc.so.1", "libc6,AArch64", "/arm"),
    ]
    entries = ldcache_entries.parse(ldcache_writer.cache(rows))
    assert [(entry.soname, entry.architecture, entry.path) for entry in reversed(entries)] == [
        ("liba.so.1", 0x0300, "/64"),
        ("libb.so.1", 0x0000, "/32"),
        ("libc.so.1", 0x0A00, "/arm"),
    ]


def test_the_header_is_that_of_glibc() -> None:
    """Magic, number of rows, size of strings and byte order have glibc's offsets."""
    data = ldcache_writer.cache([("liba.so.1", "libc6,x86-64", "/usr/lib/liba.so.1")])
    magic, count, size, order, extension = struct.unpack_from("<20sIIB3xI", data)
    assert (magic, count, order) == (b"glibc-ld.so.cache1.1", 1, 2)
    assert 0 <= extension - (48 + 24 + size) < 4
    assert struct.unpack_from("<I", data, extension)[0] == 0xEAA42174


def test_unknown_flags_are_refused() -> None:
    """A row with unknown flags raises ValueError."""
    with pytest.raises(ValueError, match="libc5"):
        ldcache_writer.cache([("liba.so", "libc5", "/liba.so")])


@pytest.mark.requires("ldconfig")
@pytest.mark.parametrize("name", gallery.names())
def test_ldconfig_lists_the_written_rows(tmp_path: Path, name: str) -> None:
    """ldconfig -p prints each row of a gallery host's cache as it was given."""
    path = tmp_path / "ld.so.cache"
    rows = load_host(gallery.path(name)).ld_so_cache
    path.write_bytes(ldcache_writer.cache(rows))
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", path],
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
        check=True,
    ).stdout
    lines = [line.strip() for line in listed.splitlines() if "=>" in line]
    assert sorted(lines) == sorted(
        f"{soname} ({flags}) => {target}" for soname, flags, target in rows
    )
