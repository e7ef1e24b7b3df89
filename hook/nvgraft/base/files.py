"""Bounded reads and complete writes, with causes in the reference's words.

These functions are for files of the host that an administrator, the kernel or nvgraft wrote. Files
of a container are opened through the descriptor of its root file system instead.
"""

from __future__ import annotations

import errno
import select

from nvgraft.base._os import os, signal, stat


def reason(error: OSError) -> str:
    """Return the text of an errno as the reference prints it: ``no such file or directory``."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def read_fd(fd: int, limit: int) -> bytes:
    """Read ``fd`` to its end.

    :raises OSError: EFBIG for more than ``limit`` bytes, or as read(2).
    """
    chunks = []
    left = limit + 1
    # The buffer is one byte larger than the file: memory of a larger one would be mapped for
    # nothing.
    room = max(os.fstat(fd).st_size + 1, 1 << 12)
    while left > 0 and (chunk := os.read(fd, min(left, room))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return b"".join(chunks)


def read_text(path: str, limit: int = 1 << 26) -> str:
    """Return the content of a file that the kernel makes, such as one below /proc.

    :raises OSError: as :func:`read_fd` or open(2).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_fd(fd, limit).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of ``data``.

    :raises OSError: EIO when write(2) accepts no byte without an error, or as write(2).
    """
    rest = memoryview(data)
    while rest:
        written = os.write(fd, rest)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = rest[written:]


def print_answer(text: str) -> None:
    """Write ``text`` to standard output. A reader that has closed its pipe ends this process by
    SIGPIPE, from now on, as it ends git.

    :raises OSError: standard output cannot be written.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    write_all(1, text.encode("utf-8", "surrogateescape"))


def open_file(path: str, dir_fd: int | None = None) -> int:
    """Open a regular file for reading, and never wait for a FIFO or a device in its place.

    :raises OSError: EISDIR for a directory, EINVAL for another file that is not regular, or as
        open(2).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dir_fd)
    try:
        require_regular(os.fstat(fd).st_mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def require_regular(mode: int) -> None:
    """Check the ``st_mode`` of an open file.

    :raises OSError: EISDIR for a directory, EINVAL for another file that is not regular.
    """
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number))


def readable(fd: int, seconds: float) -> bool:
    """Wait at most ``seconds`` until ``fd`` is readable (a pidfd: has ended), and tell whether it
    is.

    This uses poll(2): select(2) takes no descriptor above 1023, and the hook raises its limit
    beyond that.
    """
    return _ready(fd, select.POLLIN, seconds)


def writable(fd: int, seconds: float) -> bool:
    """Wait at most ``seconds`` until ``fd`` is writable, and tell whether it is.

    A writable pipe has room for PIPE_BUF (4096) bytes.
    """
    return _ready(fd, select.POLLOUT, seconds)


def _ready(fd: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
