"""The actions that :mod:`nvgraft.apply.placement` carries out: only steps of nvgraft-cdi-hook are
planned with them.

They are in a module of their own, because no start of the hook needs them.
"""

from __future__ import annotations

from nvgraft.plan.actions import Action

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.plan.actions import Why


class PlaceFile(Action):
    """Write a file with ``content`` on the root file system itself, or in the place of a file or
    link there. A file that is replaced keeps its mode and owner.
    """

    placed = True

    def __init__(self, path: str, mode: int, content: str, why: Why) -> None:
        self.path = path
        self.mode = mode
        self.content = content
        self.why = why


class ChangeMode(Action):
    """Set the permissions of what is at ``path``, unless it is on a volume."""

    placed = True

    def __init__(self, path: str, mode: int, why: Why) -> None:
        self.path = path
        self.mode = mode
        self.why = why
