"""Run a command on a terminal of its own, with chosen columns, and return what a person sees."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NVGRAFT = (sys.executable, "-m", "nvgraft_cli.shell.main")
#: Seconds without a word after which a test fails: a program that waits would wait for ever.
_PATIENCE = 60.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Seen(NamedTuple):
    """The output of a command on a terminal, with and without colours, and its exit code."""

    raw: str
    code: int

    @property
    def text(self) -> str:
        return _COLOURS.sub("", self.raw)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def on_terminal(
    words: Sequence[str], columns: int = 80, env: Mapping[str, str] | None = None, typed: str = ""
) -> Seen:
    """Run ``nvgraft`` with all standard streams on a new terminal of ``columns`` and 24 lines.

    :param env: variables besides PATH and TERM. The pager is cat unless they name one.
    :param typed: what the person types at the start.
    """
    return talk(words, [("", typed)], columns, env)


def talk(
    words: Sequence[str],
    turns: Sequence[tuple[str, str]],
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = NVGRAFT,
) -> Seen:
    """Run ``nvgraft`` as :func:`on_terminal` does, with a person who reads before typing.

    :param turns: what is to appear after the turn before, and what is typed then.
    :param program: runs instead of ``nvgraft``.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "PAGER": "cat",
        **(env or {}),
    }
    process = subprocess.Popen(
        [*program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - tests have no threads
    )
    os.close(theirs)
    seen = b""
    read = 0
    todo = list(turns)
    with contextlib.suppress(OSError):  # EIO: all descriptors of the terminal are closed
        while True:
            while todo and (place := seen.find(todo[0][0].encode(), read)) >= 0:
                awaited, typed = todo.pop(0)
                read = place + len(awaited)
                os.write(ours, typed.encode())
            if not select.select([ours], [], [], _PATIENCE)[0]:
                process.kill()
                raise AssertionError(f"it waits: {todo[:1]} after {seen[-2000:]!r}")
            data = os.read(ours, 1 << 16)
            if not data:
                break
            seen += data
    os.close(ours)
    return Seen(seen.decode().replace("\r\n", "\n"), process.wait(60))
