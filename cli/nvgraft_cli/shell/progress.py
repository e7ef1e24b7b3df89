"""Show the progress of work that takes longer than a second, on stderr.

A terminal has one line that changes; other files, such as a CI log, get a new line every ten
seconds.
"""

import sys
import time
from types import TracebackType

_QUIET = 1.0  # seconds before anything is shown
_TERMINAL, _FILE = 0.1, 10.0  # seconds between two updates


class Progress:
    """A context that shows how much of ``total`` ``unit`` is done, and removes its line at the end.

    :param what: the name of the work, such as "planning".
    :param total: 0 if it is not known.
    """

    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done = 0
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _QUIET
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

    def step(self, count: int = 1) -> None:
        """Count ``count`` more units as done."""
        self._done += count
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_TERMINAL if self._terminal else _FILE)
        amount = f"{self._done:,} of {self._total:,}" if self._total else f"{self._done:,}"
        line = f"nvgraft: {self._what}: {amount} {self._unit}"
        if self._terminal:
            print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))
        else:
            print(line, file=sys.stderr, flush=True)
