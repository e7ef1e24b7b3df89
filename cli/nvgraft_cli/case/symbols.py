"""Read which symbols an ELF file defines, and which it needs without saying of which version.

A symbol with a version is not told: the loader checks first that the library has the version. What
is private to glibc is: each release has that version, and other symbols in it.
"""

import struct
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from nvgraft.formats import elf
from nvgraft.formats.tree import Tree
from nvgraft.host.snapshot import SnapshotTree
from nvgraft_cli.case.dynamic import look, versions_needed
from nvgraft_cli.case.file_changes import TextTree
from nvgraft_cli.case.layered_tree import LayeredTree

_DT_HASH, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_BIND_NOW, _DT_FLAGS = 4, 6, 7, 8, 24, 30
_DT_GNU_HASH, _DT_VERSYM, _DT_FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB
_DF_BIND_NOW, _DF_STATIC_TLS, _DF_1_NOW = 0x8, 0x10, 0x1
_PT_TLS = 7
_STB_LOCAL, _STB_WEAK, _SHN_UNDEF = 0, 2, 0
#: Versions of a symbol up to this one are none; the bit above says that a version is hidden.
_UNVERSIONED, _VERSION_BITS = 1, 0x7FFF
#: The version of what parts of glibc have for one another.
PRIVATE = "GLIBC_PRIVATE"
#: The most symbols that are read of a file (libstdc++ has 6,000) and of a container, and the
#: longest name: the files are those of strangers.
_MOST_SYMBOLS, _MOST_OF_CONTAINER, _LONGEST_NAME = 8000, 400_000, 4096


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of one object.

    :ivar defined: the names that it defines.
    :ivar needed: the names that it needs, in the order of its table, without weak ones.
    :ivar needed_at_once: of these, what data refer to; all of them if it binds at once.
    :ivar static_tls: bytes of thread-local storage that have to be beside the program's.
    :ivar private: of the needed names, those that another part of the same glibc defines.
    """

    defined: frozenset[bytes]
    needed: tuple[bytes, ...]
    needed_at_once: tuple[bytes, ...]
    static_tls: int
    private: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class _KnownSymbols:
    """What was read of a tree: many modules need the same libraries.

    :ivar files: path -> symbols; None where they are not known.
    :ivar left: the number of symbols that may still be read.
    """

    files: dict[str, Symbols | None] = field(default_factory=dict)
    left: int = _MOST_OF_CONTAINER


_READ: WeakKeyDictionary[Tree, _KnownSymbols] = WeakKeyDictionary()


def read_symbols(tree: Tree, path: str) -> Symbols | None:
    """Return the symbols of the file at a resolved ``path``; None where they are not known.

    They are not known in a snapshot, and of a file whose tables are damaged or very large.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    if isinstance(tree, TextTree | SnapshotTree):
        return None
    known = _READ.setdefault(tree, _KnownSymbols())
    if path not in known.files:
        symbols = _read(tree, path) if known.left > 0 else None
        known.left -= 0 if symbols is None else len(symbols.defined) + len(symbols.needed)
        known.files[path] = symbols
    return known.files[path]


def _read(tree: Tree, path: str) -> Symbols | None:
    try:
        return look(tree, path, _symbols)
    except (OSError, ValueError, struct.error):
        return None


def _symbols(content: int | elf.FileContent) -> Symbols:
    file = elf.File(content)
    segments = elf.segments_of(file)
    tags = dict(elf.dynamic_entries(file, segments))
    count = _count(file, tags, segments)
    if count > _MOST_SYMBOLS:
        raise ValueError("it has too many symbols")
    wide = file.bits == 64
    layout = struct.Struct("<IBBHQQ" if wide else "<IIIBBH")
    name_at, info_at, section_at = (0, 1, 3) if wide else (0, 3, 5)

    def table(tag: int, length: int) -> bytes:
        return file.read(elf.file_offset(tags[tag], segments), length) if tag in tags else b""

    versions = struct.unpack(f"<{count}H", table(_DT_VERSYM, 2 * count) or bytes(2 * count))
    strings = table(elf.DT_STRTAB, tags.get(elf.DT_STRSZ, 0))
    names = elf.Names(file, segments, tags.get(elf.DT_STRTAB, 0), tags.get(elf.DT_STRSZ, 0))
    needs = versions_needed(file, names, tags, segments)
    of_glibc = {version.number for version in needs if version.name == PRIVATE}
    defined, needed, private = set(), {}, set()
    for index, row in enumerate(layout.iter_unpack(table(_DT_SYMTAB, layout.size * count))):
        binding, at = row[info_at] >> 4, row[name_at]
        if binding == _STB_LOCAL:
            continue
        name = strings[at : strings.index(b"\0", at, at + _LONGEST_NAME)]
        if row[section_at] != _SHN_UNDEF:
            defined.add(name)
        elif binding != _STB_WEAK:
            version = versions[index] & _VERSION_BITS
            if version <= _UNVERSIONED or version in of_glibc:
                needed[index] = name
            if version in of_glibc:
                private.add(name)
    flags, more = tags.get(_DT_FLAGS, 0), tags.get(_DT_FLAGS_1, 0)
    now = bool(flags & _DF_BIND_NOW or more & _DF_1_NOW or _DT_BIND_NOW in tags)
    rows = table(_DT_RELA, tags.get(_DT_RELASZ, 0)) if needed and wide and not now else b""
    by_data = {info >> 32 for _offset, info, _addend in struct.iter_unpack("<QQq", rows)}
    return Symbols(
        frozenset(defined),
        tuple(needed.values()),
        tuple(name for index, name in needed.items() if now or index in by_data),
        _tls(file) if flags & _DF_STATIC_TLS else 0,
        frozenset(private),
    )


def _count(file: elf.File, tags: dict[int, int], segments: list[tuple[int, int, int, int]]) -> int:
    """Return the number of symbols, which only the hash tables tell.

    Sources: the System V ABI; for GNU's table binutils' bfd/elflink.c.
    """
    if _DT_HASH in tags:
        _buckets, count = struct.unpack(
            "<II", file.read(elf.file_offset(tags[_DT_HASH], segments), 8)
        )
        return int(count)
    if _DT_GNU_HASH not in tags:
        return 0
    start = elf.file_offset(tags[_DT_GNU_HASH], segments)
    buckets, first, bloom, _shift = struct.unpack("<IIII", file.read(start, 16))
    start += 16 + bloom * file.bits // 8
    last = max(struct.unpack(f"<{buckets}I", file.read(start, 4 * buckets)), default=0)
    if last < first:
        return int(first)
    # The chain of the last bucket ends the table: its last entry is odd.
    start += 4 * buckets
    index = last - first
    while not struct.unpack("<I", file.read(start + 4 * index, 4))[0] & 1:
        index += 1
    return int(first + index + 1)


def _tls(file: elf.File) -> int:
    """Return the bytes of the thread-local storage of a file."""
    size, count = file.header[8], file.header[9]
    rows = struct.iter_unpack(file.layout.program, file.read(file.header[4], size * count))
    in_memory = 6 if file.bits == 64 else 5
    return sum(row[in_memory] for row in rows if row[0] == _PT_TLS)
