"""A difference as text for people and as Markdown for a pull request. The JSON is the document itself."""

import json
import posixpath
from collections.abc import Iterator
from typing import Any

from nvgraft.base.errors import printable
from nvgraft_specs.models.diff import Change, Diff

_MARKS = {
    "removed": ("-", "31"),
    "added": ("+", "32"),
    "moved": (">", "36"),
    "changed": ("~", "33"),
    "version": ("^", "2"),
    "order": ("#", "35"),
}

#: Members that are written out only where nothing else says what changed.
_LONG = 200


def text(diff: Diff, *, whole: bool, colour: bool) -> str:
    """Return the difference, grouped by what it is about; ``whole`` also lists what only the version has changed."""
    return "\n".join(_text(diff, whole=whole, colour=colour)) + "\n"


def _head(diff: Diff) -> Iterator[str]:
    for letter, side in (("A", diff.a), ("B", diff.b)):
        version = f", driver {side.driver_version}" if side.driver_version else ""
        yield f"{letter}  {printable(side.label)}: {side.kind}{version}"


def _text(diff: Diff, *, whole: bool, colour: bool) -> Iterator[str]:
    yield from _head(diff)
    if diff.equal:
        yield "equal"
    for what, changes in _groups(diff).items():
        folded = [change for change in changes if change.kind == "version" and not whole]
        yield ""
        yield _paint("1", _plural(what, len(changes)), colour)
        for change in changes:
            if change not in folded:
                mark, code = _MARKS[change.kind]
                yield "  " + _paint(code, f"{mark} {printable(_sentence(change))}", colour)
        if folded:
            yield "  " + _paint("2", f"^ {printable(_fold(diff, folded))}", colour)
    if diff.not_compared:
        yield ""
        yield from (f"not compared: {entry.what}: {entry.why}" for entry in diff.not_compared)


def markdown(diff: Diff, *, whole: bool) -> str:
    """Return the difference as Markdown."""
    lines = ["| | | |", "| --- | --- | --- |"]
    for letter, side in (("A", diff.a), ("B", diff.b)):
        lines.append(
            f"| **{letter}** | {_code(side.label)} | {side.kind}{f', driver {side.driver_version}' if side.driver_version else ''} |"
        )
    if diff.equal:
        lines += ["", "Equal."]
    for what, changes in _groups(diff).items():
        lines += ["", f"#### {_plural(what, len(changes))}", ""]
        folded = [change for change in changes if change.kind == "version" and not whole]
        lines += [
            f"- **{change.kind}** {_code(_sentence(change))}"
            for change in changes
            if change not in folded
        ]
        if folded:
            lines += ["<details>", f"<summary>{_escape(_fold(diff, folded))}</summary>", ""]
            lines += [f"- {_code(_sentence(change))}" for change in folded]
            lines += ["", "</details>"]
    if diff.not_compared:
        lines += ["", *(f"Not compared: {entry.what}: {entry.why}." for entry in diff.not_compared)]
    return "\n".join(lines) + "\n"


def _groups(diff: Diff) -> dict[str, list[Change]]:
    groups: dict[str, list[Change]] = {}
    for change in diff.changes:
        groups.setdefault(change.what, []).append(change)
    return groups


def _plural(what: str, count: int) -> str:
    if what == "order":
        return "order"
    noun = what if count == 1 else what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{count} {noun}"


def _fold(diff: Diff, changes: list[Change]) -> str:
    names = ", ".join(change.name for change in changes[:3]) + (
        f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    )
    return f"{len(changes)} differ in the version alone ({diff.a.driver_version} → {diff.b.driver_version}): {names}"


def _sentence(change: Change) -> str:
    a, b = change.a, change.b
    if change.kind == "order":
        return f"{change.name} is {a} in A, {b} in B"
    if isinstance(a, dict) and isinstance(b, dict):
        if change.kind == "moved":
            moved = f"{change.name}: {posixpath.dirname(str(a['target']))} → {posixpath.dirname(str(b['target']))}"
            others = [name for name in change.fields if name not in {"target", "source"}]
            return moved + "".join(
                f"; {name} {_value(a[name])} → {_value(b[name])}"
                for name in others
                if a[name] != b[name]
            )
        if change.kind == "version" and "target" in a:
            places = [str(a["target"]), str(b["target"])]
            same_name = posixpath.basename(places[0]) == posixpath.basename(places[1])
            return f"{change.name}: " + " → ".join(
                places if same_name else map(posixpath.basename, places)
            )
        return (
            change.name
            + ": "
            + "; ".join(f"{name} {_value(a[name])} → {_value(b[name])}" for name in change.fields)
        )
    if isinstance(a, dict) or isinstance(b, dict):
        return f"{change.name}{_detail(a or b)}"
    if a is None or b is None:
        return f"{change.name}: {_value(b if a is None else a)}"
    return f"{change.name}: {_value(a)} → {_value(b)}"


def _detail(facts: Any) -> str:
    if not isinstance(facts, dict):
        return ""
    if "options" in facts or "source" in facts:
        options = ",".join(facts.get("options") or [])
        place = f" at {facts['target']}" if "target" in facts else ""
        source = (
            f" from {facts['source']}"
            if facts.get("source") not in {None, facts.get("target"), "tmpfs"}
            else ""
        )
        return place + source + (f" ({options})" if options else "")
    if set(facts) >= {"target"}:
        return f" -> {facts['target']}"
    short = {key: value for key, value in facts.items() if key != "why"}
    return f": {_value(short)}" if short else ""


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value) or "none"
    if isinstance(value, dict) and set(value) == {"capability", "row", "found"}:
        return f"[{value['found']}]"  # the reason of an action
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= _LONG else written[: _LONG - 1] + "…"


def _code(words: str) -> str:
    safe = printable(words)
    fence = "`" * (max((len(run) for run in _runs(safe)), default=0) + 1)
    pad = " " if "`" in safe else ""
    return f"{fence}{pad}{safe.replace('|', chr(92) + '|')}{pad}{fence}"


def _runs(words: str) -> list[str]:
    return [run for run in "".join(char if char == "`" else " " for char in words).split() if run]


def _escape(words: str) -> str:
    return printable(words).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _paint(code: str, words: str, colour: bool) -> str:
    return f"\x1b[{code}m{words}\x1b[0m" if colour else words
