"""What a dynamic loader reads of an ELF file: the engine's facts, search paths and versions; of a file, or as recorded.

Versions are found as the loader finds them, through the dynamic section: section headers may be missing, or lie. Nothing here
knows where libraries are looked for.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvgraft.formats import elf
from nvgraft.formats.tree import LiveTree, Tree
from nvgraft.host.snapshot import SnapshotTree
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.layered_tree import LayeredTree

_DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1, _DT_VERDEF, _DT_VERNEED = (
    15,
    29,
    0x6FFFFFFB,
    0x6FFFFFFC,
    0x6FFFFFFE,
)
_DF_1_NODEFLIB = 0x800
_VER_FLG_WEAK = 2

_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")

#: Bytes of an RPATH or RUNPATH; Nix and Bazel make some of several KiB.
_PATH_LIMIT = 64 << 10


class BadElf(Exception):
    """The loader would reject the file; the text is what it says of it."""


class NotRecorded(OSError):
    """The file is there, and a snapshot says nothing of what is in it."""


@dataclass(frozen=True, slots=True)
class SearchPaths:
    """Where an object wants what it needs to be looked for: DT_RPATH and DT_RUNPATH as they stand (None: there is none).

    :ivar flags: DT_FLAGS_1.
    """

    rpath: str | None = None
    runpath: str | None = None
    flags: int = 0

    @property
    def no_default_directories(self) -> bool:
        """DF_1_NODEFLIB: neither the loader's own directories count, nor what the cache has of them."""
        return bool(self.flags & _DF_1_NODEFLIB)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """One object. What a snapshot does not record is None.

    :ivar versions_needed: (library, version) pairs that the loader insists on.
    :ivar versions_defined: versions that the object defines; empty when it has none at all.
    """

    bits: int
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    interp: str | None
    search: SearchPaths | None
    versions_needed: tuple[tuple[str, str], ...] | None
    versions_defined: tuple[str, ...] | None

    def record(self) -> dict[str, Any]:
        """Return what a snapshot's ``elf`` has of it beyond the engine's facts."""
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

    :raises BadElf: when it would not take the file.
    :raises NotRecorded: when a snapshot lacks what is asked for.
    :raises OSError: when it cannot be read.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    if isinstance(tree, LiveTree | ImageTree):
        fd = tree.open(path)
        try:
            return read_file(fd)
        finally:
            os.close(fd)
    assert isinstance(tree, SnapshotTree)
    return _recorded(tree, path)


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


def read_file(fd: int) -> Dynamic:
    """Return what the loader reads of an open file.

    :raises BadElf: when it would not take the file.
    :raises OSError: when it cannot be read.
    """
    if os.fstat(fd).st_size < 52:
        raise BadElf("file too short")
    if os.pread(fd, 4, 0) != b"\x7fELF":
        raise BadElf("invalid ELF header")
    try:
        facts = elf.read_facts(fd, sections=False)
        search, needed, defined = _loading(elf.File(fd))
    except ValueError as error:
        raise BadElf(f"damaged: {error}") from error
    return Dynamic(
        facts.bits, facts.machine, facts.soname, facts.needed, facts.interp, search, needed, defined
    )


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
    needed = (
        _versions_needed(file, names, elf.file_offset(tags[_DT_VERNEED], segments))
        if _DT_VERNEED in tags
        else ()
    )
    defined = (
        _versions_defined(file, names, elf.file_offset(tags[_DT_VERDEF], segments))
        if _DT_VERDEF in tags
        else ()
    )
    return SearchPaths(rpath, runpath, tags.get(_DT_FLAGS_1, 0)), tuple(needed), tuple(defined)


# Both tables are chains, and each row says how far away the next is. It comes after this one, so a chain has an end, and what is
# read of a file is bounded (nvgraft.formats.elf.READ_LIMIT).


def _versions_needed(file: elf.File, names: elf.Names, offset: int) -> Iterator[tuple[str, str]]:
    following = 1
    while following:
        _version, _count, library, first, following = _VERNEED.unpack(
            file.read(offset, _VERNEED.size)
        )
        provider = names.name(library)
        place, step = offset + first, 1
        while step:
            _hash, flags, _index, name, step = _VERNAUX.unpack(file.read(place, _VERNAUX.size))
            if not flags & _VER_FLG_WEAK:
                yield provider, names.name(name)
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
