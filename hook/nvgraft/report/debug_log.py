"""The debug log of the hook and of ``configure``, in glog's line format (reference behaviour
4.6).
"""

from __future__ import annotations

import sys
import time

from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import printable

_HEADER = "\n-- WARNING, the following logs are for debugging purposes only --\n\n"


class DebugLog:
    """A log file. Lines that are logged while no file is open are dropped. Close it after use."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self, path: str) -> None:
        """Open ``path``; "" opens nothing.

        :raises OSError: the file cannot be opened.
        """
        if path:
            # O_NONBLOCK: a FIFO without a reader is an error, instead of a start that waits for
            # one.
            flags = (
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            )
            self._fd = os.open(path, flags, 0o644)
            os.set_blocking(self._fd, True)
            self._write(_HEADER)

    @property
    def is_open(self) -> bool:
        """Tell whether a file is open."""
        return self._fd >= 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def note(self, text: str) -> None:
        self._line("I", text)

    def warn_of(self, text: str) -> None:
        self._line("W", text)

    def give_up(self, text: str) -> None:
        self._line("E", text)

    def _line(self, level: str, text: str) -> None:
        if self._fd < 0:
            return
        now = time.time_ns()
        moment = time.strftime("%m%d %H:%M:%S", time.gmtime(now // 10**9))
        caller = sys._getframe(2)
        place = f"{paths.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        self._write(
            f"{level}{moment}.{now % 10**9 // 1000:06} {os.getpid()} {place}] {printable(text)}\n"
        )

    def _write(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            self.close()  # a full disk must not keep a container from starting
