"""The host's side of a plan: each mount is made, with its options, before it is attached anywhere.

This happens in the host's mount namespace, in the plan's order (from Linux 6.8 mountinfo lists
mounts in the order of their creation). The container is not touched, and what is made here vanishes
with its descriptor.
"""

from __future__ import annotations

import errno

from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason, write_all
from nvgraft.plan.actions import Action, Bind, MakeDirectory, Tmpfs, WriteFile
from nvgraft.system import syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ATTRIBUTES = {
    "ro": syscalls.MOUNT_ATTR_RDONLY,
    "nosuid": syscalls.MOUNT_ATTR_NOSUID,
    "nodev": syscalls.MOUNT_ATTR_NODEV,
    "noexec": syscalls.MOUNT_ATTR_NOEXEC,
    "rw": 0,
}
_ALL_ATTRIBUTES = sum(_ATTRIBUTES.values())

_TYPES = {
    "file": stat.S_IFREG,
    "dir": stat.S_IFDIR,
    "device": stat.S_IFCHR,
    "socket": stat.S_IFSOCK,
}

#: Room for the driver's /proc files and an entry per GPU and MIG device. It is small because
#: container root can fill it.
_TMPFS_LIMITS = {"size": "1m", "nr_inodes": "8k"}


#: The name of the file on the tmpfs of a bind of a new file.
_NEW_FILE = "file"

#: MOUNT_ATTR_ bits by options; a plan has five kinds.
_BITS: dict[tuple[str, ...], int] = {}


def attributes(options: tuple[str, ...]) -> int:
    """Return the MOUNT_ATTR_ bits of mountinfo's ``options``."""
    bits = _BITS.get(options)
    if bits is None:
        bits = _BITS[options] = sum([_ATTRIBUTES[option] for option in options])
    return bits


class Sources:
    """The detached mounts of a plan, and the tmpfs among them by their targets.

    ``mounts`` holds (action, descriptor) in the plan's order. Close it after use: mounts that are
    not attached vanish then.
    """

    def __init__(self) -> None:
        self.mounts: list[tuple[Bind | Tmpfs, int]] = []
        #: Descriptor of a mount -> its id, which stays the same when the mount is attached.
        self.mount_ids: dict[int, int] = {}
        # Prefix of every path in a tmpfs, and its descriptor; the innermost tmpfs comes first.
        self._tmpfs: list[tuple[str, int]] = []

    def close(self) -> None:
        for _, fd in self.mounts:
            syscalls.close(fd)
        self.mounts.clear()
        self.mount_ids.clear()

    def inside_tmpfs(self, path: str) -> tuple[int, str] | None:
        """Return the tmpfs of ``path`` and the path relative to it, or None for a path of the
        rootfs.
        """
        for prefix, fd in self._tmpfs:
            if path.startswith(prefix):
                return fd, path[len(prefix) :]
        return None

    def add(self, action: Bind | Tmpfs, fd: int, mount_id: int | None = None) -> None:
        """Take over ``fd``, the mount of ``action``."""
        self.mounts.append((action, fd))
        self.mount_ids[fd] = syscalls.mount_id(fd) if mount_id is None else mount_id

    def add_tmpfs(self, action: Tmpfs, fd: int) -> None:
        """Take over ``fd``, the mount of ``action``."""
        self.add(action, fd)
        self._tmpfs.append((action.target + "/", fd))
        self._tmpfs.sort(key=lambda place: -len(place[0]))


def open_sources(
    actions: Iterable[Action], uid: int, gid: int, place: Callable[[str], int] | None = None
) -> Sources:
    """Make every mount of ``actions`` and fill each tmpfs.

    :param place: opens the directory of a path in the container, for the bind of a new file; its
        caller closes it.
    :raises Refusal: stage ``mount``, when a source is missing or not what was planned.
    """
    sources = Sources()
    try:
        for action in actions:
            if isinstance(action, Bind) and action.origin == "made":
                sources.add(action, _new_file(action, uid, gid, place))
            elif isinstance(action, Bind):
                sources.add(action, *_clone(action))
            elif isinstance(action, Tmpfs):
                sources.add_tmpfs(action, _new_tmpfs(action, uid, gid))
            elif isinstance(action, MakeDirectory):
                inside = sources.inside_tmpfs(action.path)
                if inside is not None:
                    _make_directory(inside[0], inside[1], action.mode, uid, gid)
            elif isinstance(action, WriteFile):
                inside = sources.inside_tmpfs(action.path)
                if inside is None:
                    raise Refusal(
                        "mount",
                        f"file creation failed: {action.path}: not in a tmpfs",
                        "the plan is damaged: files are made in a tmpfs only",
                    )
                _write_file(inside[0], inside[1], action.mode, action.content, uid, gid)
    except BaseException:
        sources.close()
        raise
    return sources


def _clone(action: Bind) -> tuple[int, int]:
    """Return the detached mount of a source, and its id."""
    path = action.host_path
    try:
        fd = syscalls.open_tree(-1, path, syscalls.OPEN_TREE_CLONE | syscalls.AT_SYMLINK_NOFOLLOW)
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        raise Refusal(
            "mount",
            f"mount operation failed: {action.source}: {reason(error)}",
            f"{path} on the host: {error}",
        ) from error
    try:
        mode, uid, rdev, mount_id = syscalls.source_of_mount(fd)
        _check_source(action, mode, uid, rdev)
        _set_options(fd, attributes(action.options))
    except BaseException:
        syscalls.close(fd)
        raise
    return fd, mount_id


def _set_options(fd: int, attributes: int) -> None:
    try:
        syscalls.mount_setattr(fd, attributes, syscalls.MS_PRIVATE, _ALL_ATTRIBUTES & ~attributes)
    except OSError as error:
        # In a user namespace the kernel locks the restrictions that a mount came with. More can be
        # added, none removed.
        if error.errno != errno.EPERM or not userns.inside():
            raise
        syscalls.mount_setattr(fd, attributes, syscalls.MS_PRIVATE)


def _check_source(action: Bind, mode: int, uid: int, rdev: tuple[int, int]) -> None:
    if stat.S_IFMT(mode) != _TYPES[action.kind]:
        raise _unexpected(action, mode, f"it is not a {action.kind} now: reinstall the driver")
    if action.rdev is not None and rdev != action.rdev:
        raise Refusal(
            "mount",
            f"invalid device node: {action.source}",
            f"its number is not {action.rdev[0]}:{action.rdev[1]}: remove it on the host",
        )
    if action.kind == "file" and (mode & 0o022 or not userns.is_root(uid)):
        hint = "make it writable by root alone (chown root, chmod go-w) before containers get it"
        raise _unexpected(action, mode, hint)


def _unexpected(action: Bind, mode: int, hint: str) -> Refusal:
    text = f"unexpected source file mode {mode:o} for {action.source}"
    return Refusal("mount", text, hint)


def _new_tmpfs(action: Tmpfs, uid: int, gid: int) -> int:
    options = {
        "source": "tmpfs",
        "mode": f"{action.mode:04o}",
        "uid": str(uid),
        "gid": str(gid),
        **_TMPFS_LIMITS,
    }
    try:
        fd = syscalls.new_mount("tmpfs", options, attributes(action.options))
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        raise Refusal(
            "mount", f"mount operation failed: {action.target}: {reason(error)}", f"{error}"
        ) from error
    syscalls.mount_setattr(fd, 0, syscalls.MS_PRIVATE)
    return fd


def _new_file(action: Bind, uid: int, gid: int, place: Callable[[str], int] | None) -> int:
    """Return the detached bind of a new file, which is alone on a tmpfs."""
    options = {
        "source": "tmpfs",
        "size": str(len(action.content.encode())),
        "nr_inodes": "2",
        "mode": "0555",
        "uid": str(uid),
        "gid": str(gid),
    }
    try:
        tmpfs = syscalls.new_mount("tmpfs", options, 0)
        try:
            _write_file(tmpfs, _NEW_FILE, action.mode, action.content, uid, gid)
            fd = _clone_of(tmpfs, _NEW_FILE, action.target, place)
        finally:
            syscalls.close(tmpfs)
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        raise Refusal(
            "mount", f"mount operation failed: {action.target}: {reason(error)}", f"{error}"
        ) from error
    syscalls.mount_setattr(fd, attributes(action.options), syscalls.MS_PRIVATE)
    return fd


def _clone_of(tmpfs: int, name: str, target: str, place: Callable[[str], int] | None) -> int:
    """Return the detached bind of a file on the detached mount ``tmpfs``.

    Linux before 6.15 clones attached mounts only. There the tmpfs is attached for a moment; nothing
    runs in the container yet.
    """
    flags = syscalls.OPEN_TREE_CLONE | syscalls.AT_SYMLINK_NOFOLLOW
    try:
        return syscalls.open_tree(tmpfs, name, flags)
    except OSError as error:
        if error.errno != errno.EINVAL or place is None:
            raise
        directory = place(target)
    try:
        syscalls.mount_setattr(tmpfs, 0, syscalls.MS_PRIVATE)
        syscalls.move_mount(tmpfs, directory)
        try:
            return syscalls.open_tree(tmpfs, name, flags)
        finally:
            syscalls.umount2(f"/proc/self/fd/{tmpfs}", syscalls.MNT_DETACH)
    finally:
        syscalls.close(directory)


def _make_directory(fd: int, path: str, mode: int, uid: int, gid: int) -> None:
    os.mkdir(path, mode, dir_fd=fd)
    os.chown(path, uid, gid, dir_fd=fd, follow_symlinks=False)


def _write_file(fd: int, path: str, mode: int, content: str, uid: int, gid: int) -> None:
    file = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        mode,
        dir_fd=fd,
    )
    try:
        write_all(file, content.encode("utf-8", "surrogateescape"))
        os.fchown(file, uid, gid)
        os.fchmod(file, mode)
    finally:
        syscalls.close(file)
