"""The timeline of a start: who does what, one after the other, until the program runs.

The phases of the hook are the lab's, which stops between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import (
    AllowDevice,
    Bind,
    Injection,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
)
from nvgraft.plan.edit_actions import RunHook, SetVariable
from nvgraft.request.request import check_request
from nvgraft_cli.case.planning import Case
from nvgraft_cli.lab.phases import PHASES, PIVOT, PROGRAM, Phase
from nvgraft_cli.prove.start.architecture import exec_format_error, foreign_program
from nvgraft_cli.prove.start.program import missing_loader, missing_program, started_program

_ENGINE, _RUNTIME, _HOOK, _CONTAINER = "Engine", "Runtime", "Hook", "Container"


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a start.

    :ivar amounts: what is done there in this start, such as ``49 mounts``.
    :ivar state: ``reached``, ``end`` where the start or the hook ends early, or ``beyond``.
    """

    task: str
    meaning: str
    amounts: str = ""
    state: str = "reached"


@dataclass(frozen=True, slots=True)
class Lane:
    """What one program does before another one goes on.

    :ivar place: 0 for the engine, 1 for the runtime, 2 for the hook, 3 for the container.
    """

    who: str
    moments: tuple[Moment, ...]

    @property
    def place(self) -> int:
        return (_ENGINE, _RUNTIME, _HOOK, _CONTAINER).index(self.who)


def timeline(case: Case) -> tuple[Lane, ...]:
    """Return the lanes of a start in the order of time."""
    plan, refusal = case.outcome
    ends = {}
    if last := _last(case, plan, refusal):
        ends[last] = plan.reason
    if refusal is None and (failure := _program_failure(case)):
        ends[PHASES[PROGRAM].name] = failure
    lanes = _without(case) if case.before_runtime else _by_edits(case, plan)
    if not case.before_runtime and not case.by_edits:
        lanes = _by_hook(case, plan)
    shown = []
    reached = True
    for who, moments in lanes:
        marked = []
        for name, moment in moments:
            goes_on = reached or (refusal is None and who in {_RUNTIME, _CONTAINER})
            state = "beyond" if not goes_on else "end" if name in ends else "reached"
            amounts = ends[name] if state == "end" else moment.amounts
            marked.append(Moment(moment.task, moment.meaning, amounts, state))
            reached = reached and name not in ends
        shown.append(Lane(who, tuple(marked)))
    return tuple(shown)


def _program_failure(case: Case) -> str:
    """Return why the container's program does not start although the hook lets it, or ""."""
    if not case.given.rootfs_known:
        return ""
    machine = case.host.facts.machine
    try:
        tree = case.planned_tree
        started = started_program(tree, case.given)
        foreign = foreign_program(tree, started, machine)
        if foreign is not None:
            return exec_format_error(*foreign, machine)
        failure = missing_program(tree, case.given)
        return failure.words if failure else missing_loader(tree, case.given, started)
    except Refusal:  # an image beyond a bound
        return ""


def _last(case: Case, plan: Plan, refusal: Refusal | None) -> str:
    """Return the name of the moment in which the hook or the start ends early, or ""."""
    if plan.decision == "inject":
        return ""
    if case.before_runtime:
        return "config"
    if case.by_edits:
        return "edits"
    if not case.hook_called:
        return "insert"
    request = case.decision.request
    if request is None:
        return "request"
    try:
        check_request(request)
    except Refusal:
        return "inventory"
    return "plan" if refusal is not None else ""


_Named = tuple[str, Moment]
_Lanes = Iterator[tuple[str, list[_Named]]]


def _config(case: Case) -> tuple[str, list[_Named]]:
    sources = "the image and what the user asks for"
    if case.handover is not None:
        sources = "the image, the pod and the device plugin's answer"
    meaning = f"The engine writes config.json from {sources}, and calls the runtime."
    return _ENGINE, [("config", Moment("write config.json", meaning))]


def _end() -> _Lanes:
    pivot = (
        "The runtime makes the root file system the root of the mount namespace (pivot_root) and "
        "drops the host's."
    )
    yield _RUNTIME, [("pivot", Moment("change the root", pivot))]
    program = PHASES[PROGRAM]
    yield _CONTAINER, [(program.name, Moment(program.task, program.meaning))]


def _without(case: Case) -> _Lanes:
    """Yield who does what when nobody adds the driver."""
    yield _config(case)
    create = "runc or crun makes the container's namespaces and mounts."
    (who, pivot), program = _end()
    yield who, [("create", Moment("make the container", create)), *pivot]
    yield program


def _by_hook(case: Case, plan: Plan) -> _Lanes:
    """Yield who does what when the prestart hook brings the driver."""
    yield _config(case)
    runtime: list[_Named] = []
    if case.mode != "hook":
        insert = "nvgraft-runtime adds the prestart hook to config.json and calls runc."
        runtime.append(("insert", Moment("add the hook", insert)))
    create = (
        "runc or crun makes the container's namespaces and mounts. Before it changes the root, it "
        "calls the prestart hook."
    )
    runtime.append(("create", Moment("make the container", create)))
    yield _RUNTIME, runtime
    yield (
        _HOOK,
        [
            (phase.name, Moment(phase.task, phase.meaning, _amounts(phase, case, plan)))
            for phase in PHASES[:PIVOT]
        ],
    )
    yield from _end()


def _by_edits(case: Case, plan: Plan) -> _Lanes:
    """Yield who does what when CDI edits bring the driver."""
    yield _config(case)
    count = _Counts(plan)
    edits = (
        "nvgraft-runtime finds the CDI devices that the container asks for, and writes their edits "
        "into config.json: mounts, device nodes, variables and hooks."
    )
    if case.handover is not None and case.handover.edits:
        edits = "The edits of the CDI devices of Allocate's answer are written into config.json."
    create = (
        "runc or crun makes the container's namespaces, and mounts the driver's files with all "
        "other mounts of config.json."
    )
    written = _said((count.of(SetVariable), "variable"), (count.of(RunHook), "hook"))
    made = _said((count.of(Bind), "mount"), (count.of(AllowDevice), "device rule"))
    yield (
        _RUNTIME,
        [
            ("edits", Moment("apply the CDI edits", edits, written)),
            ("create", Moment("make the container", create, made)),
        ],
    )
    hooks = (
        "The createContainer hooks of the edits make links, and add the driver's libraries to the "
        "loader cache, in the container's mount namespace."
    )
    linked = _said((count.of(RunHook), "hook"), (count.links, "link"))
    yield _HOOK, [("hooks", Moment("run the hooks of the edits", hooks, linked))]
    yield from _end()


class _Counts:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def of(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self._plan.actions)

    @property
    def links(self) -> int:
        return self.of(Symlink) + len(self._plan.links)


def _amounts(phase: Phase, case: Case, plan: Plan) -> str:
    """Return what a phase of the hook does in this start."""
    if not isinstance(plan, Injection):
        return ""
    count, report, files = _Counts(plan), case.host.inventory.report, case.host.inventory.files
    return {
        "inventory": lambda: _said(
            (len(report.gpus), "GPU"), (len(files.libraries) + len(files.libraries32), "library")
        ),
        "plan": lambda: _said((len(plan.actions), "action")),
        "sources": lambda: _said((count.of(Bind), "file"), (count.of(Tmpfs), "tmpfs")),
        "targets": lambda: _said(
            (count.of(MakeDirectory), "new directory"), (count.of(Symlink), "link")
        ),
        "mounts": lambda: _said((count.of(Bind) + count.of(Tmpfs), "mount")),
        "devices": lambda: _said((count.of(AllowDevice), "device rule")),
        "cache": lambda: _said((len(plan.links), "SONAME link")),
    }.get(phase.name, str)()


def _said(*amounts: tuple[int, str]) -> str:
    """Return amounts in words: ``2 GPUs, 28 libraries``. What there is none of is left out."""
    words = []
    for number, word in amounts:
        plural = (
            f"{word[:-1]}ies" if word.endswith("y") else word if word == "tmpfs" else f"{word}s"
        )
        if number:
            words.append(f"{number} {word if number == 1 else plural}")
    return ", ".join(words)
