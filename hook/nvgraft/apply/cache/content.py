"""What a container's loader cache must hold: rows of the image, of the driver, and of new
libraries.

The hook, which writes the cache, and the planner, which foretells it, both use this module. It
reads the root file system through :class:`nvgraft.apply.cache.rootfs.Files` and writes nothing. The
format is in :mod:`nvgraft.formats.ldcache_table`; the places of an image's libraries are in
:mod:`nvgraft.apply.cache.search_path`.
"""

from __future__ import annotations

from nvgraft.apply.cache.rootfs import check_absent
from nvgraft.apply.cache.search_path import SearchPath
from nvgraft.base import paths
from nvgraft.base.values import Value
from nvgraft.formats.ldcache_table import Row, Table
from nvgraft.formats.tree import OutOfBounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from nvgraft.apply.cache.library_search import FoundLibrary, Search
    from nvgraft.apply.cache.rootfs import Files, FilesDirectory
    from nvgraft.apply.cache.search_path import SearchDirectory
    from nvgraft.plan.actions import UpdateLoaderCache


class MissingLink(Value):
    """A SONAME link that a library of the image lacks: its directory, its name and the library's
    name.
    """

    def __init__(self, directory: str, soname: str, target: str) -> None:
        self.directory = directory
        self.soname = soname
        self.target = target


class CacheContent:
    """The content of one container's loader cache.

    Make it before anything is changed in the container, and call :meth:`compute` after all mounts.

    :param table: the image's cache, or None if it has none that a loader uses.
    :param written: the time of that cache, in ns.

    ``links`` are the links that the image's own libraries lack.
    """

    def __init__(
        self,
        files: Files,
        action: UpdateLoaderCache,
        machine: str,
        table: Table | None,
        written: int,
    ) -> None:
        self.links: list[MissingLink] = []
        self._beyond: list[str] = []
        self._before = table
        self._written = written
        self._fast = action.searched is not None
        self._libraries = action.libraries
        self._machine = machine
        self._path = SearchPath(files, action.directories, machine, action.searched)
        self._searched: set[str] = set()  # directories of which every library is known
        # Ask now: making placeholders and links changes the times of directories.
        self._unknown = self._path.unknown(table, written)

    @property
    def left_out(self) -> list[str]:
        """What was not read, because of a bound or because it is on a volume."""
        return self._path.left_out + self._beyond

    def compute(self, files: Files, planned: Iterable[tuple[str, str]]) -> Table:
        """Return the rows that the cache must have, or the image's own table when nothing is
        missing.

        :param planned: links of the driver's libraries, path and target, that are made in any case.
        """
        places = self._path.places()
        made = {
            (places.rank(paths.fsencode(path)), paths.basename(path)) for path, _target in planned
        }
        # Search before our links are made: like ldconfig, treat a link that is dangling now as no
        # library.
        searches = list(self._searches(files))
        rows = self._driver_rows()
        driver = {
            (library.soname, library.flags, f"{library.directory}/{library.soname}")
            for library in self._libraries
        }
        for search in searches:
            directory = search.directory
            rows += [
                library.row(directory)
                for library in search.libraries.values()
                if not library.known
                and (library.soname, library.facts.flags, library.path(directory)) not in driver
            ]
            if not search.beyond:
                self._searched.update(search.directory.names)
                try:
                    self.links += _missing_links(files, search, made)
                except OutOfBounds as error:
                    self._beyond.append(f"links in {search.directory.names[0]}: {error.excess}")
        table = self._without_gone(
            files,
            self._before or Table(),
            [search for search in searches if not search.beyond],
            rows,
        )
        return table.with_rows(rows, places)

    def knows_driver(self) -> bool:
        """Tell whether the image's cache has every library of the driver already."""
        return (
            self._before is not None
            and self._before.with_rows(self._driver_rows(), self._path.places()) is self._before
        )

    def with_development_rows(self, files: Files, table: Table) -> Table:
        """Return ``table`` with a row for each libx.so that leads to a library of the driver, like
        ldconfig.

        No program needs these rows, so they alone are not a reason to write the cache. Directories
        that were searched have them already.
        """
        by_directory: dict[str, list[tuple[str, int]]] = {}
        for library in self._libraries:
            if library.directory in self._searched:
                continue
            link = library.name.partition(".so")[0] + ".so"
            if link not in {library.name, library.soname} and library.soname.startswith(link):
                by_directory.setdefault(library.directory, []).append((link, library.flags))
        rows = [
            _row(directory, link, flags)
            for directory, links in by_directory.items()
            for link, flags in _leading(files, directory, links)
        ]
        return table.with_rows(rows, self._path.places())

    def _driver_rows(self) -> list[Row]:
        return [
            _row(library.directory, library.soname, library.flags)
            for library in self._libraries
            if "/" not in library.soname
        ]

    def _searches(self, files: Files) -> Iterator[Search]:
        """Search the directories that the cache may not know, and stop at a bound."""
        if not self._unknown:
            return
        from nvgraft.apply.cache.library_search import Facts, Search

        mounted = {
            library.path: Facts(library.soname, library.flags) for library in self._libraries
        }
        # ldconfig makes the links of a directory before it searches the next one.
        before: list[Search] = []
        for directory in self._unknown:
            rows = self._rows_of(directory)
            search = Search(files, directory, self._machine, mounted, before, rows, self._written)
            yield search
            if directory.hwcaps is None:
                before.append(search)
            if search.beyond:
                self._beyond.append(f"{directory.names[0]}: {search.beyond}")
                files.bounds.next_step()  # what follows looks at files that are known
                return

    def _rows_of(self, directory: SearchDirectory) -> Mapping[bytes, int]:
        """Return the rows of a directory that need not be found again; none where libraries are
        searched because the cache may be wrong.
        """
        if not self._fast or self._before is None or directory.hwcaps is not None:
            return {}
        return self._before.files_of([paths.fsencode(name) for name in directory.names])

    def _without_gone(
        self, files: Files, table: Table, searches: Sequence[Search], rows: Iterable[Row]
    ) -> Table:
        """Return the table without rows for files of the searched directories that no longer exist.

        :param rows: the rows of the existing files.
        """
        places = self._path.places()
        searched = {search.directory.rank for search in searches}
        if not searched or not len(table):
            return table
        present = {(places.rank(row.path), row.soname, row.hwcaps) for row in rows}
        present |= {
            (search.directory.rank, paths.fsencode(library.soname), None)
            for search in searches
            for library in search.libraries.values()
            if library.known
        }
        gone = set()
        try:
            for index, row in table.below(
                [paths.fsencode(name) for search in searches for name in search.directory.names]
            ):
                rank = places.rank(row.path)
                if rank not in searched or (rank, row.soname, row.hwcaps) in present:
                    continue
                path = paths.fsdecode(row.path)
                files.bounds.count_library(path)
                if files.identity(path) is None:
                    gone.add(index)
        except OutOfBounds:
            pass  # rows that cannot be checked within the bounds stay
        return table.without(gone) if gone else table


def _missing_links(
    files: Files, search: Search, made: Collection[tuple[int, str]]
) -> list[MissingLink]:
    """Return the links that libraries of a directory lack. A glibc-hwcaps subdirectory gets no
    links.

    :param made: rank of the directory and name of each link that will be made anyway.
    """
    place = search.directory.names[0]
    if search.directory.hwcaps is not None:
        return []
    return [
        MissingLink(place, library.soname, library.name)
        for library in search.libraries.values()
        if not (library.is_link or library.known)
        and library.name != library.soname
        and (search.directory.rank, library.soname) not in made
        and not _is_linked(files, place, library)
    ]


def _is_linked(files: Files, place: str, library: FoundLibrary) -> bool:
    """Tell whether the SONAME of a library exists and is the library.

    Neither exists yet if the library is a link to a SONAME link that will be made.

    :raises OutOfBounds: there is no time left.
    """
    files.bounds.check_time(place)
    linked = files.identity(f"{place}/{library.soname}")
    return linked is not None and linked == files.identity(f"{place}/{library.name}")


def _leading(files: Files, parent: str, links: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those of ``links`` in ``parent`` that lead to a library whose SONAME begins with the
    link.
    """
    try:
        directory = files.look(parent)
    except OSError as error:
        check_absent(error)
        return []
    try:
        return [(link, flags) for link, flags in links if _leads_to_library(directory, link)]
    finally:
        directory.close()


def _leads_to_library(directory: FilesDirectory, link: str) -> bool:
    try:
        return directory.kind(link) == "link" and (
            directory.library_behind(link).soname or link
        ).startswith(link)
    except OSError as error:
        check_absent(error)
        return False
    except ValueError:
        return False


def _row(directory: str, name: str, flags: int) -> Row:
    return Row(paths.fsencode(name), flags, paths.fsencode(f"{directory}/{name}"))
