"""Locks that let one hook at a time work on a root file system.

An engine may start the hook twice for one container, and two containers may share a root file
system. Both hooks would make the same placeholders and write the same loader cache. The second one
waits, and then plans with the result of the first.
"""

from __future__ import annotations

import errno
import time

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.system import launch, syscalls
from nvgraft.system.rundir import require_private, unlike_ours

#: The directory of the locks. A lock is a file named after the inode of the root directory, and is
#: removed with the lock.
DIRECTORY = "/run/nvgraft/lock"

#: Seconds to wait for a lock: more than a whole start takes, less than runtimes give a hook.
TIMEOUT = 60.0

_PAUSE = 0.01


class RootfsLock:
    """A context that holds a lock until its end. Without ``fd`` it locks nothing."""

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
            return  # the next holder of the lock removes the file
        finally:
            syscalls.close(self._fd)
            syscalls.close(self._directory)


def lock_name(device: int, inode: int) -> str:
    """Return the name of the lock of a root directory."""
    return f"{device:x}-{inode:x}"


def lock_rootfs(rootfs_fd: int) -> RootfsLock:
    """Wait for the lock of the root directory ``rootfs_fd``, and return it.

    Signals are delivered only while it waits (see ``launch``). Rootless, where hooks of one user
    have no directory in common, it locks nothing.

    :raises Refusal: stage ``container``: another hook held the lock for more than TIMEOUT seconds.
    """
    name = lock_name(*syscalls.identity(rootfs_fd))
    lock = acquire(name, TIMEOUT)
    if lock is None:
        hint = f"a hook that hangs holds the lock {DIRECTORY}/{name}: see `nvgraft last-error`"
        raise Refusal(
            "container",
            f"another hook has been working on this root file system for {TIMEOUT:g} s",
            hint,
        )
    return lock


def acquire(name: str, timeout: float) -> RootfsLock | None:
    """Wait at most ``timeout`` seconds for the lock ``name``; return None if it is still held.

    :raises Refusal: stage ``container``: in its place is something that no hook has made.
    """
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


def drop_unheld() -> dict[str, str]:
    """Remove the locks of hooks that were killed, but not those that are held.

    :returns: what is not a lock, and stays: name -> the problem.
    """
    problems: dict[str, str] = {}
    directory = require_private(DIRECTORY)
    if directory is None:
        return problems
    try:
        for name in sorted(os.listdir(directory)):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if problem := unlike_ours(status, 0):
                problems[name] = problem
            elif (lock := acquire(name, 0)) is not None:
                with lock:
                    pass
    finally:
        syscalls.close(directory)
    return problems


def _try(name: str, directory: int) -> int | None:
    """Return a descriptor that holds the lock, or None if another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}:
            raise
        raise _not_a_lock(name, "it is not a regular file") from error
    taken = False
    try:
        mine = os.fstat(fd)
        if problem := unlike_ours(mine, 0):
            raise _not_a_lock(name, problem)
        taken = _try_lock(fd)
        if taken and _is_current(mine, name, directory):
            return fd
    except BaseException:
        if taken:  # no other process holds it, so its file can be removed
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


def _is_current(mine: os.stat_result, name: str, directory: int) -> bool:
    """Tell whether ``name`` is the locked file ``mine``: its last holder may have removed it before
    we locked it.
    """
    try:
        current = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino)


def _not_a_lock(name: str, problem: str) -> Refusal:
    return Refusal(
        "container",
        f"open failed: {DIRECTORY}/{name}: {problem}",
        "remove it: no hook writes such a file",
    )
