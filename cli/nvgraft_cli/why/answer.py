"""The answer to one question, for people and for machines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvgraft.base.errors import Refusal, printable
from nvgraft.plan.actions import Action, AllowDevice, Bind, Injection, Symlink, Tmpfs, WriteFile
from nvgraft_cli.case.planning import Case
from nvgraft_cli.why.change import smallest_change
from nvgraft_cli.why.exclusion import Candidate, Exclusion, candidates, exclusion
from nvgraft_cli.why.subject import Subject, matching, parse_subject
from nvgraft_specs import names


@dataclass(frozen=True, slots=True)
class Answer:
    """``chain`` are the steps that bring the subject in, each (what, how); ``excluded`` is set where it is not in."""

    name: str
    kind: str
    chain: tuple[tuple[str, str], ...]
    candidates: tuple[Candidate, ...]
    excluded: Exclusion | None
    change: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the answer for machines."""
        return {
            "name": self.name,
            "kind": self.kind,
            "in_plan": self.excluded is None,
            "chain": [{"step": step, "how": how} for step, how in self.chain],
            "candidates": [
                {"entry": one.entry, "path": one.path, "verdict": one.verdict}
                for one in self.candidates
            ],
            "excluded_by": None
            if self.excluded is None
            else {
                "rule": self.excluded.rule,
                "text": self.excluded.text,
                "mend": self.excluded.mend,
            },
            "smallest_change": list(self.change),
        }

    def lines(self, *, colour: bool) -> Iterator[str]:
        """Return the answer for people."""
        verdict = "is in the container" if self.excluded is None else "is not in the container"
        head = f"{printable(self.name)} {verdict}"
        yield f"\x1b[1m{head}\x1b[0m" if colour else head
        width = max((len(step) for step, _ in self.chain), default=0)
        for step, how in self.chain:
            yield f"  {step:<{width}}  {printable(how)}"
        if self.excluded is not None:
            yield f"  because {printable(self.excluded.text)}"
        if len({one.path for one in self.candidates}) > 1:
            yield "  the host's candidates, in the order of its loader cache:"
            for one in self.candidates:
                leads = "" if one.path == one.entry else f" -> {one.path}"
                yield f"    {printable(one.entry + leads)}: {printable(one.verdict)}"
        if self.change:
            yield "  the smallest change that brings it in: " + printable(" ".join(self.change))
        elif self.excluded is not None:
            yield "  no change of the container's environment brings it in" + (
                f": {printable(self.excluded.mend)}" if self.excluded.mend else ""
            )


def answer(text: str, case: Case) -> Answer:
    """Answer why ``text`` is, or is not, in the container.

    :raises nvgraft_cli.shell.errors.InputError: when the container cannot be read.
    """
    plan, refusal = case.outcome
    try:
        gpus = case.host.inventory.report.gpus
    except Refusal:
        gpus = ()
    subject = parse_subject(text, gpus)
    found = matching(subject, plan, gpus)
    tried: tuple[Candidate, ...] = ()
    if subject.kind == "library" and plan.decision == "inject":
        tried = tuple(candidates(case.host.facts, subject.row))
    if isinstance(plan, Injection) and found:
        return Answer(text, subject.kind, tuple(_chain(subject, plan, found)), tried, None, ())
    excluded = exclusion(subject, case, plan, refusal)
    change = smallest_change(subject, case, lambda other: bool(matching(subject, other, gpus)))
    return Answer(text, subject.kind, (), tried, excluded, change)


def _chain(
    subject: Subject, plan: Injection, found: list[Action | tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    request = plan.request
    yield "asked for", f"{','.join(request.devices) or 'no device'} ({request.origin.devices})"
    first = next((action for action in found if not isinstance(action, tuple)), None)
    why = getattr(first, "why", None)
    if why is not None and why.capability in names.CAPABILITIES:
        yield "capability", f"{why.capability} ({request.origin.capabilities})"
    if subject.kind == "capability":
        yield (
            "brings",
            f"{len(found)} mounts and files: "
            + ", ".join(sorted({action.why.row for action in found if isinstance(action, Bind)})),
        )
        return
    if why is not None:
        yield "row", why.row
        yield "found", why.found
    for action in found:
        if isinstance(action, tuple):
            yield "SONAME link", f"{action[0]} -> {action[1]}, made by the loader cache step"
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
