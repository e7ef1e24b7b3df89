"""The actions of a plan that only CDI edits have: the runtime carries them out, not the hook.

They are in a module of their own, because no start of the hook needs them.
"""

from __future__ import annotations

from nvgraft.plan.actions import Action, AllowDevice, Bind

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

    def __init__(
        self,
        stage: str,
        path: str,
        args: Sequence[str],
        env: Sequence[str],
        timeout: int | None,
        why: Why,
    ) -> None:
        self.stage = stage
        self.path = path
        self.args = tuple(args)
        self.env = tuple(env)
        self.timeout = timeout
        self.why = why


class MakeNode(Bind):
    """Make a device node with the numbers of one of the host. In a user namespace the runtime binds
    the host's instead.

    :ivar type: "c", "b", or "p" for a FIFO, which has no numbers.
    :ivar mode: of the node, and its owner ``uid`` and ``gid``, as in config.json.
    """

    def __init__(
        self,
        source: str,
        target: str,
        type: str,
        rdev: tuple[int, int],
        mode: int,
        uid: int,
        gid: int,
        why: Why,
        *,
        placeholder: bool,
    ) -> None:
        super().__init__(
            "device", "dev", source, target, ("rw",), mode, why, rdev, placeholder=placeholder
        )
        self.type = type
        self.uid = uid
        self.gid = gid


class AllowNode(AllowDevice):
    """Add a device rule to config.json. ``type`` is "c" or "b"; ``access`` may have m: such a
    container may make nodes.
    """

    def __init__(self, type: str, major: int, minor: int, access: str, why: Why) -> None:
        self.type = type
        self.major = major
        self.minor = minor
        self.access = access
        self.why = why
