"""Reading the dynamic loader's cache, /etc/ld.so.cache.

Three files exist in the wild: the old libc5 format alone, the new one alone (glibc's default since 2.32), and the new one
appended to the old one. Where a new part exists it is the one that glibc and the reference read. Which of the libraries
are the driver's is not decided here.
"""

import struct

from nvgraft.values import Value

_OLD_MAGIC = b"ld.so-1.7.0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER, _NEW_ENTRY = 48, 24

#: Bytes of a name in it: a path that is longer cannot be opened.
_NAME_LIMIT = 4096

#: The largest cache that is read, in bytes: twenty times the largest seen on a full distribution.
SIZE_LIMIT = 16 << 20

_ELF = 0x0001  # set for every libc5 and libc6 entry
_ARCHITECTURE = 0xFF00

#: machine (uname -m) -> the architecture bits of its 64-bit and 32-bit libraries (reference behaviour 5.2).
ARCHITECTURES: dict[str, tuple[int, int | None]] = {
    "x86_64": (0x0300, 0x0000),
    "aarch64": (0x0A00, 0x0900),
    "ppc64le": (0x0500, None),
}

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
    """One library: its SONAME, the architecture bits of its flags, and where it lies."""

    __slots__ = ("architecture", "path", "soname")

    def __init__(self, soname: str, architecture: int, path: str) -> None:
        self.soname = soname
        self.architecture = architecture
        self.path = path


def entry_from_listing(soname: str, flags: str, path: str) -> CacheEntry | None:
    """Return the entry that `ldconfig -p` prints as ``soname (flags) => path``; None for a library of no known libc."""
    words = [word.strip() for word in flags.split(",")]
    if words[0] not in {"libc6", "libc5", "ELF"}:
        return None
    architecture = next((_SPELLINGS[word] for word in words[1:] if word in _SPELLINGS), 0)
    return CacheEntry(soname, architecture, path)


def listing_flags(entry: CacheEntry) -> str:
    """Return the flags of ``entry`` as `ldconfig -p` prints them: the inverse of :func:`entry_from_listing`."""
    word = next((word for word, bits in _SPELLINGS.items() if bits == entry.architecture), "")
    return f"libc6,{word}" if word else "libc6"


def parse(data: bytes, prefixes: tuple[bytes, ...] = (b"",)) -> list[CacheEntry]:
    """Return the entries of a loader cache, in its order, whose SONAME starts with one of ``prefixes``.

    :raises ValueError: when ``data`` is not a loader cache of this machine's byte order, or is cut short.
    """
    if data.startswith(_OLD_MAGIC):
        if len(data) < _OLD_HEADER:
            raise ValueError("it ends inside its header")
        count = struct.unpack_from("<I", data, 12)[0]
        end = _OLD_HEADER + count * _OLD_ENTRY
        if end > len(data):
            raise ValueError(f"it promises {count} entries and ends before them")
        new = -(-end // 8) * 8
        if data.startswith(_NEW_MAGIC, new):
            return _parse_new(data, new, prefixes)
        return _parse_old(data, count, end, prefixes)
    if data.startswith(_NEW_MAGIC):
        return _parse_new(data, 0, prefixes)
    raise ValueError("it does not start like a loader cache" if data else "it is empty")


def _parse_new(data: bytes, base: int, prefixes: tuple[bytes, ...]) -> list[CacheEntry]:
    if len(data) < base + _NEW_HEADER:
        raise ValueError("it ends inside its header")
    count = struct.unpack_from("<I", data, base + 20)[0]
    first = base + _NEW_HEADER
    if first + count * _NEW_ENTRY > len(data):
        raise ValueError(f"it promises {count} entries and ends before them")
    rows = struct.iter_unpack("<iIIIQ", memoryview(data)[first : first + count * _NEW_ENTRY])
    return [
        CacheEntry(_string(data, base + key), flags & _ARCHITECTURE, _string(data, base + value))
        for flags, key, value, _osversion, _hwcap in rows
        if flags & _ELF and data.startswith(prefixes, base + key)
    ]


def _parse_old(data: bytes, count: int, strings: int, prefixes: tuple[bytes, ...]) -> list[CacheEntry]:
    rows = struct.iter_unpack("<iII", memoryview(data)[_OLD_HEADER : _OLD_HEADER + count * _OLD_ENTRY])
    return [
        CacheEntry(_string(data, strings + key), flags & _ARCHITECTURE, _string(data, strings + value))
        for flags, key, value in rows
        if flags & _ELF and data.startswith(prefixes, strings + key)
    ]


def _string(data: bytes, offset: int) -> str:
    # Bounded, since any number of entries may point into one name that is as long as the file.
    end = data.find(b"\0", offset, offset + _NAME_LIMIT + 1)
    if end < 0 or offset >= len(data):
        raise ValueError(f"a name at offset {offset} does not end inside it, or is longer than {_NAME_LIMIT} bytes")
    return data[offset:end].decode("utf-8", "surrogateescape")


#: C's isdigit(): str.isdigit() takes digits of other scripts as well, which int() may refuse.
_DIGITS = frozenset("0123456789")


def compare_names(one: str, other: str) -> int:
    """Compare two library names as glibc does (_dl_cache_libcmp): runs of digits by value, all else by character.

    Return a negative number, 0 or a positive one. ldconfig lets the greatest name of a SONAME own its link.
    """
    i = j = 0
    while i < len(one):
        if one[i] in _DIGITS:
            if j >= len(other) or other[j] not in _DIGITS:
                return 1
            start, i = i, _digits_end(one, i)
            other_start, j = j, _digits_end(other, j)
            difference = int(one[start:i]) - int(other[other_start:j])
            if difference:
                return difference
        elif j < len(other) and other[j] in _DIGITS:
            return -1
        elif j >= len(other) or one[i] != other[j]:
            return ord(one[i]) - (ord(other[j]) if j < len(other) else 0)
        else:
            i += 1
            j += 1
    return 0 if j >= len(other) else -ord(other[j])


def _digits_end(text: str, start: int) -> int:
    while start < len(text) and text[start] in _DIGITS:
        start += 1
    return start
