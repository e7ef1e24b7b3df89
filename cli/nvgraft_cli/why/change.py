"""The smallest change to a container's environment that brings something in: tried out, one plan for each."""

from collections.abc import Callable, Iterator

from nvgraft.plan import Plan
from nvgraft_cli.planning import Case
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import catalogue, names


def smallest_change(subject: Subject, case: Case, includes: Callable[[Plan], bool]) -> tuple[str, ...]:
    """Return the variables to set, fewest first; empty when no change to the environment helps."""
    for variables in _attempts(subject, case):
        plan, refusal = Case(case.host, case.container.with_env(variables)).outcome
        if refusal is None and includes(plan):
            return variables
    return ()


def _attempts(subject: Subject, case: Case) -> Iterator[tuple[str, ...]]:
    plan, _ = case.outcome
    env = case.container.spec.env
    capabilities = [_capabilities(case, extra) for extra in _wanted(subject)]
    devices = [f"{names.VISIBLE_DEVICES}={value}" for value in _devices(subject, plan)]
    other = _others(subject)
    for one in (*capabilities, *devices, *other):
        yield (one,)
    relaxed = f"{names.DISABLE_REQUIRE}=1"
    for device in devices:
        for capability in capabilities:
            yield device, capability
    if any(name.startswith(names.REQUIRE_PREFIX) for name in env) or names.CUDA_VERSION in env:
        yield (relaxed,)
        for device in devices:
            for capability in capabilities:
                yield device, capability, relaxed


def _wanted(subject: Subject) -> list[str]:
    if subject.kind == "capability":
        return [subject.name]
    if subject.name == "/dev/nvidia-modeset":
        return ["display"]
    if subject.name.startswith("/dev/nvidia-uvm"):
        return ["compute"]
    classes = catalogue.LIBRARY_CLASSES if subject.kind == "library" else catalogue.BINARY_CLASSES
    bringing = [name for name, switched in classes.items() if subject.component_class in switched]
    # The capability of the row's own name says best what it is for.
    return sorted(bringing, key=lambda name: name != subject.component_class) or ["utility"]


def _capabilities(case: Case, extra: str) -> str:
    plan, _ = case.outcome
    have = list(plan.request.get("capabilities") or names.DEFAULT_CAPABILITIES)
    return f"{names.DRIVER_CAPABILITIES}={','.join(dict.fromkeys([*have, extra]))}"


def _devices(subject: Subject, plan: Plan) -> list[str]:
    have = [token for token in plan.request.get("devices") or () if token not in {"all", "none", "void"}]
    if subject.kind == "device" and not subject.name.startswith("/dev/"):
        return [",".join([*have, subject.name])]
    return ["all"]


def _others(subject: Subject) -> list[str]:
    channel = subject.name.removeprefix("/dev/nvidia-caps-imex-channels/channel")
    return [f"{names.IMEX_CHANNELS}={channel}"] if channel.isdecimal() and channel != subject.name else []
