"""Write a difference as text, or as Markdown for a pull request.

The summary comes first, then what is gone, new or moved, then details. Reasons, modes and raw
values are in the list of all changes only.
"""

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nvgraft.base.errors import printable
from nvgraft_cli.diff import companions
from nvgraft_cli.diff.compare import KINDS, plural
from nvgraft_specs.models.diff import Change, Diff

_MARKS = {
    "removed": ("-", "31"),
    "added": ("+", "32"),
    "moved": (">", "36"),
    "changed": ("~", "33"),
    "version": ("^", "2"),
    "order": ("#", "35"),
}

_LEGEND = {
    "removed": "only in A",
    "added": "only in B",
    "moved": "in another directory",
    "changed": "changed from A to B",
    "version": "the same but for the driver's version",
    "order": "mounted in another order",
}

#: How a kind of side is named.
_SIDES = {
    "snapshot": "host",
    "cdi": "CDI specification",
    "log": "debug log",
}

_PLANS = {"plan", "snapshot", "container"}

#: Members that only the list of all changes shows.
_QUIET = {"why", "mode", "uuid", "PCI address"}

#: Members that say where an entry is.
_PLACES = {"source", "target", "path"}

#: Facts that the summary shows.
_SUMMARISED = {
    "decision",
    "host.driver_version",
    "host.cuda_version",
    "request.capabilities",
    "request.requirements",
}

#: Facts that say where another one comes from, and those that only a plan that was made has.
_ORIGINS = {"request.devices_from", "request.capabilities_from"}
_OF_A_PLAN = ("host.", "request.", "target.")

#: How many changes that are alike have a line together.
_ALIKE = 3
#: Characters of a value; a longer one is cut.
_LONG = 200

#: Entries of one kind that a part lists, and names that a line lists.
_LISTED = 10
_NAMED = 3


class _Line(NamedTuple):
    """A line of a part; ``kind`` is that of a change, or "" for a line without a mark."""

    kind: str
    words: str


class _Part(NamedTuple):
    title: str
    lines: Sequence[_Line]


def text(diff: Diff, *, whole: bool, colour: bool) -> str:
    """Return the difference as text.

    :param whole: list every change with all that differs, grouped by the kind of entry.
    """
    return "\n".join(_text(diff, whole=whole, colour=colour)) + "\n"


def _text(diff: Diff, *, whole: bool, colour: bool) -> Iterator[str]:
    same = same_outcome(diff)
    if same:
        yield _paint("1", printable(same), colour)
    for letter, side in (("A", diff.a), ("B", diff.b)):
        yield f"{letter}  {printable(f'{side.label}: {_SIDES.get(side.kind, side.kind)}')}"
    rows = [row for row in _summary(diff) if not same or row[0] != "outcome"]
    if rows:
        yield ""
        width = max(len(what) for what, _, _ in rows)
        for what, words, differs in rows:
            row = printable(f"{what:<{width}}  {words}")
            yield _paint("1", row, colour) if differs else row
    parts = _parts(diff, whole=whole)
    for part in parts:
        yield ""
        yield _paint("1", part.title, colour)
        for line in part.lines:
            mark, code = _MARKS.get(line.kind, (" ", "2"))
            yield "  " + _paint(code, f"{mark} {printable(line.words)}", colour)
    notes = [*_not_compared(diff), *_legend(parts)]
    if notes:
        yield ""
        yield from map(printable, notes)
    if diff.equal and not same:
        yield from ("", "equal")


def markdown(diff: Diff, *, whole: bool) -> str:
    """Return the difference as Markdown.

    :param whole: as for :func:`text`.
    """
    same = same_outcome(diff)
    lines = [f"**{_escape(same)}**", ""] if same else []
    lines += ["| | | |", "| --- | --- | --- |"]
    for letter, side in (("A", diff.a), ("B", diff.b)):
        kind = _SIDES.get(side.kind, side.kind)
        lines.append(f"| **{letter}** | {_code(side.label)} | {_escape(kind)} |")
    for what, words, differs in _summary(diff):
        mark = "**" if differs else ""
        lines.append(f"| {_escape(what)} | {mark}{_escape(words)}{mark} | |")
    if diff.equal and not same:
        lines += ["", "Equal."]
    for part in _parts(diff, whole=whole):
        lines += ["", f"#### {_escape(part.title)}", ""]
        lines += [
            f"- **{line.kind}** {_code(line.words)}" if line.kind else f"- {_escape(line.words)}"
            for line in part.lines
        ]
    notes = [*_not_compared(diff)]
    if notes:
        lines += ["", *(_escape(f"{note[0].upper()}{note[1:]}.") for note in notes)]
    return "\n".join(lines) + "\n"


def same_outcome(diff: Diff) -> str:
    """Return the line for two sides that both refuse, or both skip; "" for others."""
    row = next((row for row in diff.summary if row.what == "outcome"), None)
    if row is None or row.a is None or row.b is None:
        return ""
    verdicts = [outcome.partition(": ") for outcome in (row.a, row.b)]
    (verdict, _, ours), (other, _, theirs) = verdicts
    if verdict != other or verdict == "inject":
        return ""
    reason = ours if ours == theirs else f"A: {ours}; B: {theirs}"
    return f"both {verdict}: {reason}"


def _summary(diff: Diff) -> list[tuple[str, str, bool]]:
    """Return the rows of the summary: what, the words, and whether the sides differ."""
    rows = []
    for row in diff.summary:
        if row.a == row.b:
            rows.append((row.what, f"{row.a} (both)", False))
            continue
        if row.a is not None and row.b is not None:
            rows.append((row.what, f"{row.a} → {row.b}", True))
            continue
        # What one side cannot tell is no difference.
        told, letter, untold = ("A", "B", diff.b) if row.b is None else ("B", "A", diff.a)
        words = f"{row.b if row.a is None else row.a} ({told}; not known of {letter}"
        if row.what == "capabilities" and untold.kind not in _PLANS:
            words += f": {KINDS[untold.kind]} does not contain them"
        rows.append((row.what, f"{words})", False))
    return rows


def _not_compared(diff: Diff) -> Iterator[str]:
    aspects: dict[str, list[str]] = {}
    for entry in diff.not_compared:
        aspects.setdefault(entry.why, []).append(entry.what)
    for why, names in aspects.items():
        yield f"not compared: {', '.join(names)}: {why}"


def _legend(parts: Sequence[_Part]) -> Iterator[str]:
    shown = {line.kind for part in parts for line in part.lines}
    meanings = [f"{_MARKS[kind][0]} {words}" for kind, words in _LEGEND.items() if kind in shown]
    if meanings:
        yield "; ".join(meanings)


def _parts(diff: Diff, *, whole: bool) -> list[_Part]:
    return _all_parts(diff) if whole else _short_parts(diff)


def _all_parts(diff: Diff) -> list[_Part]:
    """Return every change, grouped by the kind of entry."""
    groups: dict[str, list[Change]] = {}
    for change in diff.changes:
        groups.setdefault(change.what, []).append(change)
    return [
        _Part(
            "order" if what == "order" else _counted(what, len(changes)),
            [_Line(change.kind, _sentence(change)) for change in changes],
        )
        for what, changes in groups.items()
    ]


def _short_parts(diff: Diff) -> list[_Part]:
    """Return what a person wants to know first: gone, new, moved, then details and counts."""
    gone, new, moves = list[Change](), list[Change](), list[Change]()
    changed: list[tuple[Change, list[str]]] = []
    versions: list[Change] = []
    quiet: list[Change] = []
    differ = _outcome_differs(diff)
    for change in diff.changes:
        fields = [name for name in change.fields if name not in _QUIET]
        if change.what == "fact" and change.name in _SUMMARISED:
            continue
        if change.what == "fact" and change.name == "reason" and differ:
            continue  # the summary has it
        if _is_note(change) or (change.what == "fact" and _says_nothing_new(diff, change)):
            quiet.append(change)
        elif change.kind == "version":
            versions.append(change)
        elif change.kind == "removed":
            gone.append(change)
        elif change.kind == "added":
            new.append(change)
        elif _only_moved(diff, change, fields):
            moves.append(change)
        elif change.fields and not fields:
            quiet.append(change)
        else:
            changed.append((change, fields))
    details = list(_details(changed))
    if versions:
        pair = f"{diff.a.driver_version} → {diff.b.driver_version}"
        verb = "differs" if len(versions) == 1 else "differ"
        words = f"{len(versions)} {verb} only in the version ({pair}): {_counts(versions)}"
        details.append(_Line("version", words))
    if quiet:
        words = f"{_counts(quiet)}: only reasons, modes or notes, which --all lists"
        details.append(_Line("changed", words))
    # Between a container with the driver and one without, the counts say enough.
    listed = 0 if differ or _gets_nothing(diff) else _LISTED
    parts = [
        _Part("gone", _listed(gone, listed)),
        _Part("new", _listed(new, listed)),
        _Part("moved", _moved(diff, moves)),
        _Part("details", details),
    ]
    return [part for part in parts if part.lines]


def _details(changed: Sequence[tuple[Change, list[str]]]) -> Iterator[_Line]:
    """Yield a line for each change, and one for several of a kind that have changed alike."""
    groups: dict[tuple[str, str, str], list[tuple[Change, str]]] = {}
    for change, fields in changed:
        text = _short_sentence(change, fields)
        said = text.removeprefix(f"{change.what} {change.name}: ")
        groups.setdefault((change.kind, change.what, said), []).append((change, text))
    for (kind, what, said), group in groups.items():
        if len(group) < _ALIKE:
            yield from (_Line(kind, text) for _, text in group)
        else:
            named = _names([change for change, _ in group])
            yield _Line(kind, f"{_counted(what, len(group))} ({named}): {said}")


def _outcome_differs(diff: Diff) -> bool:
    row = next((row for row in diff.summary if row.what == "outcome"), None)
    return row is not None and row.a is not None and row.b is not None and row.a != row.b


def _gets_nothing(diff: Diff) -> bool:
    """Tell whether one side gets no driver, and the outcome of the other one is not known."""
    row = next((row for row in diff.summary if row.what == "outcome"), None)
    return row is not None and {row.a, row.b} & {None, "inject"} == {None}


def _says_nothing_new(diff: Diff, change: Change) -> bool:
    """Tell whether another line says what a fact says: the outcome, or the devices asked for."""
    if change.name in _ORIGINS:
        return True
    if change.name == "reason":
        named = (other for other in diff.changes if other.name == "request.devices")
        return any(
            str(change.a).replace(_value(other.a), _value(other.b)) == change.b for other in named
        )
    made = change.kind in {"added", "removed"} and change.name.startswith(_OF_A_PLAN)
    return made and _outcome_differs(diff)


def _is_note(change: Change) -> bool:
    """Tell whether a change is a finding of a plan that asks for nothing."""
    finding = change.a if isinstance(change.a, dict) else change.b
    return (
        change.what == "fact"
        and change.name.startswith("finding ")
        and isinstance(finding, dict)
        and finding.get("level") == "info"
    )


def _listed(changes: Sequence[Change], most: int) -> list[_Line]:
    """Return a line for each change, a count for those of a kind that has too many, and one for
    all that come with another one.
    """
    groups: dict[str, list[Change]] = {}
    leading, with_them = companions.split(changes)
    for change in leading:
        groups.setdefault(change.what, []).append(change)
    lines = []
    for what, group in groups.items():
        shown = group if len(group) <= most else group[: max(most - 1, 0)]
        lines += [_Line(change.kind, f"{what} {_entry(change)}") for change in shown]
        if rest := len(group) - len(shown):
            more = "more " if shown else ""
            lines.append(_Line(group[0].kind, f"{rest} {more}{_noun(what, rest)} (--all)"))
    if with_them:
        lines.append(_Line(with_them[0].kind, f"with them {_counts(with_them)} (--all)"))
    return lines


def _entry(change: Change) -> str:
    """Return the path of an entry, or its name and value where it has no path."""
    facts = change.b if change.a is None else change.a
    if isinstance(facts, dict):
        if "options" in facts or "rdev" in facts or change.what == "driver file":
            return str(facts["target"])
        if set(facts) - _QUIET == {"target"}:
            return f"{change.name} -> {facts['target']}"
        if set(facts) - _QUIET == {"value"}:
            return f"{change.name}={facts['value']}"
        if change.what == "GPU":
            return f"{change.name}: {facts['model']}"
        return str(facts["message"]) if "message" in facts else change.name
    return change.name if facts is None else f"{change.name}: {_value(facts)}"


#: The directory of an entry on both sides, on the host and in the container.
_Move = tuple[str, str, str, str]


def _move(change: Change) -> _Move:
    """Return the directories between which an entry has moved: source and target of both sides."""
    places = []
    for member in ("source", "target"):
        for facts in (change.a, change.b):
            value = None
            if isinstance(facts, dict) and not (member == "source" and "path" in facts):
                value = facts.get("path", facts[member])
            places.append(posixpath.dirname(str(value or "")))
    return (places[0], places[1], places[2], places[3])


def _only_moved(diff: Diff, change: Change, fields: Sequence[str]) -> bool:
    """Tell whether an entry differs in its directories alone, on the host or in the container."""
    if change.kind not in {"moved", "changed"} or not _PLACES.issuperset(fields):
        return False
    if not isinstance(change.a, dict) or not isinstance(change.b, dict) or not fields:
        return False
    if change.kind == "moved":
        return True
    if "source" not in change.a:
        return False
    names = []
    for facts, version in ((change.a, diff.a.driver_version), (change.b, diff.b.driver_version)):
        name = posixpath.basename(str(facts.get("source")))
        names.append(name.replace(version, "VERSION") if version else name)
    return names[0] == names[1]


def _moved(diff: Diff, changes: Sequence[Change]) -> list[_Line]:
    """Return one line for all entries that moved between the same directories."""

    def same(old: str, new: str) -> bool:
        """Tell whether two directories differ in the driver's version at most."""
        versions = diff.a.driver_version or "", diff.b.driver_version or ""
        return old == new or (all(versions) and old.replace(*versions) == new)

    groups: dict[str, list[Change]] = {}
    for change in changes:
        source, new_source, target, new_target = _move(change)
        places: dict[str, list[str]] = {}
        if not same(source, new_source) and source and new_source:
            places.setdefault(f"{source} → {new_source}", []).append("on the host")
        if not same(target, new_target):
            places.setdefault(f"{target} → {new_target}", []).append("in the container")
        if change.what == "driver file":
            words = ", ".join(places)
        else:
            words = ", ".join(f"{place} {' and '.join(where)}" for place, where in places.items())
        groups.setdefault(words, []).append(change)
    return [
        _Line("moved", f"{words}: {_counts(group)}: {_names(group)}")
        for words, group in groups.items()
    ]


def _short_sentence(change: Change, fields: Sequence[str]) -> str:
    """Return a change without raw values."""
    a, b = change.a, change.b
    if isinstance(a, dict) and isinstance(b, dict) and fields:
        if isinstance(a.get("target"), str) and change.kind == "moved":
            return _sentence(change.model_copy(update={"fields": list(fields)}))
        members = [
            f"{name} {_value(a[name])} → {_value(b[name])}"
            if _is_short(a[name]) and _is_short(b[name])
            else f"{name} differs"
            for name in fields
        ]
        return f"{change.what} {change.name}: {'; '.join(members)}"
    if change.kind != "order" and not (_is_short(a) and _is_short(b)):
        return f"{change.what} {change.name} differs"
    return _sentence(change) if change.kind == "order" else f"{change.what} {_sentence(change)}"


def _is_short(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int) for item in value)
    return not isinstance(value, dict) and len(str(value)) <= _LONG and "\n" not in str(value)


def _counts(changes: Sequence[Change]) -> str:
    counts = Counter(change.what for change in changes)
    return ", ".join(_counted(what, count) for what, count in counts.items())


def _counted(what: str, count: int) -> str:
    return f"{count} {_noun(what, count)}"


def _noun(what: str, count: int) -> str:
    return what if count == 1 else plural(what)


def _names(changes: Sequence[Change]) -> str:
    names = ", ".join(change.name for change in changes[:_NAMED])
    rest = len(changes) - _NAMED
    return f"{names} and {rest} more" if rest > 0 else names


def _sentence(change: Change) -> str:
    a, b = change.a, change.b
    if change.kind == "order":
        return f"{change.name} is {a} in A, {b} in B"
    if isinstance(a, dict) and isinstance(b, dict):
        members = [
            f"{name} {_value(a[name])} → {_value(b[name])}"
            for name in change.fields
            if change.kind != "moved" or name not in _PLACES
        ]
        if change.kind == "moved":
            old, new = (posixpath.dirname(str(side.get("path", side["target"]))) for side in (a, b))
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
