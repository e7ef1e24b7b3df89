"""Where the driver's files go in a container's root file system, and which files are in the way.

A :class:`Target` is a read-only view for the planner. The live one reads the container's own
mounts. The offline one reads a directory, with /proc, /sys and /dev as an engine mounts them.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import Node, PathError, Tree

#: Machine -> (64-bit, 32-bit) library directory of a Debian-like image (reference behaviour 6.1).
_DEBIAN_DIRECTORIES = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/var/empty"),
    "ppc64le": ("/usr/lib/powerpc64le-linux-gnu", "/var/empty"),
}

#: Machine -> the path of the loader that programs for glibc name.
_GLIBC_LOADERS = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2",),
    "aarch64": ("/lib/ld-linux-aarch64.so.1",),
    "ppc64le": ("/lib64/ld64.so.2",),
}

BINARIES_DIRECTORY = "/usr/bin"


class Target:
    """The container's side of a plan.

    :param tree: the rootfs; its ``label`` is the rootfs path as the reference prints it.
    :param uid: the owner of everything that is made: the container's root as a number of the host.
    """

    def __init__(self, tree: Tree, machine: str, uid: int = 0, gid: int = 0) -> None:
        self.tree = tree
        self.rootfs = tree.label
        self.machine = machine
        self.uid = uid
        self.gid = gid
        self.libs_dir, self.libs32_dir = self._library_directories()

    def _library_directories(self) -> tuple[str, str]:
        """Return the 64-bit and the 32-bit library directory: Debian-like images have
        /etc/debian_version, all others use /usr/lib64.

        :raises Refusal: stage ``container``: the image's links lead out of it.
        """
        try:
            if self.tree.find("/etc/debian_version")[1] is not None:
                return _DEBIAN_DIRECTORIES.get(self.machine, _DEBIAN_DIRECTORIES["x86_64"])
            libs = "/usr/lib64"
            if self.tree.find("/usr/lib32")[1] is None:
                resolved, node = self.tree.find("/usr/lib")
                if node is not None and resolved != self.tree.resolve(libs):
                    return libs, "/usr/lib"
        except PathError as error:
            raise Refusal(
                "container",
                error.text,
                "use another image: its symbolic links lead out of it, or in a circle",
            ) from error
        return libs, "/usr/lib32"

    def has_musl_alone(self) -> bool:
        """Tell whether the image has musl's loader and not glibc's. Only glibc's reads
        /etc/ld.so.cache.
        """
        try:
            if self.tree.find(f"/lib/ld-musl-{self.machine}.so.1")[1] is None:
                return False
            return all(
                self.tree.find(path)[1] is None for path in _GLIBC_LOADERS.get(self.machine, ())
            )
        except PathError:
            return False

    def volume(self, path: str) -> str | None:
        """Return the name of the volume on which a new file at ``path`` would be made, or None.

        None stands for the container's own root file system (or the runtime's /dev), where files
        may be made (SECURITY R21).
        """
        raise NotImplementedError

    def is_read_only(self, path: str) -> bool:
        """Tell whether ``path`` is read-only now. A root.readonly of config.json takes effect after
        the hooks.
        """
        return False

    def proc_driver(self) -> Node | None:
        """Return the node of /proc/driver/nvidia, on which the driver's tmpfs is mounted, or None
        if there is none.
        """
        raise NotImplementedError


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

    ``module`` tells whether the nvidia kernel module is loaded on the host: the module makes
    /proc/driver/nvidia.
    """

    def __init__(self, tree: Tree, machine: str, volumes: tuple[str, ...], *, module: bool) -> None:
        super().__init__(tree, machine)
        self._module = module
        # The runtime's own /dev is the only mount on which files may be made.
        places = {self._mount_point(path) for path in volumes} - {"/dev"}
        self._volumes = (*sorted(places), "/proc", "/sys")

    def _mount_point(self, path: str) -> str:
        """Return the path on which an engine mounts a volume: it follows the image's links."""
        try:
            return self.tree.resolve(path)
        except PathError:
            return path  # the engine refuses it, and nothing is planned through such a link either

    def volume(self, path: str) -> str | None:
        inside = [
            volume
            for volume in self._volumes
            if path == volume or path.startswith(volume.rstrip("/") + "/")
        ]
        return max(inside, key=len, default=None)

    def proc_driver(self) -> Node | None:
        return Node("dir", 0o555) if self._module else None


TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.formats.elf import ElfFacts
