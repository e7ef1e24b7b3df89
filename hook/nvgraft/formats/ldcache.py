"""The loader cache, /etc/ld.so.cache: where its parts are, and how its names are sorted.

Three forms exist: the old libc5 format alone, the new one alone (glibc's default since 2.32), and
the new one appended to the old one. glibc and the reference read the new part where there is one.
:mod:`nvgraft.formats.ldcache_entries` reads the entries.
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

    :raises ValueError: ``data`` is not a loader cache of this machine's byte order, or is
        truncated.
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
