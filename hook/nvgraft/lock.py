"""One hook at a time for each root file system.

An engine may start the hook twice for one container, and two containers may share a root file system. Both hooks would
make the same placeholders and write the same loader cache. So the second waits, and then plans on what the first has made.
"""

import errno
import os
import time

from nvgraft import syscalls
from nvgraft.errors import Refusal
from nvgraft.rundir import open_private

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
        if self._fd >= 0:
            os.unlink(self._name, dir_fd=self._directory)
            os.close(self._fd)
            os.close(self._directory)


def lock_rootfs(rootfs_fd: int, *, timeout: float = TIMEOUT) -> RootfsLock:
    """Wait for the lock of the root directory ``rootfs_fd``, and return it.

    Where this user cannot make locks (rootless, there is no directory that all of one user's hooks share) it locks nothing.

    :raises Refusal: stage ``container`` when another hook holds it for longer than ``timeout`` seconds.
    """
    directory = open_private(DIRECTORY)
    if directory is None:
        return RootfsLock()
    root = os.fstat(rootfs_fd)
    name = f"{root.st_dev:x}-{root.st_ino:x}"
    deadline = time.monotonic() + timeout
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        if _try_lock(fd) and _is_current(fd, name, directory):
            return RootfsLock(directory, name, fd)
        os.close(fd)
        if time.monotonic() > deadline:
            os.close(directory)
            hint = f"it is held by another process ({DIRECTORY}/{name}): a hook that hangs, see last-error"
            raise Refusal("container", f"another hook has been working on this root file system for {timeout:g} s", hint)
        time.sleep(_PAUSE)


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
