"""The file system of a container after a plan: the image with the driver in it.

This is what the container's loader will see, and what the page of ``explain`` shows as "after".
"""

import errno
import os
import posixpath
from copy import copy
from functools import cached_property

from nvgraft.container.fuse import OnFuse
from nvgraft.formats.ldcache_table import Table
from nvgraft.formats.tree import Bounds, Node, PathError, Tree
from nvgraft.host.components import Host
from nvgraft.plan.actions import (
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft_cli.case.file_changes import FileChanges, TextTree
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.case.volumes import ContainerVolumes

#: The most files of a directory that a script copies.
_COPIED = 256


class PlannedTree(LayeredTree):
    """``image`` with the additions of ``plan``. Files of the driver are read from ``host``.

    :param rebuilt: the host's ldconfig writes the loader cache anew (``ldcache`` in config.toml).
    :param links: false leaves out the SONAME links, which the loader cache step makes at the end.
    :param volumes: what config.json mounts over the image's files.
    :param starts_here: whether the container is started on this machine, which has the sources of
        its volumes.
    """

    closed = True

    def __init__(
        self,
        image: Tree,
        plan: Plan,
        host: Host | None,
        *,
        rebuilt: bool = False,
        links: bool = True,
        volumes: ContainerVolumes | None = None,
        starts_here: bool = False,
    ) -> None:
        self._image = image
        self._plain = set()  # only links are added later, and in no directory's place
        self.volumes = volumes or ContainerVolumes()
        #: The runtime's words for a volume that it cannot mount, or "".
        self.mount_error = self.volumes.error if starts_here else ""
        self._host = host
        self._rebuilt = rebuilt
        self._plan = plan
        self._caches = [action for action in plan.actions if isinstance(action, UpdateLoaderCache)]
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, set[str]] = {}
        #: What scripts of the container have changed.
        self._texts: dict[str, str] = {}
        self._copies: dict[str, str] = {}
        self._removed: set[str] = set()
        #: Paths of links, copies and removed files, and what is linked and copied.
        self.followed: frozenset[str] = frozenset()
        #: target of a mount -> its source below the driver root
        self.sources: dict[str, str] = {}
        for action in plan.actions:
            if isinstance(action, Bind):
                self.sources[action.target] = action.path
                self._add(action.target, self._source_node(action))
            elif isinstance(action, Tmpfs):
                self._add(action.target, Node("dir", action.mode))
            elif isinstance(action, MakeDirectory):
                self._add(action.path, Node("dir", action.mode))
            elif isinstance(action, Symlink):
                self._add(action.path, Node("symlink", target=action.target))
            elif isinstance(action, WriteFile):
                self._add(action.path, Node("file", action.mode, size=len(action.content.encode())))
        for path, target in plan.links if links else ():
            volume = self.volumes.over(path)
            if volume is None or volume.path != path:  # a file that is mounted is not replaced
                self._add(path, Node("symlink", target=target))

    @property
    def machine(self) -> str:
        """The kernel's name of the host's architecture; "" for a plan without a host."""
        return "" if self._host is None else self._host.machine

    @property
    def bounds(self) -> Bounds | None:  # type: ignore[override]
        """The bounds of the image."""
        return self._image.bounds

    def _source_node(self, action: Bind) -> Node:
        kinds = {"device": "char", "socket": "socket", "dir": "dir", "file": "file"}
        return Node(kinds[action.kind], action.mode, rdev=action.rdev, size=action.size)

    def _add(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            names = self._names.setdefault(parent, set())
            if name in names:
                return  # and the directories above are there as well
            names.add(name)
            path = parent

    def after(self, changes: FileChanges) -> "PlannedTree":
        """Return the file system after changes; nothing replaces what is mounted from the host."""
        other = copy(self)
        other._nodes, other._texts = dict(self._nodes), {**self._texts, **changes.texts}
        other._names = {path: set(names) for path, names in self._names.items()}
        other._copies = dict(self._copies)
        other._removed = {*self._removed, *changes.removed}
        other.followed = self.followed.union(
            changes.removed,
            *((*pairs, *pairs.values()) for pairs in (changes.links, changes.copies)),
        )
        for path in changes.removed - self.sources.keys():
            other._nodes.pop(path, None)
        nodes = {path: Node("dir", 0o755) for path in changes.directories}
        nodes |= {path: Node("symlink", target=target) for path, target in changes.links.items()}
        for path, text in changes.texts.items():
            nodes[path] = Node("file", 0o755, size=len(text))
        for path, source in changes.copies.items():
            try:
                resolved, node = self.find(source)
            except (OSError, PathError):
                continue
            if node is not None and node.type == "file":
                nodes[path] = node
                other._copies[path] = resolved
            elif node is not None:
                nodes[path] = Node("dir", 0o755)
                for name in self.listdir(resolved)[:_COPIED]:
                    inside = posixpath.join(resolved, name)
                    there = self.lstat(inside)
                    if there is not None and there.type == "file":
                        other._copies[posixpath.join(path, name)] = inside
                    elif there is not None and there.type == "dir":
                        there = Node("symlink", target=inside)
                    if there is not None:
                        nodes[posixpath.join(path, name)] = there
        for path, node in nodes.items():
            there = None if node.type != "dir" else self.lstat(path)
            if path not in self.sources and there is None:
                other._add(path, node)
        return other

    def is_written(self, path: str) -> bool:
        """Tell whether a script has written or copied the file at a resolved ``path``."""
        return path in self._texts or path in self._copies

    def _is_removed(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{removed}/") for removed in self._removed)

    def lstat(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        if node is not None:
            return node
        if self._removed and self._is_removed(path):
            return Node("dir", 0o755) if path in self._names and path not in self._removed else None
        tree, place = self._below(path)
        try:
            found = tree.lstat(place)
        except OnFuse:
            return Node("dir", 0o755)  # its content is not looked at, as the hook does not
        return Node("dir", 0o755) if found is None and path in self._names else found

    def listdir(self, path: str) -> list[str]:
        tree, place = self._below(path)
        try:
            names = tree.listdir(place)
        except OnFuse:
            names = []
        if self._removed:
            names = [name for name in names if not self._is_removed(posixpath.join(path, name))]
        return sorted({*names, *self._names.get(path, ())})

    @cached_property
    def loader_cache(self) -> Table | None:
        """The container's loader cache after the plan; None if it has none that a loader can use.

        Computing it adds the SONAME links of the image's own libraries to this tree.
        """
        from nvgraft_cli.case.planned_cache import image_cache, planned_cache

        if self._host is None or not self._caches:
            return image_cache(self._image)
        mounted = PlannedTree(self._image, self._plan, self._host, links=False)
        table, links = planned_cache(
            self._image,
            mounted,
            self._plan,
            self._caches[0],
            self._host.machine,
            rebuilt=self._rebuilt,
        )
        for path, target in links:
            there = self.lstat(path)
            if there is None or there.type == "symlink":
                self._add(path, Node("symlink", target=target))
        return table

    def from_host(self, path: str) -> bool:
        """Tell whether the file at a resolved ``path`` is the host's."""
        return path in self.sources

    def side(self, path: str) -> tuple[Tree, str]:
        if path in self.sources and self._host is not None:
            return self._host.tree, self.sources[path]
        if path in self._copies:
            return self.side(self._copies[path])
        if path in self._texts:
            return TextTree(self._texts), path
        if path in self._nodes:
            # A text, a device node or a link that the plan makes.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return self._below(path)

    def _below(self, path: str) -> tuple[Tree, str]:
        """Return the tree with the file that the plan leaves at ``path``, and its path there: that
        of a volume which is read, or the image.
        """
        volume = self.volumes.over(path)
        if volume is None or volume.tree is None:
            return self._image, path
        return volume.tree, volume.place(path)
