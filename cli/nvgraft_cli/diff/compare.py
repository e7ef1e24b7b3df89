"""Compare two sides, and name each change by its meaning: version, moved, changed, removed, added.

Nothing is ignored: each member that differs is a change, and each aspect that one side lacks is
listed as not compared. A version change follows only from the driver's version in names. Where a
host has /lib and /usr/lib in one place, as all distributions have today, both are one path.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from nvgraft_cli.case.planning import NO_GPUS
from nvgraft_cli.diff.sides import ComparedMount, ComparedNode, Side
from nvgraft_cli.diff.summary import summarise
from nvgraft_specs.models.diff import SCHEMA, Change, Diff, NotCompared, SideInfo

T = TypeVar("T")

KINDS = {
    "plan": "a plan",
    "snapshot": "a plan",
    "container": "a plan",
    "host": "a host without a container",
    "cdi": "a CDI specification",
    "mountinfo": "a mountinfo",
    "log": "a debug log",
    "pod": "a pod",
}

#: An aspect of a Side, and the name of its entries.
_NAMED = {
    "rules": "device rule",
    "links": "link",
    "soname_links": "SONAME link",
    "files": "file",
    "directories": "directory",
    "environment": "environment variable",
    "hooks": "hook",
    "cache": "loader cache directory",
    "gpu_facts": "GPU",
    "about": "fact",
}

#: Facts that depend on the driver's version: an upgrade changes them as a version change.
_VERSION_FACTS = {"host.driver_version", "host.cuda_version"}

#: The tmpfs that stands on a simulated host for what the kernel module makes in a procfs. A plan
#: for the recorded host does not have it.
_STAND_IN = "/proc/driver"

#: What the hook covers with a copy for the container.
_PROC = "/proc/driver/nvidia"


#: The names of directories of libraries for 32-bit programs.
_NARROW = frozenset({"i386-linux-gnu", "arm-linux-gnueabihf", "lib32"})

#: The beginning of a path that a merged /usr makes equal to the path without it.
_MERGED = re.compile(r"^/usr(?=/(?:bin|sbin|lib|lib32|lib64)/)")


def compare(a: Side, b: Side) -> Diff:
    """Return how ``b`` differs from ``a``."""
    if "mountinfo" in {a.kind, b.kind}:
        a, b = _without_stand_in(a), _without_stand_in(b)
    if a.kind == b.kind == "container":
        a, b = _without_rootfs(a), _without_rootfs(b)
    recorded_apart = (a.gpus is None) != (b.gpus is None)
    if recorded_apart:
        a, b = _of_files(a), _of_files(b)
    plans = [side for side in (a, b) if KINDS[side.kind] == KINDS["plan"]]
    apart = a.edits != b.edits and len(plans) == 2
    specified = "cdi" in {a.kind, b.kind} and any(not plan.edits for plan in plans)
    if apart:
        a, b = _as_edits(a), _as_edits(b)
    elif specified:
        a, b = _without_proc(a), _without_proc(b)
    comparison = _Comparison(a, b)
    if recorded_apart:
        comparison.leave_out("sockets, MPS directories and entries of /proc")
    elif a.gpus is None:
        comparison.leave_out_gpus()
    if apart or specified:
        comparison.leave_out_what_edits_lack(nodes=apart)
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
            "summary": list(summarise(a, b)),
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
        """Replace the side's driver version in ``text``, to compare names of both versions."""
        if not side.version:
            return text
        return re.sub(rf"(?<!\d){re.escape(side.version)}(?!\.?\d)", "VERSION", text)

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

    def leave_out(self, what: str) -> None:
        """Note what a side without GPUs does not contain."""
        silent = self.a if self.a.gpus is None else self.b
        why = f"{_silent(silent)} does not contain them"
        self.not_compared.append(NotCompared(what=what, why=why))

    def leave_out_gpus(self) -> None:
        """Note what neither side contains."""
        what = "GPUs, device nodes, sockets and entries of /proc"
        why = "both drivers were recorded without GPUs"
        self.not_compared.append(NotCompared(what=what, why=why))

    def leave_out_what_edits_lack(self, *, nodes: bool) -> None:
        """Note what cannot be compared between a plan of the hook and CDI edits.

        :param nodes: whether the edits are a plan's, which tells how nodes are made.
        """
        why = "CDI edits leave the kernel's own, which shows all GPUs of the host"
        self.not_compared.append(NotCompared(what=_PROC, why=why))
        if nodes:
            why = "with CDI edits the OCI runtime makes the nodes"
            self.not_compared.append(NotCompared(what="mount options of device nodes", why=why))

    def mounts(self) -> None:
        """Compare mounts by target, then the remaining ones by name: these have moved.

        Of a host without a container these are the driver's files.
        """
        what = "driver file" if self.a.kind == "host" else "mount"
        self._paired(what, self.a.mounts, self.b.mounts, _mount_members)

    def nodes(self) -> None:
        """Compare device nodes by path, unless one side was recorded without them, or may have some
        that no mount shows: docker, and a runtime with CDI edits, make them in the container.
        """
        if (self.a.gpus is None) != (self.b.gpus is None):
            self.leave_out("device nodes")
            return
        if self.a.nodes_unseen != self.b.nodes_unseen:
            why = "a mountinfo shows those that are mounted, and has none"
            self.not_compared.append(NotCompared(what="device nodes", why=why))
            return
        self._paired("device node", self.a.nodes, self.b.nodes, _node_members)

    def _paired(
        self,
        what: str,
        a: dict[str, Any],
        b: dict[str, Any],
        members: Callable[[Any], dict[str, Any]],
    ) -> None:
        # A driver file is named by its place on the host, other entries by that in the container.
        named: Callable[[str], str] = _on_host if what == "driver file" else str
        ours = {named(self._normal(self.a, target)): item for target, item in a.items()}
        theirs = {named(self._normal(self.b, target)): item for target, item in b.items()}
        of_a, of_b = frozenset(ours), frozenset(theirs)
        for key in [key for key in ours if key in theirs]:
            self._pair(what, ours.pop(key), theirs.pop(key), members, "changed")
        for key, other in _moves(of_a, ours, of_b, theirs):
            self._pair(what, ours.pop(key), theirs.pop(other), members, "moved")
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
        names = self._comparable(ours, theirs)
        of_host = "target" if what == "driver file" else "source"

        def differ(name: str, one: Any, other: Any) -> bool:
            if name == of_host and isinstance(one, str) and isinstance(other, str):
                return _on_host(one) != _on_host(other)
            return bool(one != other)

        fields = [name for name in names if differ(name, ours.get(name), theirs.get(name))]
        if not fields:
            return
        beyond_version = [
            name
            for name in fields
            if differ(
                name,
                self._normal_value(self.a, ours.get(name)),
                self._normal_value(self.b, theirs.get(name)),
            )
        ]
        # Members that differ in more than the version decide.
        if kind == "changed" and not beyond_version:
            kind = "version"
        fields = beyond_version or fields
        self._change(
            what,
            kind,
            self._name(self.a, a),
            {name: ours.get(name) for name in names},
            {name: theirs.get(name) for name in names},
            fields,
        )

    def _comparable(self, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
        """Return the members to compare: all if both sides are of one kind, else common ones."""
        names = list(dict.fromkeys([*ours, *theirs]))
        if KINDS[self.a.kind] == KINDS[self.b.kind]:
            return names
        return [
            name for name in names if ours.get(name) is not None and theirs.get(name) is not None
        ]

    def named(self, aspect: str, what: str) -> None:
        """Compare an aspect whose entries have names, unless one side lacks the aspect."""
        a, b = getattr(self.a, aspect), getattr(self.b, aspect)
        if (
            aspect == "soname_links"
            and (a is None) != (b is None)
            and "cdi" in {self.a.kind, self.b.kind}
        ):
            return  # a CDI specification has one list of links: the aspect "links"
        if aspect == "links" and "cdi" in {self.a.kind, self.b.kind}:
            a, b = _all_links(self.a), _all_links(self.b)
        if a is None or b is None:
            if a or b:
                silent = self.a if a is None else self.b
                why = f"{_silent(silent)} does not contain them"
                self.not_compared.append(NotCompared(what=plural(what), why=why))
            return
        ours = {self._normal(self.a, key): (key, value) for key, value in a.items()}
        theirs = {self._normal(self.b, key): (key, value) for key, value in b.items()}
        if aspect in {"links", "soname_links"}:
            self._moved_links(what, ours, theirs)
        for key in dict.fromkeys([*ours, *theirs]):
            if key not in theirs:
                self._change(what, "removed", ours[key][0], ours[key][1], None)
            elif key not in ours:
                self._change(what, "added", theirs[key][0], None, theirs[key][1])
            else:
                self._named_pair(what, ours[key], theirs[key])

    def _moved_links(
        self, what: str, ours: dict[str, tuple[str, Any]], theirs: dict[str, tuple[str, Any]]
    ) -> None:
        """Pair links of one name and one target in different directories, and drop them."""
        of_a, of_b = frozenset(ours), frozenset(theirs)

        def same(key: str, other: str) -> bool:
            old, new = ours[key][1]["target"], theirs[other][1]["target"]
            return self._normal(self.a, old) == self._normal(self.b, new)

        left = [key for key in ours if key not in of_b]
        right = [key for key in theirs if key not in of_a]
        for key, other in _moves(of_a, left, of_b, right, same):
            path, link = ours.pop(key)
            new_path, moved = theirs.pop(other)
            a, b = {"path": path, **link}, {"path": new_path, **moved}
            fields = [name for name in self._comparable(a, b) if a.get(name) != b.get(name)]
            self._change(what, "moved", posixpath.basename(path), a, b, fields)

    def _named_pair(self, what: str, ours: tuple[str, Any], theirs: tuple[str, Any]) -> None:
        (name, a), (other, b) = ours, theirs
        if isinstance(a, dict) and isinstance(b, dict):
            keys = self._comparable(a, b)
            a, b = {key: a.get(key) for key in keys}, {key: b.get(key) for key in keys}
            fields = [key for key in keys if a[key] != b[key]]
        else:
            fields = []
        if a == b and name == other:
            return
        only_version = self._normal_value(self.a, a) == self._normal_value(self.b, b) or (
            what == "fact" and name in _VERSION_FACTS
        )
        self._change(what, "version" if only_version else "changed", name, a, b, fields)

    def order(self) -> None:
        """Compare the order of the mounts of both sides.

        It decides which of two overlapping mounts is visible, and the order of mountinfo.
        """
        if self.a.order is None or self.b.order is None:
            if self.a.order or self.b.order:
                silent = self.a if self.a.order is None else self.b
                why = f"{_silent(silent)} does not define it"
                self.not_compared.append(NotCompared(what="the order of mounts", why=why))
            return
        ours = [self._normal(self.a, target) for target in self.a.order]
        theirs = [self._normal(self.b, target) for target in self.b.order]
        common = set(ours) & set(theirs)
        first = [target for target in ours if target in common]
        second = [target for target in theirs if target in common]
        for number, (target, other) in enumerate(zip(first, second, strict=True), 1):
            if target != other:
                self._change("order", "order", f"mount {number}", target, other)
                return


def _silent(side: Side) -> str:
    """Return what a side that lacks an aspect is."""
    return "a driver recorded without GPUs" if side.gpus is None else KINDS[side.kind]


def _without_stand_in(side: Side) -> Side:
    return replace(
        side,
        mounts={path: mount for path, mount in side.mounts.items() if path != _STAND_IN},
        order=None if side.order is None else [path for path in side.order if path != _STAND_IN],
    )


def _without_rootfs(side: Side) -> Side:
    """Return a side of two containers without the place of its files, which its label tells."""

    def inside(reason: str) -> str:
        return reason.replace(f"{side.rootfs}/", "/") if side.rootfs else reason

    about = {name: fact for name, fact in (side.about or {}).items() if name != "target.rootfs"}
    if "reason" in about:
        about["reason"] = inside(about["reason"])
    decision = side.decision and (side.decision[0], inside(side.decision[1]))
    return replace(side, about=about, decision=decision)


def _without_proc(side: Side) -> Side:
    """Return a side without what the hook puts below /proc/driver/nvidia."""

    def kept(paths: Mapping[str, T]) -> dict[str, T]:
        return {
            path: entry
            for path, entry in paths.items()
            if path != _PROC and not path.startswith(f"{_PROC}/")
        }

    return replace(
        side,
        mounts=kept(side.mounts),
        files=side.files and kept(side.files),
        directories=side.directories and kept(side.directories),
        order=side.order and [*kept(dict.fromkeys(side.order))],
    )


def _as_edits(side: Side) -> Side:
    """Return the side of a plan without what CDI edits have no part in, and with one list of
    links.
    """
    return replace(
        _without_proc(side),
        nodes={
            path: replace(
                node,
                facts={
                    name: fact
                    for name, fact in node.facts.items()
                    if name not in {"options", "mode", "type"}
                },
            )
            for path, node in side.nodes.items()
        },
        links=_all_links(side),
        soname_links={},
    )


def _of_files(side: Side) -> Side:
    """Return a side without what only a driver that runs has: sockets, and entries of its GPUs."""
    left_out = {path for path, mount in side.mounts.items() if _of_running_driver(mount)}
    kept = side.mounts.keys() - left_out
    above = {
        path
        for path in side.directories or ()
        if any(target.startswith(f"{path}/") or target == path for target in left_out)
        and not any(target.startswith(f"{path}/") for target in kept)
    }
    return replace(
        side,
        mounts={path: side.mounts[path] for path in side.mounts if path in kept},
        directories=None
        if side.directories is None
        else {path: entry for path, entry in side.directories.items() if path not in above},
        about=None
        if side.about is None
        else {
            name: fact
            for name, fact in side.about.items()
            if not name.startswith(f"finding {NO_GPUS.id}:")
        },
    )


def _of_running_driver(mount: ComparedMount) -> bool:
    return (
        mount.facts.get("kind", mount.type) == "socket"
        or mount.target.startswith("/proc/driver/nvidia/gpus/")
        or posixpath.basename(mount.target) == "nvidia-mps"
    )


def _moves(
    of_a: Collection[str],
    ours: Iterable[str],
    of_b: Collection[str],
    theirs: Iterable[str],
    same: Callable[[str, str], bool] = lambda key, other: True,
) -> list[tuple[str, str]]:
    """Pair the paths of files that only one side has with those of the other side that are the
    same files elsewhere.

    :param of_a: all paths of the side; ``of_b`` likewise.
    :param same: whether two files of one name are the same one.
    """
    places: dict[tuple[str, bool], list[str]] = {}
    for other in theirs:
        if (identity := _identity(other, of_b)) is not None:
            places.setdefault(identity, []).append(other)
    pairs = []
    for key in ours:
        identity = _identity(key, of_a)
        found = [] if identity is None else places.get(identity, [])
        match = next((other for other in found if same(key, other)), None)
        if match is not None:
            found.remove(match)
            pairs.append((key, match))
    return pairs


def _identity(path: str, paths: Collection[str]) -> tuple[str, bool] | None:
    """Return what a file is wherever it lies: its name, and whether it is for 32-bit programs. None
    for a file below /proc, where the files of all devices have one name.

    :param paths: all paths of its side.
    """
    directory, name = posixpath.split(path)
    if path.startswith("/proc/"):
        return None
    if name == "socket":
        name = f"{posixpath.basename(directory)}/{name}"
    narrow = not _NARROW.isdisjoint(directory.split("/"))
    # Where libraries lie in lib64, those in lib are for 32-bit programs.
    return name, narrow or (directory.endswith("/lib") and f"{directory}64/{name}" in paths)


def _on_host(path: str) -> str:
    """Return the path of a host's file as it is below a merged /usr."""
    return _MERGED.sub("", path)


def plural(noun: str) -> str:
    """Return the plural of the name of an entry."""
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def _all_links(side: Side) -> dict[str, Any] | None:
    return None if side.links is None else {**side.links, **(side.soname_links or {})}


def _align_sources(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Make two sources equal if one ends in the other: a partial source lacks the first part."""
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
    """Return ``value`` with lists instead of tuples, as in JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
