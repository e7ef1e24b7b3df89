"""Where the lab's commands come from: a terminal with a history, or a script."""

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from nvgraft.base.errors import printable

#: Asks for the rest of a command that is not complete.
_REST = "> "


class Ended(KeyboardInterrupt):
    """A signal has come that ends the lab, at a prompt too: SIGTERM or SIGHUP."""


class LabConsole:
    """Lines of a script, or those that a person writes.

    :ivar scripted: whether they are a script's; ``say`` prints a line.
    """

    def __init__(
        self, script: Sequence[str] | None, say: Callable[[str], None], *, plain: bool = False
    ) -> None:
        """Read from ``script``; None for standard input.

        :param plain: no history and no completion.
        """
        self.scripted = script is not None
        self.say = say
        self._waiting = deque(script or ())
        self._plain = plain

    def put_back(self, lines: Iterable[str]) -> None:
        """Let :meth:`lines` yield ``lines`` next: they were written before anybody read them."""
        self._waiting.extend(lines)

    def lines(
        self, prompt: str, names: Sequence[str], whole: Callable[[str], bool] = lambda _: True
    ) -> Iterator[str]:
        """Yield the commands. Of a script, comments and empty lines between them are left out.

        :param names: words that a terminal completes.
        :param whole: tells whether a command is complete. One that is not gets the next line too.
        """
        if not self.scripted and not self._plain:
            _complete(names)
        command = ""
        while True:
            try:
                line = self._line(_REST if command else prompt, inside=bool(command))
            except EOFError:
                if command:
                    yield command.strip()
                return
            except KeyboardInterrupt as error:
                if isinstance(error, Ended) or self.scripted or not sys.stdin.isatty():
                    raise
                self.say("\n(quit or Ctrl-D ends)")
                command = ""
                self._waiting.clear()
                continue
            command = f"{command}\n{line}" if command else line
            if whole(command):
                yield command.strip()
                command = ""

    def _line(self, prompt: str, *, inside: bool) -> str:
        """Return the next line.

        :param inside: whether it belongs to the command of the line before.
        :raises EOFError: there is none.
        """
        while self._waiting:
            line = self._waiting.popleft()
            if inside or (line.strip() and not line.lstrip().startswith("#")):
                self.say(printable(f"{prompt}{line if inside else line.strip()}"))
                return line
        if self.scripted:
            raise EOFError
        try:
            first, *more = _read_line(prompt).rstrip("\n").split("\n")
        except EOFError:
            self.say("")
            raise
        self._waiting.extend(more)  # readline returns a block that is pasted as a whole
        return first


def _read_line(prompt: str) -> str:
    """Return the next line of standard input.

    :raises EOFError: there is none.
    """
    if sys.stdin.isatty():
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return input(prompt)
        finally:
            signal.signal(signal.SIGINT, before)
    # input() drops an interrupt that comes while it writes to what is not a terminal.
    print(prompt, end="", flush=True)
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
