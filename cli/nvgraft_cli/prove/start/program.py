"""Find the program that a container runs: process.args without what only starts it.

Images start their program through others: an init (tini), env, a shell's ``exec``, a script that
ends in ``exec "$@"``, or a loader that gets the program as an argument. ``starters`` has each step.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, NotRecorded, read_dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.search import count_paths, default_loader
from nvgraft_cli.prove.loader.user import User
from nvgraft_cli.prove.start.path_search import places_in
from nvgraft_cli.prove.start.program_start import ProgramStart, find_program
from nvgraft_cli.prove.start.start_errors import first_start_error, later_start_error
from nvgraft_cli.prove.start.start_failure import StartCause, StartFailure, failure
from nvgraft_cli.prove.start.starters import started_by
from nvgraft_cli.prove.start.tree_files import may_be_there, mount_points

#: The most programs that start one another.
_MOST = 16


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A program of the container, and how it is started.

    :ivar path: its path, absolute, with links; "" if it is not known.
    :ivar environment: its variables.
    :ivar directory: its working directory.
    :ivar loader: the loader that gets it as an argument; "" if the kernel finds the loader.
    :ivar starters: the names of the programs that start it, the outermost first.
    :ivar user: the user that one of these gives it; None if it has the container's.
    :ivar unknown: facts about its variables that are not known.
    :ivar error: why the kernel does not start it, or one of those that start it; None if it does.
    :ivar changes: commands of scripts before it that change files.
    :ivar tree: the container's files after these; None where they are the planned ones.
    :ivar words: its command.
    :ivar computed: names of variables that a script computes, and ``environment`` lacks.
    """

    path: str
    environment: dict[str, str]
    directory: str
    loader: str = ""
    starters: tuple[str, ...] = ()
    user: User | None = None
    unknown: tuple[str, ...] = ()
    error: StartFailure | None = None
    changes: tuple[tuple[str, ...], ...] = ()
    tree: PlannedTree | None = None
    words: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()


def started_program(tree: PlannedTree, container: ContainerSide) -> StartedProgram:
    """Return the program that the container runs."""
    start = _first(container.arguments, container)
    if tree.mount_error:
        start.error = failure(tree.mount_error, StartCause.NOT_MOUNTED)
    starters: list[str] = []
    path = None
    for _ in range(_MOST):
        if not start.words:
            break
        tree = start.tree or tree
        path = find_program(tree, start)
        if path is not None and not starters:
            start.error = start.error or first_start_error(tree, path, start, container)
        elif starters and not start.error and not start.changes:
            start.error = later_start_error(tree, path, start, container)
        name = posixpath.basename(start.words[0])
        following = None if path is None else started_by(tree, path, name, start)
        if following is None:
            break
        starters.append(name)
        start = following
    return _started(path or "", start, starters)


def named_program(
    path: str, tree: PlannedTree, container: ContainerSide, arguments: Sequence[str] = ()
) -> StartedProgram:
    """Return a program that the user names."""
    start = _first([path, *arguments], container)
    return _started(find_program(tree, start) or path, start, [])


def _first(words: list[str], container: ContainerSide) -> ProgramStart:
    start = ProgramStart(words, dict(container.spec.env))
    start.directory = container.working_directory
    start.uid = container.user[0]
    start.container = container
    start.read_only = container.member("root", "readonly") is True
    return start


def _started(path: str, start: ProgramStart, starters: list[str]) -> StartedProgram:
    return StartedProgram(
        path,
        start.environment,
        start.directory,
        start.loader,
        tuple(starters),
        start.user,
        start.unknown,
        start.error,
        start.changes,
        start.tree,
        tuple(start.words),
        start.computed,
    )


def missing_program(tree: PlannedTree, container: ContainerSide) -> StartFailure | None:
    """Return why the container's program does not start, as far as its loader; None if it does.

    It may be there if a volume covers its place.
    """
    if not container.arguments or not tree.listdir("/"):
        return None
    if tree.mount_error:
        return failure(tree.mount_error, StartCause.NOT_MOUNTED)
    name = container.arguments[0]
    if "/" in name:
        places = [posixpath.join(container.working_directory, name)]
        words = f'exec: "{name}": stat {name}: no such file or directory'
    else:
        path = container.spec.env.get("PATH", "")
        count_paths(tree, "PATH", path)
        places = places_in(path, name)
        words = f'exec: "{name}": executable file not found in $PATH'
    volumes = mount_points(container)
    if not any(may_be_there(tree, posixpath.normpath(place), volumes) for place in places):
        return failure(words, StartCause.MISSING)
    return started_program(tree, container).error


def missing_loader(tree: PlannedTree, container: ContainerSide, started: StartedProgram) -> str:
    """Return the words of the kernel for a program whose loader the image lacks, or "".

    :param started: the container's program.
    """
    if not container.arguments or not tree.listdir("/"):
        return ""
    if started.starters or started.error or not started.path:
        return ""
    try:
        interp = read_dynamic(tree, tree.resolve(started.path)).interp
    except NotRecorded:
        if not tree.from_host(started.path):
            return ""
        interp = default_loader("EM_AARCH64" if tree.machine == "aarch64" else "EM_X86_64", 64)
    except (BadElf, OSError, PathError):
        return ""
    if not interp or tree.is_there(interp) or tree.volumes.over(posixpath.normpath(interp)):
        return ""
    return printable(
        f"exec {started.path}: no such file or directory (the image lacks its loader {interp})"
    )
