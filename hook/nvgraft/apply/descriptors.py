"""Read files of a container through open descriptors. Nothing is looked up by a path here."""

from __future__ import annotations

import errno

from nvgraft.base._os import os, stat
from nvgraft.base.files import read_fd


class Unreadable(OSError):
    """An open file cannot be read. The errno of this says nothing about the image."""


def reopen(path_fd: int, own_fds: int, path: str) -> int:
    """Open the regular file that ``path_fd`` (O_PATH) holds, which is sure to be the file examined
    before.

    :raises OSError: EINVAL, naming ``path``, for anything but a regular file. A FIFO or a device is
        never opened.
    """
    if not stat.S_ISREG(os.fstat(path_fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.open(str(path_fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=own_fds)


def read_whole(fd: int, limit: int, path: str) -> bytes:
    """Return the content of an open regular file.

    :raises OSError: EFBIG, naming ``path``, for a file of more than ``limit`` bytes.
    :raises Unreadable: for any other error.
    """
    try:
        if os.fstat(fd).st_size <= limit:
            return read_fd(fd, limit)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise Unreadable(error.errno, error.strerror, path) from error
    size = f"{limit >> 20} MiB" if limit >> 20 else f"{limit} bytes"
    raise OSError(errno.EFBIG, f"larger than {size}", path)
