"""A host for :func:`nvgraft.wrapper.rewrite.rewrite` that answers from values."""

from collections.abc import Sequence

from nvgraft.cdi.edits import CdiEdits, CdiHook, Generated
from nvgraft.cdi.generation import CdiRequest
from nvgraft.wrapper.additions import Additions
from nvgraft.wrapper.host_look import HostLook


class FixedLook(HostLook):
    """Gives the same answers to every container, and notes what was asked.

    Without an answer the question fails: the host must not be read for this container.
    """

    def __init__(
        self,
        additions: Additions | None = None,
        edits: Sequence[CdiEdits] | None = None,
        platform: str | None = "nvml",
    ) -> None:
        self._additions = additions
        self._edits = edits
        self._platform = platform
        self.asked: list[object] = []

    def platform(self) -> str:
        assert self._platform is not None, "the platform was asked"
        return self._platform

    def additions(self, gates: Sequence[str], devices: Sequence[str] | None) -> Additions:
        self.asked.append((list(gates), devices))
        assert self._additions is not None, "the host was read"
        return self._additions

    def generated(self, request: CdiRequest) -> Generated:
        self.asked.append(request)
        assert self._edits is not None, "edits were generated"
        return Generated(self._edits)

    def registered(self, devices: Sequence[str]) -> Generated:
        self.asked.append(list(devices))
        assert self._edits is not None, "specifications were read"
        return Generated(self._edits)


def link_hooks(links: Sequence[str]) -> list[CdiHook]:
    return [CdiHook("createRuntime", "/own/nvgraft-hook", ("nvgraft-hook", *links))]
