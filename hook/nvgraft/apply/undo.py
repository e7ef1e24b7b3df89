"""The undo log: what has to be taken back when a later step fails.

All or nothing is the contract of the hook, and the runtime cannot be relied on for it: a container that is
restarted keeps its rootfs, so a placeholder or a link that a failed start left behind would stay for ever.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class UndoLog:
    """Steps to take back, newest first.

    A step is registered right after (or, where the kernel could create half of it, right before) the change that it
    takes back, so that no moment exists in which a change is unknown to the log.
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def add(self, what: str, step: "Callable[[], None]") -> None:
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
                step()
            except OSError as error:
                left.append(f"{what} ({error.strerror or error})")
        return left

    def forget(self) -> None:
        """The whole transaction succeeded: keep everything."""
        self._steps.clear()

    def __len__(self) -> int:
        return len(self._steps)
