"""What is known of programs and builtins that a script runs before the program it starts."""

import posixpath
import re

from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.files import ShellFiles
from nvgraft_cli.prove.script.lists import found, selected, sorted_lines
from nvgraft_cli.prove.script.patterns import has_plain
from nvgraft_cli.prove.script.state import ShellState

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
    *("git", "rsync"),
}
#: Programs that ask something: whether they succeed is not known.
_ASKING = {"cmp", "diff", "egrep", "find", "getent", "grep", "id", "lspci", "ls", "pgrep", "stat"}
#: Programs and words of the shell that tell where a program is.
LOOKING = {"command", "hash", "type", "which"}
_IGNORED = {
    *("trap", "umask", "ulimit", "shopt", "alias", "unalias", "wait", "jobs", "hash", "let"),
    *("printf", "echo", "read", "getopts", "times", "pushd", "popd", "enable", "bind", "disown"),
    "xargs",
}
#: Of these and others, those that bring files of which nothing is known.
_BRINGING = {"curl", "install", "mount", "tar", "wget"}
#: Of these, those that an image may lack.
_NOT_EVERYWHERE = {"curl", "envsubst", "lspci", "wget"}
#: Programs besides that bring no programs.
_HARMLESS = {
    "run-parts",
    "dircolors",
    "lesspipe",
    "tput",
    "nvidia-smi",
    "nvcc",
    "test",
    "true",
    "false",
    "env",
    "printenv",
    "expr",
    "ps",
    "tty",
}
#: Words that shells know themselves.
_BUILTINS = {
    *(".", "[", "[[", "((", "bg", "break", "builtin", "caller", "cd", "compgen", "complete"),
    *("compopt", "continue", "coproc", "dirs", "eval", "exec", "exit", "export", "false", "fc"),
    *("fg", "history", "local", "logout", "mapfile", "readarray", "readonly", "return", "set"),
    *("shift", "source", "suspend", "test", "true", "typeset", "declare", "unset", "help"),
    *("autoload", "emulate", "noglob", "print", "setopt", "unsetopt", "vared", "whence"),
    *("zmodload", "zstyle", "bindkey", "time", "builtins", "chdir", "newgrp", "login", "nocorrect"),
}
#: Programs that run the file in their first argument.
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|bash|sh|dash|ksh|zsh)[\d.]*")
#: A command of sed that replaces.
_REPLACES = re.compile(r"s(.)((?:(?!\1).)+)\1((?:(?!\1).)*)\1(g?)")
#: $NAME and ${NAME}.
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
#: Of printf: conversions that are not followed.
_OTHER_CONVERSION = re.compile("%[^sbd%]|%$")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r"}
_ESCAPE = re.compile(r"\\([nt\\r])")
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


def is_everywhere(name: str) -> bool:
    """Tell whether a shell may know a command itself, or each image with a shell has it."""
    usual = name in (_PREPARING | _ASKING) - _NOT_EVERYWHERE
    return usual or name in _IGNORED or name in LOOKING or name in _BUILTINS


def makes_no_program(name: str) -> bool:
    """Tell whether a program brings no other programs, nor files that are not known."""
    base = posixpath.basename(name)
    known = base in _PREPARING or base in _ASKING or name in _IGNORED or name in LOOKING
    return (known and base not in _BRINGING) or base in _HARMLESS


def script_of(words: list[str]) -> str:
    """Return the file that an interpreter or service(8) runs, "" where a command names none."""
    if words[0] == "service" and len(words) > 1:
        return f"/etc/init.d/{words[1]}"
    if _INTERPRETER.fullmatch(posixpath.basename(words[0])) and len(words) > 1:
        first = words[1]
        return "" if first.startswith("-") or "/" not in first else first
    return ""


def command_of_xargs(arguments: list[str]) -> list[str]:
    """Return the command that xargs runs, from its arguments."""
    command = list(arguments)
    while command and command[0].startswith("-"):
        del command[: 2 if command[0] in _XARGS_VALUES else 1]
    return command


def names_of_read(arguments: list[str]) -> list[str] | None:
    """Return the variables that ``read`` sets; None if it has options that change how it reads."""
    if any(word.startswith("-") and word != "-r" for word in arguments):
        return None
    return [word for word in arguments if word != "-r"] or ["REPLY"]


def array_of_read(arguments: list[str]) -> str:
    """Return the array into which ``read -a`` splits a line, "" for another ``read``."""
    options = [word for word in arguments if word.startswith("-")]
    into = bool(options) and "a" in options[-1] and all(set(one) <= set("-ra") for one in options)
    return arguments[-1] if into else ""


def split_line(line: str, separators: str, count: int) -> list[str]:
    """Split a line into ``count`` fields as ``read`` does: the last one has the rest."""
    blanks = "".join(character for character in separators if character.isspace())
    line = line.strip(blanks) if blanks else line
    fields: list[str] = []
    while len(fields) < count - 1:
        match = re.search(f"[{re.escape(separators)}]", line) if separators else None
        if match is None:
            break
        fields.append(line[: match.start()])
        line = line[match.end() :].lstrip(blanks) if blanks else line[match.end() :]
    return [*fields, line, *[""] * count][:count]


def output_of(
    name: str,
    arguments: list[str],
    text: str | None,
    state: ShellState,
    files: ShellFiles,
    *,
    ordered: bool = False,
) -> str | None:
    """Return what a command writes, None where that is not known.

    :param text: what it reads from its standard input; None if it is not known.
    :param ordered: whether its lines are sorted afterwards.
    """
    if name == "echo":
        return _echoed(arguments, of_dash=state.dialect == "dash")
    if name == "printf":
        return _printed(arguments)
    if name in {"cat", "tee"}:
        texts = [text] if name == "tee" or not arguments else []
        texts += [files.text(word, state) for word in arguments if name == "cat"]
        return None if None in texts else "".join(filter(None, texts))
    if name in {"grep", "egrep"}:
        return _matching_lines(arguments, text, state, files)
    if name == "sed":
        return _substituted(arguments, text, state, files)
    if name == "find":
        return found(arguments, state, files, ordered=ordered)
    if name in {"head", "tail", "sort"} and text is not None and UNKNOWN not in text:
        return sorted_lines(arguments, text) if name == "sort" else selected(name, arguments, text)
    if name == "xargs" and arguments in ([], ["-d", "\\n"]) and text is not None:
        return " ".join(text.splitlines() if arguments else text.split()) + "\n"
    if name == "envsubst" and not arguments and text is not None:
        return _VARIABLE.sub(lambda match: state.environment().get(match[1] or match[2], ""), text)
    line = _line_of(name, arguments, state, files)
    return None if line is None else f"{line}\n"


def _substituted(
    arguments: list[str], text: str | None, state: ShellState, files: ShellFiles
) -> str | None:
    """Return what sed writes that replaces one plain text by another."""
    words = [word for word in arguments if word not in {"-e", "-E", "-r"}]
    match = _REPLACES.fullmatch(words[0]) if words else None
    if match is None or len(words) > 2 or has_plain("", match[2]) is None:
        return None
    if "&" in match[3] or "\\" in match[3] or match[2][:1] == "^" or match[2][-1:] == "$":
        return None
    text = files.text(words[1], state) if len(words) == 2 else text
    if text is None or UNKNOWN in text + words[0]:
        return None
    count = -1 if match[4] else 1
    lines = text.splitlines(keepends=True)
    return "".join(line.replace(match[2], match[3], count) for line in lines)


def _matching_lines(
    arguments: list[str], text: str | None, state: ShellState, files: ShellFiles
) -> str | None:
    """Return the lines that grep selects by a plain text, perhaps at the begin or end of a line."""
    plain = [word for word in arguments if not word.startswith("-")]
    options = {word for word in arguments if word.startswith("-")}
    if not plain or not options <= {"-v", "-E", "-F", "-h"}:
        return None
    if len(plain) > 1:
        texts = [files.text(word, state) for word in plain[1:]]
        text = None if None in texts else "".join(filter(None, texts))
    if text is None or UNKNOWN in text + plain[0]:
        return None
    lines = text.splitlines(keepends=True)
    found = [has_plain(line.rstrip("\n"), plain[0]) for line in lines]
    if None in found:
        return None
    wanted = "-v" not in options
    return "".join(line for line, has in zip(lines, found, strict=True) if has is wanted)


def _echoed(arguments: list[str], *, of_dash: bool) -> str | None:
    words = list(arguments)
    options = ""
    while words and re.fullmatch("-n" if of_dash else "-[neE]+", words[0]):
        options += words.pop(0)
    text = " ".join(words)
    if "e" in options:
        text = _unescaped(text)
    elif "\\" in text:
        return None  # dash and bash differ
    return text if "n" in options else f"{text}\n"


def _printed(arguments: list[str]) -> str | None:
    """Return the output of printf with the conversions %s, %b and %d."""
    if not arguments or arguments[0].startswith("-") or _OTHER_CONVERSION.search(arguments[0]):
        return None
    pieces = re.split("%([sbd])", _unescaped(arguments[0]).replace("%%", "\1"))
    values = arguments[1:]
    text = ""
    while True:
        for piece, kind in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            text += piece
            if kind:
                value = values.pop(0) if values else ""
                text += _unescaped(value) if kind == "b" else value
        if not values or len(pieces) == 1:
            return text.replace("\1", "%")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], text)


def _of_machine(name: str, arguments: list[str], machine: str) -> str | None:
    """Return what uname and arch write; ``machine`` is "" where it is not known."""
    if name == "arch" or arguments in (["-m"], ["--machine"], ["-p"], ["-i"]):
        return machine or None
    return "Linux" if arguments in ([], ["-s"]) else None


def _line_of(name: str, arguments: list[str], state: ShellState, files: ShellFiles) -> str | None:
    """Return the line that a command writes, None where that is not known."""
    plain = [word for word in arguments if not word.startswith("-")]
    if name == "pwd":
        return "/" + posixpath.normpath(state.directory).lstrip("/")
    if name in {"uname", "arch"}:
        return _of_machine(name, arguments, files.machine)
    if name == "id":
        return str(state.uid) if arguments == ["-u"] else None
    if name == "printenv" and len(plain) == 1:
        return state.environment().get(plain[0])
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
