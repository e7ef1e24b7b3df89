"""What a dynamic loader reads of an ELF file. The parsing is pyelftools'; a snapshot has some of it recorded."""

import os
from dataclasses import dataclass
from typing import Any

from nvgraft.snapshot import SnapshotTree
from nvgraft.tree import LiveTree
from nvgraft_cli.image.tree import ImageTree
from nvgraft_cli.planned_tree import PlannedTree


class BadElf(Exception):
    """The loader would reject the file; the text is what it says of it."""


class NotRecorded(OSError):
    """The file is there, and a snapshot says nothing of what is in it."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """One object. ``None`` for versions: not recorded.

    :ivar versions_needed: (library, version) pairs that the loader insists on.
    :ivar versions_defined: versions that the object defines; empty when it has none at all.
    """

    bits: int
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    interp: str | None
    rpath: str
    runpath: str
    versions_needed: tuple[tuple[str, str], ...] | None
    versions_defined: frozenset[str] | None


def read_dynamic(tree: PlannedTree, path: str) -> Dynamic:
    """Return what the loader reads of the file at a resolved ``path``.

    :raises BadElf: when it would not take the file.
    :raises NotRecorded: when a snapshot lacks what is asked for.
    :raises OSError: when it cannot be read.
    """
    side, inside = tree.side(path)
    if isinstance(side, LiveTree | ImageTree):
        fd = side.open(inside)
        try:
            return _parse(fd)
        finally:
            os.close(fd)
    try:
        facts = side.elf(inside, sections=False)
    except ValueError as error:
        if isinstance(side, SnapshotTree) and "not recorded" in str(error):
            raise NotRecorded(str(error)) from error
        raise BadElf(str(error)) from error
    return Dynamic(facts.bits, facts.machine, facts.soname, facts.needed, facts.interp, "", "", None, None)


def _parse(fd: int) -> Dynamic:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    size = os.fstat(fd).st_size
    if size < 52:
        raise BadElf("file too short")
    with open(fd, "rb", closefd=False) as file:
        if file.read(4) != b"\x7fELF":
            raise BadElf("invalid ELF header")
        file.seek(0)
        try:
            return _facts(ELFFile(file))
        except (ELFError, ValueError, KeyError, IndexError, OverflowError, TypeError, AttributeError, AssertionError, MemoryError) as error:
            # The reader gives up on damaged tables in many ways; the loader does in one.
            raise BadElf(f"damaged: {type(error).__name__}: {error}") from error


def _facts(elf: Any) -> Dynamic:
    needed: list[str] = []
    soname = interp = None
    rpath = runpath = ""
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_INTERP":
            interp = segment.get_interp_name()
        if segment["p_type"] == "PT_DYNAMIC":
            for tag in segment.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                elif tag.entry.d_tag == "DT_SONAME":
                    soname = tag.soname
                elif tag.entry.d_tag == "DT_RPATH":
                    rpath = tag.rpath
                elif tag.entry.d_tag == "DT_RUNPATH":
                    runpath = tag.runpath
    wanted, defined = _versions(elf)
    return Dynamic(elf.elfclass, elf["e_machine"], soname, tuple(needed), interp, rpath, runpath, wanted, defined)


def _versions(elf: Any) -> tuple[tuple[tuple[str, str], ...] | None, frozenset[str] | None]:
    """Return what .gnu.version_r and .gnu.version_d say; a file without section headers does not tell."""
    if elf.num_sections() == 0:
        return None, None
    wanted: list[tuple[str, str]] = []
    defined: set[str] = set()
    for section in elf.iter_sections():
        kind = section["sh_type"]
        if kind == "SHT_GNU_verneed":
            for library, versions in section.iter_versions():
                wanted += [(library.name, version.name) for version in versions if not version.entry.vna_flags & 2]  # 2: weak
        elif kind == "SHT_GNU_verdef":
            for _, names in section.iter_versions():
                defined.update(name.name for name in list(names)[:1])
    return tuple(wanted), frozenset(defined)
