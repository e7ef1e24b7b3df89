"""Find a driver's files by name in well-known directories; libraries that are not there, in the
loader cache.

CDI specifications and the runtime find files in this way (reference behaviour 10.3). The hook uses
the loader cache (:mod:`nvgraft.host.libraries`). ``nvgraft_specs.graphics_files`` has the names as
data.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base._stdlib import bisect_left
from nvgraft.base.values import Value
from nvgraft.formats.ldcache import ARCHITECTURES
from nvgraft.formats.tree import MAX_LINKS, Node, PathError, Tree
from nvgraft_specs import graphics_files as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from nvgraft.formats.ldcache_entries import CacheEntry


#: Permission bits of a node that everybody may read and write, so that no group is needed.
_WORLD_ACCESS = 0o006


class CharDevice(Value):
    """A device node of the host; a container gets it under the same path."""

    def __init__(self, path: str, rdev: tuple[int, int], mode: int, gid: int) -> None:
        self.path = path
        self.rdev = rdev
        self.mode = mode
        self.gid = gid

    @property
    def needs_group(self) -> bool:
        """Whether only members of the node's group can open it, and that group is not root's."""
        return self.gid != 0 and self.mode & _WORLD_ACCESS != _WORLD_ACCESS


class FileMount(Value):
    """A file or directory of the driver: ``path`` inside the driver root, ``target`` in the
    container.
    """

    def __init__(self, path: str, target: str = "") -> None:
        self.path = path
        self.target = target or path


def matches(name: str, pattern: str) -> bool:
    """Tell whether ``name`` matches ``pattern``, in which ``*`` stands for any text."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        start = name.find(part, at)
        if start < 0:
            return False
        at = start + len(part)
    return name.endswith(rest[-1]) and len(name) - len(rest[-1]) >= at


class FileFinder:
    """Finds files of one driver root, live or recorded, by their names.

    :param entries: returns the host's loader cache; called when the cache is first needed.
    :param dev_tree: the tree with /dev; None if the driver root has it.
    """

    def __init__(
        self,
        tree: Tree,
        machine: str,
        entries: Callable[[], Sequence[CacheEntry]],
        dev_tree: Tree | None = None,
    ) -> None:
        self.tree = tree
        self._dev = self if dev_tree is None else FileFinder(dev_tree, machine, entries)
        self.machine = machine
        self._read_entries = entries
        self._cached: list[str] | None = None
        self._listings: dict[str, list[str]] = {}
        self._libraries: dict[str, list[str]] = {}
        self._directories: list[str] = []
        self._found: dict[str, tuple[str, Node | None]] = {}

    def find(self, path: str) -> tuple[str, Node | None]:
        """Return the path that ``path`` leads to, and its node, or None if it cannot be reached or
        read.
        """
        if path not in self._found:
            try:
                self._found[path] = self.tree.find(path)
            except (PathError, OSError):
                self._found[path] = path, None
        return self._found[path]

    def matching(self, directories: Iterable[str], pattern: str) -> Iterator[str]:
        """Yield the paths in ``directories`` that match and lead to a file; their links are not
        resolved.
        """
        for directory in dict.fromkeys(directories):
            parent, _, last = f"{directory.rstrip('/')}/{pattern}".rpartition("/")
            names = [last] if "*" not in last else self._matching_names(parent, last)
            for name in names:
                path = f"{parent}/{name}"
                node = self.find(path)[1]
                if node is not None and node.type != "dir":
                    yield path

    def _matching_names(self, directory: str, pattern: str) -> list[str]:
        names = self.names(directory)
        beginning, _, rest = pattern.partition("*")
        if beginning:  # the names are sorted
            names = names[bisect_left(names, beginning) :]
            names = names[: bisect_left(names, beginning + "\U0010ffff")]
        elif "*" not in rest:
            return [name for name in names if name.endswith(rest)]
        return [name for name in names if matches(name, pattern)]

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, links followed; none if it is not one."""
        if directory not in self._listings:
            self._listings[directory] = self._listing(directory)
        return self._listings[directory]

    def _listing(self, directory: str) -> list[str]:
        resolved, node = self.find(directory) if directory else ("/", Node("dir"))
        if node is None or node.type != "dir":
            return []
        try:
            return self.tree.listdir(resolved)
        except OSError:
            return []

    def first(
        self, directories: Iterable[str], name: str, *, executable: bool = False
    ) -> list[str]:
        """Return the first file with that name, as a list of one, or an empty list."""
        for path in self.matching(directories, name):
            node = self.find(path)[1]
            if not executable or (node is not None and node.mode & 0o111):
                return [path]
        return []

    def char_devices(self, patterns: Iterable[str]) -> list[CharDevice]:
        """Return the character devices whose paths match, without repetitions."""
        devices: dict[str, CharDevice] = {}
        for pattern in patterns:
            directory, _, name = pattern.rpartition("/")
            for path in self._dev.matching([directory], name):
                node = self._dev.find(path)[1]
                if node is not None and node.type == "char" and node.rdev is not None:
                    devices.setdefault(path, CharDevice(path, node.rdev, node.mode, node.gid))
        return list(devices.values())

    def gated(self, gate: str) -> tuple[list[CharDevice], list[str]]:
        """Return the device nodes of a gated component and the files that belong to them; nothing
        if the host has no such node.

        :param gate: the component's variable.
        """
        patterns, files = table.GATED[gate]
        nodes = self.char_devices(patterns)
        nodes.sort(key=lambda node: (node.path.count("/"), node.path))
        return nodes, [path for path in files if nodes and self.find(path)[1] is not None]

    # ---- libraries

    def libraries(self, pattern: str) -> list[str]:
        """Return the matching libraries with links resolved: of the well-known directories, or else
        of the loader cache.
        """
        known = self._libraries.get(pattern)
        if known is None:
            known = self._libraries[pattern] = self._find_libraries(pattern)
        return list(known)

    def _find_libraries(self, pattern: str) -> list[str]:
        names = list(self.matching(self._library_directories(), pattern))
        if not names:
            names = [path for path in self._in_cache() if matches(paths.basename(path), pattern)]
        return list(dict.fromkeys([self.find(path)[0] for path in names]))

    def _library_directories(self) -> list[str]:
        """Return the well-known directories, each once: /lib is often a link to /usr/lib."""
        if not self._directories:
            found: dict[str, str] = {}
            for path in table.LIBRARY_DIRECTORIES:
                found.setdefault(self.find(path)[0], path)
            self._directories = list(found.values())
        return self._directories

    def _in_cache(self) -> list[str]:
        """Return the files of this machine's architecture in the loader cache, and the files that
        they lead to.
        """
        if self._cached is None:
            wide = ARCHITECTURES.get(self.machine, (None,))[0]
            self._cached = [
                step
                for entry in self._read_entries()
                if entry.architecture == wide
                for step in self._chain(entry.path)
            ]
        return self._cached

    def _chain(self, path: str) -> list[str]:
        """Return ``path`` and, if it is a link, each link on the way and the file that it leads to;
        [] if it leads nowhere.
        """
        chain: list[str] = []
        for _ in range(MAX_LINKS):
            try:
                node = self.tree.lstat(self.tree.resolve(path, follow_last=False))
            except (PathError, OSError):
                return []
            if node is None:
                return []
            chain.append(path)
            if node.type != "symlink":
                return chain
            path = paths.clean(paths.join(paths.dirname(path), node.target))
        return []

    def driver_version(self) -> str:
        """Return the driver's version from the names of its libraries, or "" without such
        libraries.
        """
        for prefix in table.VERSION_LIBRARIES:
            libraries = self.libraries(f"{prefix}*.*")
            if libraries:
                return paths.basename(libraries[0]).removeprefix(prefix)
        return ""

    def library_directories(self, version: str) -> list[str]:
        """Return the directories with libraries of the driver ``version``; none unless a library's
        name has that version.
        """
        if not any(self.libraries(prefix + version) for prefix in table.VERSION_LIBRARIES):
            return []
        return list(dict.fromkeys(map(paths.dirname, self.libraries(f"lib*.so.{version}"))))

    # ---- graphics

    def graphics_files(self, version: str) -> tuple[list[FileMount], list[str]]:
        """Return the files that graphics needs besides the libraries of the driver ``version``, and
        ``TARGET::LINK`` links to them.

        Configuration files have a fixed path in a container, wherever the host has them. All others
        keep their path.
        """
        mounts = [path for pattern in table.EGL_LIBRARIES for path in self.libraries(pattern)]
        # The allocator itself is one of the driver's libraries and is mounted with them.
        allocator = self.libraries(table.ALLOCATOR + version)
        vulkan = self.libraries(table.VULKAN_PRODUCER + version)
        modules = self._xorg_directories(version)
        server = self.first(modules, table.XORG_SERVER + version)
        mounts += [*vulkan, *self.first(modules, table.XORG_DRIVER), *server]
        links = [
            f"{table.GBM_TARGET}::{paths.dirname(path)}/{table.GBM_LINK}" for path in allocator
        ]
        links += [
            f"{paths.basename(path)}::{path.removesuffix('.' + version)}"
            for path in (*vulkan, *server)
        ]
        return [*map(FileMount, mounts), *self._configs()], links

    def _xorg_directories(self, version: str) -> list[str]:
        directories = []
        for directory in self.library_directories(version):
            directories += [
                f"{directory}/nvidia/xorg",
                *(f"{directory}/xorg/{part}" for part in table.XORG_MODULES),
            ]
        return directories + [
            f"{directory}/{part}"
            for directory in table.XORG_DIRECTORIES
            for part in table.XORG_MODULES
        ]

    def _configs(self) -> Iterator[FileMount]:
        for target, names in table.CONFIGS.items():
            for name in names:
                yield from (
                    FileMount(path, f"{target}/{name}")
                    for path in self.first(table.CONFIG_DIRECTORIES, name)
                )
        for pattern in table.VULKAN_CONFIGS:
            name = pattern.format(machine=self.machine)
            if name == pattern or self.machine in table.VULKAN_MACHINES:
                yield from (
                    FileMount(path, f"/etc/{name}")
                    for path in self.first((*table.CONFIG_DIRECTORIES, "/"), name)
                )

    def drm_links(self, nodes: Collection[str], pattern: str) -> Iterator[str]:
        """Yield, as ``TARGET::LINK``, the links that lead from PCI addresses to those DRM nodes
        that are in ``nodes``.
        """
        directory = table.DRM_LINKS
        finder = self._dev
        for name in finder._matching_names(directory, pattern) if "*" in pattern else [pattern]:
            path = f"{directory}/{name}"
            try:
                node = finder.tree.lstat(path)
            except OSError:
                continue
            if (
                node is not None
                and node.target
                and paths.clean(paths.join(directory, node.target)) in nodes
            ):
                yield f"{node.target}::{path}"
