"""Collect the actions of a plan, and predict the container's files at each action.

The planner decides which file goes where. The layout knows which files are in the way, what earlier
actions will make, and which parents are missing. It refuses in the reference's words (reference
behaviour 6.2, 6.3).
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.container.target import OnVolume, Target
from nvgraft.formats.tree import Node, PathError
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    MakeDirectory,
    Symlink,
    Tmpfs,
    Why,
    WriteFile,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvgraft.plan.actions import Origin

_UMASK = 0o022
_DIRECTORY_MODE = 0o755
_TMPFS_OPTIONS = ("nodev", "noexec", "nosuid", "rw")

#: Mode of the tmpfs of the driver's /proc directory, of that of the application profiles, and of
#: the profile.
TMPFS_MODE = 0o555

#: Largest size of a resolved path in bytes, which leaves room for a name behind it, and its levels:
#: more is an attack (SECURITY R10).
_LONGEST_PATH = 4096 - 256
_MOST_LEVELS = 128
#: The hint for a root file system in which nothing can be made.
READ_ONLY = (
    "the root file system is read-only before the hook runs: set root.readonly, so that"
    " the runtime makes it read-only later"
)


class Layout:
    """Collects ``actions`` for ``target`` in order, device rules only if ``cgroups`` is true.

    :param root: the driver root, which has the sources of binds.
    """

    def __init__(self, target: Target, *, cgroups: bool, root: str = "/") -> None:
        self.actions: list[Action] = []
        self._target = target
        self._cgroups = cgroups
        self._root = root.rstrip("/")
        #: Path -> type of the file that an action makes there.
        self._made: dict[str, str] = {}
        #: Requested path of a tmpfs -> its planned path.
        self._tmpfs: dict[str, str] = {}
        #: The planned paths of the tmpfs, each with a slash: prefixes of the paths in them.
        self._inside: tuple[str, ...] = ()
        #: Targets of binds, in order.
        self._binds: dict[str, None] = {}
        #: Target of a mount that hides a directory's content -> the path that was requested for it.
        self._covers: dict[str, str] = {}
        self._allowed: set[tuple[int, int]] = set()
        self._open: set[str] = set()  # directories of the image in which things can be made

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that removes every mount, directory and placeholder that was planned
        since.
        """
        actions, binds = len(self.actions), len(self._binds)
        made, covers = dict(self._made), dict(self._covers)

        def rewind() -> None:
            del self.actions[actions:]
            self._binds = dict.fromkeys(list(self._binds)[:binds])
            self._made = made
            self._covers = covers

        return rewind

    def bind(
        self,
        kind: str,
        origin: Origin,
        path: str,
        target: str,
        options: tuple[str, ...],
        mode: int,
        why: Why,
        rdev: tuple[int, int] | None = None,
        size: int = 0,
    ) -> None:
        self._binds[target] = None
        mode &= ~_UMASK
        self.actions.append(
            Bind(
                kind,
                origin,
                path,
                target,
                options,
                mode,
                why,
                rdev,
                size,
                self._root,
                placeholder=self._made.get(target) == "file",
            )
        )

    def node(
        self,
        source: str,
        target: str,
        kind: str,
        rdev: tuple[int, int],
        mode: int,
        owner: tuple[int, int],
        why: Why,
    ) -> None:
        """Plan a device node that the runtime makes at ``target``."""
        from nvgraft.plan.edit_actions import MakeNode

        self._binds[target] = None
        made = self._made.get(target) == "file"
        self.actions.append(
            MakeNode(source, target, kind, rdev, mode, *owner, why, placeholder=made)
        )

    def bind_directory(
        self,
        origin: Origin,
        path: str,
        requested: str,
        target: str,
        options: tuple[str, ...],
        mode: int,
        why: Why,
    ) -> None:
        """Plan the bind of a host directory on ``target``, to which ``requested`` leads."""
        self._cover(requested, target)
        self.bind("dir", origin, path, target, options, mode, why)

    def _cover(self, requested: str, path: str) -> None:
        """Refuse a mount that would hide an earlier one: the image's links lead both to one place
        (SECURITY R22).
        """
        for target in (*self._binds, *self._tmpfs.values()):
            if target.startswith(path + "/"):
                raise _hidden(target, path)
        self._covers[path] = requested

    def check_visible(self, requested: str, path: str) -> None:
        """Check that no mount will hide ``path``, to which ``requested`` leads: a file would be
        made in that mount instead.

        A second mount for the same ``requested`` path on the same target is allowed.

        :raises Refusal: stage ``mount``.
        """
        for cover, requested_cover in self._covers.items():
            if path.startswith(cover + "/") or (path == cover and requested != requested_cover):
                raise _hidden(path, cover)

    def allow_device(self, rdev: tuple[int, int], why: Why) -> None:
        if self._cgroups and rdev not in self._allowed:
            self._allowed.add(rdev)
            self.actions.append(AllowDevice(rdev[0], rdev[1], why))

    def mount_tmpfs(self, requested: str, path: str, why: Why) -> None:
        self._cover(requested, path)
        self._tmpfs[requested] = path
        self._inside = (*self._inside, path + "/")
        for hidden in [made for made in self._made if made.startswith(path + "/")]:
            del self._made[hidden]
        self.actions.append(Tmpfs(path, _TMPFS_OPTIONS, TMPFS_MODE, why))

    def write_file(self, path: str, mode: int, content: str, why: Why) -> None:
        self._made[path] = "file"
        self.actions.append(WriteFile(path, mode, content, why))

    def symlink(self, path: str, target: str, why: Why) -> None:
        if self._lookup(path) is None and not self._is_volume(path):
            self.check_volume(path)
            self._made[path] = "symlink"
            self.actions.append(Symlink(path, target, why))

    def force_link(self, path: str, target: str, why: Why) -> bool:
        """Plan a link at ``path``, whose directory is resolved, also in place of another link; tell
        whether ``path`` will be a link.

        A file of the image that is not a link is not replaced.

        :raises OnVolume: the link would be made, or replaced, on a volume.
        """
        node = self._lookup(path)
        if node is None and self._is_volume(path):
            return False
        if node is None or (node.type == "symlink" and node.target != target):
            self.check_volume(path)
            self.actions.append(Symlink(path, target, why, replaces=node is not None))
            self._made[path] = "symlink"
            return True
        return node.type == "symlink"

    def resolve(self, requested: str) -> str:
        """Return the path to which ``requested`` leads in the container. In a planned tmpfs there
        are no links.

        :raises Refusal: the reference's path errors.
        """
        for mount_point, path in self._tmpfs.items():
            if requested == mount_point or requested.startswith(mount_point + "/"):
                return path + requested[len(mount_point) :]
        try:
            path = self._target.tree.resolve(requested)
        except PathError as error:
            hint = f"use another image: this path leads {error.leads}"
            raise Refusal("mount", error.text, hint) from error
        # SECURITY R28: mounts in /proc are planned without this function. Device nodes keep their
        # names: under another name a node could replace a disk's, or be in a directory where
        # programs expect files.
        if (
            path == "/"
            or (path + "/").startswith("/proc/")
            or (requested.startswith("/dev/") and path != requested)
        ):
            hint = (
                "use another image: its symbolic links lead to a place where nothing of the"
                " driver may be put"
            )
            raise Refusal("mount", f"path error: {requested} resolves to {path}", hint)
        if (
            len(path.encode("utf-8", "surrogateescape")) > _LONGEST_PATH
            or path.count("/") > _MOST_LEVELS
        ):
            hint = (
                f"use another image: its symbolic links lead through more than {_MOST_LEVELS}"
                f" directories or {_LONGEST_PATH} bytes"
            )
            raise Refusal(
                "mount", f"path error: {self._target.rootfs}/{requested}: file name too long", hint
            )
        self.check_visible(requested, path)
        return path

    def _in_tmpfs(self, path: str) -> bool:
        return path.startswith(self._inside)

    def _lookup(self, path: str) -> Node | None:
        if path in self._made:
            return Node(self._made[path])
        if self._in_tmpfs(path):
            return None
        return self._target.tree.lstat(path)

    def _is_volume(self, path: str) -> bool:
        """Tell whether ``path`` is the mount point of a volume. Where the tree does not show it, it
        is of the kind that is needed.
        """
        return not self._in_tmpfs(path) and self._target.is_volume(path)

    def directory_for_mounts(self, requested: str) -> str:
        """Plan a directory for mounts at ``requested``, and return the path to which that leads."""
        why = Why("", requested, "mounts go below it")
        path = self.resolve(requested)
        self.directory(path, _DIRECTORY_MODE, why)
        return path

    def directory(self, path: str, mode: int, why: Why) -> None:
        """Plan the directory ``path`` and its parents, if they do not exist."""
        node = self._lookup(path)
        if node is None:
            if self._is_volume(path):
                return
            self._prepare_parent(path, why)
            self.make_directory(path, mode & ~_UMASK, why)
        elif node.type != "dir":
            raise Refusal(
                "mount",
                f"file creation failed: {self._target.rootfs}{path}: not a directory",
                "the image has a file in the place of this directory: rebuild the image without it",
            )

    def make_directory(self, path: str, mode: int, why: Why) -> None:
        self._made[path] = "dir"
        self.actions.append(MakeDirectory(path, mode, why))

    def _prepare_parent(self, path: str, why: Why) -> None:
        """Make sure that ``path`` can be made, and plan its parents if they do not exist."""
        parent = path.rpartition("/")[0]
        if self._in_tmpfs(path):
            self.directory(parent, _DIRECTORY_MODE, why)
        elif parent not in self._open:
            self._check_writable(path)
            if parent:
                self.directory(parent, _DIRECTORY_MODE, why)
            self.check_volume(path)
            if parent not in self._made:
                self._open.add(parent)

    def placeholder(
        self,
        path: str,
        mode: int,
        why: Why,
        *,
        accept: str = "file",
        rdev: tuple[int, int] | None = None,
    ) -> None:
        """Plan a placeholder file at ``path``, if nothing exists there. An existing file must be a
        regular one, or of the type ``accept`` and the device number ``rdev`` (None: any).
        """
        parent = path.rpartition("/")[0]
        while parent:
            if parent in self._binds:
                raise _hidden(path, parent)
            parent = parent.rpartition("/")[0]
        node = self._lookup(path)
        if node is None:
            if self._is_volume(path):
                return
            self._prepare_parent(path, why)
            self._made[path] = "file"
            return
        problem = {"symlink": "file exists", "dir": "is a directory"}.get(node.type, "")
        if (
            not problem
            and node.type != "file"
            and (node.type != accept or (rdev is not None and node.rdev != rdev))
        ):
            problem = "file exists"
        if problem:
            hint = (
                f"the image has a {node.type} in the place of the driver's file: rebuild the"
                " image without it"
            )
            raise Refusal(
                "mount", f"file creation failed: {self._target.rootfs}{path}: {problem}", hint
            )

    def _check_writable(self, path: str) -> None:
        """Refuse a read-only place before all other faults, as the reference does. A volume is
        refused by its own check.
        """
        if self._target.is_read_only(path) and self._target.volume(path) is None:
            raise Refusal(
                "mount",
                f"file creation failed: {self._target.rootfs}{path}: read-only file system",
                READ_ONLY,
            )

    def check_volume(self, path: str) -> None:
        """Check that ``path`` would not be made on a volume.

        :raises OnVolume: it would.
        """
        if self._in_tmpfs(path):
            return
        volume = self._target.volume(path)
        if volume is not None:
            raise OnVolume(
                f"file creation failed: {self._target.rootfs}{path}: it would be made on the volume"
                f" {volume}",
                volume,
                "mount the volume elsewhere, or make an empty file there before",
            )


def _hidden(path: str, mount: str) -> Refusal:
    hint = "use another image: its symbolic links lead into a mount of the driver"
    return Refusal("mount", f"mount operation failed: {path}: hidden by the mount on {mount}", hint)
