"""`nvgraft lab by-hand`: a container built with shell commands, one at a time."""

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping

from nvgraft.base.errors import printable
from nvgraft_cli.lab import hand_node
from nvgraft_cli.lab.ground import node
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.hand_shell import CannotRun, HandShell, ShellGone, effects, mistake_in
from nvgraft_cli.lab.hand_steps import STEPS, meaning_of
from nvgraft_cli.lab.hand_terminal import TerminalShell
from nvgraft_cli.shell.errors import InputError

_PROMPT = "by-hand> "
_WORDS = ("next", "all", "skip", "step", "where", "help", "quit")
_WELCOME = "Enter runs the command that is shown; write another one to run it instead, or help."
_LAST = "That was a container. Look around in it; `quit` throws everything away."

_HELP = """\
  next      run the command that is shown (so does an empty line)
  all       run this and all further commands, up to one that fails
  skip      leave the command out
  step N    go to command N, also back to one that must be run again
  where     show the command again
  help      this list
  quit      end, and throw everything away
Anything else is run by the shell as you write it, also over several lines."""
#: Commands whose output the lab prints itself, with what it means.
_EXPLAINED = frozenset(step.command for step in STEPS)
_HELP_TERMINAL = """\
Ctrl-C ends a command. Ctrl-Z stops it, and fg goes on with it.
If nothing else ends a command, Ctrl-] three times ends the experiment."""


class ByHand:
    """The experiment at one of its steps."""

    def __init__(
        self, environment: Mapping[str, str], say: Callable[[str], None], *, terminal: bool
    ) -> None:
        """Begin it on the node.

        :param environment: of the shell.
        :param say: prints a line.
        :param terminal: whether standard input and output are a terminal, which commands then get.
        """
        image = f"{node.WORK}/image.tar"
        hand_node.make_image(image, f"{node.WORK}/image")
        environment = {**environment, "IMAGE": image}
        self._shell: HandShell | TerminalShell = (
            TerminalShell(environment, f"{node.WORK}/bash") if terminal else HandShell(environment)
        )
        self._terminal = terminal
        self._say = say
        self._number = 0
        self._failed = False

    def follow(self, console: LabConsole) -> int:
        """Obey what is written; return 1 if a command of a script has failed, else 0.

        :raises InputError: the shell has ended.
        """
        if not console.scripted:
            self._say(_WELCOME)
        self._show()
        if self._terminal:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the prompt, and for commands
        try:
            for line in console.lines(_PROMPT, _WORDS, lambda line: not mistake_in(line)[1]):
                if line == "quit":
                    break
                self._obey(line)
                console.put_back(self._shell.unread())
        except ShellGone as error:
            raise InputError(f"{error} | start nvgraft lab by-hand again", 1) from error
        return int(self._failed and console.scripted)

    def end(self) -> None:
        """End the shell."""
        self._shell.end()

    def _obey(self, line: str) -> None:
        if line == "help":
            self._tell(_HELP.splitlines())
            self._tell(_HELP_TERMINAL.splitlines() if self._terminal else [])
        elif line == "where":
            self._show()
        elif line in ("next", "", "skip", "all"):
            self._go_on(line)
        elif re.fullmatch(r"step\s+\d+", line) and 0 < int(line.split()[1]) <= len(STEPS):
            self._number = int(line.split()[1]) - 1
            self._show()
        else:
            self._run(line)

    def _go_on(self, line: str) -> None:
        """Run the next command, or all ("all") up to one that fails, or leave it out ("skip")."""
        while self._number < len(STEPS):
            if line != "skip" and not self._run(STEPS[self._number].command):
                break
            self._number += 1
            if line != "all":
                break
            if self._number < len(STEPS):
                self._show()
        self._show()

    def _show(self) -> None:
        if self._number == len(STEPS):
            self._tell([_LAST])
            return
        step = STEPS[self._number]
        self._tell([f"[{self._number + 1}/{len(STEPS)}] {step.command}", f"  {step.meaning}"])

    def _run(self, command: str) -> bool:
        """Run a command, tell its output and its effect, and return whether it has worked."""
        if mistake := mistake_in(command)[0]:
            self._failed = True
            self._tell([f"the shell does not understand this: {printable(mistake)}"])
            return False
        before = self._shell.place()
        try:
            result = self._shell.run(command, held=command in _EXPLAINED)
        except CannotRun as error:
            self._failed = True
            self._tell([f"the shell cannot be told this command: {error}"])
            return False
        self._tell(explained(map(printable, result.lines)))
        rows = effects(before, self._shell.place())
        self._tell(f"  {printable(row)}" for row in rows)
        # diff tells by 1 that there is a difference.
        if result.code and not (result.code == 1 and command.startswith("diff ")):
            self._failed = True
            self._tell([f"  (exit code {result.code})"])
            return False
        if result.silent and not rows:
            self._tell(["  (done; there is nothing to see)"])
        return True

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)


def explained(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of an output; of the difference of listings, each group with its meaning."""
    before = ""
    for line in lines:
        meaning = meaning_of(line)
        if before and meaning != before:
            yield f"      {before}"
        before = meaning
        yield f"  | {line}"
    if before:
        yield f"      {before}"
