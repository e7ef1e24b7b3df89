"""One hook at a time for each root file system.

An engine may start the hook twice for one container, and two containers may share a root file system. Both hooks would
make the same placeholders and write the same loader cache. So the second waits, and then plans on what the first has made.
"""

from __future__ import annotations

import errno
import time

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.system import launch, syscalls
from nvgraft.system.rundir import require_private

#: Where the locks are; a lock is a file named after the root directory's inode, gone when nobody holds it.
DIRECTORY = "/run/nvgraft/lock"

#: Seconds to wait: more than a whole start takes, less than what runtimes grant a hook.
TIMEOUT = 60.0

_PAUSE = 0.01


class RootfsLock:
    """A context in which nobody else's hook works on the same root file system; without ``fd`` it is open to all."""

    __slots__ = ("_directory", "_fd", "_name")

    def __init__(self, directory: int = -1, name: str = "", fd: int = -1) -> None:
        self._directory = directory
        self._name = name
        self._fd = fd

    def __enter__(self) -> None:
        return

    def __exit__(self, *_error: object) -> None:
        if self._fd < 0:
            return
        try:
            os.unlink(self._name, dir_fd=self._directory)
        except OSError:
            return  # whoever takes this lock next takes the file with it
        finally:
            syscalls.close(self._fd)
            syscalls.close(self._directory)


def lock_name(device: int, inode: int) -> str:
    """Return the name of the lock of a root directory."""
    return f"{device:x}-{inode:x}"


def lock_rootfs(rootfs_fd: int) -> RootfsLock:
    """Wait for the lock of the root directory ``rootfs_fd``, and return it. Signals end the waiting only (see ``launch``).

    Where this user cannot make locks (rootless, there is no directory that all of one user's hooks share) it locks nothing.

    :raises Refusal: stage ``container`` when another hook holds it for longer than TIMEOUT seconds.
    """
    root = os.fstat(rootfs_fd)
    name = lock_name(root.st_dev, root.st_ino)
    lock = acquire(name, TIMEOUT)
    if lock is None:
        hint = (
            f"it is held by another process ({DIRECTORY}/{name}): a hook that hangs, see last-error"
        )
        raise Refusal(
            "container",
            f"another hook has been working on this root file system for {TIMEOUT:g} s",
            hint,
        )
    return lock


def acquire(name: str, timeout: float) -> RootfsLock | None:
    """Wait up to ``timeout`` seconds for the lock ``name``; None when it is still held by then."""
    directory = require_private(DIRECTORY)
    if directory is None:
        return RootfsLock()
    deadline = time.monotonic() + timeout
    try:
        while (fd := _try(name, directory)) is None:
            if time.monotonic() >= deadline:
                syscalls.close(directory)
                return None
            with launch.Interruptible():
                time.sleep(_PAUSE)
    except BaseException:
        syscalls.close(directory)
        raise
    return RootfsLock(directory, name, fd)


def drop_unheld() -> None:
    """Remove the locks of hooks that were killed. Those that are held stay."""
    directory = require_private(DIRECTORY)
    if directory is None:
        return
    try:
        names = os.listdir(directory)
    finally:
        syscalls.close(directory)
    for name in names:
        held = acquire(name, 0)
        if held is not None:
            with held:
                pass


def _try(name: str, directory: int) -> int | None:
    """Return a descriptor that holds the lock, or None for now."""
    fd = os.open(
        name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory
    )
    taken = False
    try:
        taken = _try_lock(fd)
        if taken and _is_current(fd, name, directory):
            return fd
    except BaseException:
        if taken:  # nobody else can have it: what is left of it would be a file that nobody needs
            os.unlink(name, dir_fd=directory)
        syscalls.close(fd)
        raise
    syscalls.close(fd)
    return None


def _try_lock(fd: int) -> bool:
    try:
        syscalls.flock(fd, syscalls.LOCK_EX | syscalls.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return False
    return True


def _is_current(fd: int, name: str, directory: int) -> bool:
    """Tell whether ``name`` is still the locked file: its last holder may have removed it between opening and locking."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
