"""Read an image for its loader cache without touching its FUSE volumes (SECURITY R42).

Their servers may never answer, so the kernel must not walk into them. Paths are resolved step by
step here, which costs more than a lookup by the kernel. This module is loaded only for a container
that has such a volume.
"""

from __future__ import annotations

import errno

from nvgraft.apply.cache.rootfs import OpenDirectory, Rootfs
from nvgraft.apply.descriptors import reopen
from nvgraft.apply.targets import open_in_root
from nvgraft.base._os import os
from nvgraft.container.fuse import OnFuse, ShunningTree
from nvgraft.formats.tree import PathError
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.container.container import Container
    from nvgraft.formats.tree import Bounds


class ShunningRootfs(Rootfs):
    """A root file system of which the FUSE volumes look absent. ``skipped`` has those of them that
    were asked for.
    """

    def __init__(self, container: Container, own_fds: int, bounds: Bounds) -> None:
        super().__init__(container.rootfs_fd, own_fds, bounds)
        self._container = container
        self._mounts = {mount.id: mount for mount in container.fuse}
        self._mounts.pop(syscalls.mount_id(container.rootfs_fd), None)
        self.skipped: dict[str, None] = {}

    def look(self, path: str) -> OpenDirectory:
        return _ShunningDirectory(self, self.open(path, os.O_PATH | os.O_DIRECTORY), path)

    def directory(self, path: str) -> OpenDirectory:
        return _ShunningDirectory(self, self.open(path, os.O_RDONLY | os.O_DIRECTORY), path)

    def open(self, path: str, flags: int) -> int:
        # The tree is new each time, because the loader cache step changes links.
        tree = ShunningTree(os.dup(self.fd), "", self._container.shunned)
        try:
            resolved = tree.resolve(path)
        except OnFuse as refusal:
            self.skipped[refusal.volume] = None
            raise OSError(errno.EACCES, "on a FUSE volume", path) from refusal
        except PathError as error:
            raise OSError(errno.ELOOP, error.text, path) from error
        finally:
            tree.close()
        return open_in_root(self.fd, resolved, flags)

    def open_file_at(self, directory: int, name: str) -> int:
        path_fd = self.hold(directory, name)
        try:
            return reopen(path_fd, self._own_fds, name)
        finally:
            syscalls.close(path_fd)

    def hold(self, directory: int, name: str) -> int:
        """Open ``name`` of an open directory with O_PATH, for which no server is asked.

        :raises OSError: EACCES for a FUSE volume, or as open(2).
        """
        path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        mount = self._mounts.get(syscalls.mount_id(path_fd))
        if mount is not None:
            syscalls.close(path_fd)
            self.skipped[self._container.inside(mount)] = None
            raise OSError(errno.EACCES, "on a FUSE volume", name)
        return path_fd


class _ShunningDirectory(OpenDirectory):
    """A directory of a :class:`ShunningRootfs`, in which FUSE volumes may be mounted."""

    _rootfs: ShunningRootfs

    def kind(self, name: str) -> str | None:
        try:
            syscalls.close(self._rootfs.hold(self._fd, name))
        except OSError as error:
            if error.errno == errno.EACCES:
                return "other"
        return super().kind(name)
