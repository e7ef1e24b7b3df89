"""Find the smallest change of a container's environment that adds a subject, by making plans."""

from collections.abc import Callable, Iterator
from itertools import combinations

from nvgraft.plan.actions import Plan
from nvgraft.request.request import is_cdi_name
from nvgraft_cli.case.planning import Case
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import catalogue, names


def smallest_change(
    subject: Subject, case: Case, includes: Callable[[Plan], bool]
) -> tuple[str, ...]:
    """Return the fewest NAME=VALUE entries with which a plan includes the subject, if any do."""
    for variables in _attempts(subject, case):
        plan, refusal = case.with_env(variables).outcome
        if refusal is None and includes(plan):
            return variables
    return ()


def _attempts(subject: Subject, case: Case) -> Iterator[tuple[str, ...]]:
    env = case.container.spec.env
    pool = []
    if case.handover is None:  # the kubelet does not count what a pod takes by the variable
        pool = [f"{names.VISIBLE_DEVICES}={value}" for value in _devices(subject, case)]
    pool += [_capabilities(case, *extras) for extras in _extras(subject)]
    pool += _others(subject)
    pool += [f"{gate}=disabled" for gate in case.opened_gates]
    if any(name.startswith(names.REQUIRE_PREFIX) for name in env) or names.CUDA_VERSION in env:
        pool.append(f"{names.DISABLE_REQUIRE}=1")
    for count in (1, 2, 3):
        for variables in combinations(pool, count):
            if len({entry.partition("=")[0] for entry in variables}) == count:
                yield variables


def _extras(subject: Subject) -> list[tuple[str, ...]]:
    """Return the sets of capabilities that may add the subject. A 32-bit library needs compat32
    beside that of its class.
    """
    extras: list[tuple[str, ...]] = [(name,) for name in _switching(subject)]
    if subject.kind == "library":
        extras += [("compat32",), *((*some, "compat32") for some in extras)]
    return extras


def _switching(subject: Subject) -> list[str]:
    """Return the capabilities that may add the subject, the most telling one first."""
    if subject.kind == "capability":
        return [subject.name]
    if subject.name == "/dev/nvidia-modeset":
        return ["display"]
    if subject.name.startswith("/dev/nvidia-uvm"):
        return ["compute"]
    classes = catalogue.LIBRARY_CLASSES if subject.kind == "library" else catalogue.BINARY_CLASSES
    capabilities = [
        name for name, switched in classes.items() if subject.component_class in switched
    ]
    # A capability named like the class tells best what the file is for.
    return sorted(capabilities, key=lambda name: name != subject.component_class) or ["utility"]


def _capabilities(case: Case, *extras: str) -> str:
    request = case.decision.request
    requested = request.capabilities if request is not None else names.DEFAULT_CAPABILITIES
    return f"{names.DRIVER_CAPABILITIES}={','.join(dict.fromkeys([*requested, *extras]))}"


def _devices(subject: Subject, case: Case) -> list[str]:
    request = case.decision.request
    requested = [
        token
        for token in (request.devices if request is not None else ())
        if token not in {"all", "none", "void"}
    ]
    if subject.kind == "device" and not subject.name.startswith("/dev/"):
        # Devices of specifications are requested with those of their kind alone.
        named = [token for token in requested if is_cdi_name(token)]
        kind = f"{named[0].partition('=')[0]}=" if named else ""
        return [",".join([*requested, f"{kind}{subject.name}"])]
    return ["all"]


def _others(subject: Subject) -> list[str]:
    channel = subject.name.removeprefix("/dev/nvidia-caps-imex-channels/channel")
    return (
        [f"{names.IMEX_CHANNELS}={channel}"]
        if channel.isdecimal() and channel != subject.name
        else []
    )
