"""A lesson at a terminal or by a script: the learner's commands, and a shell for all others."""

import os
import subprocess
from collections.abc import Callable, Mapping

from nvgraft.base.errors import Refusal, printable
from nvgraft_cli.lab.ground.lent_terminal import LentTerminal, run_shell
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.lessons import check, starts
from nvgraft_cli.lab.lessons.reality import Originals
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs.models.lesson import DIRECTORY, Lesson

_PROMPT = "lesson> "

_HELP = """\
  task             the task again
  start [NAME]     start a container with its own program, and show what it says
  check            start the containers for real, and look whether they work
  hint             a hint; the next one each time
  solution         commands that mend it
  help             this list
  quit             end, and throw the node away
Anything else is run by a shell on the node, in the directory of the containers."""

#: Before the learner's line: writes the directory in which the shell ends to a descriptor.
_PLACE = "trap 'pwd -P >&{}' EXIT; "


class LessonSession:
    """A lesson on its node.

    :ivar solved: whether the last check has found everything as it should be.
    """

    def __init__(
        self,
        lesson: Lesson,
        originals: Originals,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        terminal: LentTerminal | None,
        note: Callable[[], None],
    ) -> None:
        """Begin it.

        :param originals: the programs that may answer a check.
        :param environment: of the shell.
        :param say: prints a line.
        :param terminal: of the shell; None if there is none, or for a script.
        :param note: called when the lesson is solved.
        """
        self.solved = False
        self._lesson = lesson
        self._originals = originals
        self._note = note
        self._environment = environment
        self._say = say
        self._terminal = terminal
        self._hints = 0
        self._place = DIRECTORY
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "task": self._tell_task,
            "start": self._start,
            "check": self._check,
            "hint": self._hint,
            "solution": self._solution,
            "help": self._help,
        }

    def follow(self, console: LabConsole) -> None:
        """Obey what is written, up to the end."""
        self._tell_task([])
        self._say("Write `hint` for a hint, `check` to check your repair, `help` for more.")
        for line in console.lines(_PROMPT, (*self._commands, "quit")):
            if line == "quit":
                return
            word, *rest = line.split() or [""]
            if word in self._commands and len(rest) <= int(word == "start"):
                try:
                    self._commands[word](rest)
                except InputError as error:
                    self._say(printable(f"lesson: {error}"))
                except Refusal as error:
                    self._say(printable(f"lesson: {error.text} | {error.hint}"))
                except OSError as error:  # such as a part of the node that the learner has removed
                    reason = (error.strerror or str(error)).lower()
                    self._say(printable(f"lesson: {error.filename or word}: {reason}"))
                except subprocess.CalledProcessError as error:
                    self._say(printable(f"lesson: {word}: {error.cmd[0]} has failed | try again"))
            elif line:
                self._run(line)

    def _tell_task(self, _rest: list[str]) -> None:
        self._say(f"== {self._lesson.title}")
        self._tell(self._lesson.task)
        names = ", ".join(f"{DIRECTORY}/{name}" for name in self._lesson.containers)
        self._say(f"Containers: {names}. Node: {self._lesson.node}.")

    def _start(self, rest: list[str]) -> None:
        containers = self._lesson.containers
        name = rest[0] if rest else next(iter(containers))
        if name not in containers:
            raise InputError(f"there is no container {name} | name one of {', '.join(containers)}")
        try:
            check.show(starts.run(name, containers[name]), self._say)
        except starts.NotStarted as error:
            self._say(printable(f"  it does not start: {error}"))

    def _check(self, _rest: list[str]) -> None:
        self.solved = check.solved(self._lesson, self._originals, self._say)
        if not self.solved:
            self._say("Not solved yet.")
            return
        self._note()
        self._say("Solved.")
        self._tell(self._lesson.explanation)
        for wrong in self._lesson.wrong:
            self._say(f"What does not help: {'; '.join(wrong.commands)}")
            self._tell(wrong.why)

    def _hint(self, _rest: list[str]) -> None:
        hints = self._lesson.hints
        number = min(self._hints, len(hints) - 1)
        self._say(f"Hint {number + 1} of {len(hints)}:")
        self._tell(hints[number])
        self._hints += 1
        if self._hints >= len(hints):
            self._say("That is the last hint; `solution` shows the commands.")

    def _solution(self, _rest: list[str]) -> None:
        for command in self._lesson.solution:
            self._say(f"  {command}")

    def _help(self, _rest: list[str]) -> None:
        for line in _HELP.splitlines():
            self._say(line)

    def _tell(self, text: str) -> None:
        """Print the paragraphs of a text of the lesson, each as one line."""
        for paragraph in text.strip().split("\n\n"):
            self._say(" ".join(paragraph.split()))

    def _run(self, line: str) -> None:
        """Let a shell run a line of the learner's, and remember the directory where it ends."""
        if not os.path.isdir(self._place):
            self._place = DIRECTORY
            self._say(f"lesson: the directory is gone | this shell is in {DIRECTORY} again")
            return
        place = os.memfd_create("place", flags=0)  # the shell inherits it
        try:
            code = run_shell(
                _PLACE.format(place) + line, self._environment, self._become, self._terminal
            )
            written = os.pread(place, 4096, 0)
        finally:
            os.close(place)
        if written:
            self._place = os.fsdecode(written.rstrip(b"\n"))
        if code:
            ended = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            self._say(f"  ({ended})")

    def _become(self) -> None:
        os.chdir(self._place)
        if self._terminal is None:
            os.dup2(1, 2)
