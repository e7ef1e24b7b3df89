"""Answers for people: colour, lines that fit the terminal, and a pager, as git's users know them.

A pipe or a file gets the plain text of the renderers, byte for byte. rich is imported only where
standard output is a terminal.
"""

from __future__ import annotations

import os
import sys

from nvgraft.base._os import signal
from nvgraft_cli.shell import children

#: The choices of --color.
WHEN = ("auto", "always", "never")

#: What git sets for its pager unless the user has set it: less shows colours, quits if the text
#: fits the screen, and leaves it there.
_PAGER_SETTINGS = {"LESS": "FRX", "LV": "-c"}
#: Characters for which a pager's command line needs a shell to find its program.
_SHELL = frozenset("|&;<>()$`\\\"' \t\n*?[#~=%")


class _Shown:
    """How answers are shown. Without a call of :func:`setup` they are plain."""

    #: Columns of the terminal; 0 where standard output is not one.
    columns = 0
    colour = False


def setup(color: str) -> None:
    """Look at standard output and the environment.

    :param color: one of :data:`WHEN`. "auto" means colour on a terminal, unless NO_COLOR is set
        (no-color.org) or TERM is dumb, and colour everywhere with FORCE_COLOR.
    """
    terminal = sys.stdout.isatty()
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    _Shown.columns = _width() if terminal else 0
    if color != "auto":
        _Shown.colour = color == "always"
    elif os.environ.get("NO_COLOR"):
        _Shown.colour = False
    else:
        _Shown.colour = bool(os.environ.get("FORCE_COLOR")) or (terminal and not dumb)


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def colour() -> bool:
    """Tell whether answers have colours."""
    return _Shown.colour


def columns() -> int:
    """Return the columns of the terminal that answers are for; 0 where they are for none."""
    return _Shown.columns


def show(text: str) -> None:
    """Print an answer that ends without a newline. On a terminal, lines are folded to its width."""
    if _Shown.columns:
        from nvgraft_cli.shell import fitting

        text = fitting.fit(text, _Shown.columns)
    print(text)


class Pager:
    """A context in which standard output goes through the user's pager, if it is a terminal.

    The pager is started with the first output, so that until then the terminal shows progress. The
    process that will become it is made before the command is confined, which cannot start programs.
    """

    def __init__(self) -> None:
        self._child = 0

    def start(self) -> None:
        """Put the pager behind standard output, unless there is none or it has no terminal."""
        command = _command() if _Shown.columns else ""
        if not command:
            return
        sys.stdout.flush()
        reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(writer)
            _become(command, reader)
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)

    def finish(self) -> None:
        """Let the pager read the end of the text, and wait until the user has left it."""
        if not self._child:
            return
        child, self._child = self._child, 0
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # a pager decides itself what they mean
        os.close(1)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            return  # this is a child too, beside the process that waits for the pager


def _command() -> str:
    """Return the command line of the pager; "" for none."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return ""
    found = (os.environ.get(name) for name in ("NVGRAFT_PAGER", "PAGER"))
    command = next((value for value in found if value is not None), "less").strip()
    if command in ("", "cat"):
        return ""
    if _SHELL.isdisjoint(command):
        from shutil import which

        return command if which(command) else ""
    return command


def _become(command: str, reader: int) -> None:
    """Wait for the first output, and become the pager."""
    import select

    try:
        os.dup2(reader, 0)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if not any(events & select.POLLIN for _, events in poll.poll()):
            os._exit(0)
        children.restore_signals()
        for name, value in _PAGER_SETTINGS.items():
            os.environ.setdefault(name, value)
        os.execvp("sh", ["sh", "-c", command])  # noqa: S606 - the user's own pager
    finally:
        os._exit(127)
