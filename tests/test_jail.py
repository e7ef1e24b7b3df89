"""What the parent of a jailed program does: following it, and telling how it ended. Building the jail needs root: integration."""

import os
import time
from collections.abc import Callable

import pytest

from nvgraft.apply import jail


def _follow(child: Callable[[], None], timeout: float) -> tuple[bool, bytes, int]:
    """Follow a child that writes to descriptor 1; return what was found, and its wait status after a kill."""
    output, output_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(output_end, 1)
            os.close(output_end)
            os.close(output)
            child()
        finally:
            os._exit(7)
    os.close(output_end)
    late, printed = jail._follow(pid, output, time.monotonic() + timeout)
    if late:
        os.kill(pid, 9)
    os.close(output)
    return late, printed, os.waitpid(pid, 0)[1]


def test_keeps_the_end_of_what_was_printed() -> None:
    """However much is printed, only the last 4 KiB are kept, and the program is never blocked by a full pipe."""

    def count() -> None:
        for number in range(100_000):
            os.write(1, b"%7d\n" % number)

    late, printed, status = _follow(count, 60)
    assert not late
    assert printed == b"".join(b"%7d\n" % n for n in range(100_000))[-4096:]
    assert os.WEXITSTATUS(status) == 7


@pytest.mark.parametrize("closes", [False, True])
def test_the_deadline_counts_for_a_silent_program(closes: bool) -> None:
    """It is late whether it holds its output open or has closed it."""

    def sleep() -> None:
        if closes:
            os.close(1)
        time.sleep(60)

    late, printed, status = _follow(sleep, 0.1)
    assert (late, printed, os.WTERMSIG(status)) == (True, b"", 9)


def test_the_deadline_counts_for_a_program_that_never_stops_printing() -> None:
    """Output that is always ready does not keep the clock from being looked at."""

    def flood() -> None:
        while True:
            os.write(1, b"x" * 1024)

    assert _follow(flood, 0.1)[0]


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, b"", (0, 0, "")),
        (1 << 8, b"first\nlast words \n\n", (1, 0, "last words")),
        (9, b"\xff", (0, 9, "�")),
    ],
)
def test_outcome(status: int, output: bytes, expected: tuple[int, int, str]) -> None:
    """A wait status is either an exit code or a signal; of the output the last line that is not empty counts."""
    outcome = jail.Outcome(status, False, output)
    assert (outcome.code, outcome.signal, outcome.last_line) == expected
