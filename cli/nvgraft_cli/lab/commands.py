"""The commands at a stop of the lab."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nvgraft.apply.targets import open_in_root
from nvgraft.base.errors import printable
from nvgraft.base.files import reason
from nvgraft_cli.lab import questions, shells, text
from nvgraft_cli.lab.ground.lent_terminal import LentTerminal
from nvgraft_cli.lab.phases import NAMES
from nvgraft_cli.lab.run import LabError, LabRun

#: Bytes of a file that `show` prints.
_SHOWN = 4096
#: Letters that stand for commands.
_SHORT = {"n": "next", "b": "back", "w": "where", "h": "help", "?": "help", "q": "quit"}


class LabCommand(NamedTuple):
    """A command: its words for the help, and what it does with the text behind its name."""

    usage: str
    summary: str
    run: Callable[[str], int]


class LabCommands:
    """What a learner can do at a stop. Each command prints, and returns 0 if it has worked.

    :ivar ended: whether `quit` was written.
    """

    def __init__(
        self,
        run: LabRun,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        terminal: LentTerminal | None,
    ) -> None:
        """Begin with no output.

        :param environment: of a shell on the node.
        :param terminal: of shells; None if there is none, or for a script.
        :param say: prints a line.
        """
        self.ended = False
        self.say = say
        self._run = run
        self._environment = environment
        self._terminal = terminal
        self._table = {
            "next": LabCommand("next", "carry out the next phase", self._next),
            "back": LabCommand("back", "take the last phase back", self._back),
            "run": LabCommand(
                "run PHASE", f"go on to a phase: {', '.join(NAMES)}, end", self._run_to
            ),
            "where": LabCommand("where", "show this stop again", lambda _: self.show()),
            "ahead": LabCommand("ahead", "show all of what comes next, with reasons", self._ahead),
            "did": LabCommand("did", "show all of what the last phase has done", self._did),
            "shell": LabCommand(
                "shell [COMMAND]", "a shell in the container as it is now", self._shell
            ),
            "node": LabCommand("node [COMMAND]", "a shell on the simulated node", self._node),
            "why": LabCommand("why WHAT", "why something is in the plan, or is not", self._why),
            "prove": LabCommand(
                "prove [WHAT]", "what the loader finds in the container now", self._prove
            ),
            "show": LabCommand(
                "show FILE", "a file or directory of the container", self._show_file
            ),
            "help": LabCommand(
                "help",
                "this list; n, b, w, h and q stand for next, back, where, help and quit",
                self._help,
            ),
            "quit": LabCommand("quit", "take everything back and end", self._quit),
        }

    def obey(self, line: str) -> int:
        """Carry out a line.

        :raises LabError: it cannot be obeyed.
        """
        name, _, rest = line.strip().partition(" ")
        name = _SHORT.get(name, name)
        if name not in self._table:
            near = [word for word in self._table if word.startswith(name)]
            choose = f"did you mean {' or '.join(near)}?" if near else "`help` lists them"
            raise LabError(f"there is no command {name!r} | {choose}")
        return self._table[name].run(rest.strip())

    def names(self) -> list[str]:
        """Return the names of the commands."""
        return list(self._table)

    def show(self) -> int:
        """Print the newest stop."""
        stop = self._run.stops[-1]
        self._print(text.did(stop))
        if self._run.failure:
            failure = printable(self._run.failure)
            self._print([f"the start has failed: {failure}", "Look around, or write `quit`."])
            return 0
        self._print([text.heading(stop.number), *text.ahead(stop, self._run.container)])
        return 0

    def _print(self, lines: "list[str] | Iterator[str]") -> None:
        for line in lines:
            self.say(line)

    def _next(self, _rest: str) -> int:
        self._run.next()
        self.show()
        return int(bool(self._run.failure))

    def _back(self, _rest: str) -> int:
        self._run.back()
        return self.show()

    def _run_to(self, rest: str) -> int:
        names = [*NAMES, "end"]
        if rest not in names:
            raise LabError(f"there is no phase {rest!r} | write one of {', '.join(names)}")
        wanted = names.index(rest)
        if wanted < self._run.number:
            raise LabError(f"{rest} is behind this stop | write back")
        while self._run.number < wanted and not self._run.failure:
            self._run.next()
            if self._run.number < wanted and not self._run.failure:
                self._print(text.did(self._run.stops[-1], 0))
        self.show()
        return int(bool(self._run.failure))

    def _ahead(self, _rest: str) -> int:
        if self._run.failure:
            raise LabError(f"the start has failed: {self._run.failure} | write did or quit")
        self._print(text.ahead(self._run.stops[-1], self._run.container, None))
        return 0

    def _did(self, _rest: str) -> int:
        self._print(text.did(self._run.stops[-1], None))
        return 0

    def _shell(self, rest: str) -> int:
        self._check_process()
        container = self._run.container
        return self._of_shell(
            rest, lambda: shells.in_container(container, rest or None, self._terminal)
        )

    def _node(self, rest: str) -> int:
        return self._of_shell(
            rest, lambda: shells.on_node(rest or None, self._environment, self._terminal)
        )

    def _of_shell(self, rest: str, start: Callable[[], int]) -> int:
        if not rest and self._terminal is None:
            raise LabError("there is no terminal for a shell | write a command behind it")
        code = start()
        if code < 0:
            self.say(f"the shell was ended by signal {-code}")
        elif code and rest:
            self.say(f"(exit code {code})")
        return code if rest else 0

    def _why(self, rest: str) -> int:
        if not rest:
            raise LabError("why of what? | write a path, library, device or capability behind it")
        return questions.asked(lambda: questions.why(self._run, rest.split()), self.say)

    def _prove(self, rest: str) -> int:
        self._check_process()
        whats = rest.split() or ["libcuda.so.1"]
        return questions.asked(lambda: questions.prove_now(self._run, whats), self.say)

    def _show_file(self, rest: str) -> int:
        if not rest.startswith("/"):
            raise LabError("show which file? | write an absolute path of the container behind it")
        self._check_process()
        container = self._run.container
        inside = "" if container.pivoted else container.rootfs
        root = os.open(f"/proc/{container.pid}/root{inside}", os.O_PATH | os.O_DIRECTORY)
        try:
            found = open_in_root(root, rest, os.O_PATH, follow=True)
            try:
                self._print(_content(found))
            finally:
                os.close(found)
        except OSError as error:
            text = f"{rest}: {reason(error)} in the container | look around with shell ls"
            raise LabError(text) from error
        finally:
            os.close(root)
        return 0

    def _check_process(self) -> None:
        if not self._run.container.lives():
            raise LabError("the container's process has ended | write quit")

    def _help(self, _rest: str) -> int:
        width = max(len(command.usage) for command in self._table.values())
        for command in self._table.values():
            self.say(f"  {command.usage:<{width}}  {command.summary}")
        return 0

    def _quit(self, _rest: str) -> int:
        self.ended = True
        return 0


def _content(fd: int) -> Iterator[str]:
    """Describe an open file (O_PATH), and yield the beginning of a text."""
    status = os.fstat(fd)
    again = f"/proc/self/fd/{fd}"
    if stat.S_ISDIR(status.st_mode):
        yield from (printable(name) for name in sorted(os.listdir(again)))
        return
    if not stat.S_ISREG(status.st_mode):
        numbers = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        yield f"{stat.filemode(status.st_mode)} {numbers}"
        return
    with open(again, "rb") as file:
        data = file.read(_SHOWN)
    if b"\0" in data:
        yield f"{stat.filemode(status.st_mode)} {status.st_size} bytes, not a text"
        return
    for line in data.decode("utf-8", "replace").splitlines():
        yield printable(line)
    if status.st_size > _SHOWN:
        yield f"({status.st_size} bytes in all)"
