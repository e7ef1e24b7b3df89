"""Find the program that a container runs: process.args without what only starts it.

Images start their program through others: an init (tini), env, a shell's ``exec``, a script that
ends in ``exec "$@"``, or a loader that gets the program as an argument.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from nvgraft.base.errors import printable
from nvgraft.formats.tree import LOOP, PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, NotRecorded, read_dynamic
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.access import access_of
from nvgraft_cli.prove.conda import PROGRAMS, activation, run_by
from nvgraft_cli.prove.search import count_paths, default_loader
from nvgraft_cli.prove.shell_files import SCRIPT_LIMIT
from nvgraft_cli.prove.supervisors import services_of
from nvgraft_cli.prove.user import User, named_user, shell_of

#: Where a program is searched without PATH: by a shell, and by execvp(3). A runtime finds none.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EXECVP_PATH = "/bin:/usr/bin"

#: The most programs that start one another.
_MOST = 16

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
    "taskset": ("", 1),
    "numactl": ("-N -m -i -p -C -H", 0),
    "chrt": ("", 1),
    "faketime": ("-m", 1),
    "fakeroot": ("-l -i -s -b", 0),
    "dbus-run-session": ("", 0),
    "dbus-launch": ("", 0),
    "eatmydata": ("", 0),
    "time": ("-f -o", 0),
    "unbuffer": ("", 0),
    "winpty": ("", 0),
    "setarch": ("", 1),
    "linux64": ("", 0),
    "chronic": ("", 0),
    "systemd-inhibit": ("", 0),
    "s6-softlimit": ("-m -d -f -c", 0),
    "opentelemetry-instrument": ("", 0),
    "ddtrace-run": ("", 0),
    "compute-sanitizer": ("--tool", 0),
    "ncu": ("-o", 0),
    "prlimit": ("", 0),
    "with-contenv": ("", 0),
    "catchsegv": ("", 0),
    "strace": ("-o -e -p -s -P", 0),
}
#: Programs that become the command in their arguments as the user in the first of these -> the
#: options that take a value.
_AS_USER = {"gosu": "", "su-exec": "", "s6-setuidgid": "", "setuidgid": ""}
#: Programs that change their process and become the command in their arguments.
_CHAINING = {"chpst", "envdir", "s6-envdir", "capsh", "execlineb"}
#: Options that take a value as a word of its own, of programs that start another one as a user.
_USER_VALUES = {
    "setpriv": {
        *("--reuid", "--regid", "--ruid", "--rgid", "--groups", "--inh-caps", "--ambient-caps"),
        *("--bounding-set", "--securebits", "--pdeathsig", "--selinux-label"),
    },
    "runuser": {"-u", "--user", "-g", "--group", "-G", "-c", "--command", "-s", "--shell"},
    "su": {"-g", "--group", "-G", "-c", "--command", "-s", "--shell"},
    "sudo": {"-u", "--user", "-g", "--group", "-C", "-D", "-h", "-p", "-r", "-t", "-T", "-U"},
}
#: Programs that are many programs, of which the first argument names one.
_MULTI_CALL = {"busybox", "toybox"}
#: Interpreters of Python, and their options that take a value.
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_PYTHON_VALUES = {"-W", "-X"}
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "rbash", "ksh", "ksh93", "mksh", "posh", "yash"}
#: Shells with another language, which is not followed, and other programs whose files tell what
#: they start.
_NOT_FOLLOWED = {
    *("csh", "tcsh", "fish", "rc", "es", "elvish", "nu", "xonsh", "pwsh", "expect", "make", "just"),
    *(
        "npm",
        "npx",
        "yarn",
        "pnpm",
        "task",
        "rake",
        "invoke",
        "fab",
        "uv",
        "poetry",
        "pdm",
        "hatch",
    ),
    *("pipenv", "pixi", "rye", "tox", "nox", "bazel", "gradle", "mvn", "ansible-playbook"),
}
#: Options of a shell that take a value.
_SHELL_VALUES = {"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}
#: Variables by which the loader and a shell search.
_SEARCHED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LOADER = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d+|ld-musl-\w+\.so\.1")
#: Options of a loader that take a value.
_LOADER_VALUES = {
    *("--library-path", "--preload", "--audit", "--argv0", "--inhibit-rpath"),
    *("--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"),
}


class StartCause(Enum):
    """What keeps a program from starting."""

    MISSING = auto()  #: there is no such file
    NOT_EXECUTED = auto()  #: the user may not execute it
    NO_PROGRAM = auto()  #: the kernel does not start such a file
    NOT_PERMITTED = auto()  #: the container lacks a file capability of it
    NOT_MOUNTED = auto()  #: the runtime cannot make a mount of config.json


class StartFailure(NamedTuple):
    """A program that does not start.

    :ivar words: those of the runtime or the kernel.
    """

    words: str
    cause: StartCause


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


class _Start:
    """The words of a command, and what it gets from the one that starts it."""

    def __init__(
        self, words: list[str], environment: dict[str, str], before: "_Start | None" = None
    ) -> None:
        self.words = words
        self.environment = environment
        self.directory: str = before.directory if before else "/"
        self.user: User | None = before.user if before else None
        self.uid: int = before.uid if before else 0
        self.unknown: tuple[str, ...] = before.unknown if before else ()
        self.loader = ""
        self.usual_path = _EXECVP_PATH if before else ""
        self.error: StartFailure | None = before.error if before else None
        self.changes: tuple[tuple[str, ...], ...] = before.changes if before else ()
        #: The container's files after the scripts before; None where they are the planned ones.
        self.tree: PlannedTree | None = before.tree if before else None
        self.read_only: bool = before.read_only if before else False


def started_program(tree: PlannedTree, container: ContainerSide) -> StartedProgram:
    """Return the program that the container runs."""
    start = _first(container.arguments, container)
    if tree.mount_error:
        start.error = _failure(tree.mount_error, StartCause.NOT_MOUNTED)
    starters: list[str] = []
    path = None
    for _ in range(_MOST):
        if not start.words:
            break
        tree = start.tree or tree
        path = _find(tree, start)
        if path is not None and not starters:
            start.error = start.error or _start_error(tree, path, start, container)
        elif starters and not start.error and not start.changes:
            start.error = _later_error(tree, path, start, container)
        name = posixpath.basename(start.words[0])
        following = None if path is None else _following(tree, path, name, start)
        if following is None:
            break
        starters.append(name)
        start = following
    return _started(path or "", start, starters)


def named_program(path: str, tree: PlannedTree, container: ContainerSide) -> StartedProgram:
    """Return a program that the user names."""
    start = _first([path], container)
    return _started(_find(tree, start) or path, start, [])


def _first(words: list[str], container: ContainerSide) -> _Start:
    start = _Start(words, dict(container.spec.env))
    start.directory = container.working_directory
    start.uid = container.user[0]
    start.read_only = container.member("root", "readonly") is True
    return start


def _started(path: str, start: _Start, starters: list[str]) -> StartedProgram:
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
    )


def missing_program(tree: PlannedTree, container: ContainerSide) -> StartFailure | None:
    """Return why the container's program does not start, as far as its loader; None if it does.

    It may be there if a volume covers its place.
    """
    if not container.arguments or not tree.listdir("/"):
        return None
    if tree.mount_error:
        return _failure(tree.mount_error, StartCause.NOT_MOUNTED)
    name = container.arguments[0]
    if "/" in name:
        places = [posixpath.join(container.working_directory, name)]
        words = f'exec: "{name}": stat {name}: no such file or directory'
    else:
        path = container.spec.env.get("PATH", "")
        count_paths(tree, "PATH", path)
        places = _places(path, name)
        words = f'exec: "{name}": executable file not found in $PATH'
    volumes = _mount_points(container)
    if not any(_may_be_there(tree, posixpath.normpath(place), volumes) for place in places):
        return _failure(words, StartCause.MISSING)
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
    if not interp or _is_there(tree, interp) or tree.volumes.over(posixpath.normpath(interp)):
        return ""
    return printable(
        f"exec {started.path}: no such file or directory (the image lacks its loader {interp})"
    )


def _mount_points(container: ContainerSide) -> list[str]:
    """Return where config.json mounts something in the container."""
    return [posixpath.normpath(posixpath.join("/", path)) for _, path in container.spec.mounts]


def _may_be_there(tree: PlannedTree, path: str, volumes: list[str]) -> bool:
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


def _find(tree: PlannedTree, start: _Start) -> str | None:
    """Return the path of a command's program, or None if it is not in PATH."""
    name = start.words[0]
    return _find_named(tree, name, start.environment, start.directory, start.usual_path)


def _find_named(
    tree: PlannedTree,
    name: str,
    environment: Mapping[str, str],
    directory: str,
    usual_path: str = _PATH,
) -> str | None:
    if "/" in name:
        return "/" + posixpath.normpath(posixpath.join(directory, name)).lstrip("/")
    return find_in_path(tree, environment, name, usual_path)


def _places(path: str, name: str) -> list[str]:
    """Return where a program may be that is searched in a PATH; an empty one leads to none."""
    return [posixpath.join("/", place, name) for place in path.split(":")] if path else []


def find_in_path(
    tree: PlannedTree, environment: Mapping[str, str], name: str, usual_path: str = _PATH
) -> str | None:
    """Return the path of a program that PATH leads to, or None.

    A file that nobody may execute is taken if there is no other: it is the one that fails.

    :param usual_path: where it is searched if PATH is not set.
    """
    path = environment.get("PATH", usual_path)
    count_paths(tree, "PATH", path)
    found = None
    for candidate in _places(path, name):
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
    if name in PROGRAMS and (run := run_by(words)):
        return _of_conda(tree, path, run, start)
    chained = _of_chaining(tree, name, start) if name in _CHAINING else None
    if chained is not None:
        return chained
    services = _of_supervisor(tree, path, start)
    if services is not None:
        return services
    if name != "with-contenv" and (script := _of_script(tree, path, start)):
        return script
    if name in _STARTERS:
        values, positional = _STARTERS[name]
        return _command(start, _without_options(words[1:], set(values.split()))[positional:])
    if name in _AS_USER:
        following = _without_options(words[1:], set())
        return _as_user(tree, start, following[0], following[1:]) if following else None
    if name == "flock":
        return _of_flock(words[1:], start)
    if name in {"setpriv", "runuser", "su", "sudo"}:
        return _of_user_options(tree, name, words[1:], start)
    if name in _MULTI_CALL and len(words) > 1:
        applet = _Start(words[1:], start.environment, start)
        return _following(tree, path, posixpath.basename(words[1]), applet)
    if name == "env":
        return _of_env(words[1:], start)
    if name in _SHELLS:
        return _of_shell(tree, start)
    if name in _NOT_FOLLOWED and len(words) > 1:
        fact = f"what `{' '.join(words)}` starts, with which variables"
        start.unknown += (printable(fact),)
        return None
    if _PYTHON.fullmatch(name) or name == "perl":
        return _of_interpreted(tree, name, start)
    if _LOADER.fullmatch(posixpath.basename(path)):
        return _of_loader(words[1:], start, path)
    return None


def _of_chaining(tree: PlannedTree, name: str, start: _Start) -> _Start | None:
    """Return the command that execline, chpst, envdir or capsh becomes; None if it is not known."""
    from nvgraft_cli.prove import chain_loading as chains

    def read(place: str) -> str | None:
        return _text(tree, posixpath.join(start.directory, place))

    def names(place: str) -> list[str]:
        return _names(tree, posixpath.join(start.directory, place))

    words = start.words[1:]
    chained: chains.Chained | None
    if name == "chpst":
        chained = chains.of_chpst(words, read, names)
    elif name == "capsh":
        chained = chains.of_capsh(words)
    elif name == "execlineb":
        options = [word for word in words if word.startswith("-")]
        script = words[len(options) :]
        text = script[0] if "-c" in options else read(script[0]) if script else None
        chained = None if text is None else chains.of_execline(text, start.environment)
    else:
        words = _without_options(words, set())
        found = chains.variables_in(words[0], read, names) if words else {}
        chained = chains.Chained(words[1:], found)
    if chained is None or not chained.words:
        return None
    environment = {**start.environment, **chained.changes}
    known = {key: value for key, value in environment.items() if value is not None}
    following = _Start(chained.words, known, start)
    following.directory = posixpath.join(start.directory, chained.directory)
    user = named_user(tree, chained.user) if chained.user else None
    if user is not None:
        following.user, following.uid = user, user.uid
    return following


def _names(tree: PlannedTree, place: str) -> list[str]:
    """Return the names in a directory; none if there is no such directory."""
    try:
        return sorted(tree.listdir(tree.resolve(place)))
    except (OSError, PathError):
        return []


def _of_supervisor(tree: PlannedTree, path: str, start: _Start) -> _Start | None:
    """Return the one command that a supervisor starts, or None.

    Of several it is not known which one opens a library; the supervisor stands for them.
    """

    interpreter = _interpreter(tree, path) or [""]
    if path != "/init" and posixpath.basename(interpreter[0]) in _SHELLS:
        return None
    services = services_of(
        start.words,
        path,
        start.environment,
        lambda place: _text(tree, place),
        partial(_names, tree),
    )
    if services is None:
        return None
    user = named_user(tree, services[0].user) if services and services[0].user else start.user
    if len(services) != 1 or (services[0].user and user is None):
        fact = f"which of the programs that {path} starts opens the library, with which variables"
        start.unknown += (printable(fact),)
        return None
    (service,) = services
    following = _Start(list(service.words), {**start.environment, **service.environment}, start)
    following.directory = service.directory or start.directory
    if user is not None:
        following.user, following.uid = user, user.uid
    return following


def _of_conda(
    tree: PlannedTree, path: str, run: tuple[str, list[str]], start: _Start
) -> _Start | None:
    """Return the command of `conda run` in its environment, as a script of a shell."""
    environment, words = run
    text = activation(environment, path, start.environment, lambda place: _is_there(tree, place))
    if text is None or not words:
        start.unknown += (
            printable(f"what `{' '.join(start.words)}` starts, with which variables"),
        )
        return None
    return _Start(["sh", "-c", f'{text}exec "$@"', "conda", *words], start.environment, start)


def _of_interpreted(tree: PlannedTree, name: str, start: _Start) -> _Start | None:
    """Return what a script of Python or Perl becomes; None if it runs itself.

    What is not known of it is noted.
    """
    words = start.words[1:]
    while words and words[0].startswith("-") and words[0] not in {"-c", "-e", "-", "-m"}:
        words = words[2 if words[0] in _PYTHON_VALUES else 1 :]
    if not words or words[0] in {"-", "-m"}:
        return None
    inline = words[0] in {"-c", "-e"}
    text = "".join(words[1:2]) if inline else _text(tree, posixpath.join(start.directory, words[0]))
    if text is None:
        return None
    arguments = ["-c", *words[2:]] if inline else words
    from nvgraft_cli.prove.script_exec import ScriptCommand, perl_starts, python_starts

    if name == "perl":
        started = perl_starts(text, arguments, start.environment)
    else:
        started = python_starts(
            text,
            arguments,
            start.environment,
            lambda path: _is_there(tree, posixpath.join(start.directory, path)),
        )
    if isinstance(started, str):
        place = "" if inline else f" ({words[0]})"
        start.unknown += (printable(f"{started}{place}"),)
    if not isinstance(started, ScriptCommand):
        return None
    return _Start(started.words, dict(started.environment), start)


def _command(start: _Start, words: list[str]) -> _Start | None:
    return _Start(words, start.environment, start) if words else None


def _of_flock(words: list[str], start: _Start) -> _Start | None:
    """Return the command that flock runs: its words behind a file, or a script behind -c."""
    words = _without_options(words, {"-w", "--timeout", "-E"})[1:]
    if words[:1] in (["-c"], ["--command"]):
        words = ["sh", *words]
    return _command(start, words)


def _as_user(tree: PlannedTree, start: _Start, name: str, words: list[str]) -> _Start | None:
    following = _command(start, words)
    user = named_user(tree, name)
    if following is not None and user is not None:
        following.user, following.uid = user, user.uid
    return following


def _of_user_options(
    tree: PlannedTree, name: str, words: list[str], start: _Start
) -> _Start | None:
    """Return the command that setpriv, runuser, su or sudo becomes."""
    user, group, script, login, kept = "", "", None, False, {"PATH", "TERM"}
    logged_in: dict[str, str] = {}
    words = list(words)
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option == "--":
            break
        takes = option in _USER_VALUES[name]
        if takes and not equals and words:
            value = words.pop(0)
        user = value if option in {"-u", "--user", "--reuid"} else user
        group = value if option in {"-g", "--group", "--regid"} else group
        script = value if option in {"-c", "--command"} else script
        login |= option in {"-", "-l", "--login", "-i"}
        if name == "sudo" and option in {"-E", "--preserve-env"}:
            kept |= set(value.split(",")) if value else _not_dropped(start.environment)
    if name == "su" or (name == "runuser" and not user):
        user = words.pop(0) if words and not words[0].startswith("-") else "root"
        while words:  # the options of su may stand behind the name as well
            option = words.pop(0)
            if option in {"-c", "--command"} and words:
                script = words.pop(0)
        shell, home = shell_of(tree, user)
        words = [shell, *(["-l"] if login else []), *([] if script is None else ["-c", script])]
        logged_in = {"HOME": home, "SHELL": shell, "USER": user, "LOGNAME": user}
    elif name == "sudo":
        user = user or "root"
    assigned = _assignments(words) if name == "sudo" else {}
    following = _as_user(tree, start, f"{user}:{group}" if group else user, words)
    if following is not None and (name == "sudo" or login):
        kept = kept if name == "sudo" else {"TERM"}
        following.environment = {
            name: value for name, value in start.environment.items() if name in kept
        }
    if following is not None:
        following.environment |= {**logged_in, **assigned}
    return following


def _not_dropped(environment: Mapping[str, str]) -> set[str]:
    """Return the variables that sudo keeps on request: all but those of loaders (sudoers(5))."""
    return {name for name in environment if not name.startswith(("LD_", "_RLD"))}


def _assignments(words: list[str]) -> dict[str, str]:
    """Take the assignments that stand before a command from its words, and return them."""
    assigned = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        assigned[name] = value
    return assigned


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
    directory = ""
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
            directory = words.pop(0)
        elif option == "--":
            break
    environment |= _assignments(words)
    following = _Start(words, environment, start)
    following.directory = posixpath.join(start.directory, directory)
    return following if words else None


def _of_shell(tree: PlannedTree, start: _Start) -> _Start | None:
    """Return what the script of a shell becomes or runs last; None if it is not known."""
    words = start.words[1:]
    script = interactive = False
    login = start.words[0].startswith("-")
    while words and words[0][:1] in {"-", "+"} and len(words[0]) > 1:
        option = words.pop(0)
        if option == "--":
            break
        script |= "c" in option and not option.startswith("--")
        interactive |= "i" in option and not option.startswith("--")
        login |= option == "--login" or ("l" in option and option[:1] == "-" != option[1:2])
        if option in _SHELL_VALUES and words:
            words.pop(0)
    if not words:
        return None
    if script:
        text, arguments = words[0], words[1:] or [start.words[0]]
    else:
        script_text = _text(tree, posixpath.join(start.directory, words[0]))
        if script_text is None:
            return None
        text, arguments = script_text, words
    from nvgraft_cli.prove.shell_run import run_script  # images rarely start by a script

    outcome = run_script(
        text,
        arguments,
        start.environment,
        start.directory,
        tree,
        start.uid,
        lambda name, variables, directory: _find_named(tree, name, variables, directory),
        _startup_files(start, login=login, interactive=interactive),
        own=_own_variables(start, interactive=interactive),
        machine=tree.machine,
    )
    if outcome is None:
        place = "" if script else f" {words[0]}"
        start.unknown += (printable(f"what the script{place} starts, with which variables"),)
        return None
    following = _Start(
        [word.replace(UNKNOWN, "") for word in outcome.words], dict(outcome.environment), start
    )
    following.directory, following.usual_path = outcome.directory, _PATH
    following.changes += outcome.changes
    files = outcome.files if start.uid == 0 else outcome.files.only_texts()
    if start.read_only:
        files = files.where(lambda path: tree.volumes.over(path) is not None)
    following.tree = following_tree = tree.after(files)
    following.unknown += tuple(printable(fact.replace(UNKNOWN, "*")) for fact in outcome.unknown)
    _without_unknown(following)
    found = _find(following_tree, following)
    return following if found is not None and _is_there(following_tree, found) else None


def _text(tree: PlannedTree, path: str) -> str | None:
    """Return the text of a file; None if there is none."""
    try:
        return tree.read(tree.resolve(path), SCRIPT_LIMIT).decode("utf-8", "surrogateescape")
    except (OSError, PathError):
        return None


def _own_variables(start: _Start, *, interactive: bool) -> dict[str, str]:
    """Return the variables by which scripts tell one shell, and its options, from another."""
    name = posixpath.basename(start.words[0]).lstrip("-")
    own = {"-": "himBH" if interactive else "hB"}
    if name in {"bash", "rbash"}:
        own |= {"BASH": "/bin/bash", "BASH_VERSION": "5"}
    if interactive:
        own["PS1"] = "$ "
    return own | ({"ZSH_VERSION": "5"} if name == "zsh" else {})


def _startup_files(start: _Start, *, login: bool, interactive: bool) -> list[tuple[str, ...]]:
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


def _is_there(tree: PlannedTree, path: str) -> bool:
    try:
        return tree.find(path)[1] is not None
    except (OSError, PathError):
        return False


def _without_unknown(start: _Start) -> None:
    """Leave out of variables what a script computes; of paths, those entries alone."""
    for name, value in list(start.environment.items()):
        if UNKNOWN not in value:
            continue
        known = [entry for entry in value.split(":") if UNKNOWN not in entry]
        del start.environment[name]
        if name in _SEARCHED:
            if known:
                start.environment[name] = ":".join(known)
            start.unknown += (f"a part of {name}, which a script of the container computes",)


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
    following = _Start(words, environment, start)
    following.loader = path
    return following


def _of_script(tree: PlannedTree, path: str, start: _Start) -> _Start | None:
    """Return the interpreter of a script with its arguments; None for what is not a script."""
    interpreter = _interpreter(tree, path)
    if interpreter == [] and start.usual_path:
        interpreter = ["/bin/sh"]  # a shell and execvp(3) start it so, the kernel does not
    if not interpreter:
        return None
    return _Start([*interpreter, path, *start.words[1:]], start.environment, start)


def _interpreter(tree: PlannedTree, path: str) -> list[str] | None:
    """Return the interpreter in the first line of a script, and its argument if there is one.

    The list is empty for a file that the kernel does not start, None for a program and where it is
    not known. The kernel separates words by blanks alone, and passes all behind the first as one.
    """
    try:
        resolved = tree.resolve(path)
        read_dynamic(tree, resolved)
    except NotRecorded:
        return None
    except BadElf:
        pass
    except (OSError, PathError):
        return None
    else:
        return None
    try:
        text = tree.read(resolved, SCRIPT_LIMIT)
    except OSError:
        return None
    return _first_line(text.decode("utf-8", "surrogateescape"))


def _first_line(text: str) -> list[str]:
    """Return the words of the first line of a script."""
    line = text.split("\n", 1)[0]
    words = line[2:].strip(" \t") if line.startswith("#!") else ""
    return [word for word in re.split("[ \t]+", words, maxsplit=1) if word]


def _start_error(
    tree: PlannedTree, path: str, start: _Start, container: ContainerSide
) -> StartFailure | None:
    """Return why the kernel does not start the container's first program, None if it does."""
    name = start.words[0]
    if reason := _not_executed(tree, path, container):
        words = f'exec: "{name}": permission denied ({reason})'
        if "/" not in name:
            words = f'exec: "{name}": executable file not found in $PATH ({path}: {reason})'
        return _failure(words, StartCause.NOT_EXECUTED)
    if reason := _not_permitted(tree, path, container):
        words = f"exec {path}: operation not permitted ({reason})"
        return _failure(words, StartCause.NOT_PERMITTED)
    interpreter = _interpreter(tree, path)
    if interpreter is None:
        return None
    if not interpreter:
        words = f"exec {path}: exec format error (it is neither a program nor a script)"
        return _failure(words, StartCause.NO_PROGRAM)
    volumes = _mount_points(container)
    place = posixpath.normpath(posixpath.join(start.directory, interpreter[0]))
    if reason := _not_executed(tree, place, container):
        words = f"exec {path}: permission denied ({interpreter[0]}: {reason})"
        return _failure(words, StartCause.NOT_EXECUTED)
    if _may_be_there(tree, place, volumes):
        if access_of(container, tree).may_read(tree.resolve(path)):
            return None
        words = f"exec {path}: permission denied (its interpreter may not read it)"
        return _failure(words, StartCause.NOT_EXECUTED)
    words = (
        f"exec {path}: no such file or directory (the image lacks {interpreter[0]}, which the first"
        " line of the script names)"
    )
    return _failure(words, StartCause.NO_PROGRAM)


def _later_error(
    tree: PlannedTree, path: str | None, start: _Start, container: ContainerSide
) -> StartFailure | None:
    """Return why another program cannot start a program, None if it can."""
    if path is None and start.unknown:
        return None  # a script may have set PATH
    if path is None:
        volumes = _mount_points(container)
        places = _places(start.environment.get("PATH", start.usual_path), start.words[0])
        there = any(_may_be_there(tree, posixpath.normpath(at), volumes) for at in places)
        words = f"exec {start.words[0]}: no such file or directory"
        return None if there else _failure(words, StartCause.MISSING)
    if start.loader:
        return None  # the loader reads it
    if reason := _not_executed(tree, path, container, start.user):
        words = f"exec {path}: permission denied ({reason})"
        return _failure(words, StartCause.NOT_EXECUTED)
    if reason := _not_permitted(tree, path, container):
        words = f"exec {path}: operation not permitted ({reason})"
        return _failure(words, StartCause.NOT_PERMITTED)
    return None


def _failure(words: str, cause: StartCause) -> StartFailure:
    return StartFailure(printable(words), cause)


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


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
