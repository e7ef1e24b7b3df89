"""Writing a dynamic loader cache in glibc's new format, for simulated hosts.

The order matters: the loader finds a SONAME by bisection, so rows stand in the order of glibc's own comparison. Reading
caches belongs to the engine (:mod:`nvgraft.ldcache`). On a real host or in a container ldconfig writes the cache, never this.
"""

import re
import struct
from collections.abc import Iterable

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, rows, size of the strings, byte order, extensions
_ROW = struct.Struct("<iIIIQ")  # flags, SONAME, path, OS version, hardware capabilities
_LITTLE_ENDIAN = 2

_LIBC6 = 0x0003
#: How `ldconfig -p` prints the architecture half of a row's flags. "64bit" is what it says of ppc64le.
_ARCHITECTURES = {
    "libc6": 0x0000,
    "libc6,x86-64": 0x0300,
    "libc6,64bit": 0x0500,
    "libc6,x32": 0x0800,
    "libc6,hard-float": 0x0900,
    "libc6,AArch64": 0x0A00,
    "libc6,soft-float": 0x0B00,
}


def cache(rows: Iterable[tuple[str, str, str]]) -> bytes:
    """Return a loader cache with ``rows``: SONAME, flags as `ldconfig -p` prints them, path.

    Rows of one SONAME and one architecture keep their order.

    :raises ValueError: flags that are not known.
    """
    entries = sorted(((soname, _flags(text), path) for soname, text, path in rows), key=_order, reverse=True)
    strings = bytearray()
    positions: dict[str, int] = {}
    base = _HEADER.size + _ROW.size * len(entries)
    table = bytearray()
    for soname, flags, path in entries:
        for text in (soname, path):
            if text not in positions:
                positions[text] = base + len(strings)
                strings += text.encode("utf-8", "surrogateescape") + b"\0"
        table += _ROW.pack(flags, positions[soname], positions[path], 0, 0)
    return _HEADER.pack(_MAGIC, len(entries), len(strings), _LITTLE_ENDIAN, 0) + bytes(table) + bytes(strings)


def _flags(text: str) -> int:
    if text not in _ARCHITECTURES:
        raise ValueError(f"unknown loader cache flags {text!r}: known are {'; '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[text] | _LIBC6


def _order(entry: tuple[str, int, str]) -> tuple[list[tuple[int, int]], int]:
    """Digits compare as one number and stand above every other character, all else byte by byte (glibc, _dl_cache_libcmp)."""
    runs = re.findall(rb"[0-9]+|[^0-9]", entry[0].encode("utf-8", "surrogateescape"))
    return [(1, int(run)) if run.isdigit() else (0, run[0]) for run in runs], entry[1]
