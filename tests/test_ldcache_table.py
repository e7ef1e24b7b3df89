"""Adding rows to loader caches: every format, the loader's own search, and what ldconfig prints of
the result.
"""

import os
import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldcaches import DRIVER, LIBS, listing
from nvgraft.formats.ldcache import compare_names
from nvgraft.formats.ldcache_table import Places, Row, Table

FIXTURES = Path(__file__).parent / "fixtures" / "ldcaches"
NOWHERE = Places({})
WIDE, NARROW = 0x0303, 0x0003
_NAMED = 1 << 62


def rows_of(data: bytes) -> list[tuple[str, int, str, int]]:
    """Return SONAME, flags, path and capabilities of each row of a cache in the new format."""
    count = struct.unpack_from("<I", data, 20)[0]
    fields = struct.iter_unpack("<iIIIQ", data[48 : 48 + 24 * count])
    return [
        (_text(data, key), flags, _text(data, value), hwcap)
        for flags, key, value, _version, hwcap in fields
    ]


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode()


def lookup(data: bytes, name: str, flags: int = WIDE) -> str | None:
    """Return what a loader finds for ``name``: by bisection, then the first plain row with these
    flags.
    """
    rows = rows_of(data)
    low, high = 0, len(rows) - 1
    while low <= high:
        middle = (low + high) // 2
        compared = compare(name, rows[middle][0])
        if compared == 0:
            while middle > 0 and compare(name, rows[middle - 1][0]) == 0:
                middle -= 1
            while middle < len(rows) and compare(name, rows[middle][0]) == 0:
                if rows[middle][1] == flags and rows[middle][3] == 0:
                    return rows[middle][2]
                middle += 1
            return None
        low, high = (middle + 1, high) if compared < 0 else (low, middle - 1)
    return None


def compare(one: str, other: str) -> int:
    """Compare two names as glibc does, with C's types: a signed char and an int that wraps."""
    left, right = os.fsencode(one) + b"\0", os.fsencode(other) + b"\0"
    i = j = 0
    while left[i]:
        if chr(left[i]).isdigit() and chr(right[j]).isdigit():
            numbers = []
            for text, at in ((left, i), (right, j)):
                end = at
                while 48 <= text[end] <= 57:
                    end += 1
                value = int(text[at:end]) % (1 << 32)
                numbers.append((value - (1 << 32) if value >> 31 else value, end))
            if numbers[0][0] != numbers[1][0]:
                return numbers[0][0] - numbers[1][0]
            i, j = numbers[0][1], numbers[1][1]
        elif 48 <= left[i] <= 57:
            return 1
        elif 48 <= right[j] <= 57:
            return -1
        elif left[i] != right[j]:
            return (left[i] ^ 128) - (right[j] ^ 128)
        else:
            i, j = i + 1, j + 1
    return 0 if not right[j] else (128 - (right[j] ^ 128))


NAMES = st.text(alphabet="ab.-_~019\xe9", min_size=1, max_size=8) | st.text(
    alphabet="0123456789", min_size=1, max_size=14
)


@given(NAMES, NAMES)
def test_names_compare_as_in_the_loader(one: str, other: str) -> None:
    """Names compare as in the loader: digits by value and above others, leading zeros ignored,
    signs and wrapping as in C.
    """
    expected = compare(one, other)
    assert (compare_names(one, other) > 0) == (expected > 0)
    assert (compare_names(one, other) < 0) == (expected < 0)


def cache(rows: list[tuple[str, int, str]], places: Places = NOWHERE) -> bytes:
    return (
        Table()
        .with_rows([Row(name.encode(), flags, path.encode()) for name, flags, path in rows], places)
        .data()
    )


@given(
    st.lists(st.tuples(NAMES, st.sampled_from([WIDE, NARROW])), unique=True, max_size=30),
    st.integers(0, 30),
)
def test_the_loader_finds_old_and_added_rows(rows: list[tuple[str, int]], cut: int) -> None:
    """Bisection finds the rows of a table and those added to it, and their order is ldconfig's."""
    table_rows = [Row(os.fsencode(name), flags, b"/l/" + os.fsencode(name)) for name, flags in rows]
    before = Table().with_rows(table_rows[:cut], NOWHERE).data()
    data = Table.parse(before).with_rows(table_rows[cut:], NOWHERE).data()
    assert sorted(rows_of(data)) == sorted(rows_of(Table().with_rows(table_rows, NOWHERE).data()))
    names = [name for name, _flags, _path, _hwcap in rows_of(data)]
    assert all(compare(one, other) >= 0 for one, other in pairwise(names))
    for name, flags in rows:
        path = lookup(data, name, flags)
        assert path is not None
        assert compare(path.removeprefix("/l/"), name) == 0
    assert len(Table.parse(data)) == len(rows)


#: The flags and directory of the driver in images that are not x86_64.
FOREIGN = {
    "bookworm-i386": (NARROW, "/usr/lib/i386-linux-gnu"),
    "bookworm-arm64": (0x0A03, "/usr/lib/aarch64-linux-gnu"),
}


def comparable(line: str) -> str:
    """Return a line of ldconfig with one name for each directory and without glibc's words before
    2.37 for an unknown libc.
    """
    return line.replace("=> /usr/lib/", "=> /lib/").replace("(unknown or unsupported flag", "(ELF")


@pytest.mark.requires("ldconfig")
@pytest.mark.parametrize("release", sorted(path.stem for path in FIXTURES.glob("*.cache")))
def test_caches_of_real_images_equal_those_of_their_ldconfig(release: str, tmp_path: Path) -> None:
    """Adding the driver's rows to caches of Ubuntu 16.04 (glibc 2.23) to Debian 13 (2.41) gives the
    lines of their own ldconfig.

    integration/ldcache_images.py makes these caches, and those of glibc 2.17 and of Debian 12 for
    i386 and aarch64. The images of the latter have a few libraries of ours, with names for the
    loader in subdirectories of capabilities (tls) and of both address sizes. Directories with a
    second name (/lib for /usr/lib) are compared by one name.
    """
    flags, libs = FOREIGN.get(release, (WIDE, LIBS))
    before = (FIXTURES / f"{release}.cache").read_bytes()
    expected = [comparable(line) for line in (FIXTURES / f"{release}.txt").read_text().splitlines()]
    rows = [Row(name.encode(), flags, f"{libs}/{name}".encode()) for name in DRIVER]
    data = Table.parse(before).with_rows(rows, Places({libs.encode(): 0})).data()
    (tmp_path / "cache").write_bytes(data)
    lines = listing(tmp_path / "cache")
    assert all(lookup(data, name, flags) == f"{libs}/{name}" for name in DRIVER)
    assert [comparable(line) for line in lines] == expected


def test_a_cache_of_glibc_2_17_keeps_its_new_part() -> None:
    """A rewritten cache of glibc 2.17 has the rows of the new part; the old part, which its loader
    does not read, is dropped.
    """
    before = (FIXTURES / "glibc-2.17.cache").read_bytes()
    assert before.startswith(b"ld.so-1.7.0\0")
    count = struct.unpack_from("<I", before, 12)[0]
    new = before[-(-(16 + 12 * count) // 8) * 8 :]
    data = Table.parse(before).data()
    assert data.startswith(b"glibc-ld.so.cache1.1")
    assert rows_of(data) == rows_of(new)
    assert {hwcap for _name, _flags, _path, hwcap in rows_of(data)} == {0, 1 << 63}, (
        "the capability bit of tls stays"
    )
    versions = [
        struct.unpack_from("<I", data, 48 + 24 * index + 12)[0]
        for index in range(len(rows_of(data)))
    ]
    assert set(versions) == {0, 0x20620, 0x30200}, (
        "the oldest kernel of each row, which later versions do not write"
    )


def old_format(rows: list[tuple[str, int, str]]) -> bytes:
    """Return a cache in libc5's format, where offsets of names count from behind the rows."""
    strings = b""
    table = b""
    for name, flags, path in rows:
        table += struct.pack("<iII", flags, len(strings), len(strings) + len(name) + 1)
        strings += f"{name}\0{path}\0".encode()
    return b"ld.so-1.7.0\0" + struct.pack("<I", len(rows)) + table + strings


def test_an_old_cache_is_written_in_the_new_format() -> None:
    """A cache in the old format is written in the new one with the same rows; of a combined one the
    new part is used.
    """
    rows = [("libb.so.1", WIDE, "/b"), ("liba.so.1", NARROW, "/a")]
    alone = Table.parse(old_format(rows)).data()
    assert rows_of(alone) == [("libb.so.1", WIDE, "/b", 0), ("liba.so.1", NARROW, "/a", 0)]
    start = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + bytes(36)
    start += bytes(-len(start) % 8)
    assert rows_of(Table.parse(start + cache(rows)).data()) == rows_of(cache(rows))


def test_adding_existing_rows_returns_the_same_table() -> None:
    """Adding existing rows, also under another name of the directory, returns the same table, so
    that it is not written again.
    """
    rows = [
        Row(b"liba.so.1", WIDE, b"/usr/lib/liba.so.1"),
        Row(b"libb.so.1", NARROW, b"/usr/lib/libb.so.1"),
    ]
    places = Places({b"/usr/lib": 0, b"/lib": 0, b"/opt": 1})
    table = Table.parse(Table().with_rows(rows, places).data())
    assert table.with_rows(rows, places) is table
    assert table.with_rows([Row(b"liba.so.1", WIDE, b"/lib/liba.so.1")], places) is table
    assert table.with_rows([Row(b"liba.so.1", WIDE, b"/opt/liba.so.1")], places) is not table
    assert table.with_rows([Row(b"liba.so.1", NARROW, b"/usr/lib/liba.so.1")], places) is not table


def test_rows_of_one_name_follow_the_search_path() -> None:
    """Rows of one name have the order of the search path; rows of unknown directories come last."""
    before = cache(
        [
            ("libcuda.so.1", WIDE, "/stubs/libcuda.so.1"),
            ("libcuda.so.1", WIDE, "/opt/libcuda.so.1"),
            ("liba.so", WIDE, "/a"),
        ]
    )
    driver_rows = [
        Row(b"libcuda.so.1", WIDE, b"/usr/lib/libcuda.so.1"),
        Row(b"libcuda.so.1", NARROW, b"/usr/lib32/libcuda.so.1"),
    ]
    data = (
        Table.parse(before)
        .with_rows(driver_rows, Places({b"/usr/lib": 0, b"/usr/lib32": 1, b"/opt": 2}))
        .data()
    )
    assert [path for _name, _flags, path, _hwcap in rows_of(data)] == [
        "/usr/lib/libcuda.so.1",
        "/opt/libcuda.so.1",
        "/stubs/libcuda.so.1",
        "/usr/lib32/libcuda.so.1",
        "/a",
    ]


def test_an_existing_row_behind_another_library_is_moved() -> None:
    """An existing row moves before another library's row of the same name, which the loader would
    take first.
    """
    before = cache(
        [("libx.so.1", WIDE, "/image/libx.so.1"), ("libx.so.1", WIDE, "/usr/lib/libx.so.1")]
    )
    data = (
        Table.parse(before)
        .with_rows([Row(b"libx.so.1", WIDE, b"/usr/lib/libx.so.1")], Places({b"/usr/lib": 0}))
        .data()
    )
    assert [path for _name, _flags, path, _hwcap in rows_of(data)] == [
        "/usr/lib/libx.so.1",
        "/image/libx.so.1",
    ]


def test_rows_of_older_capabilities_stay_first() -> None:
    """Rows of older capabilities such as sse2 or tls stay, before the plain row that is added."""
    before = bytearray(cache([("libx.so.1", WIDE, "/lib/i686/libx.so.1")]))
    struct.pack_into("<Q", before, 48 + 16, 1 << 48)
    data = (
        Table.parse(bytes(before))
        .with_rows([Row(b"libx.so.1", WIDE, b"/usr/lib/libx.so.1")], Places({b"/usr/lib": 0}))
        .data()
    )
    assert [(path, hwcap) for _n, _f, path, hwcap in rows_of(data)] == [
        ("/lib/i686/libx.so.1", 1 << 48),
        ("/usr/lib/libx.so.1", 0),
    ]


def hwcaps_of(data: bytes) -> list[str]:
    """Return the names of glibc-hwcaps subdirectories in the extension of a cache."""
    at = struct.unpack_from("<I", data, 32)[0]
    magic, count = struct.unpack_from("<II", data, at)
    assert magic == 0xEAA42174
    for number in range(count):
        tag, _flags, start, size = struct.unpack_from("<IIII", data, at + 8 + 16 * number)
        if tag == 1:
            assert start % 4 == 0
            return [
                _text(data, position)
                for position in struct.unpack_from(f"<{size // 4}I", data, start)
            ]
    return []


def test_capabilities_are_renumbered_when_one_is_added() -> None:
    """A new capability renumbers the sorted names, and each row keeps its name and its ISA
    level.
    """
    one = Row(b"liba.so.1", WIDE, b"/l/glibc-hwcaps/x86-64-v3/liba.so.1", b"x86-64-v3", 2)
    plain = Row(b"liba.so.1", WIDE, b"/l/liba.so.1")
    table = Table.parse(Table().with_rows([plain, one], NOWHERE).data())
    data = table.with_rows(
        [Row(b"liba.so.1", WIDE, b"/l/glibc-hwcaps/x86-64-v2/liba.so.1", b"x86-64-v2", 1)], NOWHERE
    ).data()
    assert hwcaps_of(data) == ["x86-64-v2", "x86-64-v3"]
    assert [(path.rpartition("/")[0], hwcap) for _n, _f, path, hwcap in rows_of(data)] == [
        ("/l/glibc-hwcaps/x86-64-v2", _NAMED | 1 << 32 | 0),
        ("/l/glibc-hwcaps/x86-64-v3", _NAMED | 2 << 32 | 1),
        ("/l", 0),
    ]
    again = Table.parse(data)
    assert again.with_rows([one, plain], NOWHERE) is again
    assert hwcaps_of(again.with_rows([Row(b"libz.so.1", WIDE, b"/z")], NOWHERE).data()) == [
        "x86-64-v2",
        "x86-64-v3",
    ]


def test_rows_can_be_removed() -> None:
    """Removing rows keeps the names of the others, though their offsets change."""
    rows = [(f"lib{number}.so.1", WIDE, f"/l/lib{number}.so.1") for number in range(20)]
    table = Table.parse(cache(rows))
    gone = {
        index for index, row in table.below([b"/l"]) if row.soname in {b"lib3.so.1", b"lib19.so.1"}
    }
    left = rows_of(table.without(gone).data())
    assert [row[0] for row in left] == [
        f"lib{number}.so.1" for number in reversed(range(20)) if number not in {3, 19}
    ]
    assert all(path == f"/l/{name}" for name, _flags, path, _hwcap in left)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "it is empty"),
        (lambda data: b"text", "does not start"),
        (lambda data: data[:40], "ends inside its header"),
        (lambda data: data[:60], "ends before them"),
        (lambda data: data[:28] + b"\x03" + data[29:], "another byte order"),
        (lambda data: data[:28] + b"\x01" + data[29:], "another byte order"),
        (lambda data: data[:52] + b"\xff\xff\xff\xff" + data[56:], "outside of its strings"),
        (lambda data: data[:52] + b"\x00\x00\x00\x00" + data[56:], "outside of its strings"),
        (
            lambda data: (
                data[:24] + struct.pack("<I", struct.unpack_from("<I", data, 24)[0] - 1) + data[28:]
            ),
            "does not end inside it",
        ),
    ],
)
def test_a_cache_that_no_loader_uses_is_refused(change: object, reason: str) -> None:
    """A damaged cache is refused with the reason; one without a byte order (before glibc 2.33) is
    accepted.
    """
    data = cache([("liba.so.1", WIDE, "/usr/lib/x")])
    assert callable(change)
    with pytest.raises(ValueError, match=reason):
        Table.parse(change(data))
    assert len(Table.parse(data[:28] + b"\0" + data[29:])) == 1


@given(st.data())
def test_any_damage_gives_a_table_or_an_error(data: st.DataObject) -> None:
    """A truncated or changed cache raises ValueError or gives a table that rows can be added to."""
    whole = bytearray(
        (FIXTURES / f"{data.draw(st.sampled_from(['trixie', 'bionic']))}.cache").read_bytes()
    )
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, 200) | st.integers(0, len(whole) - 1))] = data.draw(
            st.integers(0, 255)
        )
    try:
        table = Table.parse(
            bytes(whole[: data.draw(st.just(len(whole)) | st.integers(0, len(whole)))])
        )
    except ValueError:
        return
    added = table.with_rows([Row(b"libcuda.so.1", WIDE, b"/l/libcuda.so.1")], NOWHERE)
    assert len(Table.parse(added.data())) == len(table) + 1


def test_a_large_table_keeps_every_row() -> None:
    """A table of twenty thousand rows keeps all of them, in order, when a hundred are added."""
    numbers = random.Random(1).sample(range(100_000), 20_000)
    rows = [Row(b"lib%d.so.1" % number, WIDE, b"/l/lib%d.so.1" % number) for number in numbers]
    data = (
        Table.parse(Table().with_rows(rows[100:], NOWHERE).data())
        .with_rows(rows[:100], NOWHERE)
        .data()
    )
    table_rows = rows_of(data)
    assert [int(name[3:-5]) for name, _flags, _path, _hwcap in table_rows] == sorted(
        numbers, reverse=True
    )
    assert all(path == f"/l/{name}" for name, _flags, path, _hwcap in table_rows)


def test_has_file_of_counts_direct_entries_only() -> None:
    """has_file_of() ignores files of subdirectories and of directories whose name only begins
    alike.
    """
    table = Table.parse(
        cache([("liba.so", WIDE, "/usr/lib/sub/liba.so"), ("libb.so", WIDE, "/opt/lib2/libb.so")])
    )
    for directory, has_file in (
        (b"/usr/lib", False),
        (b"/usr/lib/sub", True),
        (b"/opt/lib", False),
        (b"/opt/lib2", True),
        (b"/lib2", False),
    ):
        assert table.has_file_of(directory) is has_file
