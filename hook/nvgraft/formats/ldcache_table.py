"""Add rows to a loader cache, in glibc's new format, which every glibc loader since 2.2 reads.

Existing rows keep their bytes and their order, and only rows near an addition are read: an image
may have tens of thousands of rows, and a container's start waits. An old format is read, and
written as a new one.

The order is that of glibc's ldconfig, because the loader finds a name by bisection and takes the
first row that fits: names descending (:func:`nvgraft.formats.ldcache.sort_key`), then flags
descending, then rows of glibc-hwcaps subdirectories by name, then rows of the older subdirectories,
then plain rows in the order of the search path.
"""

from __future__ import annotations

from nvgraft import __version__
from nvgraft.base._stdlib import bisect_left, struct
from nvgraft.base.values import Value
from nvgraft.formats.ldcache import (
    NAME_LIMIT,
    NEW_ENTRY,
    NEW_HEADER,
    NEW_MAGIC,
    CachePart,
    find_part,
    sort_key,
)

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

#: The hwcap field of a row in a glibc-hwcaps subdirectory: this bit, the number of the subdirectory
#: in the low half, and an ISA level in the high half.
_NAMED = 1 << 62
_ISA_LEVELS = 0x3FF << 32

#: The most rows of one name that are sorted, and the most subdirectory names that are read.
_GROUP_LIMIT = 1000
_HWCAPS_LIMIT = 256

#: The most names that are searched for a file of a directory itself.
_LOOKS = 64

#: Kinds of rows, in sorting order: in a glibc-hwcaps subdirectory, in an older subdirectory, plain.
_HWCAPS_ROW, _OLDER, _PLAIN = range(3)

#: Rows that are processed together, so that they stay in the processor's cache.
_AT_ONCE = 2048


class Row(Value):
    """One library: SONAME, flags and path; in a glibc-hwcaps subdirectory its name and ISA level
    too.

    :param older: whether an existing row is of one of the older subdirectories.
    :param packed: the bytes of an existing row of a table that is worked on.
    """

    def __init__(
        self,
        soname: bytes,
        flags: int,
        path: bytes,
        hwcaps: bytes | None = None,
        isa_level: int = 0,
        *,
        older: bool = False,
        packed: bytes | memoryview = b"",
    ) -> None:
        self.soname = soname
        self.flags = flags
        self.path = path
        self.hwcaps = hwcaps
        self.isa_level = isa_level
        self.older = older
        self.packed = packed

    @property
    def kind(self) -> int:
        """The sorting order among rows of one name and one architecture."""
        return _HWCAPS_ROW if self.hwcaps is not None else _OLDER if self.older else _PLAIN


class Places:
    """The search path of a loader.

    :param ranks: directory, under each of its names -> its place in the search path.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        self._ranks = ranks

    def rank(self, path: bytes) -> int:
        """Return the rank of a file's directory; a directory that is not in the search path comes
        last.
        """
        return self._ranks.get(path.rpartition(b"/")[0], 1 << 30)

    def same(self, one: bytes, other: bytes) -> bool:
        """Tell whether two paths are equal or name the same file of the search path."""
        if one == other:
            return True
        rank = self.rank(one)
        return (
            rank == self.rank(other) != 1 << 30
            and one.rpartition(b"/")[2] == other.rpartition(b"/")[2]
        )


class _RowNames:
    """The names that rows point to: those of a file, then those that were added.

    ``data`` is the whole file, so that megabytes need not be copied; its names are
    ``data[begin:end]``.

    :param origin: the position that rows give to the beginning of ``data``.
    """

    def __init__(
        self, data: bytes = b"", begin: int = 0, end: int = 0, origin: int = 0, added: bytes = b""
    ) -> None:
        self._data = data
        self._begin = begin
        self._end = end
        self._origin = origin
        self._added = added

    @property
    def first(self) -> int:
        """The position of the first name."""
        return self._origin + self._begin

    @property
    def last(self) -> int:
        """The position behind the last name."""
        return self._origin + self._end + len(self._added)

    def check(self, positions: Sequence[int]) -> None:
        """Check that every position is inside the names, and that the last name is terminated.

        :raises ValueError: otherwise.
        """
        if min(positions) < self.first or max(positions) >= self.last:
            raise ValueError("a name lies outside of its strings")
        if self._data[self._end - 1]:
            raise ValueError("its last name does not end inside it")

    def text(self, position: int) -> bytes:
        """Return the name at ``position``."""
        source, start = self._data, position - self._origin
        if start >= self._end:
            source, start = self._added, start - self._end
        end = source.find(0, start, start + NAME_LIMIT)
        # Bounded: any number of rows may point to one name without an end.
        return source[start : end if end >= 0 else start + NAME_LIMIT]

    def below(self, directories: Sequence[bytes], positions: Sequence[int]) -> list[int]:
        """Return which ``positions`` are those of paths below the directories, as indexes."""
        starts = tuple(directory + b"/" for directory in directories)
        data, origin, end = self._data, self._origin, self._end
        added, behind = self._added, self._origin + self._end
        return [
            index
            for index, position in enumerate(positions)
            if (
                data.startswith(starts, position - origin, end)
                if position < behind
                else added.startswith(starts, position - behind)
            )
        ]

    def has_file_of(self, directory: bytes) -> bool:
        """Tell whether a file of ``directory`` itself is named; not found among very many of its
        subdirectories is no.
        """
        start = directory + b"/"
        at = self._data.find(start, self._begin, self._end)
        for _ in range(_LOOKS):
            end = self._data.find(0, at, self._end) if at >= 0 else -1
            # in a cache without rows nothing has checked that the last name is terminated
            if end < 0:
                return False
            if (at == self._begin or not self._data[at - 1]) and b"/" not in self._data[
                at + len(start) : end
            ]:
                return True
            at = self._data.find(start, end, self._end)
        return False

    def with_added(self, more: bytes) -> _RowNames:
        """Return these names followed by ``more``, which begins at position :attr:`last`."""
        return _RowNames(self._data, self._begin, self._end, self._origin, self._added + more)

    def position(self, name: bytes) -> int:
        """Return the position of a name (it may be the end of a longer one), or a negative
        number.
        """
        ended = name + b"\0"
        at = self._data.find(ended, self._begin, self._end)
        if at < 0 <= (added := self._added.find(ended)):
            at = self._end + added
        return self._origin + at if at >= 0 else -1

    def pieces(self) -> list[bytes | memoryview]:
        """Return the names as pieces to be concatenated."""
        return [memoryview(self._data)[self._begin : self._end], self._added]


class Table:
    """The rows of a loader cache. Adding and removing rows returns another table."""

    def __init__(
        self,
        rows: bytes | bytearray | memoryview = b"",
        names: _RowNames | None = None,
        hwcaps: Sequence[bytes] = (),
    ) -> None:
        self._rows = memoryview(rows)
        self._names = names or _RowNames()
        self._hwcaps = tuple(hwcaps)
        # Six numbers for each row, of which the second and third are positions of names.
        self._numbers = self._rows.cast("I")
        self._keys: dict[int, bytes] = {}

    @classmethod
    def parse(cls, data: bytes) -> Table:
        """Return the table of a loader cache in any format.

        :raises ValueError: the data is not a loader cache, has another byte order, or is damaged. A
            loader does not use such a file either.
        """
        part = find_part(data)
        if not part.new:
            return cls._from_old(data, part)
        _magic, _count, size, order, extension = _HEADER.unpack_from(data, part.base)
        if order != _UNSET and order & _BYTE_ORDER != _LITTLE_ENDIAN:
            raise ValueError("it is of another byte order")
        names = _RowNames(data, part.end, min(part.end + size, len(data)), -part.base)
        table = cls(
            memoryview(data)[part.first : part.end],
            names,
            _hwcaps_names(data, part.base, extension),
        )
        table._check()
        return table

    @classmethod
    def _from_old(cls, data: bytes, part: CachePart) -> Table:
        packed = bytearray()
        for start in range(part.first, part.end, 12 * _AT_ONCE):
            rows = memoryview(data)[start : min(start + 12 * _AT_ONCE, part.end)]
            packed += b"".join([_ROW.pack(*row, 0, 0) for row in struct.iter_unpack("<iII", rows)])
        table = cls(packed, _RowNames(data, part.end, len(data), -part.end))
        table._check()
        return table

    def _check(self) -> None:
        for start in range(0, len(self._numbers), 6 * _AT_ONCE):
            for column in (1, 2):
                self._names.check(self._numbers[start + column : start + 6 * _AT_ONCE : 6].tolist())

    def __len__(self) -> int:
        return len(self._numbers) // 6

    def _key(self, index: int) -> bytes:
        key = self._keys.get(index)
        if key is None:
            key = self._keys[index] = sort_key(self._names.text(self._numbers[6 * index + 1]))
        return key

    def _item(self, index: int) -> Row:
        packed = self._rows[index * NEW_ENTRY : (index + 1) * NEW_ENTRY]
        flags, key, value, _version, hwcap = _ROW.unpack(packed)
        hwcaps = self._named(hwcap)
        return Row(
            self._names.text(key),
            flags,
            self._names.text(value),
            hwcaps,
            0 if hwcaps is None else (hwcap & _ISA_LEVELS) >> 32,
            older=hwcaps is None and hwcap != 0,
            packed=packed,
        )

    def _named(self, hwcap: int) -> bytes | None:
        if not hwcap or hwcap & ~_ISA_LEVELS & ~0xFFFFFFFF != _NAMED:
            return None
        number = hwcap & 0xFFFFFFFF
        return self._hwcaps[number] if number < len(self._hwcaps) else b""

    def has_file_of(self, directory: bytes) -> bool:
        """Tell whether a file of ``directory`` itself is named; not found among very many of its
        subdirectories is no.
        """
        return self._names.has_file_of(directory)

    def below(self, directories: Sequence[bytes]) -> Iterator[tuple[int, Row]]:
        """Yield index and row of each library below the directories, but not of older
        subdirectories.
        """
        for start in range(0, len(self), _AT_ONCE):
            positions = self._numbers[6 * start + 2 : 6 * (start + _AT_ONCE) : 6].tolist()
            for index in self._names.below(directories, positions):
                row = self._item(start + index)
                if not row.older:
                    yield start + index, row

    def files_of(self, directories: Sequence[bytes]) -> dict[bytes, int]:
        """Return name -> flags of each plain row for a file of the directories themselves whose
        SONAME is the name of the file.
        """
        found: dict[bytes, int] = {}
        numbers = self._numbers
        positions = numbers[2::6].tolist()
        for index in self._names.below(directories, positions):
            at = 6 * index
            if numbers[at + 4] or numbers[at + 5]:
                continue
            parent, _, name = self._names.text(positions[index]).rpartition(b"/")
            if parent in directories and (
                numbers[at + 1] == positions[index] + len(parent) + 1
                or self._names.text(numbers[at + 1]) == name
            ):
                found[name] = numbers[at]
        return found

    def lookup(self, soname: bytes) -> list[Row]:
        """Return the rows that a loader finds for a name, in order. Those of older subdirectories
        count for loaders before glibc 2.37 alone.
        """
        low, high = self._group(sort_key(soname))
        return [self._item(index) for index in range(low, high)]

    def without(self, indexes: Set[int]) -> Table:
        """Return the table without the rows of these indexes."""
        kept, done = [], 0
        for index in sorted(indexes):
            kept.append(self._rows[done * NEW_ENTRY : index * NEW_ENTRY])
            done = index + 1
        kept.append(self._rows[done * NEW_ENTRY :])
        return Table(b"".join(kept), self._names, self._hwcaps)

    def with_rows(self, additions: Sequence[Row], places: Places) -> Table:
        """Return the table with all of ``additions``, each where the loader takes it first.

        The result is this table when it has them already. Plain rows of an added name are put in
        the order of ``places``; two paths to one file are one row.
        """
        table = self._with_names({row.hwcaps for row in additions if row.hwcaps is not None})
        keys = {soname: sort_key(soname) for soname in {row.soname for row in additions}}
        groups: dict[bytes, list[Row]] = {}
        for row in additions:
            groups.setdefault(keys[row.soname], []).append(row)
        names = _NewNames(table._names.last)
        pieces: list[bytes | memoryview] = []
        done = 0
        for key in sorted(groups, reverse=True):
            low, high = table._group(key)
            if high - low > _GROUP_LIMIT:
                # ldconfig never writes so many: ours come first, the others stay as they are
                high = low
            rows = [table._item(index) for index in range(low, high)]
            merged = _merged(rows, groups[key], places)
            if merged == rows:
                continue
            pieces.append(table._rows[done * NEW_ENTRY : low * NEW_ENTRY])
            pieces += [row.packed or table._packed(row, names) for row in merged]
            done = high
        if not pieces:
            return table
        pieces.append(table._rows[done * NEW_ENTRY :])
        return Table(b"".join(pieces), table._names.with_added(names.data()), table._hwcaps)

    def _group(self, key: bytes) -> tuple[int, int]:
        """Return the range of rows whose name compares equal to ``key``; an empty range is where to
        insert.
        """
        rows = range(len(self))  # the greatest name comes first
        low = high = bisect_left(rows, True, key=lambda index: self._key(index) <= key)
        while high < len(self) and high - low <= _GROUP_LIMIT and self._key(high) == key:
            high += 1
        return low, high

    def _packed(self, row: Row, names: _NewNames) -> bytes:
        hwcap = 0
        if row.hwcaps is not None:
            hwcap = _NAMED | row.isa_level << 32 | self._hwcaps.index(row.hwcaps)
        return _ROW.pack(row.flags, names.position(row.soname), names.position(row.path), 0, hwcap)

    def _with_names(self, names: Set[bytes]) -> Table:
        """Return the table with more glibc-hwcaps subdirectories, which rows name by number in
        sorted order.
        """
        if names <= set(self._hwcaps):
            return self
        hwcaps = sorted({*names, *self._hwcaps})
        numbers = [hwcaps.index(name) for name in self._hwcaps]
        rows = bytearray()
        for flags, key, value, version, hwcap in _ROW.iter_unpack(self._rows):
            number = hwcap & 0xFFFFFFFF
            if self._named(hwcap) is not None and number < len(numbers):
                hwcap = hwcap - number + numbers[number]
            rows += _ROW.pack(flags, key, value, version, hwcap)
        return Table(rows, self._names, hwcaps)

    def data(self) -> bytes:
        """Return the file: the new format alone, little-endian, with its glibc-hwcaps extension."""
        names = self._names
        for name in self._hwcaps:
            if names.position(name) < 0:
                names = names.with_added(name + b"\0")
        begin = NEW_HEADER + len(self._rows)
        end = begin + names.last - names.first
        pad = -end % 4
        header = _HEADER.pack(NEW_MAGIC, len(self), end - begin, _LITTLE_ENDIAN, end + pad)
        extension = _extension(
            end + pad, [begin + names.position(name) - names.first for name in self._hwcaps]
        )
        return b"".join(
            [header, *self._moved(begin - names.first), *names.pieces(), bytes(pad), extension]
        )

    def _moved(self, distance: int) -> Iterator[bytes | memoryview]:
        """Yield the rows with ``distance`` added to both positions of each.

        Many rows are added as one long integer. No field overflows into the next one, because all
        positions are inside a file of at most SIZE_LIMIT bytes.
        """
        if not distance:
            yield self._rows
            return
        at_once = min(len(self), _AT_ONCE)
        addend = int.from_bytes(
            _ROW.pack(0, abs(distance), abs(distance), 0, 0) * at_once, "little"
        )
        for start in range(0, len(self._rows), _AT_ONCE * NEW_ENTRY):
            rows = self._rows[start : start + _AT_ONCE * NEW_ENTRY]
            number = int.from_bytes(rows, "little")
            if len(rows) < at_once * NEW_ENTRY:
                addend &= (1 << 8 * len(rows)) - 1
            yield (number + addend if distance > 0 else number - addend).to_bytes(
                len(rows), "little"
            )


class _NewNames:
    """Names to be added, each once, from position ``start`` on."""

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


def _merged(rows: list[Row], additions: Sequence[Row], places: Places) -> list[Row]:
    if not rows and len(additions) == 1:  # most names have one row
        return list(additions)
    merged = list(rows)
    for new in additions:
        if not any(_same(new, row, places) for row in merged):
            merged.append(new)
    merged.sort(
        key=lambda row: (
            -row.flags,
            row.kind,
            row.hwcaps or b"",
            places.rank(row.path) if row.kind == _PLAIN else 0,
        )
    )
    return merged


def _same(one: Row, other: Row, places: Places) -> bool:
    if (one.flags, one.kind, one.soname, one.hwcaps) != (
        other.flags,
        other.kind,
        other.soname,
        other.hwcaps,
    ):
        return False
    return places.same(one.path, other.path)


def _extension(start: int, positions: Sequence[int]) -> bytes:
    """Return the extension directory, at offset ``start`` of the file, with its sections."""
    names = struct.pack(f"<{len(positions)}I", *positions)
    generator = f"nvgraft {__version__}".encode()
    sections = (
        [(_GENERATOR, generator)] if not names else [(_HWCAPS, names), (_GENERATOR, generator)]
    )
    offset = start + 8 + len(sections) * _SECTION.size
    directory = struct.pack("<II", _EXTENSION_MAGIC, len(sections))
    for tag, content in sections:
        directory += _SECTION.pack(tag, 0, offset, len(content))
        offset += len(content)
    return directory + b"".join(content for _tag, content in sections)


def _hwcaps_names(data: bytes, base: int, offset: int) -> tuple[bytes, ...]:
    """Return the names of glibc-hwcaps subdirectories; none if the extension is damaged, as a
    loader does.
    """
    if not offset or offset % 4 or offset + 8 > len(data):
        return ()
    magic, count = struct.unpack_from("<II", data, offset)
    if magic != _EXTENSION_MAGIC:
        return ()
    for place in range(
        offset + 8, offset + 8 + min(count, _SECTIONS_LIMIT) * _SECTION.size, _SECTION.size
    ):
        if place + _SECTION.size > len(data):
            return ()
        tag, _flags, start, size = _SECTION.unpack_from(data, place)
        if tag == _HWCAPS:
            if size // 4 > _HWCAPS_LIMIT or start + size // 4 * 4 > len(data):
                return ()
            try:
                starts = [
                    base + position
                    for position in struct.unpack_from(f"<{size // 4}I", data, start)
                ]
                return tuple(data[at : data.index(0, at, at + NAME_LIMIT)] for at in starts)
            except ValueError:  # a name is not terminated
                return ()
    return ()
