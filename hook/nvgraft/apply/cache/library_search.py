"""Search a directory of an image for libraries, like ldconfig: which exist, and which file owns a
SONAME.

Of all files with one SONAME, a file comes before a link, and then the greatest name owns it. The
loader is told the SONAME's own path, so a link of that name must lead to the owner. Callers choose
the directories and use the result.
"""

from __future__ import annotations

import errno

from nvgraft.apply.cache.rootfs import check_absent
from nvgraft.apply.cache.search_path import SearchDirectory, is_leftover, is_library_name
from nvgraft.base import paths
from nvgraft.formats.ldcache import sort_key
from nvgraft.formats.ldcache_table import Row
from nvgraft.formats.tree import OutOfBounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvgraft.apply.cache.rootfs import Files, FilesDirectory
    from nvgraft.formats.elf import Library

_LIBC6 = 0x0003
_EM_386, _EM_PPC64, _EM_ARM, _EM_X86_64, _EM_AARCH64 = 3, 21, 40, 62, 183
_ARM_EABI, _ARM_EABI5, _ARM_HARD_FLOAT, _ARM_SOFT_FLOAT = 0xFF000000, 0x05000000, 0x400, 0x200

#: uname -m -> (ELF machine, bits) -> the flags of a library that a loader of that machine can load.
_FLAGS: dict[str, dict[tuple[int, int], int]] = {
    "x86_64": {(_EM_X86_64, 64): 0x0300, (_EM_X86_64, 32): 0x0800, (_EM_386, 32): 0x0000},
    "aarch64": {(_EM_AARCH64, 64): 0x0A00, (_EM_ARM, 32): 0x0000},
    "ppc64le": {(_EM_PPC64, 64): 0x0500},
}


class Facts:
    """What a file says of itself: its SONAME, or "", the loader's flags, and the x86 ISA level it
    needs.
    """

    __slots__ = ("flags", "isa_level", "soname")

    def __init__(self, soname: str, flags: int, isa_level: int = 0) -> None:
        self.soname = soname
        self.flags = flags
        self.isa_level = isa_level


class FoundLibrary:
    """A library of one directory: the file ``name`` (or link, with ``is_link``) and its SONAME.

    ``known`` says that the image's cache has its row, and that the SONAME's path leads to it.
    """

    __slots__ = ("facts", "is_link", "known", "name", "soname")

    def __init__(
        self, name: str, soname: str, facts: Facts, *, is_link: bool, known: bool = False
    ) -> None:
        self.name = name
        self.soname = soname
        self.facts = facts
        self.is_link = is_link
        self.known = known

    def path(self, directory: SearchDirectory) -> str:
        """Return the path in the library's row. In a glibc-hwcaps subdirectory that is the file; no
        link is made.
        """
        name = self.soname if directory.hwcaps is None else self.name
        return f"{directory.names[0]}/{name}"

    def row(self, directory: SearchDirectory) -> Row:
        """Return the library's row."""
        hwcaps = None if directory.hwcaps is None else paths.fsencode(directory.hwcaps)
        path = paths.fsencode(self.path(directory))
        return Row(
            paths.fsencode(self.soname), self.facts.flags, path, hwcaps, self.facts.isa_level
        )


class Search:
    """The ``libraries`` of a directory, one for each SONAME.

    ``beyond`` says what there is more of than a bound allows, or is "".

    :param mounted: path -> facts of mounted files, which are not read again.
    :param before: the searches of other directories, in which SONAME links are made first.
    :param rows: SONAME -> flags of the image's cache for this directory. A file that such a name
        leads to, and that is not younger than ``written`` (ns), is not read.
    """

    def __init__(
        self,
        rootfs: Files,
        directory: SearchDirectory,
        machine: str,
        mounted: Mapping[str, Facts],
        before: Sequence[Search],
        rows: Mapping[bytes, int] | None = None,
        written: int = 0,
    ) -> None:
        self.directory = directory
        self.libraries: dict[str, FoundLibrary] = {}
        self.beyond = ""
        self._bounds = rootfs.bounds
        self._architectures = _FLAGS.get(machine, {})
        self._files: dict[str, Facts] = {}
        self._taken: set[str] = set()  # names that are no links, and stay what they are
        self._before = before
        self._rows = rows or {}
        self._written = written
        try:
            place = rootfs.directory(directory.names[0])
        except OSError as error:
            check_absent(error)
            return
        try:
            self._search(place, mounted)
        except OutOfBounds as error:
            self.beyond = error.excess
        finally:
            place.close()

    def linked(self, path: str) -> Facts | None:
        """Return the facts of the library of the directory to which ``path`` leads once its links
        are made, or None.
        """
        directory, _, name = path.rpartition("/")
        library = self.libraries.get(name)
        if library is None or library.is_link or directory not in self.directory.names:
            return None
        return library.facts if self._is_sure(library) else None

    def _is_sure(self, library: FoundLibrary) -> bool:
        if library.name == library.soname:
            return not library.known  # the image's cache does not say whether it has a SONAME
        return library.soname not in self._taken

    def _search(self, place: FilesDirectory, mounted: Mapping[str, Facts]) -> None:
        entries = place.entries()
        self._taken = {name for name, kind in entries if kind != "link"}
        names = [(name, kind == "link") for name, kind in entries if self._is_candidate(name, kind)]
        known = self._known(place, names) if self._rows else {}
        # Files first: most links lead to one of them.
        for name, is_link in sorted(names, key=lambda entry: entry[1]):
            facts = known.get(name)
            is_known = facts is not None
            if facts is not None and not is_link:
                if facts.soname != name:  # else it may have none; what a link to it is then differs
                    self._files[name] = facts
            elif facts is None and is_link:
                facts = self._behind_link(place, name)
            elif facts is None:
                facts = self._of_mount(name, mounted) or self._read(place, name)
            if facts is None:
                continue
            soname = facts.soname or name
            if is_link:
                is_link = name == soname or (name.endswith(".so") and soname.startswith(name))
                if is_known and name in self.libraries:
                    continue  # the file that it leads to
            library = FoundLibrary(
                name, name if is_link else soname, facts, is_link=is_link, known=is_known
            )
            owner = self.libraries.get(library.soname)
            if "/" not in library.soname and (owner is None or _rank(library) > _rank(owner)):
                self.libraries[library.soname] = library

    def _known(self, place: FilesDirectory, names: list[tuple[str, bool]]) -> dict[str, Facts]:
        """Return the files and links of which the image's cache says what they are."""
        files = {name for name, is_link in names if not is_link}
        leads: dict[str, list[str]] = {}
        for name, is_link in names:
            if paths.fsencode(name) not in self._rows:
                continue
            target = place.readlink(name) if is_link else name
            if target in files:
                leads.setdefault(target, []).append(name)
        known: dict[str, Facts] = {}
        for target, sonames in leads.items():
            soname = max(sonames, key=len)
            # libx.so also leads to libx.so.1 of a library whose row is missing.
            if soname.endswith(".so") and soname != target:
                continue
            if place.is_older(target, self._written):
                facts = Facts(soname, self._rows[paths.fsencode(soname)])
                known[target] = facts
                known |= dict.fromkeys(sonames, facts)
        return known

    def _is_candidate(self, name: str, kind: str) -> bool:
        # In a glibc-hwcaps subdirectory ldconfig accepts links of any name.
        if kind == "link" and self.directory.hwcaps is not None:
            return not is_leftover(name)
        return kind != "other" and is_library_name(name)

    def _of_mount(self, name: str, mounted: Mapping[str, Facts]) -> Facts | None:
        for directory in self.directory.names:
            facts = mounted.get(f"{directory}/{name}")
            if facts is not None:
                self._files[name] = facts
                return facts
        return None

    def _read(self, place: FilesDirectory, name: str) -> Facts | None:
        self._bounds.count_library(self.directory.names[0])
        try:
            facts = self._facts(place.library(name, isa_level=self.directory.hwcaps is not None))
        except OSError as error:
            check_absent(error)
            return None
        except ValueError:
            return None  # like ldconfig, skip files that are not libraries
        if facts is not None:
            self._files[name] = facts
        return facts

    def _behind_link(self, place: FilesDirectory, name: str) -> Facts | None:
        target = ""
        try:
            target = place.readlink(name)
            if target in self._files:
                return self._files[target]
            path = paths.clean(paths.join(self.directory.names[0], target))
            for search in reversed(self._before):
                if (facts := search.linked(path)) is not None:
                    return facts
            self._bounds.count_library(self.directory.names[0])
            return self._facts(
                place.library_behind(name, isa_level=self.directory.hwcaps is not None)
            )
        except OSError as error:
            check_absent(error)
            # The next link may lead to a SONAME link that will be made; a circle is another error.
            next_link = error.errno == errno.ENOENT and target and "/" not in target
            return self._behind_link(place, target) if next_link else None
        except ValueError:
            return None

    def _facts(self, library: Library) -> Facts | None:
        flags = _flags(library, self._architectures)
        return None if flags is None else Facts(library.soname or "", flags, library.isa_level)


def _rank(library: FoundLibrary) -> tuple[bool, bytes]:
    return not library.is_link, sort_key(paths.fsencode(library.name))


def _flags(library: Library, architectures: Mapping[tuple[int, int], int]) -> int | None:
    """Return the loader's flags for a library, or None if no loader of this machine takes it."""
    architecture = architectures.get((library.machine, library.bits))
    if architecture is None:
        return None
    if library.machine == _EM_ARM and library.flags & _ARM_EABI == _ARM_EABI5:
        if library.flags & _ARM_HARD_FLOAT:
            architecture = 0x0900
        elif library.flags & _ARM_SOFT_FLOAT:
            architecture = 0x0B00
        else:
            architecture = 0
    return architecture | _LIBC6
