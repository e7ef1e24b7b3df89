"""Look at files of a container by paths that need not exist."""

import posixpath

from nvgraft.formats.tree import LOOP, PathError, Tree
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.file_changes import SCRIPT_LIMIT
from nvgraft_cli.case.planned_tree import PlannedTree


def text_of(tree: Tree, path: str, limit: int = SCRIPT_LIMIT) -> str | None:
    """Return the text of a file of at most ``limit`` bytes; None if there is none."""
    try:
        return tree.read(tree.resolve(path), limit).decode("utf-8", "surrogateescape")
    except (OSError, PathError):
        return None


def names_in(tree: PlannedTree, place: str) -> list[str]:
    """Return the names in a directory; none if there is no such directory."""
    try:
        return sorted(tree.listdir(tree.resolve(place)))
    except (OSError, PathError):
        return []


def mount_points(container: ContainerSide) -> list[str]:
    """Return where config.json mounts something in the container."""
    return [posixpath.normpath(posixpath.join("/", path)) for _, path in container.spec.mounts]


def may_be_there(tree: PlannedTree, path: str, volumes: list[str]) -> bool:
    """Tell whether a file is at ``path``, or whether that is not known: a volume covers it."""
    try:
        leads_to, node = tree.find(path)
    except PathError as error:
        return error.cause != LOOP
    except OSError:
        return True
    return node is not None or any(
        place == volume or place.startswith(f"{volume}/")
        for place in (path, leads_to)
        for volume in volumes
    )
