"""Compute a container's loader cache after a plan, with the hook's own code.

Only the reading differs from :mod:`nvgraft.apply.cache.native`: files come from an image and a plan
instead of a running container.
"""

import errno
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

from nvgraft.apply.cache.content import CacheContent
from nvgraft.apply.cache.search_path import HWCAPS, SearchPath, is_library_name
from nvgraft.formats.elf import MACHINES, FileContent, Library, read_library
from nvgraft.formats.ldcache import SIZE_LIMIT
from nvgraft.formats.ldcache_table import Table
from nvgraft.formats.tree import Bounds, LiveTree, Node, PathError, Tree
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import Plan, UpdateLoaderCache
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.layered_tree import LayeredTree

CACHE = "/etc/ld.so.cache"

#: Tree -> what was read of its libraries, by their paths. A tree reads its nodes once as well, and
#: several plans are made for one.
_READ: WeakKeyDictionary[Tree, dict[str, Library | None]] = WeakKeyDictionary()

_NUMBERS = {name: number for number, name in MACHINES.items()}

#: Machine -> e_flags of recorded libraries, which snapshots lack: NVIDIA's 32-bit ARM libraries
#: have EABI 5 with hard float.
_FLAGS = {"EM_ARM": 0x05000400}


def image_cache(image: Tree, path: str = CACHE) -> Table | None:
    """Return the loader cache of an image, or None if it has none that a loader can use."""
    try:
        return Table.parse(_TreeFiles(image).read(path, SIZE_LIMIT)[0])
    except (OSError, ValueError):
        return None


def planned_cache(
    image: Tree,
    mounted: Tree,
    plan: Plan,
    action: UpdateLoaderCache,
    machine: str,
    *,
    rebuilt: bool,
) -> tuple[Table, list[tuple[str, str]]]:
    """Return the cache after the hook, and (path, target) of the SONAME links of the image's own
    libraries.

    :param image: the container before the hook.
    :param mounted: the container after all mounts.
    :param machine: the host's ``uname -m``.
    :param rebuilt: ldconfig writes the cache anew, without regard to the image's.
    """
    before = _TreeFiles(image)
    before.bounds.next_step()
    table, written = (None, 0) if rebuilt else (image_cache(image), before.changed(CACHE))
    content = CacheContent(before, action, machine, table, written)
    after = _TreeFiles(mounted)
    cache = content.compute(after, plan.links)
    if cache is not table:
        cache = content.with_development_rows(after, cache)
    before.bounds.next_step()
    links = [(after.identity(link.directory), link) for link in content.links]
    # The confined ldconfig makes links in the driver's directories alone.
    return cache, [
        (f"{directory}/{link.soname}", link.target)
        for directory, link in links
        if not rebuilt or directory in action.directories
    ]


def searched_by_ldconfig(tree: Tree, machine: str, given: Sequence[str]) -> list[str]:
    """Return the directories that ldconfig searches when it is run in a container, in order.

    :param given: the directories that it gets as arguments.
    :param machine: the host's ``uname -m``.
    """
    files = _TreeFiles(tree)
    files.bounds.next_step()  # each question reads the same directories
    found = SearchPath(files, given, machine).directories
    return [directory.names[0] for directory in found]


class _TreeFiles:
    """A tree with the interface of :class:`nvgraft.apply.cache.rootfs.Files`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.bounds = tree.bounds or Bounds()
        self.volumes: list[str] = []
        self.libraries: dict[str, Library | None] = {}

    def _find(self, path: str) -> tuple[str, Node]:
        try:
            resolved, node = self.tree.find(path)
        except PathError as error:
            raise OSError(errno.ELOOP, error.text, path) from error
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return resolved, node

    def read(self, path: str, limit: int) -> tuple[bytes, object]:
        resolved, node = self._find(path)
        return self.tree.read(resolved, limit), node

    def changed(self, path: str) -> int:
        """Return the modification time of the file at ``path`` in nanoseconds."""
        try:
            return changed(self.tree, self._find(path)[0])
        except OSError:
            return 0

    def names(self, path: str) -> list[str]:
        try:
            return [name for name, _kind in self.directory(path).entries()]
        except OSError:
            return []

    def on_volume(self, _path: str) -> bool:
        """Tell that no directory is on a volume: nobody sees a volume before the start."""
        return False

    def identity(self, path: str) -> Hashable | None:
        try:
            return self._find(path)[0]
        except OSError:
            return None

    def directory(self, path: str) -> "_TreeDirectory":
        resolved, node = self._find(path)
        if node.type != "dir":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return _TreeDirectory(self, resolved)

    look = directory

    def library(self, path: str) -> Library:
        """Return the facts of the library at a resolved ``path`` that ldconfig uses."""
        if path not in self.libraries:
            self.read_libraries([path])
        library = self.libraries[path]
        if library is None:
            raise ValueError("it is not a library, or the snapshot does not record it")
        return library

    def read_libraries(self, paths: Iterable[str]) -> None:
        """Read the facts of libraries at resolved paths; None for a file that is not a library."""
        groups: dict[int, tuple[Tree, dict[str, str]]] = {}
        for path in paths:
            tree, inside = self.tree, path
            try:
                while isinstance(tree, LayeredTree):
                    tree, inside = tree.side(inside)
            except OSError:
                self.libraries[path] = None
                continue
            groups.setdefault(id(tree), (tree, {}))[1][inside] = path
        for tree, names in groups.values():
            known = _READ.setdefault(tree, {})
            if unread := [inside for inside in names if inside not in known]:
                known.update(_read_libraries(tree, unread))
            self.libraries.update((path, known.get(inside)) for inside, path in names.items())


class _TreeDirectory:
    """A directory with the interface of :class:`nvgraft.apply.cache.rootfs.OpenDirectory`."""

    def __init__(self, files: _TreeFiles, path: str) -> None:
        self._files = files
        self._path = path

    def _inside(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def close(self) -> None:
        """Nothing is open."""

    def status(self) -> tuple[Hashable, int]:
        return self._path, changed(self._files.tree, self._path)

    def kind(self, name: str) -> str | None:
        node = self._files.tree.lstat(self._inside(name))
        return None if node is None else {"file": "file", "symlink": "link"}.get(node.type, "other")

    def entries(self) -> list[tuple[str, str]]:
        found = []
        for name in self._files.tree.listdir(self._path):
            # Only of these does a search ask what they are.
            asked = is_library_name(name) or f"/{HWCAPS}/" in self._path
            found.append((name, (self.kind(name) if asked else None) or "other"))
        return found

    def readlink(self, name: str) -> str:
        node = self._files.tree.lstat(self._inside(name))
        if node is None or node.type != "symlink":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
        return node.target

    def is_older(self, name: str, written: int) -> bool:
        """Return False: a planned tree has no times."""
        return False

    def library(self, name: str, *, isa_level: bool = False) -> Library:
        path = self._inside(name)
        if path not in self._files.libraries:
            self._files.read_libraries([path, *self._neighbours(path)])
        return self._files.library(path)

    def _neighbours(self, path: str) -> list[str]:
        """Return the libraries to read together with ``path``: an archive is read from its
        beginning each time.
        """
        tree = self._files.tree
        try:
            while isinstance(tree, LayeredTree):
                tree, path = tree.side(path)
        except OSError:
            return []
        if not isinstance(tree, ImageTree):
            return []
        names = self._files.tree.listdir(self._path)
        return [
            self._inside(name)
            for name in names
            if is_library_name(name) and self.kind(name) == "file"
        ]

    def library_behind(self, name: str, *, isa_level: bool = False) -> Library:
        return self._files.library(self._files._find(self._inside(name))[0])


def changed(tree: Tree, path: str) -> int:
    """Return the modification time of a resolved ``path`` of an image in nanoseconds."""
    if isinstance(tree, ImageTree):
        return tree.changed(path)
    if not isinstance(tree, LiveTree):
        return 0
    if path == "/":
        return os.fstat(tree.directory("")).st_mtime_ns
    tree.lstat(path)
    found = tree.statuses[path]
    return 0 if found is None else found.st_mtime_ns


def _read_libraries(tree: Tree, paths: Iterable[str]) -> Iterator[tuple[str, Library | None]]:
    if isinstance(tree, SnapshotTree):
        yield from ((path, _recorded(tree, path)) for path in paths)
    elif isinstance(tree, ImageTree):
        found: list[tuple[str, Library | None]] = []
        tree.visit(paths, lambda path, content: found.append((path, _read(content))))
        yield from found
    elif isinstance(tree, LiveTree):
        for path in paths:
            try:
                fd = tree.open(path)
            except OSError:
                yield path, None
                continue
            try:
                yield path, _read(fd)
            finally:
                os.close(fd)


def _read(content: int | FileContent) -> Library | None:
    try:
        return read_library(content, isa_level=True)
    except (ValueError, OSError):
        return None


def _recorded(tree: SnapshotTree, path: str) -> Library | None:
    try:
        facts = tree.elf(path, sections=False)
    except (ValueError, OSError):
        return None
    number = _NUMBERS.get(facts.machine)
    return (
        None
        if number is None
        else Library(facts.bits, number, _FLAGS.get(facts.machine, 0), facts.soname, 0)
    )
