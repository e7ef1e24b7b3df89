"""The :class:`~nvgraft.container.target.Target` of a container that is being started.

It answers the planner through the descriptors of a :class:`~nvgraft.container.container.Container`
and its table of mounts.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.container.target import Target
from nvgraft.formats.tree import LiveTree, Node, PathError
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.container.container import Container


class LiveTarget(Target):
    """The rootfs of a container that is being started.

    :param closed: resolve paths as for a process in the container: see ``Tree.closed``.
    """

    def __init__(self, container: Container, machine: str, *, closed: bool = False) -> None:
        self._container = container
        self._live = _tree(container)
        self._live.closed = closed
        self._volumes: dict[str, str | None] = {}
        self._read_only: dict[str, bool] = {}
        super().__init__(self._live, machine, container.uid, container.gid)

    def close(self) -> None:
        self._live.close()

    def demand(self, path: str) -> None:
        if self._container.shunned:
            try:
                self._live.find(path)
            except PathError:
                return  # the loader finds nothing there either

    def volume(self, path: str) -> str | None:
        place = self._place(path)
        if place not in self._volumes:
            mount_id = syscalls.mount_id(self._directory(place))
            self._volumes[place] = self._container.volume(mount_id)
        return self._volumes[place]

    def is_volume(self, path: str) -> bool:
        if self._live.lstat(path) is None:
            return False
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent)
        return syscalls.mount_id(directory, name) != syscalls.mount_id(directory)

    def is_read_only(self, path: str) -> bool:
        place = self._place(path)
        if place not in self._read_only:
            self._read_only[place] = bool(os.fstatvfs(self._directory(place)).f_flag & os.ST_RDONLY)
        return self._read_only[place]

    def _place(self, path: str) -> str:
        """Return the nearest existing directory above ``path``, in which something would be
        made.
        """
        while True:
            path = path.rpartition("/")[0]
            if not path or self._live.lstat(path) is not None:
                return path

    def _directory(self, path: str) -> int:
        """Return a descriptor of the directory at ``path``, which was a directory before.

        :raises Refusal: ``path`` is not a directory any more.
        """
        try:
            return self._live.directory(path)
        except OSError as error:
            text = f"open failed: {self._container.rootfs}{path}: {reason(error)}"
            hint = "the image changes while it is started: stop the program that changes it"
            raise Refusal("mount", text, hint) from error

    def proc_driver(self) -> Node | None:
        """Return /proc/driver/nvidia of the container's own procfs.

        A bare container's /proc may also be a directory of its root file system, or a tmpfs. Then
        its starter has made /proc/driver/nvidia.

        :raises Refusal: /proc is not a procfs mount. A volume or a link there could lead anywhere
            (SECURITY R28).
        """
        rootfs = self._container.rootfs
        proc = self._live.lstat("/proc")
        if proc is None or proc.type != "dir":
            cause = "no such file or directory" if proc is None else "not a directory"
            raise Refusal(
                "mount",
                f"mount operation failed: {rootfs}/proc/driver/nvidia: {cause}",
                "mount a procfs at /proc in config.json",
            )
        fd = self._directory("/proc")
        node = self._live.lstat("/proc/driver/nvidia")
        if not self._container.is_procfs(fd) and not (node and self._is_prepared(fd)):
            raise self._no_procfs(fd)
        if node is not None and node.type != "dir":
            raise Refusal(
                "mount",
                f"mount operation failed: {rootfs}/proc/driver/nvidia: not a directory",
                "remove the mount that covers the driver's /proc directory from config.json",
            )
        return node

    def _is_prepared(self, fd: int) -> bool:
        """Tell whether the directory ``fd`` may be a bare container's /proc."""
        if not self._container.bare:
            return False
        mount_id = syscalls.mount_id(fd)
        mount = self._container.mount(mount_id)
        tmpfs = mount.fstype == "tmpfs" and mount.root == "/"
        return tmpfs or self._container.is_rootfs(mount_id)

    def _no_procfs(self, fd: int) -> Refusal:
        rootfs = self._container.rootfs
        mount = self._container.mounts.get(syscalls.mount_id(fd))
        fix = "mount a procfs at /proc in config.json"
        if self._container.bare:
            fix = (
                f"make {rootfs}/proc/driver/nvidia on the root file system or on a tmpfs there, as"
                " runsc does"
            )
        return Refusal(
            "mount",
            f"mount operation failed: {rootfs}/proc/driver/nvidia: no such file or directory",
            f"{rootfs}/proc is {mount.fstype if mount else 'unknown'}, not procfs: {fix}",
        )


def _tree(container: Container) -> LiveTree:
    root_fd = os.dup(container.rootfs_fd)
    if not container.shunned:
        return LiveTree(root_fd, container.rootfs, container.bounds)
    from nvgraft.container.fuse import ShunningTree

    return ShunningTree(root_fd, container.rootfs, container.shunned, container.bounds)
