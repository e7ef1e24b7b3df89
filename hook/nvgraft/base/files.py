"""Reading the hook's own documents: whole, bounded, and with the cause in the reference's words.

For files of the host that an administrator or the engine wrote. Nothing inside a container's root file system is read
with these: that goes through the root file system's descriptor.
"""

from __future__ import annotations

import _stat as stat
import errno
import select

from nvgraft.base._os import os


def reason(error: OSError) -> str:
    """Return the kernel's reason as the reference prints it: ``no such file or directory``."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def read_fd(fd: int, limit: int) -> bytes:
    """Read ``fd`` to its end.

    :raises OSError: EFBIG when there is more than ``limit`` bytes, or what read(2) says.
    """
    chunks = []
    left = limit + 1
    # Room for what there is and one byte more: for a large buffer that stays empty memory would be mapped and given back.
    room = max(os.fstat(fd).st_size + 1, 1 << 12)
    while left > 0 and (chunk := os.read(fd, min(left, room))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return b"".join(chunks)


def read_text(path: str, limit: int = 1 << 26) -> str:
    """Return the content of a file of the kernel's.

    :raises OSError: as :func:`read_fd`, or what open(2) says.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_fd(fd, limit).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data``.

    :raises OSError: EIO when the kernel takes nothing and gives no reason, or what write(2) says.
    """
    rest = memoryview(data)
    while rest:
        written = os.write(fd, rest)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = rest[written:]


def open_file(path: str, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; a FIFO or a device in its place is refused instead of waited for.

    :raises OSError: EISDIR for a directory, EINVAL for anything else that is no regular file, or what open(2) says.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dir_fd)
    try:
        require_regular(os.fstat(fd).st_mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def require_regular(mode: int) -> None:
    """Check the ``st_mode`` of an opened file.

    :raises OSError: EISDIR for a directory, EINVAL for anything else that is no regular file.
    """
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number))


def readable(fd: int, seconds: float) -> bool:
    """Wait until ``fd`` can be read (or, a pidfd, has ended) for at most ``seconds``; tell whether it can.

    With poll(2): select(2) takes no descriptor above 1023, and the hook raises its limit beyond that.
    """
    return _ready(fd, select.POLLIN, seconds)


def writable(fd: int, seconds: float) -> bool:
    """Wait until ``fd`` takes bytes for at most ``seconds``; tell whether it does. A pipe takes PIPE_BUF (4096) then."""
    return _ready(fd, select.POLLOUT, seconds)


def _ready(fd: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
