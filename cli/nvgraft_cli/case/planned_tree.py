"""The file system of a container after a plan: the image with the driver in it.

This is what the container's loader will see, and what the page of ``explain`` shows as "after".
"""

import errno
import os
from functools import cached_property

from nvgraft.container.fuse import OnFuse
from nvgraft.formats.ldcache_table import Table
from nvgraft.formats.tree import Bounds, Node, Tree
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
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.case.volumes import ContainerVolumes


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

    def lstat(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        if node is not None:
            return node
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
