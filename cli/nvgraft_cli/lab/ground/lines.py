"""Where the lab's commands come from: a terminal with a history, or a script."""

import sys
from collections.abc import Callable, Iterator, Sequence

from nvgraft.base.errors import printable


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
        self._script = script or ()
        self._plain = plain

    def lines(self, prompt: str, names: Sequence[str]) -> Iterator[str]:
        """Yield the lines. Of a script, comments and empty lines are left out.

        :param names: words that a terminal completes.
        """
        if self.scripted:
            for line in self._script:
                if line.strip() and not line.lstrip().startswith("#"):
                    self.say(printable(f"{prompt}{line.strip()}"))
                    yield line.strip()
            return
        if not self._plain:
            _complete(names)
        while True:
            try:
                line = _read_line(prompt)
            except EOFError:
                self.say("")
                return
            yield line.strip()


def _read_line(prompt: str) -> str:
    """Return the next line of standard input.

    :raises EOFError: there is none.
    """
    if sys.stdin.isatty():
        return input(prompt)
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
