"""A stop of the lab in words: what comes next and why, and what the last phase has done."""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

from nvgraft.base.errors import printable
from nvgraft_cli.lab.looks import line_of
from nvgraft_cli.lab.phases import END, MOUNTS, PHASES
from nvgraft_cli.lab.run import Stop
from nvgraft_cli.lab.waiting import WaitingContainer

#: Lines of a list that a stop shows; `ahead` and `did` show all. With 0 there is no list.
SHORT = 6

_SHORT_CALLS = 3

_Rows = list[str]


def heading(number: int) -> str:
    """Return the line that names a stop."""
    if number == END:
        return "[the end] every phase is done"
    return f"[{number + 1}/{END}] next: {PHASES[number].name} - {PHASES[number].task}"


def ahead(stop: Stop, container: WaitingContainer, limit: int | None = SHORT) -> Iterator[str]:
    """Say what the next phase is about to do, and why.

    :param limit: lines of each list; None for all.
    """
    if stop.number == END:
        yield "The container has started. `quit` removes it."
        return
    yield PHASES[stop.number].meaning
    yield from _listed(map(printable, about(stop, container)), limit, "ahead")


def about(stop: Stop, container: WaitingContainer) -> list[str]:
    """Return what is known for the next phase, and the reasons of the plan; not escaped."""
    return [] if stop.number == END else _ABOUT[PHASES[stop.number].name](stop.facts, container)


def did(stop: Stop, limit: int | None = SHORT) -> Iterator[str]:
    """Say what the phase before has done, or a step back has taken back; see :func:`ahead`."""
    if stop.done is None:
        return
    phase = PHASES[stop.done]
    took = f"{stop.milliseconds:.1f} ms"
    if stop.failed:
        yield f"failed: {phase.name} ({took})"
    elif stop.way == "back":
        yield f"taken back: {phase.name} ({took})"
        if stop.number == MOUNTS:
            yield "  sources and targets were made anew: a mount can be attached only once"
    else:
        yield f"done: {phase.result} ({took})"
        for skipped in PHASES[stop.done + 1 : stop.number]:
            yield f"  {skipped.name}: there was nothing to do"
    yield from _changes(stop, limit)
    if stop.calls:
        yield f"  system calls: {calls_counted(stop)}"
        some = None if limit is None else min(limit, _SHORT_CALLS)
        yield from (f"  {row}" for row in _listed(map(printable, stop.calls), some, "did"))
    if stop.other_calls and limit is None:
        names = (name for name, count in stop.other_calls.items() for _ in range(count))
        yield f"  and through Python's os: {_counted(names)}"
    for line in stop.lines:
        yield f"  | {printable(line)}"


def _changes(stop: Stop, limit: int | None) -> Iterator[str]:
    difference = stop.difference
    for name, more, less in (
        ("mounts", *(list(map(line_of, side)) for side in difference.mounts)),
        ("files", *(list(map(line_of, side)) for side in difference.files)),
        ("device rules", *difference.rules),
    ):
        rows = [f"+ {row}" for row in more] + [f"- {row}" for row in less]
        if rows:
            amounts = [f"{sign}{len(some)}" for sign, some in (("+", more), ("-", less)) if some]
            yield f"  {name}: {' '.join(amounts)}"
            yield from (f"  {row}" for row in _listed(map(printable, rows), limit, "did"))
    if difference.changed:
        yield f"  changed files: {len(difference.changed)}"
        rows = [f"~ {path}: {was} -> {now}" for path, was, now in difference.changed]
        yield from (f"  {row}" for row in _listed(map(printable, rows), limit, "did"))
    if difference.empty:
        yield "  nothing in the container has changed"
    if difference.cut:
        yield "  the image has more files than are compared"


def calls_counted(stop: Stop) -> str:
    """Return the names of the system calls of the last phase, each with its number."""
    return _counted(call.partition("(")[0] for call in stop.calls)


def _counted(names: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _listed(rows: Iterable[str], limit: int | None, command: str) -> Iterator[str]:
    if limit == 0:
        return
    shown = list(rows)
    if limit is not None and len(shown) > limit + 1:
        yield from (f"  {row}" for row in shown[:limit])
        yield f"  ... and {len(shown) - limit} more: `{command}` shows all"
        return
    yield from (f"  {row}" for row in shown)


def _state(_facts: dict[str, Any], container: WaitingContainer) -> _Rows:
    rows = [f"the container's process: {container.pid}", f"bundle: {container.bundle}"]
    if container.left_out:
        rows.append(f"hooks of the bundle that are left out in the lab: {container.left_out}")
    return rows


def _request(_facts: dict[str, Any], container: WaitingContainer) -> _Rows:
    rows = [entry for entry in container.environment if "NVIDIA" in entry or "CUDA" in entry]
    return rows or ["config.json has no variable with NVIDIA or CUDA in its name"]


def _inventory(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    decision = facts["decision"]
    rows = [f"decision: {decision['verdict']}, because: {decision['reason']}"]
    if "request" in facts:
        request = facts["request"]
        rows.append(f"devices: {', '.join(request['devices']) or 'none'}")
        rows.append(
            f"capabilities: {', '.join(request['capabilities']) or 'none'}"
            f" ({request['capabilities_from']})"
        )
    return rows


def _plan(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    found = facts["inventory"]
    return [
        f"driver {found['driver']}, CUDA {found['cuda']}",
        *(f"GPU: {gpu}" for gpu in found["gpus"]),
        f"libraries: {found['libraries']}, of 32 bits: {found['libraries32']}",
        f"programs: {found['binaries']}; of the catalogue not there: {len(found['missing'])}",
    ]


def _why(action: dict[str, Any]) -> str:
    why = action["why"]
    words = [word for word in (why["capability"], why["row"], why["found"]) if word]
    return f"because: {', '.join(words)}" if words else "always"


def _actions(facts: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    actions = facts.get("plan", {}).get("actions", [])
    return [action for action in actions if action["op"] in kinds]


def _sources(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    rows = []
    for action in _actions(facts, "mount"):
        made = action["type"] == "tmpfs"
        source = f"tmpfs for {action['target']}" if made else action["source"]
        rows.append(f"{source}, {_why(action)}")
    return rows


def _targets(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    rows = []
    for action in _actions(facts, "dir", "symlink", "mount"):
        if action["op"] == "dir":
            rows.append(f"directory {action['path']}, {_why(action)}")
        elif action["op"] == "symlink":
            rows.append(f"link {action['path']} -> {action['target']}, {_why(action)}")
        else:
            rows.append(f"target {action['target']}, {_why(action)}")
    return rows


def _mounts(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    rows = []
    for action in _actions(facts, "mount"):
        here, there = action["source"], action["target"]
        # A tmpfs has no source; most files keep their names.
        same = posixpath.dirname(here) == posixpath.dirname(there)
        source = "" if same or action["type"] == "tmpfs" else f" of {here}"
        rows.append(f"{there}{source} ({','.join(action['options'])}), {_why(action)}")
    return rows


def _devices(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    return [
        f"c {action['major']}:{action['minor']} {action['access']}, {_why(action)}"
        for action in _actions(facts, "allow-device")
    ]


def _cache(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    rows = [
        f"directories: {', '.join(action['dirs'])}, {_why(action)}"
        for action in _actions(facts, "ldcache")
    ]
    links = facts.get("plan", {}).get("links", {})
    return rows + [f"link {path} -> {target}" for path, target in links.items()]


def _pivot(facts: dict[str, Any], _container: WaitingContainer) -> _Rows:
    decision = facts.get("decision", {})
    if decision.get("verdict") == "skip":
        return [f"the hook leaves the container alone: {decision['reason']}"]
    findings = facts.get("plan", {}).get("findings", [])
    return [f"{finding['level']}: {finding['message']}" for finding in findings]


def _program(_facts: dict[str, Any], container: WaitingContainer) -> _Rows:
    return [" ".join(container.arguments)]


_ABOUT = {
    "state": _state,
    "request": _request,
    "inventory": _inventory,
    "plan": _plan,
    "sources": _sources,
    "targets": _targets,
    "mounts": _mounts,
    "devices": _devices,
    "cache": _cache,
    "pivot": _pivot,
    "program": _program,
}
