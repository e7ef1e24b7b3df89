"""Follow programs that start the command in their arguments with the variables that they have."""

import posixpath

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.user import named_user
from nvgraft_cli.prove.start.options import without_options
from nvgraft_cli.prove.start.program_start import ProgramStart, find_program

#: Programs that become the command in their arguments -> the options that take a value as a word
#: of its own, and the number of words before the command.
WRAPPERS = {
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
    "s6-notifyoncheck": ("-3 -s -T -t -w -n -c", 0),
    "opentelemetry-instrument": ("", 0),
    "ddtrace-run": ("", 0),
    "compute-sanitizer": ("--tool", 0),
    "ncu": ("-o", 0),
    "prlimit": ("", 0),
    "with-contenv": ("", 0),
    "catchsegv": ("", 0),
    "strace": ("-o -e -p -s -P", 0),
}

#: Programs that have the command in an option, or behind a directory.
COMMAND_WITHIN = {"chroot", "find", "script", "start-stop-daemon"}


def started_by_wrapper(name: str, words: list[str], start: ProgramStart) -> ProgramStart | None:
    """Return the command that one of WRAPPERS starts; None if there is none.

    :param words: the words behind its name.
    """
    values, positional = WRAPPERS[name]
    return start.then(without_options(words, set(values.split()))[positional:])


def started_by_flock(words: list[str], start: ProgramStart) -> ProgramStart | None:
    """Return the command that flock runs: its words behind a file, or a script behind -c."""
    words = without_options(words, {"-w", "--timeout", "-E"})[1:]
    if words[:1] in (["-c"], ["--command"]):
        words = ["sh", *words]
    return start.then(words)


def started_by_option(tree: PlannedTree, name: str, start: ProgramStart) -> ProgramStart | None:
    """Return the command that one of COMMAND_WITHIN starts; None if there is none."""
    words = start.words[1:]
    if name == "script":
        options = [word for word in words if word[:1] == "-" and word[-1:] == "c"]
        at = words.index(options[0]) + 1 if options else len(words)
        return start.then(["sh", "-c", *words[at : at + 1]] if words[at:] else [])
    if name == "find":
        at = next((i + 1 for i, word in enumerate(words) if word == "-exec"), len(words))
        ends = (i for i in range(at, len(words)) if words[i] in {";", "+"})
        return start.then([word for word in words[at : next(ends, at)] if word != "{}"])
    if name == "start-stop-daemon":
        return start.then(_of_daemon(words))
    spec = next((word.partition("=")[2] for word in words if word.startswith("--userspec=")), "")
    place, *command = without_options(words, set()) or [""]
    if posixpath.normpath(place) != "/":
        start.note_not_followed()  # its loader and libraries are those of the other root
        return None
    following = start.then(command)
    if following is not None and spec:
        following.become(named_user(tree, spec))
    return following


def _of_daemon(words: list[str]) -> list[str]:
    """Return the command of start-stop-daemon."""
    program = ""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--":
            return [program, *words[at + 1 :]] if program else []
        if option in {"-x", "--exec", "-a", "--startas"}:
            program = value if equals else "".join(words[at + 1 : at + 2])
    return [program] if program else []


def started_behind_dashes(tree: PlannedTree, start: ProgramStart) -> ProgramStart | None:
    """Return the command behind -- of a program that is not known; None if it is no program."""
    words = start.words
    following = start.then(words[words.index("--") + 1 :]) if "--" in words else None
    return following if following and find_program(tree, following) else None
