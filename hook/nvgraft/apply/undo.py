"""The undo log: what has to be taken back when a later step fails.

All or nothing is the contract of the hook, and the runtime cannot be relied on for it: a container that is
restarted keeps its rootfs, so a placeholder or a link that a failed start left behind would stay for ever.
"""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 8


class UndoLog:
    """Steps to take back, newest first.

    A step is registered before the change that it takes back, and finds out by itself whether there is anything to do: no
    moment exists in which a change is unknown to the log, whatever fails in between. Signals have to wait meanwhile.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def add(self, what: str, step: Callable[[], None]) -> None:
        """Register ``step``; ``what`` names the thing that stays behind if the step fails ("mount /usr/bin/x")."""
        self._steps.append((what, step))

    def run(self) -> list[str]:
        """Take everything back, newest first, and return what could not be (empty: nothing of ours is left).

        A step that fails does not stop the others: the more is taken back, the better.
        """
        left: list[str] = []
        while self._steps:
            what, step = self._steps.pop()
            try:
                _take_back(step)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other steps come first
                left.append(f"{what} ({getattr(error, 'strerror', None) or error})")
        return left

    def forget(self) -> None:
        """The whole transaction succeeded: keep everything."""
        self._steps.clear()

    def __len__(self) -> int:
        return len(self._steps)


def _take_back(step: Callable[[], None]) -> None:
    for _ in range(_TRIES - 1):
        try:
            step()
            return
        except OSError as error:
            if error.errno not in {errno.EINTR, errno.EAGAIN}:
                raise
    step()
