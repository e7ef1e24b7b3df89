"""Read the loader cache, /etc/ld.so.cache.

Three forms exist: the old libc5 format alone, the new one alone (glibc's default since 2.32), and
the new one appended to the old one. glibc and the reference read the new part where there is one.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base._stdlib import struct
from nvgraft.base.values import Value

_OLD_MAGIC = b"ld.so-1.7.0"
NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
NEW_HEADER, NEW_ENTRY = 48, 24

#: The most bytes of a name: a longer path cannot be opened.
NAME_LIMIT = 4096

#: The largest cache that is read, in bytes; twenty times the largest seen on a full distribution.
SIZE_LIMIT = 16 << 20

_ELF = 0x0001  # set for every libc5 and libc6 entry
_ARCHITECTURE = 0xFF00

#: machine (uname -m) -> the architecture bits of its 64-bit and 32-bit libraries (reference
#: behaviour 5.2).
ARCHITECTURES: dict[str, tuple[int, int | None]] = {
    "x86_64": (0x0300, 0x0000),
    "aarch64": (0x0A00, 0x0900),
    "ppc64le": (0x0500, None),
}

_LIBC6 = 0x0003


def loader_flags(machine: str) -> tuple[int, int]:
    """Return the flags of 64-bit and of 32-bit glibc libraries on ``machine``."""
    wide, narrow = ARCHITECTURES.get(machine, ARCHITECTURES["x86_64"])
    return wide | _LIBC6, (narrow or 0) | _LIBC6


#: How `ldconfig -p` spells the architecture bits.
_SPELLINGS = {
    "x86-64": 0x0300,
    "64bit": 0x0500,
    "IA-64": 0x0200,
    "N32": 0x0600,
    "x32": 0x0800,
    "hard-float": 0x0900,
    "AArch64": 0x0A00,
    "soft-float": 0x0B00,
}


class CacheEntry(Value):
    """One library of a loader cache: SONAME, architecture bits of its flags, and path."""

    def __init__(self, soname: str, architecture: int, path: str) -> None:
        self.soname = soname
        self.architecture = architecture
        self.path = path


def entry_from_listing(soname: str, flags: str, path: str) -> CacheEntry | None:
    """Return the entry that `ldconfig -p` prints as ``soname (flags) => path``; None for an unknown
    libc.
    """
    words = [word.strip() for word in flags.split(",")]
    if words[0] not in {"libc6", "libc5", "ELF"}:
        return None
    architecture = next((_SPELLINGS[word] for word in words[1:] if word in _SPELLINGS), 0)
    return CacheEntry(soname, architecture, path)


def listing_flags(entry: CacheEntry) -> str:
    """Return the flags of ``entry`` as `ldconfig -p` prints them; the inverse of
    :func:`entry_from_listing`.
    """
    word = next((word for word, bits in _SPELLINGS.items() if bits == entry.architecture), "")
    return f"libc6,{word}" if word else "libc6"


def parse(data: bytes, prefixes: tuple[bytes, ...] = (b"",)) -> list[CacheEntry]:
    """Return the entries, in order, whose SONAME starts with one of ``prefixes``.

    :raises ValueError: ``data`` is not a loader cache of this machine's byte order, or is
        truncated.
    """
    part = find_part(data)
    return (_parse_new if part.new else _parse_old)(data, part, prefixes)


class CachePart(Value):
    """The part of a loader cache that a loader reads, as offsets in the file.

    ``base`` is where the part begins (offsets of the new format count from it), ``first`` its first
    entry.
    """

    def __init__(self, base: int, first: int, count: int, *, new: bool) -> None:
        self.base = base
        self.first = first
        self.count = count
        self.new = new

    @property
    def end(self) -> int:
        """The offset behind the last entry; string offsets of the old format count from here."""
        return self.first + self.count * (NEW_ENTRY if self.new else _OLD_ENTRY)


def find_part(data: bytes) -> CachePart:
    """Return the part that a loader reads: the new one where there is one.

    :raises ValueError: as :func:`parse`.
    """
    if data.startswith(_OLD_MAGIC):
        if len(data) < _OLD_HEADER:
            raise ValueError("it ends inside its header")
        old = _checked(
            data, CachePart(0, _OLD_HEADER, struct.unpack_from("<I", data, 12)[0], new=False)
        )
        new = -(-old.end // 8) * 8
        return _new_part(data, new) if data.startswith(NEW_MAGIC, new) else old
    if data.startswith(NEW_MAGIC):
        return _new_part(data, 0)
    raise ValueError("it does not start like a loader cache" if data else "it is empty")


def _new_part(data: bytes, base: int) -> CachePart:
    if len(data) < base + NEW_HEADER:
        raise ValueError("it ends inside its header")
    return _checked(
        data,
        CachePart(base, base + NEW_HEADER, struct.unpack_from("<I", data, base + 20)[0], new=True),
    )


def _checked(data: bytes, part: CachePart) -> CachePart:
    if part.end > len(data):
        raise ValueError(f"it promises {part.count} entries and ends before them")
    return part


def _parse_new(data: bytes, part: CachePart, prefixes: tuple[bytes, ...]) -> list[CacheEntry]:
    base = part.base
    rows = struct.iter_unpack("<iIIIQ", memoryview(data)[part.first : part.end])
    return [
        CacheEntry(_string(data, base + key), flags & _ARCHITECTURE, _string(data, base + value))
        for flags, key, value, _osversion, _hwcap in rows
        if flags & _ELF and data.startswith(prefixes, base + key)
    ]


def _parse_old(data: bytes, part: CachePart, prefixes: tuple[bytes, ...]) -> list[CacheEntry]:
    strings = part.end
    rows = struct.iter_unpack("<iII", memoryview(data)[part.first : strings])
    return [
        CacheEntry(
            _string(data, strings + key), flags & _ARCHITECTURE, _string(data, strings + value)
        )
        for flags, key, value in rows
        if flags & _ELF and data.startswith(prefixes, strings + key)
    ]


def _string(data: bytes, offset: int) -> str:
    # Bounded: any number of entries may point into one name that is as long as the file.
    end = data.find(b"\0", offset, offset + NAME_LIMIT + 1)
    if end < 0 or offset >= len(data):
        raise ValueError(
            f"a name at offset {offset} does not end inside it, or is longer than"
            f" {NAME_LIMIT} bytes"
        )
    return data[offset:end].decode("utf-8", "surrogateescape")


def compare_names(one: str, other: str) -> int:
    """Compare two library names as ldconfig does, and return a negative number, 0 or a positive
    one.

    Of several files with one SONAME, ldconfig links the one with the greatest name.
    """
    first, second = sort_key(paths.fsencode(one)), sort_key(paths.fsencode(other))
    return (first > second) - (first < second)


#: Translation that replaces everything but digits by a blank, to find the runs of digits in a name.
_NO_DIGITS = b" " * 48 + b"0123456789" + b" " * 198

#: glibc compares characters as signed char on x86, and the end of a name as 0. Digits sort above
#: all of them: they get a mark that is greater than any of these.
_CHARACTERS = bytes([0x7F, *range(0x80, 0xFF), *range(0x7F), 0x7E])
_MARK = b"\xff"
_INT = 1 << 32


def sort_key(name: bytes) -> bytes:
    """Return bytes that compare as names do in glibc's order (_dl_cache_libcmp), by which a cache
    is sorted.

    Runs of digits compare by value, which is a C int and wraps like one, and sort above all other
    characters.
    """
    parts: list[bytes] = []
    done = 0
    for run in name.translate(_NO_DIGITS).split():
        start = name.index(run, done)
        value = (int(run) if len(run) < 64 else int(run[-64:])) + (_INT >> 1)
        parts += (name[done:start].translate(_CHARACTERS), _MARK, (value % _INT).to_bytes(4, "big"))
        done = start + len(run)
    parts += (name[done:].translate(_CHARACTERS), b"\x7f")
    return b"".join(parts)
