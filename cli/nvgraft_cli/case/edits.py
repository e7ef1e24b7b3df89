"""The CDI edits of a container, each with where it comes from."""

from typing import NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits

#: In the place of a file: what a specification would be that a recorded host does not have.
GENERATED = "the specification that nvgraft cdi generate writes"


class Unmountable(Refusal):
    """A mount of CDI edits whose source the host lacks."""

    def __init__(self, source: str, hint: str) -> None:
        super().__init__("", f"failed to mount {source}", hint)


class Origin(NamedTuple):
    """Where edits come from.

    :ivar file: the specification; without one ``maker`` says who has made them.
    :ivar device: the device whose own edits they are; "" for those that all devices share.
    """

    file: str = ""
    kind: str = ""
    device: str = ""
    maker: str = "the CDI edits"

    def __str__(self) -> str:
        if not self.file:
            return self.maker
        if self.device:
            return f"device {self.kind}={self.device} in {self.file}"
        return f"{self.file}, for every device of {self.kind}"


class Edited(NamedTuple):
    """CDI edits, and where they come from."""

    edits: CdiEdits
    origin: Origin = Origin()
