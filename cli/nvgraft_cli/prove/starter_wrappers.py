"""Follow programs that start the command in their arguments with the variables that they have."""

from nvgraft_cli.prove.program_start import ProgramStart
from nvgraft_cli.prove.starter_options import without_options

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
