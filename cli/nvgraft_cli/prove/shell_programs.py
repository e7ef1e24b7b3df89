"""What is known of programs and builtins that a script runs before the program it starts."""

import posixpath

from nvgraft_cli.prove.shell_files import ShellFiles
from nvgraft_cli.prove.shell_state import UNKNOWN, ShellState

#: Programs that prepare a start. None of them uses a GPU.
_PREPARING = {
    *("basename", "cat", "chmod", "chown", "clear", "cp", "curl", "cut", "date", "df", "dirname"),
    *("du", "free", "head", "hostname", "install", "ldconfig"),
    *("ln", "mkdir", "mkfifo", "mktemp", "mount", "mv", "nproc", "pwd", "readlink"),
    *("realpath", "rm", "rmdir", "sed", "sleep", "sort", "sync", "tail", "tar", "tee"),
    *("touch", "tr", "uname", "uniq", "useradd", "usermod", "groupadd", "groupmod", "wc", "wget"),
    *("whoami", "awk", "adduser", "addgroup", "envsubst", "kill"),
}
#: Of these and others, the programs that change files.
_CHANGING = {
    *("chmod", "chown", "cp", "install", "ldconfig", "ln", "mount", "mv", "rm", "rmdir", "sed"),
    *("tar", "tee", "touch", "truncate", "unlink", "unzip", "wget", "curl", "dpkg", "apt-get"),
}
#: Programs that ask something: whether they succeed is not known.
_ASKING = {"cmp", "diff", "egrep", "find", "getent", "grep", "id", "lspci", "ls", "pgrep", "stat"}
#: Programs and words of the shell that tell where a program is.
LOOKING = {"command", "hash", "type", "which"}
_IGNORED = {
    *("trap", "umask", "ulimit", "shopt", "alias", "unalias", "wait", "jobs", "hash", "let"),
    *("printf", "echo", "read", "getopts", "times", "pushd", "popd", "enable", "bind", "disown"),
}
#: Options of xargs that take a value as a word of its own.
_XARGS_VALUES = {"-I", "-n", "-P", "-L", "-d", "-s", "-a", "-E"}


def changes_files(name: str) -> bool:
    """Tell whether a program changes files."""
    return posixpath.basename(name) in _CHANGING


def asks(name: str) -> bool:
    """Tell whether a program asks something that is not known."""
    return posixpath.basename(name) in _ASKING


def prepares(name: str) -> bool:
    """Tell whether a command only prepares the start of a program."""
    return name in _IGNORED or posixpath.basename(name) in _PREPARING


def command_of_xargs(arguments: list[str]) -> list[str]:
    """Return the command that xargs runs, from its arguments."""
    command = list(arguments)
    while command and command[0].startswith("-"):
        del command[: 2 if command[0] in _XARGS_VALUES else 1]
    return command


def output_of(name: str, arguments: list[str], state: ShellState, files: ShellFiles) -> str | None:
    """Return what a command writes, None where that is not known."""
    plain = [word for word in arguments if not word.startswith("-")]
    if name == "pwd":
        return "/" + posixpath.normpath(state.directory).lstrip("/")
    if name == "id":
        return str(state.uid) if arguments == ["-u"] else None
    if name == "echo" and len(plain) == len(arguments):
        return " ".join(arguments)
    if not plain or any(UNKNOWN in word for word in plain):
        return None
    if name == "dirname":
        return posixpath.dirname(plain[0]) or "."
    if name == "basename" and len(plain) == 1:
        return posixpath.basename(plain[0])
    if name in {"which", "command", "type"}:
        return files.program(plain[0], state)
    if name in {"readlink", "realpath"} and (name == "realpath" or "-f" in arguments):
        return files.resolved(plain[0], state)
    return None
