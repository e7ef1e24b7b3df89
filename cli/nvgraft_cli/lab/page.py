"""The record of a lab run as one page: each step with its before and after, without a network."""

from collections.abc import Iterator, Mapping
from typing import Any

from nvgraft_cli.html.document import PageSection
from nvgraft_cli.html.document import render as render_page
from nvgraft_cli.html.tree import TreeLine
from nvgraft_cli.lab import text
from nvgraft_cli.lab.looks import Difference
from nvgraft_cli.lab.phases import END, PHASES
from nvgraft_cli.lab.run import LabRun, Stop

#: Files that one tree shows.
_LIMIT = 1000

#: The words beside a file, each with its class.
_Marks = tuple[tuple[str, str], ...]


def render(run: LabRun, host: str) -> str:
    """Return the page of ``run``.

    :param host: the name of the simulated host.
    """
    sections = list(_sections(run))
    container = run.container
    return render_page(
        "lab/page.html.j2",
        f"A start on {host}, phase by phase",
        sections,
        styles=("lab/page.css",),
        badge=_badge(run),
        failure=run.failure,
        program=" ".join(container.arguments),
        variables=[entry for entry in container.environment if entry.startswith("NVIDIA_")],
        host=host,
        longest=max(stop.milliseconds for stop in run.stops),
    )


def _badge(run: LabRun) -> tuple[str, str]:
    """Return how the start has ended, and the class of these words."""
    if run.failure:
        return "Failed", "bad"
    if run.number == END:
        return "Started", "good"
    return f"Left before: {PHASES[run.number].name}", "plain"


def _sections(run: LabRun) -> Iterator[PageSection]:
    """Yield a section for each step, and one for what was not done when the run ended."""
    for number, (before, stop) in enumerate(zip(run.stops, run.stops[1:], strict=False), 1):
        yield PageSection(
            f"step-{number}", _title(stop), "lab/step.html.j2", _step(run, before, stop)
        )
    last = run.stops[-1]
    if run.failure:
        title, lead = "Not reached", "The start has failed, and its other phases are not done."
        first = last.number if last.done is None or not last.failed else last.done + 1
        known = [phase.task for phase in PHASES[first:]]
    else:
        title = "The end" if last.number == END else f"Not done: {PHASES[last.number].task}"
        lead, *_ = text.ahead(last, run.container, 0)
        known = text.about(last, run.container)
    values = {"lead": lead, "known": known, "stop": None}
    yield PageSection("left", title, "lab/step.html.j2", values)


def _title(stop: Stop) -> str:
    assert stop.done is not None
    task = PHASES[stop.done].task
    if stop.failed:
        return f"Failed: {task}"
    return f"Take back: {task}" if stop.way == "back" else task.capitalize()


def _step(run: LabRun, before: Stop, stop: Stop) -> dict[str, Any]:
    assert stop.done is not None
    back = stop.way == "back"
    changes = stop.difference
    was, now = _before_and_after(changes)
    return {
        "lead": "The executor's own undo takes the phase back."
        if back
        else PHASES[stop.done].meaning,
        "known": [] if back else text.about(before, run.container),
        "stop": stop,
        "before": list(tree(was)),
        "after": list(tree(now)),
        "counts": [
            (len(more), len(less)) for more, less in (changes.mounts, changes.files, changes.rules)
        ],
        "calls": text.calls_counted(stop),
        "skipped": []
        if stop.failed
        else [phase.task for phase in PHASES[stop.done + 1 : stop.number]],
    }


def _before_and_after(changes: Difference) -> tuple[dict[str, _Marks], dict[str, _Marks]]:
    """Return what has changed, as files with marks: as they were, and as they are."""
    was: dict[str, _Marks] = {}
    now: dict[str, _Marks] = {}
    came, went = changes.files
    was.update((path, (("goes", "gone"), (what, ""))) for path, what in went)
    now.update((path, (("new", "new"), (what, ""))) for path, what in came)
    for path, old, new in changes.changed:
        was[path] = ((old, ""),)
        now[path] = (("changed", "changed"), (new, ""))
    for point, (old, new) in changes.points.items():
        if old:
            was[point] = ((old, ""),)
        if new:
            now[point] = ((new, ""),)
    mounted, unmounted = changes.mounts
    now.update((point, (("mounted", "new"), (words, ""))) for point, words in mounted)
    was.update((point, (("goes", "gone"), (words, ""))) for point, words in unmounted)
    return was, now


def tree(files: Mapping[str, _Marks]) -> Iterator[TreeLine]:
    """Yield the lines of a tree of ``files``, without recursion: directories may be deep."""
    opened: list[str] = []
    paths = sorted(files, key=lambda path: path.split("/"))
    for number, path in enumerate(paths[:_LIMIT], 1):
        *above, name = path.strip("/").split("/")
        while opened != above[: len(opened)]:
            opened.pop()
            yield TreeLine("close")
        for directory in above[len(opened) :]:
            opened.append(directory)
            place = "/" + "/".join(opened)
            yield TreeLine("open", f"{directory}/", files.get(place, ()))
        after = paths[number] if number < len(paths[:_LIMIT]) else ""
        if not after.startswith(f"{path.rstrip('/')}/") or path == "/":
            yield TreeLine("leaf", name or "/", files[path])
    for _ in opened:
        yield TreeLine("close")
    if len(paths) > _LIMIT:
        yield TreeLine("leaf", f"({len(paths) - _LIMIT} more)")
