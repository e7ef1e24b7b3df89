"""What an engine has done to a container before it calls a runtime, where commands begin with a
pod.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits
from nvgraft_cli.case.bundle import ContainerSide


class ChainLink(NamedTuple):
    """One step from a pod to its container.

    :ivar layer: pod, kubelet, engine, runtime, hook or container.
    :ivar how: what happens there.
    :ivar fault: what is broken there; "" if nothing is.
    """

    layer: str
    step: str
    how: str
    fault: str = ""


class Handover(NamedTuple):
    """A container of a pod as the engine hands it on.

    :ivar container: with config.json, without the engine's CDI edits.
    :ivar edits: the CDI edits that the engine itself applies.
    :ivar ids: the CDI devices that Allocate has named.
    :ivar bypass: why neither nvgraft-runtime nor the hook is called, or "".
    :ivar refusal: why the container is not created, or None.
    :ivar advice: how the pod gets the devices that it does not have.
    :ivar elsewhere: why this program cannot tell what the container gets, or "".
    :ivar all_nodes: why the engine gives the container all device nodes of the node, or "".
    :ivar allocated: for each resource its name, the ids that were chosen, and Allocate's answer.
    """

    container: ContainerSide
    edits: tuple[CdiEdits, ...]
    ids: tuple[str, ...]
    bypass: str
    refusal: Refusal | None
    chain: tuple[ChainLink, ...]
    allocated: tuple[dict[str, Any], ...] = ()
    advice: str = ""
    elsewhere: str = ""
    all_nodes: str = ""

    @property
    def env(self) -> list[str]:
        """The variables of the edits."""
        return [variable for part in self.edits for variable in part.env]

    def with_env(self, entries: Sequence[str]) -> "Handover":
        """Return the handover with NAME=VALUE entries added to the container's environment."""
        return self._replace(container=self.container.with_env(entries))
