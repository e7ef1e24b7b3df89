"""Where a container's loader looks for libraries: the directories that ldconfig would search, in
order.

This module also tells which of them must be searched: a cache that is newer than a directory has
its libraries. :mod:`nvgraft.apply.cache.library_search` does the search.
"""

from __future__ import annotations

import errno

from nvgraft.apply.cache.rootfs import check_absent
from nvgraft.base import paths
from nvgraft.formats.ld_so_conf import FILE_LIMIT, Configuration
from nvgraft.formats.ldcache_table import Places, Table
from nvgraft.formats.tree import OutOfBounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    from nvgraft.apply.cache.rootfs import Files

#: What ldconfig searches by default, on Debian and elsewhere. ``{}`` stands for Debian's name of
#: the architecture.
_SYSTEM_DIRECTORIES = ("/lib/{}", "/usr/lib/{}", "/lib", "/usr/lib")
#: What it also searches elsewhere. In a Debian image neither ldconfig nor the loader does.
_WIDE_DIRECTORIES = ("/lib64", "/usr/lib64")
#: A subdirectory whose own subdirectories have libraries for some processors.
HWCAPS = "glibc-hwcaps"


class SearchDirectory:
    """One directory of the search path.

    :ivar names: the paths that lead to it; the first one goes into the cache.
    :ivar rank: its position in the search order.
    :ivar changed: its change time in ns.
    :ivar hwcaps: the name of a glibc-hwcaps subdirectory, which the loader uses on some processors
        only.
    :ivar given: whether the plan names it: for the driver's libraries, or for CUDA's.
    :ivar named: whether the plan or ld.so.conf names it; false for a mere system directory.
    """

    def __init__(
        self, name: str, rank: int, changed: int, hwcaps: str | None, *, given: bool, named: bool
    ) -> None:
        self.names = [name]
        self.given = given
        self.named = named
        self.rank = rank
        self.changed = changed
        self.hwcaps = hwcaps


class SearchPath:
    """The search directories of a root file system, ``given`` ones first.

    :param searched: those of them whose libraries no cache is trusted to know; by default the cache
        decides, and all of them are searched on volumes, too.
    """

    def __init__(
        self,
        rootfs: Files,
        given: Sequence[str],
        machine: str,
        searched: Collection[str] | None = None,
    ) -> None:
        self._trusted = searched is None
        self.directories: list[SearchDirectory] = []
        self._beyond: list[str] = []
        self._rootfs = rootfs
        self._by_identity: dict[Hashable, SearchDirectory] = {}
        configuration = Configuration(self._read, rootfs.names)
        try:
            configuration.load()
        except OutOfBounds as error:
            self._beyond.append(f"its ld.so.conf includes {error.excess}")
            rootfs.bounds.next_step()
        if configuration.beyond:
            self._beyond.append(f"its ld.so.conf has {configuration.beyond}")
        system = [path.format(f"{machine}-linux-gnu") for path in _SYSTEM_DIRECTORIES]
        if not self._is_debian():
            system += _WIDE_DIRECTORIES
        try:
            for path in given:
                self._add(path, given=searched is None or path in searched, named=True)
            for path in configuration.directories:
                self._add(path, named=True)
            for path in system:
                self._add(path, named=False)
        except OutOfBounds as error:
            self._beyond.append(f"its ld.so.conf names {error.excess}")

    @property
    def left_out(self) -> list[str]:
        """What was not read, because of a bound or because it is on a volume."""
        return self._beyond + [f"{path} is on a volume" for path in self._rootfs.volumes]

    def _is_debian(self) -> bool:
        try:
            place = self._rootfs.look("/etc")
        except OSError as error:
            check_absent(error)
            return False
        try:
            return place.kind("debian_version") is not None
        finally:
            place.close()

    def _read(self, path: str) -> bytes:
        try:
            return self._rootfs.read(path, FILE_LIMIT)[0]
        except OSError as error:
            check_absent(error)
            if error.errno == errno.EFBIG:
                raise
            raise FileNotFoundError(path) from error

    def _add(
        self, path: str, hwcaps: str | None = None, *, given: bool = False, named: bool
    ) -> None:
        self._rootfs.bounds.check_time(path)  # to look at each may take long, through many links
        try:
            place = self._rootfs.look(path)
        except OSError as error:
            check_absent(error)
            return
        try:
            identity, changed = place.status()
            directory = self._by_identity.get(identity)
            if directory is not None:
                directory.names.append(path)
                return
            self._rootfs.bounds.count_directory(path)
            rank = len(self.directories)
            directory = SearchDirectory(path, rank, changed, hwcaps, given=given, named=named)
            self._by_identity[identity] = directory
            self.directories.append(directory)
            if hwcaps is None and place.kind(HWCAPS) in {"link", "other"}:
                for name in sorted(self._rootfs.names(f"{path}/{HWCAPS}")):
                    if not name.startswith(".") and ":" not in name:
                        self._add(f"{path}/{HWCAPS}/{name}", name, named=named)
        finally:
            place.close()

    def places(self) -> Places:
        """Return the order of the directories."""
        return Places(
            {
                paths.fsencode(name): directory.rank
                for directory in self.directories
                for name in directory.names
            }
        )

    def unknown(self, table: Table | None, written: int) -> list[SearchDirectory]:
        """Return the directories that may hold libraries which ``table`` lacks; all of them without
        a table.

        These are the directories changed after ``written``, and the named ones of which the table
        has no library: someone added them to ld.so.conf without running ldconfig. A volume is left
        out unless the plan needs it (SECURITY R41).
        """
        return [
            directory
            for directory in self.directories
            if self._is_unknown(directory, table, written)
        ]

    def _is_unknown(self, directory: SearchDirectory, table: Table | None, written: int) -> bool:
        path = directory.names[0]
        if directory.given and not self._trusted:
            return True
        if table is None or directory.changed > written:
            if directory.given or not self._rootfs.on_volume(path):
                return True
            self._rootfs.volumes.append(path)
            return False
        if not directory.named or any(
            table.has_file_of(paths.fsencode(name)) for name in directory.names
        ):
            return False
        return any(is_library_name(name) for name in self._rootfs.names(path))


def is_library_name(name: str) -> bool:
    """Tell whether ldconfig reads a file of this name.

    It reads shared libraries and loaders, but not leftovers of package managers.
    """
    is_library = name.startswith(("lib", "ld-")) and ".so" in name
    return (is_library or name.startswith(("ld.so.", "ld64.so."))) and not is_leftover(name)


def is_leftover(name: str) -> bool:
    """Tell whether a package manager (RPM, dpkg, prelink) uses this name before it renames the
    file.
    """
    return (
        ";" in name
        or name.endswith((".dpkg-new", ".dpkg-tmp", ".#prelink#"))
        or name[-17:-6] == ".#prelink#."
    )
