"""The undo log: the steps that take back a start which fails later.

The hook's contract is all or nothing, and the runtime does not clean up for it: a container that is
restarted keeps its rootfs, so a placeholder or a link of a failed start would stay forever.
"""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 8


class UndoLog:
    """Steps to take back, newest first.

    Each step is registered before its change and finds out itself whether there is anything to do,
    so the log knows every change, whatever fails in between. Signals have to wait meanwhile.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def add(self, what: str, step: Callable[[], None]) -> None:
        """Register ``step``.

        :param what: the thing that stays behind if the step fails ("mount /usr/bin/x").
        """
        self._steps.append((what, step))

    def run(self, down_to: int = 0) -> list[str]:
        """Take steps back, newest first, until ``down_to`` are left; return what could not be taken
        back.

        A failing step does not stop the others.
        """
        left: list[str] = []
        while len(self._steps) > down_to:
            what, step = self._steps.pop()
            try:
                _take_back(step)
            except Exception as error:  # noqa: BLE001 - the other steps still run
                left.append(f"{what} ({getattr(error, 'strerror', None) or error})")
        return left

    def forget(self) -> None:
        """Keep everything: the whole transaction succeeded."""
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
