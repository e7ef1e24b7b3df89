"""Keep away from FUSE file systems, whose servers may never answer (SECURITY R42).

A process that waits for such a server cannot be interrupted, and holds up the start of the
container beyond every deadline. So nothing on such a volume is looked at: what is required there is
refused, and what is optional is left out. The mount table tells beforehand which places these are.
This module is loaded only for a container that has such a mount.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.container.target import ALLOW_FUSE, OnVolume
from nvgraft.formats.tree import LiveTree
from nvgraft.system import syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvgraft.formats.elf import ElfFacts
    from nvgraft.formats.tree import Bounds, Node
    from nvgraft.system.mountinfo import Mount

#: The type of the root file systems that engines mount where the kernel's overlayfs is missing.
_OVERLAY = "fuse.fuse-overlayfs"


class OnFuse(OnVolume):
    """``path`` is on the FUSE volume ``volume``, which must not be touched (SECURITY R42)."""

    def __init__(self, path: str, volume: str) -> None:
        super().__init__(
            f"path error: {path}: it is on the FUSE volume {volume}, which may never answer",
            volume,
            f"mount the volume elsewhere, or {ALLOW_FUSE}",
        )


def shunned_volumes(rootfs: str, rootfs_fd: int, mounts: Iterable[Mount]) -> tuple[str, ...]:
    """Return the mount points of a container's FUSE volumes, as the container sees them.

    Its root file system may be FUSE itself where the hook is rootless, and so can hold up its own
    user only, and where root has mounted it for an engine (docs/decisions/0057).

    :param mounts: the FUSE mounts of the container's mount namespace.
    :raises Refusal: stage ``container``: the root file system is on another FUSE file system.
    """
    root_id = syscalls.mount_id(rootfs_fd)
    # As mountinfo shows it: without the links of the path by which it was opened.
    base = os.readlink(f"/proc/self/fd/{rootfs_fd}")
    for mount in mounts:
        if mount.id == root_id and not (userns.inside() or is_of_engine(mount)):
            raise Refusal(
                "container",
                f"stat failed: {rootfs}: it is on a FUSE file system"
                f" ({mount.fstype}), which may never answer",
                f"use a root file system on another one, or {ALLOW_FUSE}",
            )
    points = {mount.point for mount in mounts}
    inside = [point[len(base) :] for point in points if point.startswith(base + "/")]
    return tuple(sorted(inside))


def is_of_engine(mount: Mount, *, any_user: bool = False) -> bool:
    """Tell whether an engine of root has made the FUSE mount, or one of ``any_user``."""
    by_root = "user_id=0" in mount.fs_options.split(",")
    return mount.fstype == _OVERLAY and (by_root or any_user)


class ShunningTree(LiveTree):
    """A live tree that looks at nothing on the FUSE volumes ``volumes``."""

    def __init__(
        self, root_fd: int, label: str, volumes: tuple[str, ...], bounds: Bounds | None = None
    ) -> None:
        super().__init__(root_fd, label, bounds)
        self._volumes = volumes

    def demand(self, path: str) -> None:
        """Check that the resolved ``path`` is not on a FUSE volume.

        :raises OnFuse: it is.
        """
        for volume in self._volumes:
            if (path + "/").startswith(volume + "/"):
                raise OnFuse(self.label + path, volume)

    def lstat(self, path: str) -> Node | None:
        self.demand(path)
        return super().lstat(path)

    def directory(self, path: str) -> int:
        self.demand(path)
        return super().directory(path)

    def open(self, path: str) -> int:
        self.demand(path)
        return super().open(path)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        self.demand(path)
        return super().elf(path, sections=sections)
