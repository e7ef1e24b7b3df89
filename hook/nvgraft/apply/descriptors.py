"""Reading files of a container by descriptors that are held already: nothing is looked up by a path here."""

from __future__ import annotations

import errno

from nvgraft.base._os import os, stat
from nvgraft.base.files import read_fd


class Unreadable(OSError):
    """What has been opened cannot be read: no answer of the image's, whichever number the error has."""


def reopen(path_fd: int, own_fds: int, path: str) -> int:
    """Open the regular file that ``path_fd`` (O_PATH) holds: what was looked at and what is opened cannot be two things.

    :raises OSError: EINVAL, naming ``path``, for anything but a regular file; a FIFO or a device is never opened.
    """
    if not stat.S_ISREG(os.fstat(path_fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.open(str(path_fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=own_fds)


def read_whole(fd: int, limit: int, path: str) -> bytes:
    """Return the content of an open regular file.

    :raises OSError: EFBIG, naming ``path``, for one of more than ``limit`` bytes.
    :raises Unreadable: for anything else.
    """
    try:
        if os.fstat(fd).st_size <= limit:
            return read_fd(fd, limit)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise Unreadable(error.errno, error.strerror, path) from error
    raise OSError(
        errno.EFBIG,
        f"larger than {limit >> 20} MiB" if limit >> 20 else f"larger than {limit} bytes",
        path,
    )
