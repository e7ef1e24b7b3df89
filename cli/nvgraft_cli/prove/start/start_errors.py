"""Tell whether the kernel starts a program that is found, and its interpreter."""

import posixpath

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.access import access_of
from nvgraft_cli.prove.loader.user import User
from nvgraft_cli.prove.start.first_line import interpreter_of
from nvgraft_cli.prove.start.path_search import places_in
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.start_failure import StartCause, StartFailure, failure
from nvgraft_cli.prove.start.tree_files import may_be_there, mount_points


def first_start_error(
    tree: PlannedTree, path: str, start: ProgramStart, container: ContainerSide
) -> StartFailure | None:
    """Return why the kernel does not start the container's first program, None if it does."""
    name = start.words[0]
    if reason := _not_executed(tree, path, container):
        words = f'exec: "{name}": permission denied ({reason})'
        if "/" not in name:
            words = f'exec: "{name}": executable file not found in $PATH ({path}: {reason})'
        return failure(words, StartCause.NOT_EXECUTED)
    if reason := _not_permitted(tree, path, container):
        words = f"exec {path}: operation not permitted ({reason})"
        return failure(words, StartCause.NOT_PERMITTED)
    interpreter = interpreter_of(tree, path)
    if interpreter is None:
        return None
    if not interpreter:
        words = f"exec {path}: exec format error (it is neither a program nor a script)"
        return failure(words, StartCause.NO_PROGRAM)
    volumes = mount_points(container)
    place = posixpath.normpath(posixpath.join(start.directory, interpreter[0]))
    if reason := _not_executed(tree, place, container):
        words = f"exec {path}: permission denied ({interpreter[0]}: {reason})"
        return failure(words, StartCause.NOT_EXECUTED)
    if may_be_there(tree, place, volumes):
        if access_of(container, tree).may_read(tree.resolve(path)):
            return None
        words = f"exec {path}: permission denied (its interpreter may not read it)"
        return failure(words, StartCause.NOT_EXECUTED)
    words = (
        f"exec {path}: no such file or directory (the image lacks {interpreter[0]}, which the first"
        " line of the script names)"
    )
    return failure(words, StartCause.NO_PROGRAM)


def later_start_error(
    tree: PlannedTree, path: str | None, start: ProgramStart, container: ContainerSide
) -> StartFailure | None:
    """Return why another program cannot start a program, None if it can."""
    if path is None and start.unknown:
        return None  # a script may have set PATH
    if path is None:
        volumes = mount_points(container)
        places = places_in(start.environment.get("PATH", start.usual_path), start.words[0])
        there = any(may_be_there(tree, posixpath.normpath(at), volumes) for at in places)
        words = f"exec {start.words[0]}: no such file or directory"
        return None if there else failure(words, StartCause.MISSING)
    if start.loader:
        return None  # the loader reads it
    if reason := _not_executed(tree, path, container, start.user):
        words = f"exec {path}: permission denied ({reason})"
        return failure(words, StartCause.NOT_EXECUTED)
    if reason := _not_permitted(tree, path, container):
        words = f"exec {path}: operation not permitted ({reason})"
        return failure(words, StartCause.NOT_PERMITTED)
    return None


def _not_executed(
    tree: PlannedTree, path: str, container: ContainerSide, user: User | None = None
) -> str:
    """Return why the container's user, or the one that it becomes, may not execute a program."""
    try:
        return access_of(container, tree, user).not_executed(tree.resolve(path))
    except (OSError, PathError):
        return ""


def _not_permitted(tree: PlannedTree, path: str, container: ContainerSide) -> str:
    """Return why the kernel gives no process of the container the rights of a program, or ""."""
    try:
        return access_of(container, tree).not_permitted(tree.resolve(path))
    except (OSError, PathError):
        return ""
