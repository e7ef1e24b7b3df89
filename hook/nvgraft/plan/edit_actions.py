"""The actions of a plan that only CDI edits have: the runtime carries them out, not the hook.

They are in a module of their own, because no start of the hook needs them.
"""

from __future__ import annotations

from nvgraft.plan.actions import Action

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.plan.actions import Why


class SetVariable(Action):
    """Set a variable in the container's environment."""

    op = "env"

    def __init__(self, name: str, value: str, why: Why) -> None:
        self.name = name
        self.value = value
        self.why = why


class AddGroup(Action):
    """Add a group to those of the container's process."""

    op = "group"

    def __init__(self, gid: int, why: Why) -> None:
        self.gid = gid
        self.why = why


class RunHook(Action):
    """Run an OCI hook at ``stage``. What a known program makes are the actions behind it."""

    op = "hook"

    def __init__(self, stage: str, path: str, args: Sequence[str], why: Why) -> None:
        self.stage = stage
        self.path = path
        self.args = tuple(args)
        self.why = why
