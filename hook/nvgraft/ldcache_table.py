"""A loader cache that rows are added to: glibc's new format, in which every glibc loader since 2.2 finds its libraries.

The rows of an existing cache are kept as they are, bytes and order, and only the places where something is added are
looked at: an image may have tens of thousands of rows, and a container's start waits. An old format is read, and written
as a new one. Which rows a container needs, and files and directories at all, are not this module's business.

The order is that of glibc's ldconfig, because the loader finds a name by bisection and takes the first row that fits: names
descending (:func:`nvgraft.ldcache.sort_key`), then flags descending, then rows of glibc-hwcaps subdirectories by their
name, then those of the older subdirectories, then plain ones in the order of the search path.
"""

import struct

from nvgraft import __version__
from nvgraft.ldcache import NAME_LIMIT, NEW_ENTRY, NEW_HEADER, NEW_MAGIC, find_part, sort_key
from nvgraft.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, rows, size of the strings, byte order, extensions
_ROW = struct.Struct("<iIIIQ")  # flags, SONAME, path, OS version, hardware capabilities
_SECTION = struct.Struct("<IIII")  # tag, flags, offset, size
_UNSET, _LITTLE_ENDIAN, _BYTE_ORDER = 0, 2, 3
_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR, _HWCAPS = 0, 1
_SECTIONS_LIMIT = 16  # glibc knows two

#: In the capabilities of a row: the low half is the number of a glibc-hwcaps subdirectory, the high half may hold an ISA level.
_NAMED = 1 << 62
_ISA_LEVELS = 0x3FF << 32

#: Rows of one name beyond which they are not put in order, and names of subdirectories that are read.
_GROUP_LIMIT = 1000
_HWCAPS_LIMIT = 256

#: How many names are looked at to find one of a directory's own files.
_LOOKS = 64

#: The kind of row that the order of the search path decides about.
_PLAIN = 2


class Row(Value):
    """One library: SONAME, the loader's flags, path; and, in a glibc-hwcaps subdirectory, its name and the ISA level needed."""

    __slots__ = ("flags", "hwcaps", "isa_level", "path", "soname")

    def __init__(self, soname: bytes, flags: int, path: bytes, hwcaps: bytes | None = None, isa_level: int = 0) -> None:
        self.soname = soname
        self.flags = flags
        self.path = path
        self.hwcaps = hwcaps
        self.isa_level = isa_level


class _Item:
    """A row in the making of a group: one of the table's, by its bytes, or a new one."""

    __slots__ = ("flags", "hwcap", "hwcaps", "packed", "path", "soname")

    def __init__(self, soname: bytes, flags: int, path: bytes, hwcap: int, hwcaps: bytes | None, packed: bytes = b"") -> None:
        self.soname = soname
        self.flags = flags
        self.path = path
        self.hwcap = hwcap
        self.hwcaps = hwcaps
        self.packed = packed

    @property
    def kind(self) -> int:
        """What stands before what among rows of one name and one architecture."""
        return 0 if self.hwcaps is not None else 1 if self.hwcap else _PLAIN


class Places:
    """The search path: which directory comes before which, under all the names that it has."""

    def __init__(self, ranks: "Mapping[bytes, int]") -> None:
        self._ranks = ranks

    def rank(self, path: bytes) -> int:
        """Return the rank of a file's directory; what is not on the search path comes after what is."""
        return self._ranks.get(path.rpartition(b"/")[0], 1 << 30)

    def same(self, one: bytes, other: bytes) -> bool:
        """Tell whether two paths are one file of the search path, or equal."""
        if one == other:
            return True
        rank = self.rank(one)
        return rank == self.rank(other) != 1 << 30 and one.rpartition(b"/")[2] == other.rpartition(b"/")[2]


class Table:
    """The rows of a loader cache. Values: adding and removing rows gives another table."""

    __slots__ = ("_hwcaps", "_keys", "_numbers", "_origin", "_rows", "_strings")

    def __init__(self, rows: bytes = b"", strings: bytes = b"", origin: int = 0, hwcaps: "Sequence[bytes]" = ()) -> None:
        """``origin`` is what the rows' offsets call the beginning of ``strings``."""
        self._rows = rows
        self._strings = strings
        self._origin = origin
        self._hwcaps = tuple(hwcaps)
        self._numbers = memoryview(rows).cast("I")  # six for each row, the second and third are positions of names
        self._keys: dict[int, bytes] = {}

    @classmethod
    def parse(cls, data: bytes) -> "Table":
        """Return the table of a cache in any format.

        :raises ValueError: when it is none, of another byte order, or damaged; a loader would not use it either.
        """
        part = find_part(data)
        if not part.new:
            return cls._from_old(data[part.first : part.end], data[part.end :])
        _magic, _count, size, order, extension = _HEADER.unpack_from(data, part.base)
        if order != _UNSET and order & _BYTE_ORDER != _LITTLE_ENDIAN:
            raise ValueError("it is of another byte order")
        strings = data[part.end : part.end + size]
        table = cls(data[part.first : part.end], strings, part.end - part.base)
        table._check()
        table._hwcaps = _hwcaps_names(data, part.base, extension)
        return table

    @classmethod
    def _from_old(cls, rows: bytes, strings: bytes) -> "Table":
        packed = b"".join([_ROW.pack(flags, key, value, 0, 0) for flags, key, value in struct.iter_unpack("<iII", rows)])
        table = cls(packed, strings)
        table._check()
        return table

    def _check(self) -> None:
        if not self._rows:
            return
        first, last = self._origin, self._origin + len(self._strings)
        for positions in (self._numbers[1::6], self._numbers[2::6]):
            if min(positions) < first or max(positions) >= last:
                raise ValueError("a name lies outside of its strings")
        if self._strings[-1:] != b"\0":
            raise ValueError("its last name does not end inside it")

    def __len__(self) -> int:
        return len(self._numbers) // 6

    def _text(self, position: int) -> bytes:
        start = position - self._origin
        end = self._strings.find(0, start, start + NAME_LIMIT)
        return self._strings[start : end if end >= 0 else start + NAME_LIMIT]  # any number of rows may name one that is endless

    def _key(self, index: int) -> bytes:
        key = self._keys.get(index)
        if key is None:
            key = self._keys[index] = sort_key(self._text(self._numbers[6 * index + 1]))
        return key

    def _item(self, index: int) -> _Item:
        packed = self._rows[index * NEW_ENTRY : (index + 1) * NEW_ENTRY]
        flags, key, value, _version, hwcap = _ROW.unpack(packed)
        return _Item(self._text(key), flags, self._text(value), hwcap, self._named(hwcap), packed)

    def _named(self, hwcap: int) -> bytes | None:
        if not hwcap or hwcap & ~_ISA_LEVELS & ~0xFFFFFFFF != _NAMED:
            return None
        number = hwcap & 0xFFFFFFFF
        return self._hwcaps[number] if number < len(self._hwcaps) else b""

    def has_directory(self, directory: bytes) -> bool:
        """Tell whether a file of ``directory`` itself is named; not found among very many of its subdirectories is no."""
        start = directory + b"/"
        found = self._strings.find(start)
        for _ in range(_LOOKS):
            if found < 0:
                return False
            end = self._strings.index(0, found)
            if (not found or not self._strings[found - 1]) and b"/" not in self._strings[found + len(start) : end]:
                return True
            found = self._strings.find(start, end)
        return False

    def entries(self) -> "Iterator[tuple[int, Row | None, bytes]]":
        """Yield each row's number, the row (None for what only older subdirectories of capabilities have), and its path."""
        for index in range(len(self)):
            item = self._item(index)
            row = None if item.kind == 1 else Row(item.soname, item.flags, item.path, item.hwcaps)
            yield index, row, item.path

    def without(self, indexes: "Set[int]") -> "Table":
        """Return the table without those rows."""
        kept = [self._rows[index * NEW_ENTRY : (index + 1) * NEW_ENTRY] for index in range(len(self)) if index not in indexes]
        return Table(b"".join(kept), self._strings, self._origin, self._hwcaps)

    def with_rows(self, wanted: "Sequence[Row]", places: Places) -> "Table":
        """Return the table with all of ``wanted``, itself when it has them already, each where the loader takes it first.

        Plain rows of a name that is wanted come in the order of ``places``; two paths to one file are one row.
        """
        table = self._with_names({row.hwcaps for row in wanted if row.hwcaps is not None})
        groups: dict[bytes, list[Row]] = {}
        for row in wanted:
            groups.setdefault(sort_key(row.soname), []).append(row)
        strings = _Strings(table._origin + len(table._strings))
        pieces: list[bytes] = []
        done = 0
        for key in sorted(groups, reverse=True):
            low, high = table._group(key)
            if high - low > _GROUP_LIMIT:
                high = low  # no cache of ldconfig's has that: ours come first, and what follows stays
            items = [table._item(index) for index in range(low, high)]
            merged = _merged(items, groups[key], places)
            if merged == items:
                continue
            pieces.append(table._rows[done * NEW_ENTRY : low * NEW_ENTRY])
            pieces += [item.packed or table._packed(item, strings) for item in merged]
            done = high
        if not pieces:
            return table
        pieces.append(table._rows[done * NEW_ENTRY :])
        return Table(b"".join(pieces), table._strings + strings.data(), table._origin, table._hwcaps)

    def _group(self, key: bytes) -> tuple[int, int]:
        """Return the range of rows whose name compares equal to ``key``; an empty one is where they would be."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._key(middle) > key:
                low = middle + 1
            else:
                high = middle
        while high < len(self) and high - low <= _GROUP_LIMIT and self._key(high) == key:
            high += 1
        return low, high

    def _packed(self, item: _Item, strings: "_Strings") -> bytes:
        hwcap = item.hwcap
        if item.hwcaps is not None:
            hwcap |= self._hwcaps.index(item.hwcaps)
        return _ROW.pack(item.flags, strings.position(item.soname), strings.position(item.path), 0, hwcap)

    def _with_names(self, names: "Set[bytes]") -> "Table":
        """Return the table with more names of glibc-hwcaps subdirectories; rows know them by number, in sorted order."""
        if names <= set(self._hwcaps):
            return self
        table = Table(self._rows, self._strings, self._origin, sorted({*names, *self._hwcaps}))
        numbers = [table._hwcaps.index(name) for name in self._hwcaps]
        rows = []
        for flags, key, value, version, hwcap in _ROW.iter_unpack(self._rows):
            number = hwcap & 0xFFFFFFFF
            if self._named(hwcap) is not None and number < len(numbers):
                hwcap = hwcap - number + numbers[number]
            rows.append(_ROW.pack(flags, key, value, version, hwcap))
        table._rows = b"".join(rows)
        return table

    def data(self) -> bytes:
        """Return the file: new format alone, little-endian, with the names of its glibc-hwcaps subdirectories."""
        origin = NEW_HEADER + len(self._rows)
        strings = self._strings
        positions = []
        for name in self._hwcaps:
            found = strings.find(name + b"\0")
            if found < 0:
                found = len(strings)
                strings += name + b"\0"
            positions.append(origin + found)
        header = _HEADER.pack(NEW_MAGIC, len(self), len(strings), _LITTLE_ENDIAN, -(-(origin + len(strings)) // 4) * 4)
        pad = b"\0" * (-(origin + len(strings)) % 4)
        return b"".join([header, self._moved(origin - self._origin), strings, pad, _extension(origin + len(strings) + len(pad), positions)])

    def _moved(self, distance: int) -> bytes:
        """Return the rows with ``distance`` added to both positions of each: one sum of two long numbers, not a loop.

        No field overflows into the next, because all positions lie inside of a file of at most SIZE_LIMIT bytes.
        """
        if not distance:
            return self._rows
        addend = int.from_bytes(_ROW.pack(0, abs(distance), abs(distance), 0, 0) * len(self), "little")
        number = int.from_bytes(self._rows, "little")
        return (number + addend if distance > 0 else number - addend).to_bytes(len(self._rows), "little")


class _Strings:
    """New names, each once, from position ``start`` on."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._positions: dict[bytes, int] = {}
        self._size = 0

    def position(self, text: bytes) -> int:
        position = self._positions.get(text)
        if position is None:
            position = self._positions[text] = self._start + self._size
            self._size += len(text) + 1
        return position

    def data(self) -> bytes:
        return b"".join([text + b"\0" for text in self._positions])


def _merged(items: list[_Item], rows: "Sequence[Row]", places: Places) -> list[_Item]:
    merged = list(items)
    for row in rows:
        hwcap = 0 if row.hwcaps is None else _NAMED | row.isa_level << 32
        new = _Item(row.soname, row.flags, row.path, hwcap, row.hwcaps)
        if not any(_same(new, item, places) for item in merged):
            merged.append(new)
    merged.sort(key=lambda item: (-item.flags, item.kind, item.hwcaps or b"", places.rank(item.path) if item.kind == _PLAIN else 0))
    return merged


def _same(one: _Item, other: _Item, places: Places) -> bool:
    if (one.flags, one.kind, one.soname, one.hwcaps) != (other.flags, other.kind, other.soname, other.hwcaps):
        return False
    return places.same(one.path, other.path)


def _extension(start: int, positions: "Sequence[int]") -> bytes:
    """Return the extension directory that stands at ``start`` of the file, with its sections."""
    names = struct.pack(f"<{len(positions)}I", *positions)
    generator = f"nvgraft {__version__}".encode()
    sections = [(_GENERATOR, generator)] if not names else [(_HWCAPS, names), (_GENERATOR, generator)]
    offset = start + 8 + len(sections) * _SECTION.size
    directory = struct.pack("<II", _EXTENSION_MAGIC, len(sections))
    for tag, content in sections:
        directory += _SECTION.pack(tag, 0, offset, len(content))
        offset += len(content)
    return directory + b"".join(content for _tag, content in sections)


def _hwcaps_names(data: bytes, base: int, offset: int) -> tuple[bytes, ...]:
    """Return the names of glibc-hwcaps subdirectories; none where the extension is damaged, as for a loader."""
    try:
        if not offset or offset % 4 or struct.unpack_from("<I", data, offset)[0] != _EXTENSION_MAGIC:
            return ()
        count = struct.unpack_from("<I", data, offset + 4)[0]
        for number in range(min(count, _SECTIONS_LIMIT)):
            tag, _flags, start, size = _SECTION.unpack_from(data, offset + 8 + number * _SECTION.size)
            if tag == _HWCAPS:
                if size // 4 > _HWCAPS_LIMIT:
                    return ()
                starts = [base + position for position in struct.unpack_from(f"<{size // 4}I", data, start)]
                return tuple(data[at : data.index(0, at, at + NAME_LIMIT)] for at in starts)
    except (struct.error, ValueError):
        pass
    return ()
