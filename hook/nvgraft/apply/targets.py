"""The container's side of a plan: directories, placeholders and links are made, and every mount's target is opened.

No path is ever resolved twice: each step goes through a descriptor of its parent directory, a link that has appeared since
the plan was made is refused, and what is made is remembered in the undo log by inode (SECURITY R18 to R22, R30).
"""

import errno
import os
import posixpath
import stat
import time

from nvgraft import syscalls
from nvgraft.apply.sources import Sources
from nvgraft.apply.undo import UndoLog
from nvgraft.container import Container
from nvgraft.errors import Refusal
from nvgraft.files import reason
from nvgraft.plan import Action, Bind, MakeDirectory, Symlink, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS
_PLACEHOLDER_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: openat2 answers EAGAIN while somebody renames directories in the same file system; the bounds of SECURITY R18.
_ATTEMPTS = 128
_PATIENCE = 0.02  # seconds

_KINDS = {"device": stat.S_ISCHR, "socket": stat.S_ISSOCK, "dir": stat.S_ISDIR, "file": stat.S_ISREG}


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Open ``path`` below ``root_fd`` without following any link; ``path`` is absolute inside that root.

    :raises OSError: ELOOP for a link on the way.
    """
    attempts = 0
    deadline = 0.0
    while True:
        try:
            return syscalls.openat2(root_fd, path.lstrip("/") or ".", flags | os.O_NOFOLLOW, _RESOLVE)
        except OSError as error:
            attempts += 1
            deadline = deadline or time.monotonic() + _PATIENCE
            if error.errno != errno.EAGAIN or attempts == _ATTEMPTS or time.monotonic() > deadline:
                raise


class Targets:
    """Makes what a plan wants made in the container, and holds the opened targets of its mounts in the plan's order."""

    def __init__(self, container: Container, sources: Sources, undo: UndoLog) -> None:
        self._container = container
        self._sources = sources
        self._undo = undo
        self._parents: dict[str, int] = {}
        self.opened: list[int] = []

    def close(self) -> None:
        """Close every descriptor; the undo log's steps are not usable afterwards."""
        for fd in [*self._parents.values(), *self.opened]:
            os.close(fd)
        self._parents.clear()
        self.opened.clear()

    def prepare(self, actions: "Iterable[Action]") -> None:
        """Carry out ``actions`` up to the point where everything can be attached.

        :raises Refusal: stage ``mount``; the reference's words for what is in the way.
        """
        for action in actions:
            try:
                if isinstance(action, MakeDirectory):
                    if self._sources.inside_tmpfs(action.path) is None:
                        self._make_directory(action)
                elif isinstance(action, Symlink):
                    self._make_link(action)
                elif isinstance(action, Bind | Tmpfs):
                    self.opened.append(self._target(action))
            except syscalls.MissingFeature:
                raise
            except OSError as error:
                path = action.target if isinstance(action, Bind | Tmpfs) else getattr(action, "path", "")
                cause = reason(error)
                raise Refusal("mount", f"file creation failed: {self._container.rootfs}{path}: {cause}", _hint(error)) from error

    def _parent(self, path: str) -> tuple[int, str, bool]:
        """Return the directory that holds ``path``, the name in it, and whether it is in one of our own tmpfs."""
        parent, name = posixpath.split(path)
        inside = self._sources.inside_tmpfs(path)
        if parent not in self._parents:
            if inside is None:
                fd = open_in_root(self._container.rootfs_fd, parent, os.O_PATH | os.O_DIRECTORY)
            else:
                fd = open_in_root(inside[0], posixpath.dirname(inside[1]), os.O_PATH | os.O_DIRECTORY)
            self._parents[parent] = fd
        return self._parents[parent], name, inside is not None

    def _check_volume(self, parent: int, path: str) -> None:
        volume = self._container.volume_of(parent)
        if volume is not None:
            text = f"file creation failed: {self._container.rootfs}{path}: it would be made on the volume {volume}"
            raise Refusal("mount", text, "mount the volume elsewhere, or put the file there beforehand")

    def _make_directory(self, action: MakeDirectory) -> None:
        parent, name, _ = self._parent(action.path)
        self._check_volume(parent, action.path)
        os.mkdir(name, action.mode, dir_fd=parent)
        self._remember(action.path, parent, name, directory=True)

    def _make_link(self, action: Symlink) -> None:
        parent, name, _ = self._parent(action.path)
        self._check_volume(parent, action.path)
        os.symlink(action.target, name, dir_fd=parent)
        self._remember(action.path, parent, name, directory=False)

    def _target(self, action: Bind | Tmpfs) -> int:
        kind = action.kind if isinstance(action, Bind) else "dir"
        parent, name, ours = self._parent(action.target)
        try:
            fd = open_in_root(parent, name, os.O_PATH)
        except OSError as error:
            if error.errno != errno.ENOENT or kind == "dir":
                raise
            if not ours:
                self._check_volume(parent, action.target)
            os.close(os.open(name, _PLACEHOLDER_FLAGS, action.mode, dir_fd=parent))
            if not ours:
                self._remember(action.target, parent, name, directory=False)
            fd = open_in_root(parent, name, os.O_PATH)
        try:
            self._check_target(fd, action, kind, ours)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_target(self, fd: int, action: Bind | Tmpfs, kind: str, ours: bool) -> None:
        """Refuse a target that is neither a placeholder nor what will be mounted there, or whose mount others share."""
        found = os.fstat(fd)
        text = f"file creation failed: {self._container.rootfs}{action.target}: "
        if stat.S_ISDIR(found.st_mode) != (kind == "dir"):
            raise Refusal(
                "mount", text + ("not a directory" if kind == "dir" else "is a directory"), "the image changes while it is started"
            )
        if not stat.S_ISREG(found.st_mode) and not _KINDS[kind](found.st_mode):
            raise Refusal("mount", text + "file exists", "the image changes while it is started")
        if stat.S_ISCHR(found.st_mode) and isinstance(action, Bind) and (os.major(found.st_rdev), os.minor(found.st_rdev)) != action.rdev:
            raise Refusal("mount", text + "file exists", "the image has another device there")
        if not ours:
            mount = self._container.mount_of(fd)
            if mount.shared:
                point = self._container.inside(mount) or "/"
                hint = f"{point} is shared: the driver would appear outside of the container; use private or slave propagation"
                raise Refusal("mount", f"mount operation failed: {action.target}: shared mount", hint)

    def _remember(self, path: str, parent: int, name: str, *, directory: bool) -> None:
        """Have the undo log remove what was just made, unless somebody has put something else in its place since."""
        made = os.stat(name, dir_fd=parent, follow_symlinks=False)

        def remove() -> None:
            try:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return
            if (found.st_dev, found.st_ino) != (made.st_dev, made.st_ino):
                return
            if directory:
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

        self._undo.add(path, remove)


def _hint(error: OSError) -> str:
    hints = {
        errno.EROFS: "the container's root file system is mounted read-only before the hook runs: let the runtime do it (root.readonly)",
        errno.EOVERFLOW: "the owner of the container's root has no number in this user namespace: check uidMappings",
        errno.EEXIST: "something appeared there while the container was started",
        errno.ELOOP: "a symbolic link appeared there while the container was started",
        errno.EAGAIN: "somebody renames directories of this rootfs all the time",
    }
    return hints.get(error.errno or 0, str(error))
