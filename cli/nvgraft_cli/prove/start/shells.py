"""Follow a shell to what its script becomes or runs last."""

import posixpath
from functools import partial
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.access import Access, access_of
from nvgraft_cli.prove.start.path_search import SHELL_PATH, find_named
from nvgraft_cli.prove.start.program_start import ProgramStart, find_program
from nvgraft_cli.prove.start.start_failure import StartCause, failure
from nvgraft_cli.prove.start.tree_files import mount_points, text_of

if TYPE_CHECKING:
    from nvgraft_cli.prove.script.state import Dialect

#: Shells whose language is followed.
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "rbash", "ksh", "ksh93", "mksh", "posh", "yash"}
#: Options of a shell that take a value, beside letters with an "o" among them.
_SHELL_VALUES = {"-O", "+O", "--rcfile", "--init-file"}
#: Variables by which the loader and a shell search.
_SEARCHED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")


def started_by_shell(tree: PlannedTree, path: str, start: ProgramStart) -> ProgramStart | None:
    """Return what the script of a shell becomes or runs last; None if it is not known.

    :param path: that of the shell.
    """
    dialect = _dialect(tree, path, start)
    words, options = start.words[1:], []
    script = interactive = False
    login = start.words[0].startswith("-")
    while words and words[0][:1] in {"-", "+"} and len(words[0]) > 1:
        option = words.pop(0)
        options.append(option)
        if option == "--":
            break
        script |= "c" in option and not option.startswith("--")
        interactive |= "i" in option and not option.startswith("--")
        login |= option == "--login" or ("l" in option and option[:1] == "-" != option[1:2])
        if (option in _SHELL_VALUES or _sets_by_name(option)) and words:
            options.append(words.pop(0))
    if not words:
        return None
    if script:
        text, arguments = words[0], words[1:] or [start.words[0]]
    else:
        script_text = text_of(tree, _script_file(tree, start, words[0]))
        if script_text is None:
            return None
        text, arguments = script_text, words
    from nvgraft_cli.prove.script.run import run_script  # images rarely start by a script

    access = access_of(start.container, tree, start.user) if start.container else None
    outcome = run_script(
        text,
        arguments,
        start.environment,
        start.directory,
        tree,
        start.uid,
        lambda name, variables, directory: find_named(tree, name, variables, directory),
        _startup_files(start, login=login, interactive=interactive),
        own=_own_variables(start, dialect, interactive=interactive),
        machine=tree.machine,
        hidden=lambda place: _is_hidden(tree, place),
        mounted=lambda place: _is_mounted(tree, place),
        may_read=access.may_read if access else lambda _: True,
        not_written=partial(_not_written, start, access),
        options=options,
        dialect=dialect,
    )
    if outcome is None:
        place = "" if script else f" {words[0]}"
        start.note_unknown(f"what the script{place} starts, with which variables")
        return None
    if outcome.ended:
        place = start.words[0] if script else arguments[0]
        start.error = failure(f"{place}: {outcome.ended}", StartCause.ENDED)
        return None
    following = ProgramStart(
        [word.replace(UNKNOWN, "") for word in outcome.words], dict(outcome.environment), start
    )
    following.directory, following.usual_path = outcome.directory, SHELL_PATH
    following.changes += outcome.changes
    files = outcome.files if start.uid == 0 else outcome.files.only_texts()
    if start.read_only:
        files = files.where(lambda path: tree.volumes.over(path) is not None)
    following.tree = following_tree = tree.after(files)
    following.unknown += tuple(printable(fact.replace(UNKNOWN, "*")) for fact in outcome.unknown)
    _without_unknown(following)
    found = find_program(following_tree, following)
    if found is not None and following_tree.is_there(found):
        return following
    start.note_unknown(f"what `{following.words[0]}` is, which the script starts")
    return None


def _sets_by_name(option: str) -> bool:
    """Tell whether an option of a shell is followed by the name of another: -euo pipefail."""
    return "o" in option and not option.startswith("--")


def _script_file(tree: PlannedTree, start: ProgramStart, name: str) -> str:
    """Return the path of a script that a shell is given: bash searches its name in PATH too."""
    place = posixpath.join(start.directory, name)
    if "/" in name or tree.is_there(place) or posixpath.basename(start.words[0]) != "bash":
        return place
    return find_named(tree, name, start.environment, start.directory) or place


def _is_hidden(tree: PlannedTree, path: str) -> bool:
    """Tell whether a path is on a volume that is not read."""
    volume = tree.volumes.over(path)
    return volume is not None and volume.tree is None and not volume.empty


def _is_mounted(tree: PlannedTree, path: str) -> bool:
    """Tell whether a path leads to a file of the host."""
    try:
        return tree.from_host(tree.resolve(path))
    except (OSError, PathError):
        return False


def _not_written(start: ProgramStart, access: Access | None, path: str, there: str) -> str | None:
    """Return why a file cannot be written at a path; "" if it can, None if it is not known.

    :param there: the file itself, or the directory above it that is there, without links.
    """
    volumes = mount_points(start.container) if start.container else []
    if access is None or any(
        f"{place}/".startswith(f"{volume}/") for place in (path, there) for volume in volumes
    ):
        return None
    if start.read_only:
        return f"{there} is on the container's root file system, which is read-only"
    return "" if access.may_write(there) else f"its user may not write to {there}"


def _dialect(tree: PlannedTree, path: str, start: ProgramStart) -> "Dialect":
    """Return the language of a shell: that of sh is known by the file it leads to."""
    try:
        found = posixpath.basename(tree.resolve(path))
    except (OSError, PathError):
        found = ""
    if found.startswith("busybox"):
        return "busybox"
    return "dash" if "dash" in {found, posixpath.basename(start.words[0])} else "bash"


def _own_variables(start: ProgramStart, dialect: "Dialect", *, interactive: bool) -> dict[str, str]:
    """Return the variables by which scripts tell one shell, and its options, from another."""
    name = posixpath.basename(start.words[0]).lstrip("-")
    own = {"-": "himBH" if interactive else "hB"}
    if name in {"bash", "rbash"} and dialect == "bash":
        own |= {"BASH": "/bin/bash", "BASH_VERSION": "5"}
    if interactive:
        own["PS1"] = "$ "
    return own | ({"ZSH_VERSION": "5"} if name == "zsh" else {})


def _startup_files(start: ProgramStart, *, login: bool, interactive: bool) -> list[tuple[str, ...]]:
    """Return the files that a shell reads first: of each group the first one that is there."""
    name = posixpath.basename(start.words[0]).lstrip("-")
    bash = name == "bash"
    home = start.environment.get("HOME", "/root")
    files: list[tuple[str, ...]] = []
    if name == "zsh":
        place = start.environment.get("ZDOTDIR", home)
        files += [("/etc/zsh/zshenv", "/etc/zshenv"), (posixpath.join(place, ".zshenv"),)]
        if login:
            files += [("/etc/zsh/zprofile",), (posixpath.join(place, ".zprofile"),)]
        if interactive:
            files += [("/etc/zsh/zshrc",), (posixpath.join(place, ".zshrc"),)]
    elif login:
        names = (".bash_profile", ".bash_login", ".profile") if bash else (".profile",)
        files += [("/etc/profile",), tuple(posixpath.join(home, name) for name in names)]
    elif bash and interactive:
        files += [("/etc/bash.bashrc", "/etc/bashrc"), (posixpath.join(home, ".bashrc"),)]
    elif bash and start.environment.get("BASH_ENV"):
        files.append((start.environment["BASH_ENV"],))
    return files


def _without_unknown(start: ProgramStart) -> None:
    """Leave out of variables what a script computes; of paths, those entries alone."""
    for name, value in list(start.environment.items()):
        if UNKNOWN not in value:
            continue
        known = [entry for entry in value.split(":") if UNKNOWN not in entry]
        del start.environment[name]
        start.computed += (name,)
        if name in _SEARCHED:
            if known:
                start.environment[name] = ":".join(known)
            start.unknown += (f"a part of {name}, which a script of the container computes",)
