"""The standard streams of the program: what a closed, a full and a broken one mean.

A reader that closes its pipe ends the program by SIGPIPE, as it ends git. Standard output that
cannot be written is an error of its own, never the exit code of an answer. A message that stderr
does not take is lost, and changes nothing.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from nvgraft.base._os import signal
from nvgraft.base.errors import NO_OUTPUT
from nvgraft.base.files import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TextIO


class ReaderGone(Exception):
    """The reader of standard output or stderr has closed its pipe.

    Not an OSError, so that no handler for files takes it for an error of theirs.
    """


class CannotWrite(Exception):
    """Standard output cannot be written; the text is the cause and the fix."""


class _Descriptor(io.FileIO):
    """Standard output or stderr, with the errors of this module. After an error it drops data,
    which Python would write again at exit.
    """

    _failed = False

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        if self._failed:
            return len(data)
        try:
            return super().write(data)
        except BrokenPipeError as error:
            self._failed = True
            raise ReaderGone from error
        except OSError as error:
            self._failed = True
            if self.fileno() == 2:
                return len(data)
            cause = "closed" if error.errno == errno.EBADF else reason(error)
            raise CannotWrite(NO_OUTPUT.format(cause)) from error


def prepare() -> None:
    """Open the standard streams of this process anew, and fill closed ones.

    A closed descriptor would be the next file's, and Python's print() drops text silently then.
    Characters that the locale cannot encode are written as escapes.
    """
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            # Standard output is opened for reading, so that a write is an error.
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False, encoding="utf-8", errors="replace")
    sys.stdout = _text(1, sys.stdout)
    sys.stderr = _text(2, sys.stderr)


def _text(fd: int, before: TextIO | None) -> io.TextIOWrapper:
    raw = _Descriptor(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=before.encoding if before else None,
        errors="backslashreplace",
        line_buffering=fd == 2 or raw.isatty(),
    )


def end_by_sigpipe() -> NoReturn:
    """End this process as SIGPIPE ends a program that does not handle it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.raise_signal(signal.SIGPIPE)
    os._exit(
        128 + signal.SIGPIPE
    )  # the signal is blocked, or this is the first process of a namespace
