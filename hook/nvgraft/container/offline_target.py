"""The container's side of a plan that is made for a bundle on disk.

:mod:`nvgraft.container.live_target` is the target of a container that is being started.
"""

from __future__ import annotations

from nvgraft.container.target import OnVolume, Target
from nvgraft.formats.tree import Node, PathError, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvgraft.formats.elf import ElfFacts
    from nvgraft.formats.tree import Bounds


class VirtualTree(Tree):
    """An unpacked rootfs, with the mounts that every engine makes over the image's /proc, /sys and
    /dev.
    """

    _MASKED = ("/proc", "/sys", "/dev")
    _INSIDE = ("/proc/", "/sys/", "/dev/")
    _DIRECTORIES = frozenset(
        {*_MASKED, "/proc/driver", "/proc/driver/nvidia", "/dev/pts", "/dev/shm", "/dev/mqueue"}  # noqa: S108
    )

    def __init__(self, below: Tree, label: str) -> None:
        self.label = label
        self._below = below
        self._plain = set()

    @property
    def bounds(self) -> Bounds | None:  # type: ignore[override]
        return self._below.bounds

    def _masked(self, path: str) -> bool:
        return path.startswith(self._INSIDE) or path in self._MASKED

    def lstat(self, path: str) -> Node | None:
        if self._masked(path):
            return Node("dir", 0o755) if path in self._DIRECTORIES else None
        return self._below.lstat(path)

    def listdir(self, path: str) -> list[str]:
        return [] if self._masked(path) else self._below.listdir(path)

    def read(self, path: str, limit: int) -> bytes:
        return self._below.read(path, limit)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        return self._below.elf(path, sections=sections)


class OfflineTarget(Target):
    """A bundle that is not running: its rootfs as files, and the volumes that its config.json
    names.

    :param volumes: the mount points of all volumes. What is on them is not known.
    :param module: whether the nvidia kernel module is loaded on the host: the module makes
        /proc/driver/nvidia.
    :param read_only: those of ``volumes`` that are mounted read-only.
    """

    def __init__(
        self,
        tree: Tree,
        machine: str,
        volumes: tuple[str, ...],
        *,
        module: bool,
        read_only: tuple[str, ...] = (),
    ) -> None:
        super().__init__(tree, machine)
        self._module = module
        # The runtime's own /dev is the only mount on which files may be made.
        places = {self._mount_point(path) for path in volumes} - {"/dev"}
        self._volumes = (*sorted(places), "/proc", "/sys")
        # The innermost volume comes first.
        longest = sorted(self._volumes, key=len, reverse=True)
        self._inside = [(volume, volume.rstrip("/") + "/") for volume in longest]
        self._read_only = {self._mount_point(path) for path in read_only}

    def later(self, tree: Tree, mounted: Iterable[str]) -> OfflineTarget:
        """Return the target of this container once more is ``mounted``, as ``tree`` shows it."""
        volumes = (*self._volumes, *mounted)
        read_only = tuple(self._read_only)
        target = OfflineTarget(
            tree, self.machine, volumes, module=self._module, read_only=read_only
        )
        target.rootfs = self.rootfs
        return target

    def _mount_point(self, path: str) -> str:
        """Return the path on which an engine mounts a volume: it follows the image's links.

        ``path`` itself is returned where the engine would refuse it, and where a FUSE file system
        is mounted in the directory already: nothing is planned through either.
        """
        try:
            return self.tree.resolve(path)
        except (PathError, OnVolume):
            return path

    def volume(self, path: str) -> str | None:
        for volume, inside in self._inside:
            if path == volume or path.startswith(inside):
                return volume
        return None

    def is_volume(self, path: str) -> bool:
        return path in self._volumes

    def is_read_only(self, path: str) -> bool:
        return self.volume(path) in self._read_only

    def proc_driver(self) -> Node | None:
        return Node("dir", 0o555) if self._module else None
