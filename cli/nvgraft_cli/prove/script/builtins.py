"""Builtins that change the state of a shell and nothing else."""

import posixpath

from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.state import ShellEnd, ShellState
from nvgraft_cli.prove.script.words import assignment_of_text

#: Words of bash that other shells do not know: dash, and busybox.
_OF_BASH = {"compgen", "complete", "declare", "dirs", "disown", "enable", "mapfile", "popd"}
_OF_BASH |= {"pushd", "readarray", "shopt", "typeset"}
_UNKNOWN_TO_DASH = _OF_BASH | {"[[", "builtin", "let", "source"}


def lacks_builtin(name: str, arguments: list[str], state: ShellState) -> bool:
    """Tell whether a command fails because the shell is not bash."""
    if state.dialect == "bash" or name in state.functions:
        return False
    if name in {"[", "test"}:
        return state.dialect == "dash" and "==" in arguments[1:]
    return name in (_UNKNOWN_TO_DASH if state.dialect == "dash" else _OF_BASH)


def change_state(name: str, arguments: list[str], state: ShellState) -> bool:
    """Run a builtin that changes the state; return False for every other command."""
    if name in {"export", "declare", "typeset", "readonly", "local"}:
        _declare(name, arguments, state)
    elif name == "unset":
        for argument in arguments:
            state.variables.pop(argument, None)
            state.exported.discard(argument)
    elif name == "set":
        _set(arguments, state)
    elif name == "shift":
        if UNKNOWN in "".join(arguments):
            state.arguments[1:] = [UNKNOWN]
        else:
            count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
            del state.arguments[1 : 1 + count]
    elif name == "cd":
        place = next((word for word in arguments if not word.startswith("-")), "")
        state.directory = posixpath.join(state.directory, place or "/")
    else:
        return False
    return True


def _declare(name: str, arguments: list[str], state: ShellState) -> None:
    flags = "".join(word[1:] for word in arguments if word.startswith("-"))
    exports = (name == "export" and "n" not in flags) or "x" in flags
    drops = (name == "export" and "n" in flags) or any(word.startswith("+x") for word in arguments)
    if "n" in flags and name != "export":
        state.opaque.append(f"what `{name} -n` refers to")
    if name == "typeset" and "T" in flags:
        state.opaque.append("what `typeset -T` ties to an array")
    if "A" in flags:
        names = (argument.partition("=")[0] for argument in arguments)
        state.associative |= {one for one in names if one.isidentifier()}
    for argument in arguments:
        variable = argument
        if UNKNOWN in argument.partition("=")[0]:
            state.opaque.append(f"what `{name}` of a command's output sets")
            continue
        if assigns := assignment_of_text(argument):
            variable, joined, value = assigns
            before = state.variables.get(variable, "") if joined else ""
            state.assign(variable, before + value)
        if drops:
            state.exported.discard(variable)
        elif exports and not argument.startswith("-"):
            state.exported.add(variable)


def _set(arguments: list[str], state: ShellState) -> None:
    set_options(arguments, state)
    for number, argument in enumerate(arguments):
        if argument == "--" or argument[:1] not in {"-", "+"}:
            option = arguments[number - 1] if number else ""
            if argument != "--" and option[:1] in {"-", "+"} and option.endswith("o"):
                continue
            rest = arguments[number + 1 if argument == "--" else number :]
            state.arguments[1:] = rest
            return
        if argument in {"-a", "+a"} or (argument.startswith("-") and "a" in argument):
            state.export_all = argument.startswith("-")


def set_options(words: list[str], state: ShellState) -> None:
    """Follow the options of a shell, or of ``set``, that tell what a failure ends."""
    for number, word in enumerate(words):
        if word == "--" or word[:1] not in {"-", "+"} or word.startswith("--"):
            continue
        sets = word[0] == "-"
        name = "".join(words[number + 1 : number + 2]) if "o" in word else ""
        if "e" in word[1:] or name == "errexit":
            state.ends_at_failure = sets
        if name == "pipefail":
            if state.dialect == "dash":
                raise ShellEnd(status=False, words="dash has no option pipefail")
            state.fails_in_pipe = sets
        if "u" in word[1:] or name == "nounset":
            state.ends_at_unset = sets


def next_option(arguments: list[str], state: ShellState) -> bool | None:
    """Follow `getopts OPTIONS NAME`: set NAME, OPTARG and OPTIND to the next option.

    It is False behind the last one. Options that stand in one word together are not known.
    """
    known, name = arguments[:2]
    index = state.variables.get("OPTIND", "1")
    words = arguments[2:] or state.arguments[1:]
    if not index.isdecimal() or any(UNKNOWN in word for word in [known, *words]):
        state.assign(name, UNKNOWN)
        state.assign("OPTIND", UNKNOWN)
        return None
    at = int(index) - 1
    word = words[at] if at < len(words) else ""
    if word == "--":
        state.assign("OPTIND", str(at + 2))
    if len(word) < 2 or word[0] != "-" or word == "--":
        state.assign(name, "?")
        return False
    place = known.find(word[1], known.startswith(":"))
    takes = known[place + 1 : place + 2] == ":"
    if place < 0 or (len(word) > 2 and not takes):
        state.assign(name, "?" if place < 0 else UNKNOWN)
        state.assign("OPTIND", str(at + 2) if place < 0 else UNKNOWN)
        return True if place < 0 else None
    value = word[2:] or ("".join(words[at + 1 : at + 2]) if takes else "")
    state.assign(name, word[1])
    state.variables.pop("OPTARG", None)
    if takes:
        state.assign("OPTARG", value)
    state.assign("OPTIND", str(at + (2 if word[2:] or not takes else 3)))
    return True
