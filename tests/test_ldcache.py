"""Reading loader caches of every format, and ordering names as glibc does."""

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.formats.ldcache import compare_names
from nvgraft.formats.ldcache_entries import CacheEntry, entry_from_listing, parse

ROWS = [
    ("libcuda.so.1", 0x0303, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ("libc.so.6", 0x0003, "/lib/i386-linux-gnu/libc.so.6"),
]
ENTRIES = [
    CacheEntry("libcuda.so.1", 0x0300, ROWS[0][2]),
    CacheEntry("libc.so.6", 0x0000, ROWS[1][2]),
]


def _strings(
    rows: list[tuple[str, int, str]], base: int
) -> tuple[bytes, list[tuple[int, int, int]]]:
    table, offsets = b"", []
    for soname, flags, path in rows:
        key = base + len(table)
        table += soname.encode() + b"\0"
        value = base + len(table)
        table += path.encode() + b"\0"
        offsets.append((flags, key, value))
    return table, offsets


def new_cache(rows: list[tuple[str, int, str]]) -> bytes:
    table, offsets = _strings(rows, 48 + 24 * len(rows))
    head = b"glibc-ld.so.cache1.1" + struct.pack("<II5I", len(rows), len(table), 0, 0, 0, 0, 0)
    return head + b"".join(struct.pack("<iIIIQ", *row, 0, 0) for row in offsets) + table


def old_cache(rows: list[tuple[str, int, str]]) -> bytes:
    table, offsets = _strings(rows, 0)
    return (
        b"ld.so-1.7.0\0"
        + struct.pack("<I", len(rows))
        + b"".join(struct.pack("<iII", *row) for row in offsets)
        + table
    )


def combined_cache(rows: list[tuple[str, int, str]]) -> bytes:
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<iII", 3, 0, 0)
    return old + b"\0" * (-len(old) % 8) + new_cache(rows)


@pytest.mark.parametrize("make", [new_cache, old_cache, combined_cache])
def test_every_format_gives_the_same_entries(
    make: Callable[[list[tuple[str, int, str]]], bytes],
) -> None:
    """The new, the old and the combined format give the same entries in file order; of a combined
    one the new part is used.
    """
    assert parse(make(ROWS)) == ENTRIES


def test_prefixes_choose_entries() -> None:
    """Only entries whose SONAME starts with a given prefix are returned."""
    assert parse(new_cache(ROWS), (b"libcuda",)) == ENTRIES[:1]


def test_entries_without_the_elf_flag_are_skipped() -> None:
    """Entries without the ELF flag are skipped."""
    assert parse(new_cache([("x", 0x0300, "/x")])) == []


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is empty"),
        (b"#!/bin/sh\n", "does not start like a loader cache"),
        (b"ld.so-1.7.0\0", "ends inside its header"),
        (b"ld.so-1.7.0\0" + struct.pack("<I", 9), "promises 9 entries"),
        (new_cache(ROWS)[:40], "ends inside its header"),
        (new_cache(ROWS)[:60], "promises 2 entries"),
        (new_cache(ROWS)[:-5], "does not end inside it"),
    ],
)
def test_a_damaged_cache_says_what_is_wrong(data: bytes, problem: str) -> None:
    """A damaged or foreign file raises ValueError with the problem."""
    with pytest.raises(ValueError, match=problem):
        parse(data)


@given(st.binary(max_size=300), st.sampled_from([b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"]))
def test_any_bytes_parse_or_raise_value_error(data: bytes, head: bytes) -> None:
    """Any bytes are parsed or raise ValueError."""
    try:
        parse(head + data)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("flags", "architecture"),
    [
        ("libc6,x86-64", 0x0300),
        ("libc6", 0),
        ("libc6,AArch64", 0x0A00),
        ("libc6,hard-float", 0x0900),
        ("libc6,64bit", 0x0500),
    ],
)
def test_listings_spell_architectures(flags: str, architecture: int) -> None:
    """The flags in a row of `ldconfig -p` give the architecture bits of the cache."""
    assert entry_from_listing("libx.so", flags, "/libx.so") == CacheEntry(
        "libx.so", architecture, "/libx.so"
    )


def test_a_listing_of_an_unknown_libc_is_no_entry() -> None:
    """A row that `ldconfig -p` marks as "unknown" gives no entry."""
    assert entry_from_listing("libx.so", "unknown", "/libx.so") is None


@pytest.mark.parametrize(
    ("smaller", "greater"),
    [
        ("libcuda.so.535.54", "libcuda.so.535.129"),
        ("libcuda.so", "libcuda.so.1"),
        ("libcuda.so.9", "libcuda.so.10"),
        ("liba.so.a", "liba.so.1"),
    ],
)
def test_names_compare_as_glibc_does(smaller: str, greater: str) -> None:
    """Digits compare by value and are greater than letters; a longer name is greater."""
    assert compare_names(smaller, greater) < 0 < compare_names(greater, smaller)
    assert compare_names(smaller, smaller) == 0


def test_names_are_limited() -> None:
    """A path longer than 4096 bytes is damage: any number of entries may point into one name as
    long as the file.
    """
    with pytest.raises(ValueError, match="longer than 4096 bytes"):
        parse(new_cache([("libcuda.so.1", 0x0303, "/" + "x" * 4096)]))
    assert parse(new_cache([("libcuda.so.1", 0x0303, "/" + "x" * 4095)]))


@pytest.mark.requires("ldconfig")
def test_the_cache_of_this_machine() -> None:
    """Parsing this machine's cache gives the rows that ``ldconfig -p`` prints."""
    listed = []
    for line in subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        soname, _, flags = name.rpartition(" (")
        entry = entry_from_listing(soname, flags.partition(")")[0], path) if arrow else None
        if entry is not None:
            listed.append(entry)
    assert listed
    assert parse(Path("/etc/ld.so.cache").read_bytes()) == listed
