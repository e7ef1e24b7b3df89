"""Show the progress of work that takes longer than a second, on stderr, with rate and time left.

A terminal has one line that changes; other files, such as a CI log, get a new line every ten
seconds.
"""

import os
import sys
import time
from types import TracebackType

_QUIET = 1.0  # seconds before anything is shown
_TERMINAL, _FILE = 0.1, 10.0  # seconds between two updates


class Progress:
    """A context that shows how much of ``total`` ``unit`` is done, and removes its line at the end.

    :param what: the name of the work, such as "planning".
    :param total: 0 if it is not known. Totals and steps may be fractions.
    """

    def __init__(self, what: str, total: float, unit: str) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0.0
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + _QUIET
        self._width = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width and self._terminal:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    def step(self, count: float = 1) -> None:
        """Count ``count`` more units as done."""
        self._done += count
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL if self._terminal else _FILE)
        line = self._line(now - self._began)
        if self._terminal:
            line = line[: _columns() - 1]  # a line that wraps could not be overwritten
            print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        amount = f"{self._done:,.0f}" + (f" of {self._total:,.0f}" if self._total else "")
        rate = self._done / seconds
        speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
        left = f", {_duration((self._total - self._done) / rate)} left" if self._total else ""
        return f"nvgraft: {self._what}: {amount} {self._unit}, {speed}{left}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
