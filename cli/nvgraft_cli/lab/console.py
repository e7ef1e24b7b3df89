"""Where the lab's commands come from: a terminal with a history, or a script."""

import sys
from collections.abc import Iterator, Sequence

from nvgraft.base.errors import printable
from nvgraft_cli.lab.commands import LabCommands
from nvgraft_cli.lab.run import LabError

PROMPT = "lab> "


def follow(commands: LabCommands, script: Sequence[str] | None) -> int:
    """Obey commands until the end; return 1 if one of a script, or the start, has failed.

    :param script: lines; None for those that a person writes.
    """
    failed = False
    lines = _written(commands) if script is None else _of_script(commands, script)
    for line in lines:
        failed = not _obeyed(commands, line) or failed
        if commands.ended:
            break
    return int(failed and script is not None)


def _obeyed(commands: LabCommands, line: str) -> bool:
    try:
        return commands.obey(line) == 0
    except LabError as error:
        commands.say(printable(f"lab: {error}"))
        return False


def _of_script(commands: LabCommands, script: Sequence[str]) -> Iterator[str]:
    for line in script:
        if line.strip() and not line.lstrip().startswith("#"):
            commands.say(printable(f"{PROMPT}{line.strip()}"))
            yield line


def _written(commands: LabCommands) -> Iterator[str]:
    _complete(commands.names())
    commands.say("`next` carries out a phase, `help` lists the commands, `quit` ends the lab.")
    while True:
        try:
            line = _line()
        except EOFError:
            print()
            return
        if line.strip():
            yield line


def _line() -> str:
    """Return the next line.

    :raises EOFError: there is none.
    """
    if sys.stdin.isatty():
        return input(PROMPT)
    # input() drops an interrupt that comes while it writes to what is not a terminal.
    print(PROMPT, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _complete(names: Sequence[str]) -> None:
    """Let the terminal keep a history, and complete the names of commands, where it can."""
    try:
        import readline
    except ImportError:
        return

    def complete(text: str, state: int) -> str | None:
        found = [f"{name} " for name in names if name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
