"""The container's side of a plan: make directories, placeholders and links, and open each mount's
target.

No path is resolved twice. Each step uses a descriptor of the parent directory, refuses a link that
has appeared since the plan was made, and records what it makes in the undo log by inode (SECURITY
R18 to R22, R30).
"""

from __future__ import annotations

import errno
import time

from nvgraft.apply.detached_mounts import Sources
from nvgraft.apply.journal import JournalEntry
from nvgraft.apply.undo import UndoLog
from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.container.container import Container
from nvgraft.plan.actions import MOUNTS, Action, Bind, MakeDirectory, Symlink, Tmpfs
from nvgraft.plan.layout import READ_ONLY
from nvgraft.system import syscalls
from nvgraft.system.mountinfo import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS
_FOLLOW = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_PLACEHOLDER_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

#: openat2 fails with EAGAIN while another process renames directories of the same file system.
#: These are the bounds of SECURITY R18.
_ATTEMPTS = 128
_PATIENCE = 0.02  # seconds

#: Seconds to wait for a server to remove closed files.
_CLOSING = 1.0
#: Seconds between two tries to remove their directory.
_AGAIN = 0.01

_KINDS = {
    "device": stat.S_ISCHR,
    "socket": stat.S_ISSOCK,
    "dir": stat.S_ISDIR,
    "file": stat.S_ISREG,
}


def open_in_root(
    root_fd: int, path: str, flags: int, resolve: int = 0, *, follow: bool = False
) -> int:
    """Open ``path``, absolute inside of ``root_fd``. Links are refused, or followed inside that
    root.

    :param resolve: further restrictions, such as RESOLVE_NO_XDEV.
    :param follow: follow links instead of refusing them.
    :raises OSError: ELOOP for a refused link, or as openat2(2).
    """
    resolve |= _FOLLOW if follow else _RESOLVE
    flags |= 0 if follow else os.O_NOFOLLOW
    attempts = 0
    deadline = 0.0
    while True:
        try:
            return syscalls.openat2(root_fd, path.lstrip("/") or ".", flags, resolve)
        except OSError as error:
            attempts += 1
            deadline = deadline or time.monotonic() + _PATIENCE
            if error.errno != errno.EAGAIN or attempts == _ATTEMPTS or time.monotonic() > deadline:
                raise


def unlike(kind: str, status: os.stat_result, target: str, read_target: Callable[[], str]) -> str:
    """Say why ``status`` is not what nvgraft makes as ``kind``, or return "" if it may be.

    :param kind: "dir", "file" or "link" (to ``target``).
    """
    if kind == "dir":
        return "" if stat.S_ISDIR(status.st_mode) else "it is not a directory any more"
    if kind == "link":
        same = stat.S_ISLNK(status.st_mode) and read_target() == target
        return "" if same else "it is not the link that was made"
    empty = stat.S_ISREG(status.st_mode) and not status.st_size
    return "" if empty else "it is not an empty file any more"


def check_gone(fd: int) -> None:
    """Check that the removed file that ``fd`` holds has no other name.

    :raises OSError: ENOENT when it has one: it was moved, or linked elsewhere.
    """
    try:
        link_count = os.fstat(fd).st_nlink
    except OSError:
        return  # there is no way to tell
    if link_count:
        raise OSError(errno.ENOENT, "it was moved or linked elsewhere")


def remove_directory(name: str, parent: int, container: Container) -> None:
    """Remove the empty directory ``name`` of the open directory ``parent``.

    Where deleted files stay until they are closed, and a server is told of that later, wait for it.

    :raises OSError: as rmdir(2).
    """
    deadline = time.monotonic() + _CLOSING
    while True:
        try:
            os.rmdir(name, dir_fd=parent)
            return
        except OSError as error:
            if (
                error.errno not in {errno.ENOTEMPTY, errno.EBUSY}
                or not container.keeps_deleted_files(parent)
                or time.monotonic() > deadline
            ):
                raise
        time.sleep(_AGAIN)


class _Made:
    """One thing being made under a name in an open directory, and its removal."""

    def __init__(
        self,
        container: Container,
        target_fds: list[int],
        kind: str,
        parent: int,
        name: str,
        target: str = "",
    ) -> None:
        """Describe it.

        :param target_fds: the open descriptors of targets, of which :meth:`remove` closes its own.
        """
        self._container = container
        self._target_fds = target_fds
        self._kind = kind
        self._parent = parent
        self._name = name
        self._target = target
        self._made = False
        self._fd: int | None = None
        self._status: os.stat_result | None = None

    def confirm(self, fd: int | None = None) -> None:
        """Note that the thing was made, and which one it is.

        :param fd: its descriptor, if it is open; :meth:`remove` closes it.
        """
        self._made = True
        self._fd = fd
        if fd is None:
            self._status = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)

    def remove(self) -> None:
        """Remove the thing, if it was made and nothing else has taken its place.

        :raises OSError: ENOENT when it was moved away.
        """
        removed = self._made and self._remove()
        if self._fd is not None:
            if not (removed and self._container.keeps_deleted_files(self._parent)):
                check_gone(self._fd)
            self._close()

    def _close(self) -> None:
        """Close the file: until then it may stay in its directory, which could not be removed."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._target_fds.remove(fd)
            syscalls.close(fd)

    def _remove(self) -> bool:
        """Remove the thing, and tell whether it was there."""
        try:
            status = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if self._is_another(status):
            self._check_uncovered()
            return False
        if self._kind == "dir":
            remove_directory(self._name, self._parent, self._container)
        else:
            os.unlink(self._name, dir_fd=self._parent)
        return True

    def _is_another(self, status: os.stat_result) -> bool:
        made = self._status if self._fd is None else os.fstat(self._fd)
        if made is not None:
            return (made.st_dev, made.st_ino) != (status.st_dev, status.st_ino)
        reason = unlike(
            self._kind,
            status,
            self._target,
            lambda: os.readlink(self._name, dir_fd=self._parent),
        )
        return bool(reason)

    def _check_uncovered(self) -> None:
        """Raise EBUSY if a mount of ours still covers the thing: nothing else has taken its place
        then.
        """
        fd = open_in_root(self._parent, self._name, os.O_PATH)
        try:
            if syscalls.mount_id(fd) != syscalls.mount_id(self._parent):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        finally:
            syscalls.close(fd)


class Targets:
    """Make what a plan needs in the container, and hold its mounts' open targets in order."""

    def __init__(self, container: Container, sources: Sources, undo: UndoLog) -> None:
        self._container = container
        self._sources = sources
        self._undo = undo
        #: Directory -> its descriptor, and whether it is in one of our tmpfs.
        self._parents: dict[str, tuple[int, bool]] = {}
        self._mount_ids: dict[int, int] = {}
        #: Directories that are not on a volume, and mounts that are not shared.
        self._own: set[int] = set()
        self._private: set[int] = set()
        self._target_fds: list[int] = []
        self.opened: list[int] = []

    def close(self) -> None:
        """Close every descriptor. The undo log's steps cannot be used afterwards."""
        for fd in [*(fd for fd, _ in self._parents.values()), *self._target_fds]:
            syscalls.close(fd)
        self._parents.clear()
        self._target_fds.clear()
        self.opened.clear()

    def prepare(
        self, actions: Sequence[Action], announce: Callable[[list[JournalEntry]], None]
    ) -> None:
        """Carry out ``actions`` up to the point where everything can be attached.

        :param announce: called with what will be made, before anything is.
        :raises Refusal: stage ``mount``, in the reference's words for what is in the way.
        """
        announce(self._to_be_made(actions))
        for index, action in enumerate(actions):
            try:
                if isinstance(action, MOUNTS):
                    self.opened.append(self._target(action))
                elif isinstance(action, MakeDirectory):
                    if self._sources.inside_tmpfs(action.path) is None:
                        self._make_directory(action)
                elif (
                    isinstance(action, Symlink) and not action.replaces
                ):  # those come after the mounts
                    self._make_link(action)
            except syscalls.MissingFeature:
                raise
            except OSError as error:
                path = self._container.rootfs + _path_to_name(actions[index:])
                text = f"file creation failed: {path}: {reason(error)}"
                raise Refusal("mount", text, _hint(error)) from error

    def _to_be_made(self, actions: Sequence[Action]) -> list[JournalEntry]:
        """Return what will be made on the root file system itself. The rest vanishes with its
        mount.
        """
        stay: dict[str, bool] = {}
        entries = []
        for action in actions:
            if isinstance(action, MakeDirectory):
                entry = JournalEntry("dir", action.path)
            elif isinstance(action, Symlink) and not action.replaces:
                entry = JournalEntry("link", action.path, action.target)
            elif isinstance(action, Bind) and action.placeholder:
                entry = JournalEntry("file", action.target)
            else:
                continue
            parent = entry.path.rpartition("/")[0]
            if parent not in stay:
                stay[parent] = self._stays(parent)
            if entry.kind == "dir":
                stay[entry.path] = stay[parent]
            if stay[parent]:
                entries.append(entry)
        return entries

    def _stays(self, directory: str) -> bool:
        try:
            parent, _, ours = self._parent(f"{directory}/.")
            return not ours and self._container.is_rootfs(self._mount_id(parent))
        except OSError:
            # Announce it. The error is raised when the thing is made.
            return True

    def _parent(self, path: str) -> tuple[int, str, bool]:
        """Return the directory of ``path``, its name there, and whether that is in our tmpfs."""
        parent, _, name = path.rpartition("/")
        if parent not in self._parents:
            inside = self._sources.inside_tmpfs(path)
            if inside is None:
                fd = open_in_root(self._container.rootfs_fd, parent, os.O_PATH | os.O_DIRECTORY)
            else:
                fd = open_in_root(inside[0], paths.dirname(inside[1]), os.O_PATH | os.O_DIRECTORY)
            self._parents[parent] = fd, inside is not None
        fd, ours = self._parents[parent]
        return fd, name, ours

    def _check_volume(self, parent: int, path: str) -> None:
        if parent in self._own:
            return
        volume = self._container.volume(self._mount_id(parent))
        if volume is not None:
            text = (
                f"file creation failed: {self._container.rootfs}{path}: it would be made on the "
                f"volume {volume}"
            )
            raise Refusal(
                "mount", text, "mount the volume elsewhere, or put the file there beforehand"
            )
        self._own.add(parent)

    def _making(self, kind: str, path: str, parent: int, name: str, target: str = "") -> _Made:
        """Have the undo log remove what is about to be made."""
        self._check_volume(parent, path)
        made = _Made(self._container, self._target_fds, kind, parent, name, target)
        self._undo.add(path, made.remove)
        return made

    def _make_directory(self, action: MakeDirectory) -> None:
        parent, name, _ = self._parent(action.path)
        made = self._making("dir", action.path, parent, name)
        os.mkdir(name, action.mode, dir_fd=parent)
        made.confirm()

    def _make_link(self, action: Symlink) -> None:
        parent, name, _ = self._parent(action.path)
        made = self._making("link", action.path, parent, name, action.target)
        os.symlink(action.target, name, dir_fd=parent)
        made.confirm()

    def _target(self, action: Bind | Tmpfs) -> int:
        parent, name, ours = self._parent(action.target)
        fd, made = self._open_or_make(action, parent, name, ours)
        if not made:
            self._check_target(os.fstat(fd), action)
        if not ours:
            # What was just made is on its parent's mount.
            mount_id = self._mount_id(parent if made else fd)
            if mount_id not in self._private:
                self._check_shared(self._container.mount(mount_id), action)
                self._private.add(mount_id)
        return fd

    def _mount_id(self, fd: int) -> int:
        """Return the id of the mount on which ``fd`` is. This object keeps ``fd`` open."""
        mount_id = self._mount_ids.get(fd)
        if mount_id is None:
            mount_id = self._mount_ids[fd] = syscalls.mount_id(fd)
        return mount_id

    def _open_or_make(
        self, action: Bind | Tmpfs, parent: int, name: str, ours: bool
    ) -> tuple[int, bool]:
        """Open a mount's target, or make it. This object closes it.

        :returns: the descriptor, and whether it was made.
        """
        if isinstance(action, Bind) and action.placeholder:
            made = None if ours else self._making("file", action.target, parent, name)
            try:
                fd = os.open(name, _PLACEHOLDER_FLAGS, action.mode, dir_fd=parent)
            except FileExistsError:
                pass  # it appeared after the plan was made
            else:
                self._target_fds.append(fd)
                if made is not None:
                    made.confirm(fd)
                return fd, True
        fd = open_in_root(parent, name, os.O_PATH)
        self._target_fds.append(fd)
        return fd, False

    def _check_target(self, status: os.stat_result, action: Bind | Tmpfs) -> None:
        """Refuse a target of the wrong type, or another device."""
        kind = action.kind if isinstance(action, Bind) else "dir"
        text = f"file creation failed: {self._container.rootfs}{action.target}: "
        if stat.S_ISDIR(status.st_mode) != (kind == "dir"):
            raise Refusal(
                "mount",
                text + ("not a directory" if kind == "dir" else "is a directory"),
                "let nothing change the image while it is started",
            )
        if not stat.S_ISREG(status.st_mode) and not _KINDS[kind](status.st_mode):
            raise Refusal(
                "mount", text + "file exists", "let nothing change the image while it is started"
            )
        if (
            stat.S_ISCHR(status.st_mode)
            and isinstance(action, Bind)
            and (os.major(status.st_rdev), os.minor(status.st_rdev)) != action.rdev
        ):
            raise Refusal(
                "mount",
                text + "file exists",
                "remove the image's own device node there: it has another number",
            )

    def _check_shared(self, mount: Mount, action: Bind | Tmpfs) -> None:
        """Refuse a target on a shared mount (SECURITY R25)."""
        if self._container.propagates(mount):
            point = self._container.inside(mount) or "/"
            hint = (
                f"{point} is shared: the driver would appear outside of the container; "
                "use private or slave propagation"
            )
            raise Refusal("mount", f"mount operation failed: {action.target}: shared mount", hint)


def _path_to_name(actions: Sequence[Action]) -> str:
    """Return the path to name in an error about the first of ``actions``.

    Like the reference, this is the mount target, not the parent directory being made.
    """
    path = ""
    for action in actions:
        if path and (not isinstance(actions[0], MakeDirectory) or action.why != actions[0].why):
            break
        if isinstance(action, Bind | Tmpfs):
            return action.target
        path = action.path if isinstance(action, MakeDirectory | Symlink) else path
    return path


def _hint(error: OSError) -> str:
    hints = {
        errno.EROFS: READ_ONLY,
        errno.EPERM: "the directory is immutable (chattr -i), or a security module forbids it",
        errno.EOVERFLOW: (
            "the owner of the container's root has no number in this user namespace: "
            "check uidMappings"
        ),
        errno.EEXIST: "let nothing change the image while it is started: a file appeared there",
        errno.ELOOP: "let nothing change the image while it is started: a link appeared there",
        errno.EAGAIN: "stop the process that keeps renaming directories of this rootfs",
    }
    return hints.get(error.errno or 0, str(error))
