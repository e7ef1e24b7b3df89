"""Where the driver's files go in a container's root file system, and which files are in the way.

A :class:`Target` is a read-only view for the planner. :mod:`nvgraft.container.live_target` reads
the container's own mounts. :mod:`nvgraft.container.offline_target` reads a directory, with /proc,
/sys and /dev as an engine mounts them.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import Node, PathError, Tree

#: Machine -> (64-bit, 32-bit) library directory of a Debian-like image (reference behaviour 6.1).
DEBIAN_DIRECTORIES = {
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

#: The way to use a FUSE file system all the same.
ALLOW_FUSE = "set `allow-fuse = true` in [nvgraft] of config.toml if its server is trusted"


def on_volume(path: str, volume: str) -> str:
    """Return why the loader cache, or a link for it, is not made at ``path``, and the fix."""
    return (
        f"{path} would be made on the volume {volume}: mount the volume elsewhere, or "
        "make it there beforehand"
    )


class OnVolume(Refusal):
    """A file is on ``volume``, where nothing may be made (SECURITY R21), or which must not even be
    looked at (:class:`nvgraft.container.fuse.OnFuse`).
    """

    def __init__(self, text: str, volume: str, hint: str) -> None:
        super().__init__("mount", text, hint)
        self.volume = volume


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
                return DEBIAN_DIRECTORIES.get(self.machine, DEBIAN_DIRECTORIES["x86_64"])
            libs = "/usr/lib64"
            if self.tree.find("/usr/lib32")[1] is None:
                resolved, node = self.tree.find("/usr/lib")
                if node is not None and resolved != self.tree.resolve(libs):
                    return libs, "/usr/lib"
        except PathError as error:
            hint = f"use another image: this path leads {error.leads}"
            raise Refusal("container", error.text, hint) from error
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
        except (PathError, OnVolume):
            return False

    def demand(self, path: str) -> None:
        """Check that applying the plan may look at the file to which ``path`` leads.

        :raises OnVolume: it is on a FUSE volume.
        """

    def volume(self, path: str) -> str | None:
        """Return the name of the volume on which a new file at ``path`` would be made, or None.

        None stands for the container's own root file system (or the runtime's /dev), where files
        may be made (SECURITY R21).
        """
        raise NotImplementedError

    def is_volume(self, path: str) -> bool:
        """Tell whether something is mounted on ``path`` itself. The tree of a container that does
        not run shows no such thing.
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
