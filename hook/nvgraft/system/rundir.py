"""Our directories under /run: root's own, made when they are first needed, gone with the next start of the machine."""

from __future__ import annotations

import _stat as stat
import errno

from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.system import syscalls, userns

#: What a user hears who is not the host's root: /run is not theirs, or cannot be written in their mount namespace.
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def open_private(path: str, *, create: bool = True) -> int | None:
    """Open the directory ``path``; with ``create`` make it and its parent if need be. Both are for this user alone.

    Return None where there is none that is this user's own and closed to others: rootless, or something in its place. Called
    before the hook enters the container's mount namespace, in which /run is somebody else's.
    """
    try:
        return _open(path, create=create)
    except OSError:
        return None


def require_private(path: str) -> int | None:
    """Do as :func:`open_private` where a start depends on it: None only for a user who may not have such a directory.

    :raises Refusal: stage "initialization", for root in the host's user namespace, and for a machine without the means.
    """
    try:
        return _open(path, create=True)
    except OSError as error:
        if error.errno in _DENIED and (os.geteuid() != 0 or userns.inside()):
            return None
        fix = "the hook keeps locks and a journal there: it must be root's own, closed to others, in a /run that can be written"
        raise Refusal("initialization", f"open failed: {path}: {reason(error)}", fix) from error


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
    holder = os.open(parent, flags)
    try:
        _check_ours(holder, 0o022)
        fd = os.open(name, flags, dir_fd=holder)
    finally:
        syscalls.close(holder)
    try:
        _check_ours(fd, 0o077)
    except BaseException:
        syscalls.close(fd)
        raise
    return fd


def _check_ours(fd: int, forbidden: int) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & forbidden:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
