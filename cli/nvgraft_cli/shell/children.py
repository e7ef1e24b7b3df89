"""Wait for a child that does the work of this process, and prepare one for another program."""

from __future__ import annotations

import contextlib
import os

from nvgraft.base._os import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeAlias

    _Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers


_PR_SET_CHILD_SUBREAPER = 36


def wait_for(pid: int) -> int:
    """Wait for the child ``pid``, pass signals on to it, and return its exit code (128 + N for
    signal N).

    All other children that end are reaped, because the first process of a pid namespace inherits
    orphans.
    """

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # the child has just ended
            os.kill(pid, number)

    # A terminal sends SIGINT and SIGQUIT to the child as well, which decides what they mean.
    handlers: dict[signal.Signals, _Handler] = {
        signal.SIGTERM: pass_on,
        signal.SIGHUP: pass_on,
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGQUIT: signal.SIG_IGN,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        while True:
            ended, status = os.wait()
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def restore_signals(*others: signal.Signals) -> None:
    """Give the signals that Python ignores, and ``others``, their default action.

    Call it before another program is executed, which would go on ignoring them.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *others):
        signal.signal(number, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
