"""Read the entries of a loader cache, /etc/ld.so.cache, and those that ``ldconfig -p`` prints.

:mod:`nvgraft.formats.ldcache` has the parts of the file and the names, and
:mod:`nvgraft.formats.ldcache_table` changes caches.
"""

from __future__ import annotations

from nvgraft.base._stdlib import struct
from nvgraft.base.values import Value
from nvgraft.formats.ldcache import NAME_LIMIT, CachePart, find_part

_ELF = 0x0001  # set for every libc5 and libc6 entry
_ARCHITECTURE = 0xFF00


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
