"""What comes and goes with another entry: the links of a library, the rule of a device node, the
directories above a mount. A person who reads that a library is gone knows that its links are.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from nvgraft_specs.models.diff import Change

_LINKS = {"link", "SONAME link"}


def split(changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
    """Return the entries that stand for themselves, and those that come with one of these.

    :param changes: entries that only one side has.
    """
    companions = _links(changes) | _rules(changes) | _directories(changes)
    leading, others = list[Change](), list[Change]()
    for change in changes:
        (others if (change.what, change.name) in companions else leading).append(change)
    return leading, others


def _links(changes: Sequence[Change]) -> set[tuple[str, str]]:
    """Return the links that lead to another entry, maybe by further links."""
    targets = {
        change.name: posixpath.normpath(posixpath.join(posixpath.dirname(change.name), target))
        for change in changes
        if change.what in _LINKS
        for target in _places(change)
    }
    led = {place for change in changes if change.what not in _LINKS for place in _places(change)}
    while further := {path for path, target in targets.items() if target in led} - led:
        led |= further
    return {
        (change.what, change.name)
        for change in changes
        if change.what in _LINKS and change.name in led
    }


def _rules(changes: Sequence[Change]) -> set[tuple[str, str]]:
    """Return the device rules of device nodes."""
    rules = set()
    for change in changes:
        numbers = _facts(change).get("rdev") if change.what == "device node" else None
        if isinstance(numbers, list):
            rules.add(("device rule", "c {}:{}".format(*numbers)))
    return rules


def _directories(changes: Sequence[Change]) -> set[tuple[str, str]]:
    """Return the directories in or at which another entry is."""
    above = set[str]()
    for change in changes:
        if change.what != "directory":
            for place in (change.name, *_places(change)):
                above.update((place, *_parents(place)))
    return {("directory", path) for path in above}


def _parents(path: str) -> Iterator[str]:
    while (path := posixpath.dirname(path)) not in {"", "/"}:
        yield path


def _places(change: Change) -> list[str]:
    target = _facts(change).get("target")
    return [target] if isinstance(target, str) else []


def _facts(change: Change) -> Mapping[str, object]:
    facts = change.b if change.a is None else change.a
    return facts if isinstance(facts, dict) else {}
