"""`nvgraft lab by-hand`: a container built with shell commands, one at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from nvgraft.base.errors import printable
from nvgraft_cli.lab import hand_node
from nvgraft_cli.lab.ground import node
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.hand_shell import HandShell, ShellGone, effects
from nvgraft_cli.lab.hand_steps import STEPS, meaning_of
from nvgraft_cli.shell.errors import InputError

_PROMPT = "by-hand> "

_HELP = """\
  next      run the command that is shown (so does an empty line)
  all       run this and all further commands, up to one that fails
  skip      leave the command out
  where     show the command again
  help      this list
  quit      end, and throw everything away
Anything else is run by the shell as you write it."""


class ByHand:
    """The experiment at one of its steps."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Begin it on the node.

        :param environment: of the shell.
        :param say: prints a line.
        """
        image = f"{node.WORK}/image.tar"
        hand_node.make_image(image, f"{node.WORK}/image")
        self._shell = HandShell({**environment, "IMAGE": image})
        self._say = say
        self._number = 0
        self._failed = False

    def follow(self, console: LabConsole) -> int:
        """Obey what is written; return 1 if a command of a script has failed, else 0.

        :raises InputError: the shell has ended.
        """
        self._show()
        try:
            for line in console.lines(_PROMPT, ("next", "all", "skip", "where", "help", "quit")):
                if line == "quit" or not self._obey(line):
                    break
        except ShellGone as error:
            raise InputError(f"{error} | start nvgraft lab by-hand again", 1) from error
        return int(self._failed and console.scripted)

    def end(self) -> None:
        """End the shell."""
        self._shell.end()

    def _obey(self, line: str) -> bool:
        """Obey a line, and tell whether there is more to do."""
        if line == "help":
            self._tell(_HELP.splitlines())
        elif line == "where":
            self._show()
        elif line in ("next", "", "skip", "all"):
            if line == "skip" or self._run(STEPS[self._number].command):
                self._number += 1
                if line == "all":
                    self._run_further()
            if self._number == len(STEPS):
                self._tell(["That was a container. Everything of it is thrown away now."])
                return False
            self._show()
        else:
            self._run(line)
        return True

    def _run_further(self) -> None:
        """Run all further commands, up to one that fails."""
        while self._number < len(STEPS):
            self._show()
            if not self._run(STEPS[self._number].command):
                return
            self._number += 1

    def _show(self) -> None:
        step = STEPS[self._number]
        self._tell([f"[{self._number + 1}/{len(STEPS)}] {step.command}", f"  {step.meaning}"])

    def _run(self, command: str) -> bool:
        """Run a command, tell its output and its effect, and return whether it has worked."""
        if mistake := self._shell.mistake(command):
            self._failed = True
            self._tell([f"the shell does not understand this: {printable(mistake)}"])
            return False
        before = self._shell.place()
        lines, code = self._shell.run(command)
        self._tell(explained(map(printable, lines)))
        rows = effects(before, self._shell.place())
        self._tell(f"  {printable(row)}" for row in rows)
        # diff tells by 1 that there is a difference.
        if code and not (code == 1 and command.startswith("diff ")):
            self._failed = True
            self._tell([f"  (exit code {code})"])
            return False
        if not lines and not rows:
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
