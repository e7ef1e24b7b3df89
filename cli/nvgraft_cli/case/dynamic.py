"""Read what a dynamic loader reads of an ELF file: facts, search paths and symbol versions.

The file may be live, in an image, or recorded in a snapshot. Versions are read through the dynamic
section, as the loader does: section headers may be missing or wrong.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from nvgraft.formats import elf
from nvgraft.formats.tree import LiveTree, Tree
from nvgraft.host.snapshot import SnapshotTree
from nvgraft_cli.case.file_changes import UNKNOWN, TextTree
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.layered_tree import LayeredTree

_DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1, _DT_VERDEF, _DT_VERNEED = (
    15,
    29,
    0x6FFFFFFB,
    0x6FFFFFFC,
    0x6FFFFFFE,
)
_DF_1_NODEFLIB, _DF_1_PIE = 0x800, 0x08000000
_ET_EXEC, _ET_DYN = 2, 3
_VER_FLG_WEAK = 2
#: Where a file says its operating system, and what glibc's loader takes: none, or GNU.
_OS_ABI_AT, _OS_ABIS = 7, (0, 3)
_PT_LOAD = 1

_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")

#: The most bytes of an RPATH or RUNPATH; Nix and Bazel write several KiB.
_PATH_LIMIT = 64 << 10
#: The most bytes of the strings of one file in which dlopen() is looked for; Python's have 250 KiB.
_STRINGS_LIMIT = 512 << 10
#: Bytes of them that are looked at together.
_STRINGS_STEP = 1 << 20
#: Bytes of the header of a 32-bit file, and of a text that a script writes.
_SHORT, _TEXT_LIMIT = 52, 1 << 20

#: Tree -> what was read of its files, by their paths. A tree reads its nodes once as well, and
#: several plans are made for one.
_READ: WeakKeyDictionary[Tree, dict[str, "Dynamic"]] = WeakKeyDictionary()


_Answer = TypeVar("_Answer")


class BadElf(Exception):
    """A file that the loader rejects; the text is the loader's message."""


class NotRecorded(OSError):
    """A file whose content a snapshot does not record."""


@dataclass(frozen=True, slots=True)
class SearchPaths:
    """The search paths of an object: DT_RPATH and DT_RUNPATH unexpanded, None if absent.

    :ivar flags: DT_FLAGS_1.
    """

    rpath: str | None = None
    runpath: str | None = None
    flags: int = 0

    @property
    def no_default_directories(self) -> bool:
        """DF_1_NODEFLIB: the loader skips its default directories, and cache entries in them."""
        return bool(self.flags & _DF_1_NODEFLIB)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """What the loader reads of one object. Facts that a snapshot does not record are None.

    :ivar versions_needed: (library, version) pairs that the loader requires.
    :ivar versions_defined: the versions that the object defines.
    :ivar type: e_type; the driver's files, which snapshots record, are shared objects.
    :ivar os_abi: the operating system, of e_ident.
    """

    bits: int
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    interp: str | None
    search: SearchPaths | None
    versions_needed: tuple[tuple[str, str], ...] | None
    versions_defined: tuple[str, ...] | None
    type: int = _ET_DYN
    os_abi: int = 0

    @property
    def refused_as_library(self) -> str:
        """Why glibc's loader (2.31 and later) takes it for no library, in its words, or ""."""
        if self.os_abi not in _OS_ABIS:
            return "ELF file OS ABI invalid"
        if self.type == _ET_EXEC:
            return "cannot dynamically load executable"
        if self.search is not None and self.search.flags & _DF_1_PIE:
            return "cannot dynamically load position-independent executable"
        return ""

    def record(self) -> dict[str, Any]:
        """Return the keys of ``elf`` in a snapshot that the engine itself does not use."""
        record: dict[str, Any] = {}
        if self.search is not None:
            record |= {
                "rpath": self.search.rpath,
                "runpath": self.search.runpath,
                "flags_1": self.search.flags,
            }
        if self.versions_needed is not None:
            needed: dict[str, list[str]] = {}
            for library, version in self.versions_needed:
                needed.setdefault(library, []).append(version)
            record["versions_needed"] = needed
        if self.versions_defined is not None:
            record["versions_defined"] = list(self.versions_defined)
        return record


def read_dynamic(tree: Tree, path: str) -> Dynamic:
    """Return what the loader reads of the file at a resolved ``path``.

    :raises BadElf: the loader rejects the file.
    :raises NotRecorded: a snapshot does not record the content of the file.
    :raises OSError: the file cannot be read.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    known = _READ.setdefault(tree, {})
    if path not in known:
        known[path] = _read(tree, path)
    return known[path]


def _read(tree: Tree, path: str) -> Dynamic:
    if isinstance(tree, TextTree):
        if UNKNOWN.encode() in tree.read(path, _TEXT_LIMIT):
            raise NotRecorded(path)
        raise BadElf(
            "invalid ELF header"
            if len(tree.read(path, _TEXT_LIMIT)) >= _SHORT
            else "file too short"
        )
    if isinstance(tree, SnapshotTree):
        return _recorded(tree, path)
    return look(tree, path, read_file)


def calls_dlopen(tree: Tree, path: str) -> bool:
    """Tell whether the file at a resolved ``path`` imports dlopen(); false if that is not known."""
    return names_symbol(tree, path, "dlopen", _STRINGS_LIMIT)


def names_symbol(tree: Tree, path: str, symbol: str, limit: int) -> bool:
    """Tell whether the file at a resolved ``path`` has a symbol; false if that is not known.

    The name is looked for among the strings of its symbols, which are not read themselves.

    :param limit: bytes of the strings that are looked at.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    if isinstance(tree, TextTree | SnapshotTree):
        return False
    try:
        return look(tree, path, lambda content: _names(content, symbol, limit))
    except (OSError, ValueError):
        return False


def look(tree: Tree, path: str, read: Callable[[int | elf.FileContent], _Answer]) -> _Answer:
    """Return what ``read`` tells of a file in a directory or an image."""
    if isinstance(tree, ImageTree):
        answers: list[_Answer] = []
        tree.visit([path], lambda _path, content: answers.append(read(content)))
        return answers[0]
    assert isinstance(tree, LiveTree)
    fd = tree.open(path)
    try:
        return read(fd)
    finally:
        os.close(fd)


def _names(content: int | elf.FileContent, symbol: str, limit: int) -> bool:
    file = elf.File(content)
    segments = elf.segments_of(file)
    tags = dict(elf.dynamic_entries(file, segments))
    if elf.DT_STRTAB not in tags:
        return False
    start = elf.file_offset(tags[elf.DT_STRTAB], segments)
    text = b"\0" + symbol.encode() + b"\0"
    end = start + min(tags.get(elf.DT_STRSZ, 0), limit)
    for place in range(start, end, _STRINGS_STEP):
        if text in file.read(place, min(_STRINGS_STEP + len(text), end - place)):
            return True
    return False


def _recorded(tree: SnapshotTree, path: str) -> Dynamic:
    try:
        facts = tree.elf(path, sections=False)
    except ValueError as error:
        raise NotRecorded(str(error)) from error
    record = tree.elf_record(path)
    search = None
    if {"rpath", "runpath"} <= record.keys() and record.get("flags_1") is not None:
        search = SearchPaths(record["rpath"], record["runpath"], record["flags_1"])
    needed, defined = record.get("versions_needed"), record.get("versions_defined")
    pairs = (
        None
        if needed is None
        else tuple(
            (library, version) for library, versions in needed.items() for version in versions
        )
    )
    versions = None if defined is None else tuple(defined)
    return Dynamic(
        facts.bits, facts.machine, facts.soname, facts.needed, facts.interp, search, pairs, versions
    )


def read_file(content: int | elf.FileContent) -> Dynamic:
    """Return what the loader reads of an open file, or of one in an archive.

    :raises BadElf: the loader rejects the file.
    :raises OSError: the file cannot be read.
    """
    if elf.size_of(content) < _SHORT:
        raise BadElf("file too short")
    if elf.read_at(content, 0, 4) != b"\x7fELF":
        raise BadElf("invalid ELF header")
    try:
        facts = elf.read_facts(content, sections=False)
        file = elf.File(content)
        loaded = any(segment[0] == _PT_LOAD for segment in elf.segments_of(file))
        search, needed, defined = _loading(file)
    except ValueError as error:
        raise BadElf(f"damaged: {error}") from error
    if not loaded:
        raise BadElf("object file has no loadable segments")
    return Dynamic(
        facts.bits,
        facts.machine,
        facts.soname,
        facts.needed,
        facts.interp,
        search,
        needed,
        defined,
        file.header[0],
        elf.read_at(content, _OS_ABI_AT, 1)[0],
    )


class NeededVersion(NamedTuple):
    """A version of a library that a file needs.

    :ivar number: by which the file's table of symbols has it.
    """

    library: str
    name: str
    number: int


def _loading(file: elf.File) -> tuple[SearchPaths, tuple[tuple[str, str], ...], tuple[str, ...]]:
    segments = elf.segments_of(file)
    tags = dict(elf.dynamic_entries(file, segments))
    if tags.keys().isdisjoint({_DT_RPATH, _DT_RUNPATH, _DT_VERDEF, _DT_VERNEED}):
        return SearchPaths(flags=tags.get(_DT_FLAGS_1, 0)), (), ()
    names = elf.Names(file, segments, tags.get(elf.DT_STRTAB, 0), tags.get(elf.DT_STRSZ, 0))
    rpath, runpath = (
        names.name(tags[tag], _PATH_LIMIT) if tag in tags else None
        for tag in (_DT_RPATH, _DT_RUNPATH)
    )
    needed = [
        (version.library, version.name) for version in versions_needed(file, names, tags, segments)
    ]
    defined = (
        _versions_defined(file, names, elf.file_offset(tags[_DT_VERDEF], segments))
        if _DT_VERDEF in tags
        else ()
    )
    return SearchPaths(rpath, runpath, tags.get(_DT_FLAGS_1, 0)), tuple(needed), tuple(defined)


# Both tables are chains in which each row has the distance to the next one. Distances are positive,
# so chains end, and reads of a file are bounded (nvgraft.formats.elf.READ_LIMIT).


def versions_needed(
    file: elf.File,
    names: elf.Names,
    tags: Mapping[int, int],
    segments: list[tuple[int, int, int, int]],
) -> Iterator[NeededVersion]:
    """Yield the versions of libraries that a file needs and that may not lack."""
    if _DT_VERNEED not in tags:
        return
    offset, following = elf.file_offset(tags[_DT_VERNEED], segments), 1
    while following:
        _version, _count, library, first, following = _VERNEED.unpack(
            file.read(offset, _VERNEED.size)
        )
        provider = names.name(library)
        place, step = offset + first, 1
        while step:
            _hash, flags, number, name, step = _VERNAUX.unpack(file.read(place, _VERNAUX.size))
            if not flags & _VER_FLG_WEAK:
                yield NeededVersion(provider, names.name(name), number)
            place += step
        offset += following


def _versions_defined(file: elf.File, names: elf.Names, offset: int) -> Iterator[str]:
    following = 1
    while following:
        _version, _flags, _index, _count, _hash, first, following = _VERDEF.unpack(
            file.read(offset, _VERDEF.size)
        )
        name, _parent = _VERDAUX.unpack(file.read(offset + first, _VERDAUX.size))
        yield names.name(name)
        offset += following
