"""Find the program that a container runs: process.args without what only starts it.

Images start their program through others: an init (tini), env, a shell's ``exec``, a script that
ends in ``exec "$@"``, or a loader that gets the program as an argument.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, read_dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.search import count_paths

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: The most programs that start one another.
_MOST = 16
#: Variables that a script exports, and characters of such a value before and after a shell
#: replaces variables in it.
_MOST_EXPORTS, _WORD_LIMIT = 64, 1024
#: Bytes of a script that are read.
_SCRIPT_LIMIT = 1 << 20

#: Programs that become the command in their arguments -> the options that take a value as a word
#: of its own, and the number of words before the command.
_STARTERS = {
    "tini": ("-p -e", 0),
    "tini-static": ("-p -e", 0),
    "docker-init": ("-p -e", 0),
    "dumb-init": ("-r --rewrite", 0),
    "catatonit": ("", 0),
    "nice": ("-n", 0),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "stdbuf": ("-i -o -e", 0),
    "ionice": ("-c -n", 0),
    "timeout": ("-s -k", 1),
    "gosu": ("", 1),
    "su-exec": ("", 1),
}
_SHELLS = {"sh", "bash", "dash", "ash"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: A word that a shell changes, or a script of several commands.
_NOT_PLAIN = re.compile(r"[$`*?\[\]{}~()<>]")
_SEVERAL = re.compile(r"[;&|\n]")
_EXEC_ARGUMENTS = re.compile(rb'^[ \t]*exec[ \t]+"\$@"', re.MULTILINE)
_EXPORT = re.compile(r"^export[ \t]+([A-Za-z_]\w*)=(\S*)[ \t]*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LOADER = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d+|ld-musl-\w+\.so\.1")
#: Options of a loader that take a value.
_LOADER_VALUES = {
    *("--library-path", "--preload", "--audit", "--argv0", "--inhibit-rpath"),
    *("--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"),
}


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A program of the container, and how it is started.

    :ivar path: its path, absolute, with links; "" if it is not known.
    :ivar environment: its variables.
    :ivar loader: the loader that gets it as an argument; "" if the kernel finds the loader.
    :ivar starters: the names of the programs that start it, the outermost first.
    """

    path: str
    environment: dict[str, str]
    loader: str = ""
    starters: tuple[str, ...] = ()


class _Start:
    """The words of a command, and the variables that it gets."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words = words
        self.environment = environment
        self.loader = ""


def started_program(tree: PlannedTree, container: ContainerSide) -> StartedProgram:
    """Return the program that the container runs."""
    start = _Start(container.arguments, dict(container.spec.env))
    starters: list[str] = []
    path = None
    for _ in range(_MOST):
        if not start.words:
            break
        path = _find(tree, start, container.working_directory)
        name = posixpath.basename(start.words[0])
        following = None if path is None else _following(tree, path, name, start)
        if following is None:
            break
        starters.append(name)
        start = following
    return StartedProgram(path or "", start.environment, start.loader, tuple(starters))


def named_program(path: str, tree: PlannedTree, container: ContainerSide) -> StartedProgram:
    """Return a program that the user names."""
    start = _Start([path], dict(container.spec.env))
    found = _find(tree, start, container.working_directory)
    return StartedProgram(found or path, start.environment)


def missing_program(tree: PlannedTree, container: ContainerSide) -> str:
    """Return the runtime's words for a program of the container that is not there, or "".

    It may be there if a volume covers its place.
    """
    if not container.arguments or not tree.listdir("/"):
        return ""
    name = container.arguments[0]
    if "/" in name:
        places = [posixpath.join(container.working_directory, name)]
        words = f'exec: "{name}": stat {name}: no such file or directory'
    else:
        path = container.spec.env.get("PATH", _PATH)
        count_paths(tree, "PATH", path)
        places = [posixpath.join("/", place, name) for place in path.split(":")]
        words = f'exec: "{name}": executable file not found in $PATH'
    volumes = [posixpath.normpath(posixpath.join("/", path)) for _, path in container.spec.mounts]
    there = any(_may_be_there(tree, posixpath.normpath(place), volumes) for place in places)
    return "" if there else printable(words)


def _may_be_there(tree: PlannedTree, path: str, volumes: list[str]) -> bool:
    """Tell whether a file is at ``path``, or whether that is not known: a volume covers it."""
    try:
        leads_to, node = tree.find(path)
    except (PathError, OSError):
        return True
    return node is not None or any(
        place == volume or place.startswith(f"{volume}/")
        for place in (path, leads_to)
        for volume in volumes
    )


def _find(tree: PlannedTree, start: _Start, directory: str) -> str | None:
    """Return the path of a command's program, or None if it is not in PATH."""
    name = start.words[0]
    if "/" in name:
        return posixpath.normpath(posixpath.join(directory, name))
    return find_in_path(tree, start.environment, name)


def find_in_path(tree: PlannedTree, environment: Mapping[str, str], name: str) -> str | None:
    """Return the path of a program that PATH leads to, or None.

    A file that nobody may execute is taken if there is no other: modes may be lost in a copy.
    """
    path = environment.get("PATH", _PATH)
    count_paths(tree, "PATH", path)
    found = None
    for place in path.split(":"):
        candidate = posixpath.join("/", place, name)
        try:
            node = tree.find(candidate)[1]
        except (PathError, OSError):
            continue
        if node is not None and node.type == "file":
            if node.mode & 0o111:
                return candidate
            found = found or candidate
    return found


def _following(tree: PlannedTree, path: str, name: str, start: _Start) -> _Start | None:
    """Return the command that a program becomes, or None if it runs itself."""
    words = start.words
    if name in _STARTERS:
        values, positional = _STARTERS[name]
        return _command(start, _without_options(words[1:], set(values.split()))[positional:])
    if name == "env":
        return _of_env(words[1:], start)
    if name in _SHELLS:
        return _of_shell(words[1:], start)
    if _LOADER.fullmatch(posixpath.basename(path)):
        return _of_loader(words[1:], start, path)
    try:
        resolved = tree.resolve(path)
        read_dynamic(tree, resolved)
    except BadElf:
        return _of_script(tree, resolved, path, start)
    except (OSError, PathError):
        return None
    return None


def _command(start: _Start, words: list[str]) -> _Start | None:
    return _Start(words, start.environment) if words else None


def _without_options(words: list[str], values: set[str]) -> list[str]:
    """Return the words behind options, of which those in ``values`` are followed by their value."""
    position = 0
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        position += 2 if word in values else 1
        if word == "--":
            break
    return words[position:]


def _of_env(words: list[str], start: _Start) -> _Start | None:
    environment = dict(start.environment)
    words = list(words)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in {"-i", "-", "--ignore-environment"}:
            environment = {}
        elif option in {"-S", "--split-string"} and words:
            words[:1] = _split(words[0])
        elif option.startswith("-S"):
            words[:0] = _split(option[2:])
        elif option in {"-u", "--unset"} and words:
            environment.pop(words.pop(0), None)
        elif option in {"-C", "--chdir"} and words:
            return None
        elif option == "--":
            break
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return _Start(words, environment) if words else None


def _of_shell(words: list[str], start: _Start) -> _Start | None:
    """Return the one command of ``sh -c``; None for a script of several, or in a file."""
    options = 0
    while options < len(words) and words[options].startswith("-"):
        options += 1
    if not any("c" in word and not word.startswith("--") for word in words[:options]):
        return None
    script = words[options] if options < len(words) else ""
    if _SEVERAL.search(script.strip()):
        return None
    command = _split(script)
    environment = dict(start.environment)
    while command and _ASSIGNMENT.match(command[0]) and not _NOT_PLAIN.search(command[0]):
        name, _, value = command.pop(0).partition("=")
        environment[name] = value
    if command and command[0] == "exec":
        command.pop(0)
    if not command or _NOT_PLAIN.search(command[0]):
        return None
    return _Start(command, environment)


def _of_loader(words: list[str], start: _Start, path: str) -> _Start | None:
    """Return the program that a loader gets as its argument."""
    environment = dict(start.environment)
    words = list(words)
    while words and words[0].startswith("--"):
        option, equals, value = words.pop(0).partition("=")
        if option in _LOADER_VALUES and not equals and words:
            value = words.pop(0)
        if option == "--library-path":
            environment["LD_LIBRARY_PATH"] = value
        elif option == "--preload":
            environment["LD_PRELOAD"] = f"{environment.get('LD_PRELOAD', '')} {value}".strip()
    if not words:
        return None
    following = _Start(words, environment)
    following.loader = path
    return following


def _of_script(tree: PlannedTree, resolved: str, path: str, start: _Start) -> _Start | None:
    """Return the interpreter of a script with its arguments, or what a shell script becomes."""
    try:
        text = tree.read(resolved, _SCRIPT_LIMIT)
    except OSError:
        return None
    line = text.split(b"\n", 1)[0].decode("utf-8", "surrogateescape")
    if not line.startswith("#!"):
        return None
    interpreter = line[2:].split(maxsplit=1)
    if not interpreter:
        return None
    shell = any(posixpath.basename(word) in _SHELLS for word in line[2:].split())
    becomes = _EXEC_ARGUMENTS.search(text) if shell and len(start.words) > 1 else None
    if becomes is not None:
        environment = _exported(text[: becomes.start()], start.environment)
        return _Start(start.words[1:], environment)
    # The kernel passes what follows the interpreter as one argument.
    return _Start([*(word.strip() for word in interpreter), path], start.environment)


def _exported(script: bytes, environment: dict[str, str]) -> dict[str, str]:
    """Return the variables after the lines of a script that export one for certain.

    Such a line stands alone and is not indented. Of what a shell replaces, only $NAME is followed.
    """
    environment = dict(environment)
    lines = _EXPORT.finditer(script.decode("utf-8", "surrogateescape"))
    for match in islice(lines, _MOST_EXPORTS):
        if len(match[2]) > _WORD_LIMIT:
            continue
        value = _VARIABLE.sub(
            lambda name: environment.get(name[1] or name[2], "")[:_WORD_LIMIT], match[2].strip('"')
        )
        if (
            len(value) <= _WORD_LIMIT
            and not _NOT_PLAIN.search(value)
            and not set(value) & set("\"' \\")
        ):
            environment[match[1]] = value
    return environment


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
