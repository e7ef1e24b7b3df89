"""The lab's commands, one after the other."""

from nvgraft.base.errors import printable
from nvgraft_cli.lab.commands import LabCommands
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.run import LabError

PROMPT = "lab> "
_WELCOME = "`next` carries out a phase, `help` lists the commands, `quit` ends the lab."


def follow(commands: LabCommands, console: LabConsole) -> int:
    """Obey commands until the end; return 1 if one of a script, or the start, has failed."""
    failed = False
    if not console.scripted:
        console.say(_WELCOME)
    for line in console.lines(PROMPT, commands.names()):
        failed = not (line == "" or _obeyed(commands, line)) or failed
        if commands.ended:
            break
    return int(failed and console.scripted)


def _obeyed(commands: LabCommands, line: str) -> bool:
    try:
        return commands.obey(line) == 0
    except LabError as error:
        commands.say(printable(f"lab: {error}"))
        return False
