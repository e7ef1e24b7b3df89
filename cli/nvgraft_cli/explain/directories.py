"""List the container's files before and after: the planned ones, and the directories above them.

Other names in these directories are counted, not listed.
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
from nvgraft_cli.explain.steps import SONAME_LINK, kernel_entry, reason
from nvgraft_cli.explain.story import ALWAYS

CACHE = "/etc/ld.so.cache"


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One name in the tree.

    :ivar kind: as in :class:`nvgraft.formats.tree.Node`, or tmpfs.
    :ivar state: image (unchanged), new, over (mounted over the image's), or changed.
    :ivar others: how many more names the directory has; None where it cannot be read.
    """

    name: str
    path: str
    kind: str
    state: str
    how: str = ""
    why: str = ""
    capability: str = ALWAYS
    size: int | None = None
    children: tuple["TreeNode", ...] = ()
    others: int | None = 0


@dataclass(frozen=True, slots=True)
class _Planned:
    """The part of the plan about one path."""

    how: str
    why: str
    capability: str
    kind: str = ""
    size: int | None = None


def before_and_after(
    case: Case, plan: Plan, others: Plan | None = None
) -> tuple[TreeNode, TreeNode]:
    """Return the root of the image, and that of the container after ``plan`` is applied.

    :param others: a plan with further actions, of which the tree after has the paths too.
    """
    image = case.target.tree
    planned = _planned(plan) if others is None else _planned(others) | _planned(plan)
    names: dict[str, set[str]] = {"/": set()}
    for path in planned:
        while path != "/":
            parent = posixpath.dirname(path)
            names.setdefault(parent, set()).add(posixpath.basename(path))
            path = parent
    after = PlannedTree(image, plan if others is None else others, case.host.facts)
    builder = _Builder(image, after, planned, names)
    root = Node("dir", 0o755)
    return builder.before("/", root), builder.after("/", root, in_tmpfs=False)


def _planned(plan: Plan) -> dict[str, _Planned]:
    planned: dict[str, _Planned] = {}
    capability_of: dict[str, str] = {}  # a mounted library -> its capability
    for action in plan.actions:
        path = path_of(action)
        if not path:
            continue
        entry = kernel_entry(action)
        why = getattr(action, "why", None)
        capability = (why.capability if why is not None else "") or ALWAYS
        how, kind, size = "" if entry is None else entry.how, "", None
        if isinstance(action, Bind):
            capability_of[path] = capability
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
            how, kind = "written anew, with the driver's libraries", "file"
        planned[path] = _Planned(how, reason(action), capability, kind, size)
    for path, target in plan.links:
        library = posixpath.join(posixpath.dirname(path), target)
        planned[path] = _Planned(
            f"link to {target}", SONAME_LINK, capability_of.get(library, ALWAYS)
        )
    return planned


def path_of(action: Action) -> str:
    """Return the path that an action makes, covers or changes, or ""."""
    if isinstance(action, Bind | Tmpfs):
        return action.target
    if isinstance(action, MakeDirectory | Symlink | WriteFile):
        return action.path
    return CACHE if isinstance(action, UpdateLoaderCache) else ""


@dataclass(frozen=True, slots=True)
class _Builder:
    image: Tree
    planned_tree: PlannedTree
    planned: dict[str, _Planned]
    #: directory -> names in it that are planned or lead to a planned path
    names: dict[str, set[str]]

    def before(self, path: str, node: Node) -> TreeNode:
        children = []
        for name in sorted(self.names.get(path, ())):
            child_path = posixpath.join(path, name)
            child = self.image.lstat(child_path)
            if child is not None:
                children.append(self.before(child_path, child))
        others = self._others(self.image, path) if path in self.names else 0
        return TreeNode(
            posixpath.basename(path) or "/",
            path,
            node.type,
            "image",
            children=tuple(children),
            others=others,
        )

    def after(self, path: str, node: Node, *, in_tmpfs: bool) -> TreeNode:
        """Return the tree at ``path``. A planned tmpfs hides the image's files."""
        planned = self.planned.get(path, _Planned("", "", ALWAYS))
        in_tmpfs = in_tmpfs or planned.kind == "tmpfs"
        children = []
        for name in sorted(self.names.get(path, ())):
            child_path = posixpath.join(path, name)
            # A directory that only leads to what is planned is there, also if the image is unknown.
            kind = self.planned[child_path].kind if child_path in self.planned else "dir"
            child = self.planned_tree.lstat(child_path) or Node(kind)
            children.append(self.after(child_path, child, in_tmpfs=in_tmpfs))
        others = 0 if in_tmpfs or path not in self.names else self._others(self.image, path)
        return TreeNode(
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
        if path != "/" and self.image.lstat(path) is None:
            return "new"
        if path not in self.planned:
            return "image"
        return "changed" if path == CACHE else "over"

    def _others(self, tree: Tree, path: str) -> int | None:
        try:
            return len(set(tree.listdir(path)) - self.names[path])
        except OSError:
            return None
