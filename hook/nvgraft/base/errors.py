"""Every way in which the engine says no.

A refusal is one line that keeps the words of the reference stack, because people search for them, followed by
cause and fix after `` | ``. Nothing here formats a traceback, and nothing else in the engine prints to stderr
by itself.
"""

#: What a control character in hostile input is turned into before it reaches a log (one visible character each).
from __future__ import annotations

_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160))}

#: A line on stderr is bounded: runc keeps a hook's output in memory as a whole.
LINE_LIMIT = 4096


def printable(text: str) -> str:
    """Return ``text`` with control characters and undecodable bytes escaped, so that input cannot forge log lines."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


class Refusal(Exception):
    """The container is not configured; exit code 1.

    :param stage: the reference CLI's stage (``mount``, ``device``, ...) or ``""`` for errors of the reference hook,
        which carry no prefix.
    :param text: the reference's words, paths included.
    :param hint: cause and fix in our words, appended after `` | ``.
    :param first_line: what the reference prints on a line, or several, of its own before ``text``; mostly nothing.
    """

    exit_code = 1

    def __init__(self, stage: str, text: str, hint: str = "", *, first_line: str = "") -> None:
        super().__init__(text)
        self.stage = stage
        self.text = text
        self.hint = hint
        self.first_line = first_line

    def reference_line(self, program: str = "nvgraft") -> str:
        """The line that the reference prints for this failure, under the name of ``program``."""
        if not self.stage:
            return self.text
        # "error parsing IMEX info" is the one phrase of the reference that does not follow "STAGE error".
        phrase = self.stage if self.stage.startswith("error ") else f"{self.stage} error"
        return f"{program}: {phrase}: {self.text}"

    def line(self, program: str = "nvgraft") -> str:
        """The whole message for stderr, hint included, control characters escaped, without the final newline."""
        text = printable(self.reference_line(program))
        if self.first_line:
            text = "\n".join((*map(printable, self.first_line.split("\n")), text))
        if self.hint:
            text += " | " + printable(self.hint)
        return text[:LINE_LIMIT]


class UsageError(Refusal):
    """The command line makes no sense; exit code 2. ``usage`` is printed below the message."""

    exit_code = 2

    def __init__(self, text: str, usage: str) -> None:
        super().__init__("", text)
        self.usage = usage

    def line(self, program: str = "nvgraft") -> str:
        return "\n".join(part for part in (printable(self.text), self.usage) if part)


class UndoFailed(Refusal):
    """A failure whose undo failed too: something of ours is left behind and is named; exit code 3."""

    exit_code = 3
