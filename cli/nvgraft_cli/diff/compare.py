"""Two sides compared, in terms of what a change means: another version, another place, other options, gone, new.

Nothing is ignored: a member that differs is a change, and an aspect that one side does not tell is named as not compared.
Only what follows from the driver's version in a name is called a version change.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from typing import Any

from nvgraft_cli.diff.sides import ComparedMount, ComparedNode, Side
from nvgraft_specs.models.diff import SCHEMA, Change, Diff, NotCompared, SideInfo

_KINDS = {
    "plan": "a plan",
    "snapshot": "a plan",
    "cdi": "a CDI specification",
    "mountinfo": "a mountinfo",
    "log": "a debug log",
}

#: aspect of a Side -> what its entries are called
_NAMED = {
    "rules": "device rule",
    "links": "link",
    "soname_links": "SONAME link",
    "files": "file",
    "directories": "directory",
    "environment": "environment variable",
    "hooks": "hook",
    "cache": "loader cache directory",
    "about": "fact",
}

#: Facts that are the version itself: with them, a driver upgrade is a version change and nothing else.
_VERSION_FACTS = {"host.driver_version", "host.cuda_version", "host.name"}


def compare(a: Side, b: Side) -> Diff:
    """Return how ``b`` differs from ``a``."""
    comparison = _Comparison(a, b)
    comparison.mounts()
    comparison.nodes()
    for aspect, what in _NAMED.items():
        comparison.named(aspect, what)
    comparison.order()
    return Diff.model_validate(
        {
            "schema": SCHEMA,
            "a": SideInfo.model_validate(
                {"label": a.label, "kind": a.kind, "driver_version": a.version}
            ),
            "b": SideInfo.model_validate(
                {"label": b.label, "kind": b.kind, "driver_version": b.version}
            ),
            "equal": not comparison.changes,
            "changes": comparison.changes,
            "not_compared": comparison.not_compared,
        }
    )


class _Comparison:
    def __init__(self, a: Side, b: Side) -> None:
        self.a = a
        self.b = b
        self.changes: list[Change] = []
        self.not_compared: list[NotCompared] = []

    def _normal(self, side: Side, text: str) -> str:
        """Return ``text`` with the side's driver version replaced: equal results differ in the version alone."""
        return (
            text
            if not side.version
            else re.sub(rf"(?<!\d){re.escape(side.version)}(?!\.?\d)", "VERSION", text)
        )

    def _normal_value(self, side: Side, value: Any) -> Any:
        if isinstance(value, str):
            return self._normal(side, value)
        if isinstance(value, list | tuple):
            return [self._normal_value(side, item) for item in value]
        if isinstance(value, dict):
            return {key: self._normal_value(side, item) for key, item in value.items()}
        return value

    def _change(
        self, what: str, kind: str, name: str, a: Any, b: Any, fields: Iterable[str] = ()
    ) -> None:
        self.changes.append(
            Change.model_validate(
                {
                    "what": what,
                    "kind": kind,
                    "name": name,
                    "fields": list(fields),
                    "a": _plain(a),
                    "b": _plain(b),
                }
            )
        )

    def mounts(self) -> None:
        """Mounts: by their targets, then those that are left by their names, which have moved."""
        self._paired("mount", self.a.mounts, self.b.mounts, _mount_members)

    def nodes(self) -> None:
        """Device nodes, by their paths."""
        self._paired("device node", self.a.nodes, self.b.nodes, _node_members)

    def _paired(
        self,
        what: str,
        a: dict[str, Any],
        b: dict[str, Any],
        members: Callable[[Any], dict[str, Any]],
    ) -> None:
        ours = {self._normal(self.a, target): item for target, item in a.items()}
        theirs = {self._normal(self.b, target): item for target, item in b.items()}
        for key in [key for key in ours if key in theirs]:
            self._pair(what, ours.pop(key), theirs.pop(key), members, "changed")
        names: dict[str, list[str]] = {}
        for key in theirs:
            names.setdefault(posixpath.basename(key), []).append(key)
        for key in list(ours):
            same = names.get(posixpath.basename(key))
            if same:
                self._pair(what, ours.pop(key), theirs.pop(same.pop(0)), members, "moved")
        for item in ours.values():
            self._change(what, "removed", self._name(self.a, item), members(item), None)
        for item in theirs.values():
            self._change(what, "added", self._name(self.b, item), None, members(item))

    def _name(self, side: Side, item: ComparedMount | ComparedNode) -> str:
        if isinstance(item, ComparedNode):
            return item.path
        return (
            re.sub(r"\.?VERSION", "", posixpath.basename(self._normal(side, item.target)))
            or item.target
        )

    def _pair(
        self, what: str, a: Any, b: Any, members: Callable[[Any], dict[str, Any]], kind: str
    ) -> None:
        ours, theirs = members(a), members(b)
        if isinstance(a, ComparedMount) and (a.partial or b.partial):
            _align_sources(ours, theirs)
        told = self._told(ours, theirs)
        fields = [name for name in told if ours.get(name) != theirs.get(name)]
        if kind == "changed":
            if not fields:
                return
            differ = [
                name
                for name in fields
                if self._normal_value(self.a, ours.get(name))
                != self._normal_value(self.b, theirs.get(name))
            ]
            # What remains when the version is left out is a change by itself; the version beside it is part of it.
            kind = "changed" if differ else "version"
            fields = differ or fields
        self._change(
            what,
            kind,
            self._name(self.a, a),
            {name: ours.get(name) for name in told},
            {name: theirs.get(name) for name in told},
            fields,
        )

    def _told(self, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
        """Return the members that both sides tell: all of them between two of a kind."""
        alike = _KINDS[self.a.kind] == _KINDS[self.b.kind]
        names = list(dict.fromkeys([*ours, *theirs]))
        return (
            names
            if alike
            else [
                name
                for name in names
                if ours.get(name) is not None and theirs.get(name) is not None
            ]
        )

    def named(self, aspect: str, what: str) -> None:
        """An aspect whose entries have names; one that a side lacks is not compared."""
        a, b = getattr(self.a, aspect), getattr(self.b, aspect)
        if (
            aspect == "soname_links"
            and (a is None) != (b is None)
            and "cdi" in {self.a.kind, self.b.kind}
        ):
            return  # a CDI specification has one list of links: see "links"
        if aspect == "links" and "cdi" in {self.a.kind, self.b.kind}:
            a, b = (
                {**(side.links or {}), **(side.soname_links or {})}
                if side.links is not None
                else None
                for side in (self.a, self.b)
            )
        if a is None or b is None:
            if a or b:
                quiet = self.a if a is None else self.b
                self.not_compared.append(
                    NotCompared(what=f"{what}s", why=f"{_KINDS[quiet.kind]} does not tell them")
                )
            return
        ours = {self._normal(self.a, key): (key, value) for key, value in a.items()}
        theirs = {self._normal(self.b, key): (key, value) for key, value in b.items()}
        for key in dict.fromkeys([*ours, *theirs]):
            if key not in theirs:
                self._change(what, "removed", ours[key][0], ours[key][1], None)
            elif key not in ours:
                self._change(what, "added", theirs[key][0], None, theirs[key][1])
            else:
                self._named_pair(what, ours[key], theirs[key])

    def _named_pair(self, what: str, ours: tuple[str, Any], theirs: tuple[str, Any]) -> None:
        (name, a), (other, b) = ours, theirs
        if isinstance(a, dict) and isinstance(b, dict):
            told = self._told(a, b)
            a, b = {key: a.get(key) for key in told}, {key: b.get(key) for key in told}
            fields = [key for key in told if a[key] != b[key]]
        else:
            fields = []
        if a == b and name == other:
            return
        same = self._normal_value(self.a, a) == self._normal_value(self.b, b) or (
            what == "fact" and name in _VERSION_FACTS
        )
        self._change(what, "version" if same else "changed", name, a, b, fields)

    def order(self) -> None:
        """The order of what both have: which of two mounts is seen where they overlap, and what mountinfo shows."""
        if self.a.order is None or self.b.order is None:
            if self.a.order or self.b.order:
                quiet = self.a if self.a.order is None else self.b
                self.not_compared.append(
                    NotCompared(what="the order of mounts", why=f"{_KINDS[quiet.kind]} has none")
                )
            return
        ours = [self._normal(self.a, target) for target in self.a.order]
        theirs = [self._normal(self.b, target) for target in self.b.order]
        common = set(ours) & set(theirs)
        first = [target for target in ours if target in common]
        second = [target for target in theirs if target in common]
        if first != second:
            at = next(
                index
                for index, pair in enumerate(zip(first, second, strict=True))
                if pair[0] != pair[1]
            )
            self._change("order", "order", f"mount {at + 1}", first[at], second[at])


def _align_sources(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Where a source is told from the root of its own file system only, it is equal to a longer one that ends in it."""
    a, b = ours.get("source"), theirs.get("source")
    if a and b and a != b and (a.endswith(b) or b.endswith(a)):
        ours["source"] = theirs["source"] = max(a, b, key=len)


def _mount_members(mount: ComparedMount) -> dict[str, Any]:
    options = None if mount.options is None else list(mount.options)
    return {
        "target": mount.target,
        "source": mount.source,
        "type": mount.type,
        "options": options,
        **mount.facts,
    }


def _node_members(node: ComparedNode) -> dict[str, Any]:
    return {
        "target": node.path,
        "source": node.source,
        "rdev": None if node.rdev is None else list(node.rdev),
        **node.facts,
    }


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON has it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
