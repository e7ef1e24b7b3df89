"""Completions for shells, made by shtab. The names of arguments say what completes them."""

import argparse
import shlex
from collections.abc import Mapping

import shtab

from nvgraft.report import last_error
from nvgraft_cli.shell import nodes
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.help import topics
from nvgraft_cli.shell.parser import CommandParser, commands_of, whole_program
from nvgraft_specs import gallery

#: Shell -> where its completions are found below a prefix.
PLACES = {
    "bash": "share/bash-completion/completions/nvgraft",
    "zsh": "share/zsh/site-functions/_nvgraft",
    "fish": "share/fish/vendor_completions.d/nvgraft.fish",
}

_Completer = Mapping[str, object]


def texts() -> dict[str, str]:
    """Return the completions of each shell by the path of their file below a prefix."""
    return {place: shtab.complete(_prepared(), shell) for shell, place in PLACES.items()}


def _prepared() -> CommandParser:
    """Return the whole parser, with a completer for each argument that has one."""
    completers = _completers()
    parser = whole_program()
    # shtab shows descriptions, which are too long for a list of commands.
    for group in GROUPS.values():
        for name, (_, summary) in group.items():
            _command(parser, name).description = summary
    todo = [parser]
    while todo:
        command = todo.pop()
        todo += commands_of(command).values()
        for action in command._actions:
            kind = action.metavar if isinstance(action.metavar, str) else ""
            if action.choices is None and kind in completers:
                action.complete = completers[kind]  # type: ignore[attr-defined]
    return parser


def _command(parser: CommandParser, name: str) -> argparse.ArgumentParser:
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    command: argparse.ArgumentParser = subparsers.choices[name]
    return command


def _completers() -> dict[str, _Completer]:
    """Return what completes the arguments of each name."""
    hosts = _words("hosts", "simulated host", gallery.names(), files=True)
    files: _Completer = shtab.FILE
    directories: _Completer = shtab.DIRECTORY
    records = f"ls {last_error.DIRECTORY} 2>/dev/null | sed -n s/^id-//p"
    return {
        "FILE": files,
        "PATH": files,
        "DIR": directories,
        "HOST": hosts,
        "A": hosts,
        "B": hosts,
        "NODE": _lines("nodes", "running node", f"ls {nodes.DIRECTORY} 2>/dev/null"),
        "ID": _lines("records", "record", records),
        "WORD": _words("topics", "topic", topics()),
    }


def _words(name: str, what: str, words: list[str], *, files: bool = False) -> _Completer:
    """Complete with fixed words, and with files as well if that is asked for."""
    quoted = shlex.join(words)
    # shtab marks the answers of a function as names of files if its name says so.
    function = f"_nvgraft_{name}{'_file' if files else ''}"
    also = {
        "bash": '\n  compgen -f -- "$1"' if files else "",
        "zsh": " 'files:file:_files'" if files else "",
        "fish": "\n  __fish_complete_path (commandline -ct)" if files else "",
    }
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f'{function}() {{\n  compgen -W "{quoted}" -- "$1"{also["bash"]}\n}}',
            "zsh": f"{function}() {{\n  _alternative '{name}:{what}:({quoted})'{also['zsh']}\n}}",
            "fish": f"function {function}\n  printf '%s\\t{what}\\n' {quoted}{also['fish']}\nend",
        },
    }


def _lines(name: str, what: str, command: str) -> _Completer:
    """Complete with the lines that a shell command prints."""
    function = f"_nvgraft_{name}"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": f'{function}() {{\n  compgen -W "$({command})" -- "$1"\n}}',
            "zsh": f'{function}() {{\n  _alternative "{name}:{what}:($({command}))"\n}}',
            "fish": f"function {function}\n  {command}\nend",
        },
    }
