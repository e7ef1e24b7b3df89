"""Private directories under /run. They are made when they are first needed, and last until a
reboot.
"""

from __future__ import annotations

import errno

from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.system import syscalls, userns

#: Errors that a user who is not the host's root gets: /run is not theirs, or read-only for them.
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def open_private(path: str, *, create: bool = True) -> int | None:
    """Open the directory ``path``, which only this user can read; make it and its parent if needed.

    Return None where there is no such directory: rootless, or something else in its place. Call
    this before entering the container's mount namespace, whose /run is not the host's.

    :param create: false only opens an existing directory.
    """
    try:
        return _open(path, create=create)
    except OSError:
        return None


def require_private(path: str) -> int | None:
    """Open a directory as :func:`open_private` does. Return None only for a user who cannot have
    one.

    :raises Refusal: stage "initialization": the host's root has no such directory either.
    """
    try:
        return _open(path, create=True)
    except OSError as error:
        if error.errno in _DENIED and (os.geteuid() != 0 or userns.inside()):
            return None
        fix = (
            "the hook keeps locks and a journal there:"
            " make /run writable, and leave this directory to root alone (mode 0700)"
        )
        raise Refusal("initialization", f"open failed: {path}: {reason(error)}", fix) from error


def unlike_ours(status: os.stat_result, limit: int, forbidden: int = 0o022) -> str:
    """Say why a file of a private directory is not used, or return "" if it is as nvgraft makes it
    (SECURITY R43): regular, of this user, closed to others, with one name.

    :param status: of the open file, or of the name itself (not of what a link leads to).
    :param limit: the most bytes that it may have.
    :param forbidden: the permissions that it must not have.
    """
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & forbidden:
        return f"its mode is {stat.S_IMODE(status.st_mode):04o} instead of 0600"
    if status.st_nlink > 1:
        return "it has a second name"
    return f"it has more than {limit} bytes" if status.st_size > limit else ""


def _open(path: str, *, create: bool) -> int:
    try:
        return _open_existing(path)
    except FileNotFoundError:
        if not create:
            raise
    for directory in (paths.dirname(path), path):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue
    return _open_existing(path)


def _open_existing(path: str) -> int:
    parent, name = paths.split(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    user = os.geteuid()
    holder = os.open(parent, flags)
    try:
        _check_ours(holder, user, 0o022)
        fd = os.open(name, flags, dir_fd=holder)
    finally:
        syscalls.close(holder)
    try:
        _check_ours(fd, user, 0o077)
    except BaseException:
        syscalls.close(fd)
        raise
    return fd


def _check_ours(fd: int, user: int, forbidden: int) -> None:
    status = os.fstat(fd)
    if status.st_uid != user or stat.S_IMODE(status.st_mode) & forbidden:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
