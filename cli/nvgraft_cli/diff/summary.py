"""The first lines of a difference: what a person asks first of each side."""

from collections import Counter
from collections.abc import Iterator

from nvgraft_cli.diff.sides import Side
from nvgraft_specs.models.diff import Summary


def summarise(a: Side, b: Side) -> Iterator[Summary]:
    """Yield the outcome, the architectures if they differ, the driver, CUDA, the GPUs, the
    capabilities and the requirements of both sides.

    What neither side tells is left out.
    """
    gpus_named = all(side.gpus is None or all(side.gpus) for side in (a, b))
    rows = [
        ("outcome", _outcome(a), _outcome(b)),
        ("driver", a.version, b.version),
        ("CUDA", a.cuda, b.cuda),
        ("GPUs", _gpus(a, named=gpus_named), _gpus(b, named=gpus_named)),
        ("capabilities", _capabilities(a), _capabilities(b)),
    ]
    if a.machine is not None and b.machine is not None and a.machine != b.machine:
        rows.insert(1, ("architecture", a.machine, b.machine))
    if a.requirements or b.requirements:
        rows.append(("requirements", _requirements(a), _requirements(b)))
    if all(side.decision is not None and side.decision[0] == "refuse" for side in (a, b)):
        rows = [row for row in rows if row[0] != "GPUs"]  # no plan was made that names them
    if a.examples is not None and b.examples is not None:
        rows += [
            (f"example {name}", a.examples[name], b.examples[name])
            for name in a.examples
            if name in b.examples
        ]
    for what, ours, theirs in rows:
        if ours is not None or theirs is not None:
            yield Summary(what=what, a=ours, b=theirs)


def outcome(decision: str, reason: str) -> str:
    """Return a decision in one line. Only what is not injected needs its reason."""
    return decision if decision == "inject" else f"{decision}: {reason}"


def _outcome(side: Side) -> str | None:
    return None if side.decision is None else outcome(*side.decision)


def _gpus(side: Side, *, named: bool) -> str | None:
    if side.gpus is None or side.nodes_unseen:
        return None
    if not side.gpus:
        refused = side.decision is not None and side.decision[0] == "refuse"
        return "none (refused)" if refused else "none"
    if not named:
        return str(len(side.gpus))
    return ", ".join(f"{count} x {model}" for model, count in Counter(side.gpus).items())


def _requirements(side: Side) -> str | None:
    return None if side.requirements is None else "; ".join(side.requirements) or "none checked"


def _capabilities(side: Side) -> str | None:
    if side.edits:
        return "not looked at: all of the driver"
    return None if side.capabilities is None else ",".join(side.capabilities) or "none"
