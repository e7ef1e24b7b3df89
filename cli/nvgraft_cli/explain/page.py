"""Show a story as a page: the picture of the mounts with its switches, and below it the steps.

What is computed for the switches is in the page, which asks nobody. All that the page says about
the container as it is can be read without its script.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nvgraft.plan.actions import Bind, Tmpfs
from nvgraft_cli.explain.directories import TreeNode
from nvgraft_cli.explain.picture import CAPABILITIES, NARROW, WIDE, draw, source_of
from nvgraft_cli.explain.steps import CHANGE, capability_of, file_entry, reason
from nvgraft_cli.explain.story import Fact, Story, StoryEntry
from nvgraft_cli.explain.timeline import Lane
from nvgraft_cli.explain.whatif import WhatIf
from nvgraft_cli.html.document import PageSection, render
from nvgraft_cli.html.tree import TreeLine
from nvgraft_cli.prove.opened import opened_for
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.prove.route import route
from nvgraft_specs import names

#: Steps before which the timeline stands; each story has one of them.
_AFTER_THE_START = {"original", "end"}
_STATES = {"new": "new", "over": "over the image's", "changed": "rewritten", "image": ""}


class _ListedMount(NamedTuple):
    """A mount in the list of files, hidden where the container as it is does not get it."""

    number: int
    entry: StoryEntry
    shown: bool


class _LibrarySearch(NamedTuple):
    """The search for a library, with its way and its end."""

    number: int
    proof: Proof
    opened_for: str
    stations: tuple[Any, ...]
    shown: bool


def page(
    story: Story,
    whatif: WhatIf,
    lanes: tuple[Lane, ...],
    trees: tuple[TreeNode, TreeNode] | None,
    docs: str | None,
) -> str:
    """Return the page.

    :param lanes: of :func:`nvgraft_cli.explain.timeline.timeline`.
    :param trees: the container's files before and after; None where nothing is mounted.
    :param docs: the address of the documentation, absolute or relative to the page; None if it is
        not known: sections are then named without links.
    """
    asked = whatif.results[0]
    pictures = [draw(whatif.mounts, asked.mounts, form) for form in (WIDE, NARROW)]
    return render(
        "explain/page.html.j2",
        f"{asked.verdict.short}: {story.container} on {story.host}",
        list(_sections(story, whatif, lanes, trees)),
        styles=("explain/page.css",),
        scripts=("explain/page.js",),
        data=story.document() | {"whatif": _data(story, whatif)},
        story=story,
        whatif=whatif,
        asked=asked,
        heeds=whatif.asked.mode in whatif.heeding,
        change=_change(story),
        default=sorted(names.DEFAULT_CAPABILITIES),
        pictures=pictures,
        kinds={line.kind for line in pictures[0].lines},
        switches=_switches(whatif),
        docs=docs,
    )


def _change(story: Story) -> Fact | None:
    """Return what would give a container the driver that does not get it, or None."""
    facts = story.steps[-1].facts if story.decision != "inject" else ()
    return next((fact for fact in facts if fact.name in {"fix", CHANGE}), None)


def _sections(
    story: Story,
    whatif: WhatIf,
    lanes: tuple[Lane, ...],
    trees: tuple[TreeNode, TreeNode] | None,
) -> Iterator[PageSection]:
    """Yield the sections in their order. A further one is one more value with its template."""
    asked = whatif.results[0]
    for step in story.steps:
        if step.id in _AFTER_THE_START:
            title = "The start, one moment after the other"
            yield PageSection("start", title, "explain/start.html.j2", {"lanes": lanes})
        values: dict[str, Any] = {"step": step, "groups": None}
        if step.grouped:
            values["groups"] = _groups(whatif)
        yield PageSection(step.id, step.title, "explain/step.html.j2", values)
        if step.id == "loader" and whatif.proofs:
            searches = [
                _LibrarySearch(
                    number,
                    proof,
                    " or ".join(opened_for(proof.what)),
                    route(proof),
                    number in asked.proofs,
                )
                for number, proof in enumerate(whatif.proofs)
            ]
            yield PageSection(
                "search", "The loader's search", "explain/search.html.j2", {"searches": searches}
            )
    if trees is not None:
        numbers = {path: number for number, path in enumerate(whatif.paths)}
        before, after = trees
        values = {
            "before": list(_lines(before, {}, frozenset())),
            "after": list(_lines(after, numbers, asked.paths)),
        }
        title = "The container's files, before and after"
        yield PageSection("tree", title, "explain/tree.html.j2", values)


# ---- the switches


def _switches(whatif: WhatIf) -> dict[str, Any]:
    """Return the positions of the switches, each with whether the container as it is has it."""
    asked = whatif.asked
    return {
        "capabilities": [(name, name in asked.capabilities) for name in whatif.capabilities],
        "devices": [(choice.label, choice.value is None) for choice in whatif.devices],
        "modes": [(mode, mode == asked.mode) for mode in whatif.modes],
    }


def _data(story: Story, whatif: WhatIf) -> dict[str, Any]:
    """Return what the script shows for each combination. Sets of numbers are hexadecimal bits."""
    return {
        "capabilities": whatif.capabilities,
        "devices": [choice.value for choice in whatif.devices],
        "modes": whatif.modes,
        "fixed": sorted(whatif.asked.capabilities - set(whatif.capabilities)),
        "heeding": [mode in whatif.heeding for mode in whatif.modes],
        "variables": [names.VISIBLE_DEVICES, names.DRIVER_CAPABILITIES],
        "container": story.container,
        "host": story.host,
        "table": whatif.table,
        "results": [
            [
                *result.verdict,
                _bits(result.mounts),
                _bits(result.paths),
                result.proofs,
            ]
            for result in whatif.results
        ],
        "mounts": [_details(mount) for mount in whatif.mounts],
    }


def _bits(numbers: frozenset[int]) -> str:
    return f"{sum(1 << number for number in numbers):x}"


def _details(mount: Bind | Tmpfs) -> list[Any]:
    """Return what is shown of a mount that is picked."""
    kind = "tmpfs" if isinstance(mount, Tmpfs) else mount.kind
    if isinstance(mount, Bind) and mount.rdev is not None:
        kind = "character device {}:{}".format(*mount.rdev)
    how = f"{kind}, mode {mount.mode:04o}, {','.join(mount.options)}"
    return [
        source_of(mount) or "made by the hook",
        mount.target,
        reason(mount),
        capability_of(mount),
        how,
        mount.size if isinstance(mount, Bind) and mount.kind == "file" else None,
    ]


# ---- the list of files


def _groups(whatif: WhatIf) -> list[tuple[str, list[_ListedMount]]]:
    """Return the files and devices of all results by capability."""
    shown = whatif.results[0].mounts
    groups: dict[str, list[_ListedMount]] = {name: [] for name in CAPABILITIES}
    for number, mount in enumerate(whatif.mounts):
        entry = file_entry(mount)
        if entry is not None:
            groups.setdefault(entry.capability, []).append(
                _ListedMount(number, entry, number in shown)
            )
    return [(capability, mounts) for capability, mounts in groups.items() if mounts]


# ---- the trees


def _lines(root: TreeNode, numbers: dict[str, int], shown: frozenset[int]) -> Iterator[TreeLine]:
    """Yield the lines of a tree. An image may have very deep directories: nothing recurs.

    :param numbers: path -> its number; ``shown`` are those that the container as it is has.
    """
    todo: list[TreeNode | TreeLine] = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, TreeLine):
            yield node
            continue
        number = numbers.get(node.path, -1)
        line = _line(node)._replace(number=number, shown=number < 0 or number in shown)
        yield line
        if line.kind == "open":
            todo.append(TreeLine("close", others=_others(node)))
            todo.extend(reversed(node.children))


def _line(node: TreeNode) -> TreeLine:
    directory = bool(node.children) or node.kind in {"dir", "tmpfs"}
    name = node.name if node.path == "/" or not directory else f"{node.name}/"
    marks = [_STATES[node.state]]
    if node.kind not in {"dir", "file"}:
        marks.append({"char": "device", "symlink": "link"}.get(node.kind, node.kind))
    reasons: tuple[tuple[str, str], ...] = ()
    if node.how:
        reasons = (("How", node.how), ("Why", node.why), ("Capability", node.capability))
    return TreeLine(
        "open" if node.children or node.others != 0 else "leaf",
        name,
        tuple((mark, node.state) for mark in marks if mark),
        node.size,
        reasons,
    )


def _others(node: TreeNode) -> str:
    if node.others is None:
        return "other names here cannot be read"
    return f"{node.others} other name{'' if node.others == 1 else 's'}" if node.others else ""
