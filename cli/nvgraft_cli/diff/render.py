"""Write a difference as text, or as Markdown for a pull request."""

import json
import posixpath
from collections.abc import Iterator
from typing import Any

from nvgraft.base.errors import printable
from nvgraft_cli.diff.compare import plural
from nvgraft_specs.models.diff import Change, Diff

_MARKS = {
    "removed": ("-", "31"),
    "added": ("+", "32"),
    "moved": (">", "36"),
    "changed": ("~", "33"),
    "version": ("^", "2"),
    "order": ("#", "35"),
}

#: Characters of a value; a longer one is cut.
_LONG = 200


def text(diff: Diff, *, whole: bool, colour: bool) -> str:
    """Return the difference as text, grouped by the kind of entry.

    :param whole: also list the entries that differ only in the version.
    """
    return "\n".join(_text(diff, whole=whole, colour=colour)) + "\n"


def _head(diff: Diff) -> Iterator[str]:
    for letter, side in (("A", diff.a), ("B", diff.b)):
        version = f", driver {side.driver_version}" if side.driver_version else ""
        yield f"{letter}  {printable(f'{side.label}: {side.kind}{version}')}"


def _text(diff: Diff, *, whole: bool, colour: bool) -> Iterator[str]:
    yield from _head(diff)
    if diff.equal:
        yield "equal"
    for what, changes in _groups(diff).items():
        folded = [change for change in changes if change.kind == "version" and not whole]
        yield ""
        yield _paint("1", _heading(what, len(changes)), colour)
        for change in changes:
            if change not in folded:
                mark, code = _MARKS[change.kind]
                yield "  " + _paint(code, f"{mark} {printable(_sentence(change))}", colour)
        if folded:
            yield "  " + _paint("2", f"^ {printable(_fold(diff, folded))}", colour)
    if diff.not_compared:
        yield ""
        yield from (
            printable(f"not compared: {entry.what}: {entry.why}") for entry in diff.not_compared
        )


def markdown(diff: Diff, *, whole: bool) -> str:
    """Return the difference as Markdown."""
    lines = ["| | | |", "| --- | --- | --- |"]
    for letter, side in (("A", diff.a), ("B", diff.b)):
        version = f", driver {side.driver_version}" if side.driver_version else ""
        lines.append(f"| **{letter}** | {_code(side.label)} | {_escape(side.kind + version)} |")
    if diff.equal:
        lines += ["", "Equal."]
    for what, changes in _groups(diff).items():
        lines += ["", f"#### {_heading(what, len(changes))}", ""]
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
        lines += [
            "",
            *(_escape(f"Not compared: {entry.what}: {entry.why}.") for entry in diff.not_compared),
        ]
    return "\n".join(lines) + "\n"


def _groups(diff: Diff) -> dict[str, list[Change]]:
    groups: dict[str, list[Change]] = {}
    for change in diff.changes:
        groups.setdefault(change.what, []).append(change)
    return groups


def _heading(what: str, count: int) -> str:
    if what == "order":
        return "order"
    return f"{count} {what if count == 1 else plural(what)}"


def _fold(diff: Diff, changes: list[Change]) -> str:
    names = ", ".join(change.name for change in changes[:3])
    if len(changes) > 3:
        names += f" and {len(changes) - 3} more"
    verb = "differs" if len(changes) == 1 else "differ"
    versions = f"{diff.a.driver_version} → {diff.b.driver_version}"
    return f"{len(changes)} {verb} only in the version ({versions}): {names}"


def _sentence(change: Change) -> str:
    a, b = change.a, change.b
    if change.kind == "order":
        return f"{change.name} is {a} in A, {b} in B"
    if isinstance(a, dict) and isinstance(b, dict):
        members = [
            f"{name} {_value(a[name])} → {_value(b[name])}"
            for name in change.fields
            if change.kind != "moved" or name not in {"target", "source"}
        ]
        if change.kind == "moved":
            old, new = (posixpath.dirname(str(side["target"])) for side in (a, b))
            return "; ".join([f"{change.name}: {old} → {new}", *members])
        if change.kind == "version" and "target" in a:
            old, new = str(a["target"]), str(b["target"])
            if posixpath.basename(old) != posixpath.basename(new):
                old, new = posixpath.basename(old), posixpath.basename(new)
            return f"{change.name}: {old} → {new}"
        return f"{change.name}: {'; '.join(members)}"
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
        detail = f" at {facts['target']}" if "target" in facts else ""
        if facts.get("source") not in {None, facts.get("target"), "tmpfs"}:
            detail += f" from {facts['source']}"
        return f"{detail} ({options})" if options else detail
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
    encoded = json.dumps(value, ensure_ascii=False)
    return encoded if len(encoded) <= _LONG else encoded[: _LONG - 1] + "…"


def _code(words: str) -> str:
    """Return words as code in Markdown, within a fence longer than any backticks in them."""
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
