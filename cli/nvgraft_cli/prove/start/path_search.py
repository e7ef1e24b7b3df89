"""Find a program by its name: at a path, or in the directories of PATH."""

import posixpath
from collections.abc import Mapping

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.search import count_paths

#: Where a program is searched without PATH: by a shell, and by execvp(3). A runtime finds none.
SHELL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXECVP_PATH = "/bin:/usr/bin"


def find_named(
    tree: PlannedTree,
    name: str,
    environment: Mapping[str, str],
    directory: str,
    usual_path: str = SHELL_PATH,
) -> str | None:
    """Return the path of a program by its name, or None if PATH does not lead to it.

    A name with a slash is a path from ``directory``; the file need not be there.
    """
    if "/" in name:
        return "/" + posixpath.normpath(posixpath.join(directory, name)).lstrip("/")
    return find_in_path(tree, environment, name, usual_path)


def places_in(path: str, name: str) -> list[str]:
    """Return where a program may be that is searched in a PATH; an empty one leads to none."""
    return [posixpath.join("/", place, name) for place in path.split(":")] if path else []


def find_in_path(
    tree: PlannedTree, environment: Mapping[str, str], name: str, usual_path: str = SHELL_PATH
) -> str | None:
    """Return the path of a program that PATH leads to, or None.

    A file that nobody may execute is taken if there is no other: it is the one that fails.

    :param usual_path: where it is searched if PATH is not set.
    """
    path = environment.get("PATH", usual_path)
    count_paths(tree, "PATH", path)
    found = None
    for candidate in places_in(path, name):
        try:
            node = tree.find(candidate)[1]
        except (PathError, OSError):
            continue
        if node is not None and node.type == "file":
            if node.mode & 0o111:
                return candidate
            found = found or candidate
    return found
