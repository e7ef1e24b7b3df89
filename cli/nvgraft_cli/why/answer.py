"""Answer one question: why a subject is, or is not, in the container."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from nvgraft.base.errors import Refusal, printable
from nvgraft.host.gpus import Gpu
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    Plan,
    Symlink,
    Tmpfs,
    WriteFile,
)
from nvgraft_cli.case.planning import Case
from nvgraft_cli.prove.opened import CaseProofs, opened_libraries
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.shell.text import columns
from nvgraft_cli.why import edits
from nvgraft_cli.why.change import smallest_change
from nvgraft_cli.why.exclusion import Candidate, Exclusion, candidates, exclusion
from nvgraft_cli.why.subject import Subject, device_paths, matching, parse_subject
from nvgraft_specs import names


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one subject.

    :ivar chain: the steps that lead to its mount, each with its description.
    :ivar candidates: the host's files for its catalogue row.
    :ivar excluded: why it is not in the container; None if it is.
    :ivar change: the smallest change of the environment that adds it.
    :ivar loading: what the container's program loads, if it is a library that programs open. Of
        one that is not in the container, only a file of the image is told.
    """

    name: str
    kind: str
    chain: tuple[tuple[str, str], ...]
    candidates: tuple[Candidate, ...]
    excluded: Exclusion | None
    change: tuple[str, ...]
    loading: Proof | None = None

    def document(self) -> dict[str, Any]:
        """Return the answer as in ``nvgraft.why/1``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "in_plan": self.excluded is None,
            "chain": [{"step": step, "how": how} for step, how in self.chain],
            "candidates": [
                {
                    "entry": candidate.entry,
                    "path": candidate.path,
                    "verdict": candidate.verdict,
                }
                for candidate in self.candidates
            ],
            "excluded_by": None
            if self.excluded is None
            else {
                "rule": self.excluded.rule,
                "text": self.excluded.text,
                "mend": self.excluded.advice,
            },
            "smallest_change": list(self.change),
            "loading": None
            if self.loading is None
            else {**self.loading.result(), "words": self.loading.in_words()[1]},
        }

    def lines(self, *, colour: bool) -> Iterator[str]:
        """Yield the answer as text."""
        if self.excluded is None:
            verdict = "is in the container"
        elif self.excluded.rule == "not-recorded":
            verdict = "may be in the container"
        else:
            verdict = "is not in the container"
        head = f"{printable(self.name)} {verdict}"
        if self.loading is not None and self.loading.trouble:
            head += f", but {printable(self.loading.trouble)}"
        yield f"\x1b[1m{head}\x1b[0m" if colour else head
        chain = [*self.chain]
        if self.loading is not None:
            chain.append(("opened", self.loading.sentence()))
        yield from columns(chain)
        if self.excluded is not None:
            yield f"  because {printable(self.excluded.text)}"
        if len({candidate.path for candidate in self.candidates}) > 1:
            yield "  the host's candidates, in the order of its loader cache:"
            for candidate in self.candidates:
                path = candidate.entry
                if candidate.path != candidate.entry:
                    path += f" -> {candidate.path}"
                yield f"    {printable(path)}: {printable(candidate.verdict)}"
        if self.change:
            yield "  the smallest change that adds it: " + printable(" ".join(self.change))
            if self.excluded is not None and self.excluded.advice:
                yield f"  or: {printable(self.excluded.advice)}"
        elif self.excluded is not None:
            yield "  no change of the container's environment adds it" + (
                f": {printable(self.excluded.advice)}" if self.excluded.advice else ""
            )


def answer(text: str, case: Case) -> Answer:
    """Answer why ``text`` is, or is not, in the container.

    :raises nvgraft_cli.shell.errors.InputError: when the container cannot be read.
    """
    plan, refusal = case.outcome
    before = tuple((link.step, link.how) for link in case.chain)
    try:
        gpus = case.host.inventory.report.gpus
    except Refusal:
        gpus = ()
    subject = parse_subject(text, gpus)
    parts = _present(subject, plan, gpus)
    on_host: tuple[Candidate, ...] = ()
    if subject.kind == "library" and plan.decision == "inject":
        on_host = tuple(candidates(case.host.facts, subject.row))
    loading = _loading(subject, case)
    if not parts and _by_engine(subject, case, gpus):
        return Answer(text, subject.kind, before, on_host, None, ())
    if isinstance(plan, Injection) and parts:
        links = edits.chain(subject, case, plan, parts) if case.by_edits else None
        chain = (*before, *(links or _chain(subject, plan, parts)))
        return Answer(text, subject.kind, chain, on_host, None, (), loading)
    if loading is not None and not loading.final.foreign:
        loading = None
    if isinstance(plan, Injection) and case.by_edits:
        excluded = edits.exclusion(subject, case, plan)
    else:
        excluded = exclusion(subject, case, plan, refusal)
    if (plan.decision == "skip" and case.edited_before) or case.reads_config:
        return Answer(text, subject.kind, (), on_host, excluded, (), loading)
    if case.handover is not None and excluded.rule == "device":
        excluded = replace(excluded, advice=case.handover.advice)
    change = smallest_change(subject, case, lambda other: bool(_present(subject, other, gpus)))
    return Answer(text, subject.kind, before, on_host, excluded, change, loading)


def _by_engine(subject: Subject, case: Case, gpus: tuple[Gpu, ...]) -> bool:
    """Tell whether the engine gives a device to a pod's container, since it is privileged."""
    handover = case.handover
    if handover is None or not handover.all_nodes or handover.refusal is not None:
        return False
    if subject.kind != "device":
        return False
    tree = case.host.facts.tree
    paths = device_paths(subject, gpus)
    return bool(paths) and all(
        path.startswith("/dev/") and tree.lstat(path) is not None for path in paths
    )


def _present(subject: Subject, plan: Plan, gpus: tuple[Gpu, ...]) -> list[Action | tuple[str, str]]:
    """Return the parts of a plan for the subject; none for links to a library that is not there,
    which hooks of CDI edits make.
    """
    parts = matching(subject, plan, gpus)
    mounted = any(isinstance(part, Bind) for part in parts)
    return parts if mounted or subject.kind != "library" else []


def _loading(subject: Subject, case: Case) -> Proof | None:
    """Return what is loaded under the SONAME by which programs open a subject, if they open it.

    A name without a version is answered for itself where a file of the image has it.
    """
    for name in opened_libraries(names.CAPABILITIES):
        if subject.kind == "library" and name.startswith(f"{subject.row}."):
            proofs = CaseProofs(case)
            own = proofs.opened(subject.row) if subject.name == subject.row else None
            return own if own is not None and own.final.foreign else proofs.opened(name)
    return None


def _chain(
    subject: Subject, plan: Injection, parts: list[Action | tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the steps that lead to a subject.

    :param parts: its actions and SONAME links, as ``matching()`` returns them.
    """
    request = plan.request
    yield "asked for", f"{','.join(request.devices) or 'no device'} ({request.devices_from})"
    first = next((action for action in parts if not isinstance(action, tuple)), None)
    why = getattr(first, "why", None)
    capability = subject.name if subject.kind == "capability" else why and why.capability
    if capability in names.CAPABILITIES:
        yield "capability", f"{capability} ({request.capabilities_from})"
    if subject.kind == "capability":
        rows = sorted({action.why.row for action in parts if isinstance(action, Bind)})
        yield "brings", f"{len(parts)} mounts and files: {', '.join(rows)}"
        return
    if why is not None:
        yield "row", why.row
        yield "found", why.found
    for action in parts:
        if isinstance(action, tuple):
            yield "SONAME link", f"{action[0]} -> {action[1]}, created by the loader cache step"
        elif isinstance(action, Bind):
            yield "mounted", f"{action.source} on {action.target} ({','.join(action.options)})"
        elif isinstance(action, Tmpfs):
            yield "mounted", f"a new tmpfs on {action.target}"
        elif isinstance(action, AllowDevice):
            yield (
                "allowed",
                f"c {action.major}:{action.minor} {action.access} in the container's cgroup",
            )
        elif isinstance(action, Symlink):
            yield "link", f"{action.path} -> {action.target}: {action.why.found}"
        elif isinstance(action, WriteFile):
            yield "written", f"{action.path}: {action.why.found}"
