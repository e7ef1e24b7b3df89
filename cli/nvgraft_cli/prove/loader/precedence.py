"""Say why a loader takes a file of the image before the host's library of the same SONAME."""

import posixpath
from dataclasses import dataclass

from nvgraft.formats.tree import PathError
from nvgraft.plan.actions import MountedLibrary, Plan, UpdateLoaderCache
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.loading import Object
from nvgraft_cli.prove.loader.search import CACHED


@dataclass(frozen=True, slots=True)
class Precedence:
    """Why a file of the image comes first, beside the rule by which it was found.

    :ivar words: the reason, or "" where the rule alone is the reason.
    :ivar by_compat_rule: the hook itself puts its directory first (``cuda-compat-mode``).
    :ivar by_code: the program's own code has opened it before, or what it comes with.
    """

    words: str = ""
    by_compat_rule: bool = False
    by_code: bool = False


def is_compat_path(path: str) -> bool:
    """Tell whether a library is one of CUDA's forward compatibility packages."""
    return "/compat/" in path


#: The rule alone is the reason.
NO_REASON = Precedence()


def precedence(what: str, loaded: Object, plan: Plan, tree: PlannedTree) -> Precedence:
    """Return why ``loaded``, a file of the image, is taken for ``what``."""
    if "/" in what:
        return NO_REASON
    if loaded.brought_by:
        return Precedence(loaded.brought_by, by_code=True)
    soname = (loaded.facts.soname if loaded.facts is not None else None) or what
    actions = [action for action in plan.actions if isinstance(action, UpdateLoaderCache)]
    hosts = [
        library
        for action in actions
        for library in action.libraries
        if library.soname in {soname, what}
    ]
    if not hosts:
        return Precedence(f"the container gets no {soname} of the host")
    directory = _resolved(tree, posixpath.dirname(loaded.path))
    beside = [host for host in hosts if _resolved(tree, host.directory) == directory]
    if beside:
        return Precedence(_in_one_directory(loaded, beside[0], directory, tree))
    if loaded.how != CACHED:
        return NO_REASON
    first = _resolved(tree, actions[0].directories[0])
    if first == directory and is_compat_path(loaded.file):  # CDI edits name the image's own too
        return Precedence("the hook puts CUDA's compatibility libraries first", by_compat_rule=True)
    return Precedence(f"its directory comes before {hosts[0].directory}")


def _in_one_directory(
    loaded: Object, host: MountedLibrary, directory: str, tree: PlannedTree
) -> str:
    name = posixpath.basename(loaded.path)
    link = tree.lstat(posixpath.join(directory, name))
    if link is None or link.type != "symlink":
        return f"it is in the place of the link to the host's {host.name}"
    if posixpath.dirname(loaded.file) == directory:
        version = posixpath.basename(loaded.file)
        return f"the link {name} leads to the greater version, {version}, not to {host.name}"
    return f"the link {name} leads to it, not to the host's {host.name}"


def _resolved(tree: PlannedTree, path: str) -> str:
    try:
        return tree.resolve(posixpath.join("/", path))
    except (PathError, OSError):
        return path
