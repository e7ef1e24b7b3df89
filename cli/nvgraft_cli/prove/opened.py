"""The libraries of the driver that programs open, and what loads in one case.

This is what other commands ask: ``doctor``, ``why`` and ``explain`` have no rules of their own
about loading.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property

from nvgraft.formats.tree import OutOfBounds
from nvgraft.plan.actions import Injection
from nvgraft.request.config import capability_names
from nvgraft.request.request import Request
from nvgraft_cli.case.planning import Case
from nvgraft_cli.prove.loader.loading import Load
from nvgraft_cli.prove.proof import Proof, library_prover, prove
from nvgraft_specs import names

#: Libraries that programs open, and the capabilities of which one mounts them. Vulkan opens
#: libGLX_nvidia, as its ICD file says.
_OPENED = (
    ("libcuda.so.1", {"compute", "video"}),
    ("libnvidia-ml.so.1", {"utility"}),
    ("libnvidia-encode.so.1", {"video"}),
    ("libnvcuvid.so.1", {"video"}),
    ("libEGL_nvidia.so.0", {"graphics", "display"}),
    ("libGLX_nvidia.so.0", {"graphics", "display"}),
)


def needed_capabilities(case: Case, request: Request) -> set[str]:
    """Return the capabilities that the programs of a container with driver files need.

    These are the requested ones. CDI edits give all of the driver, whatever is requested.
    """
    if not case.by_edits:
        return set(request.capabilities)
    named = named_capabilities(case)
    return set(names.CAPABILITIES if names.ALL in named else {*names.DEFAULT_CAPABILITIES, *named})


def named_capabilities(case: Case) -> set[str]:
    """Return the capabilities that the container requests by their names, and ``all``."""
    return set(capability_names(case.given.spec.env.get(names.DRIVER_CAPABILITIES, "")))


def is_incidental(name: str, case: Case) -> bool:
    """Return whether a library is in the container only because it requests all capabilities.

    What nearly every GPU program opens, of CUDA and NVML, is never incidental.
    """
    named = {*names.DEFAULT_CAPABILITIES, *named_capabilities(case)}
    return named.isdisjoint(opened_for(name))


def opened_for(name: str) -> list[str]:
    """Return the capabilities of the programs that open a library, of which one is enough."""
    return sorted(dict(_OPENED).get(name, ()))


def opened_libraries(capabilities: Collection[str]) -> Iterator[str]:
    """Yield the SONAMEs that programs open in a container with ``capabilities``."""
    requested = set(capabilities)
    return (name for name, mounting in _OPENED if requested & mounting)


def prove_in_case(what: str, case: Case, program: str | None = None) -> Proof:
    """Answer whether ``what`` loads in the container of a case that is not refused.

    For ``program`` and errors see :func:`nvgraft_cli.prove.proof.prove`.
    """
    plan, _ = case.outcome
    return prove(what, program, case.planned_tree, plan, case.container, case.host.isa_level)


class CaseProofs:
    """What loads in the container of one case, each thing asked once.

    :ivar case: the case.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._proofs: dict[str, Proof] = {}

    def know(self, proofs: Iterable[Proof]) -> None:
        """Take answers that the caller has already."""
        self._proofs |= {proof.what: proof for proof in proofs}

    def proof(self, what: str) -> Proof:
        """Answer whether ``what`` loads in the container, which is not refused."""
        if what not in self._proofs:
            self._proofs[what] = (
                prove_in_case(what, self.case) if "/" in what else self._library_prover(what)
            )
        return self._proofs[what]

    @cached_property
    def _library_prover(self) -> Callable[[str], Proof]:
        case = self.case
        plan, _ = case.outcome
        return library_prover(None, case.planned_tree, plan, case.container, case.host.isa_level)

    def opened(self, name: str) -> Proof | None:
        """Answer whether a library loads that the container's program opens.

        It is None where the container gets nothing, or its files are not known. An image that is
        beyond a bound makes the answer unknown.
        """
        case = self.case
        if not isinstance(case.outcome[0], Injection) or not case.container.rootfs_known:
            return None
        try:
            return self.proof(name)
        except OutOfBounds as refusal:
            return Proof(name, "unknown", "", "", Load(None, unknown=[refusal.text]), ())
