"""The container's file tree on the way to what is planned, before and after: not a whole image, only what a story is about.

What is beside it in a directory of the image is counted, not listed.
"""

import posixpath
from dataclasses import dataclass

from nvgraft.formats.tree import Node, Tree
from nvgraft.plan.actions import (
    Action,
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain.steps import kernel_entry, reason
from nvgraft_cli.explain.story import ALWAYS

CACHE = "/etc/ld.so.cache"


@dataclass(frozen=True, slots=True)
class Place:
    """One name in the tree.

    :param kind: as :class:`nvgraft.formats.tree.Node` has it, or tmpfs.
    :param state: image (as it was), new, over (the host's in place of the image's), changed.
    :param others: how many more names the directory has; None where it cannot be read.
    """

    name: str
    path: str
    kind: str
    state: str
    how: str = ""
    why: str = ""
    capability: str = ALWAYS
    size: int | None = None
    children: tuple["Place", ...] = ()
    others: int | None = 0


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is planned for one path."""

    how: str
    why: str
    capability: str
    kind: str = ""
    size: int | None = None


def before_and_after(case: Case, plan: Plan) -> tuple[Place, Place]:
    """Return the root of the image, and that of the container once ``plan`` is carried out.

    :param plan: one whose decision is inject.
    """
    image = case.target.tree
    planned = _planned(plan)
    names: dict[str, set[str]] = {"/": set()}
    for path in planned:
        while path != "/":
            parent = posixpath.dirname(path)
            names.setdefault(parent, set()).add(posixpath.basename(path))
            path = parent
    walk = _Walk(image, PlannedTree(image, plan, case.host.facts), planned, names)
    root = Node("dir", 0o755)
    return walk.before("/", root), walk.after("/", root, inside=False)


def _planned(plan: Plan) -> dict[str, _Planned]:
    found: dict[str, _Planned] = {}
    brings: dict[str, str] = {}
    for action in plan.actions:
        path = _path(action)
        if not path:
            continue
        entry = kernel_entry(action)
        why = getattr(action, "why", None)
        capability = (why.capability if why is not None else "") or ALWAYS
        how, kind, size = "" if entry is None else entry.how, "", None
        if isinstance(action, Bind):
            brings[path] = capability
            size = action.size if action.kind == "file" else None
        elif isinstance(action, Tmpfs):
            kind = "tmpfs"
        elif isinstance(action, WriteFile):
            size = len(action.content.encode())
        elif isinstance(action, Symlink):
            how = f"link to {action.target}"
        elif isinstance(action, MakeDirectory):
            how = f"directory, mode {action.mode:04o}"
        elif isinstance(action, UpdateLoaderCache):
            how, kind = "written with the driver's libraries in it", "file"
        found[path] = _Planned(how, reason(action), capability, kind, size)
    for path, target in plan.links:
        library = posixpath.join(posixpath.dirname(path), target)
        found[path] = _Planned(
            f"link to {target}",
            "SONAME: the name by which programs ask for it",
            brings.get(library, ALWAYS),
        )
    return found


def _path(action: Action) -> str:
    if isinstance(action, Bind | Tmpfs):
        return action.target
    if isinstance(action, MakeDirectory | Symlink | WriteFile):
        return action.path
    return CACHE if isinstance(action, UpdateLoaderCache) else ""


@dataclass(frozen=True, slots=True)
class _Walk:
    image: Tree
    grafted: PlannedTree
    planned: dict[str, _Planned]
    #: directory -> names on the way to what is planned
    names: dict[str, set[str]]

    def before(self, path: str, node: Node) -> Place:
        children = []
        for name in sorted(self.names.get(path, ())):
            below = posixpath.join(path, name)
            found = self.image.lstat(below)
            if found is not None:
                children.append(self.before(below, found))
        others = self._others(self.image, path) if path in self.names else 0
        return Place(
            posixpath.basename(path) or "/",
            path,
            node.type,
            "image",
            children=tuple(children),
            others=others,
        )

    def after(self, path: str, node: Node, *, inside: bool) -> Place:
        """``inside``: in a tmpfs, where nothing of the image is seen."""
        planned = self.planned.get(path, _Planned("", "", ALWAYS))
        inside = inside or planned.kind == "tmpfs"
        children = []
        for name in sorted(self.names.get(path, ())):
            below = posixpath.join(path, name)
            found = self.grafted.lstat(below) or Node(self.planned[below].kind)
            children.append(self.after(below, found, inside=inside))
        others = 0 if inside or path not in self.names else self._others(self.image, path)
        return Place(
            posixpath.basename(path) or "/",
            path,
            planned.kind or node.type,
            self._state(path),
            planned.how,
            planned.why,
            planned.capability,
            planned.size,
            tuple(children),
            others,
        )

    def _state(self, path: str) -> str:
        was = self.image.lstat(path) if path != "/" else Node("dir")
        if was is None:
            return "new"
        if path not in self.planned:
            return "image"
        return "changed" if path == CACHE else "over"

    def _others(self, tree: Tree, path: str) -> int | None:
        try:
            return len(set(tree.listdir(path)) - self.names[path])
        except OSError:
            return None
