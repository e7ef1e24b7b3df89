"""The engine's error types and the text of their messages.

A refusal is one line: the words of the reference stack, which people search for, then `` | `` and
the cause and fix. Only the doors (``nvgraft.hook``, ``nvgraft.runtime``) print these lines.
"""

from __future__ import annotations

#: The message for standard output that cannot be written; {} is the cause.
NO_OUTPUT = "standard output: {} | write to another file, or free space on its file system"

#: Bytes of one line on stderr. runc keeps the whole output of a hook in memory.
LINE_LIMIT = 4096

#: The exit code of a failure whose undo failed too.
UNDO_FAILED = 3

#: Kinds of refusals that are explained by more than their words.
WRONG_MODE, NOT_PRIVILEGED, NO_SUCH_DEVICE = "wrong-mode", "not-privileged", "no-such-device"
#: A file or directory of the host cannot be opened.
HOST_NOT_OPENED = "host-not-opened"


def printable(text: str) -> str:
    """Escape what would change how a terminal, a log or a page shows the text around it.

    These are control, format and bidirectional characters, line separators and undecodable bytes
    (SECURITY R44). ``str.isprintable`` also rejects spaces other than U+0020, private characters
    and those that this Python does not know. Its table is built in: ``unicodedata`` costs an
    import.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def printable_lines(text: str) -> str:
    """Escape each line of ``text`` as :func:`printable` does; newlines are kept."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(code: int) -> str:
    if code < 0x10000:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return f"\\U{code:08x}"


class Refusal(Exception):
    """A container that is not configured.

    :param stage: the stage of the reference CLI (``mount``, ``device``, ...), or ``""`` for errors
        of the reference hook, which have no prefix.
    :param text: the reference's words, paths included.
    :param hint: cause and fix in our words, appended after `` | ``.
    :param first_line: lines that the reference prints before ``text``; usually empty.
    :param exit_code: of the program that reports this.
    :param kind: one of the kinds above, or ``""``.
    """

    def __init__(
        self,
        stage: str,
        text: str,
        hint: str = "",
        *,
        first_line: str = "",
        exit_code: int = 1,
        kind: str = "",
    ) -> None:
        super().__init__(text)
        self.stage = stage
        self.text = text
        self.hint = hint
        self.first_line = first_line
        self.exit_code = exit_code
        self.kind = kind

    def in_words(self, text: str) -> Refusal:
        """Return this refusal without its stage, in other words of the reference."""
        return Refusal("", text, self.hint, kind=self.kind)

    def reference_line(self, program: str = "nvgraft") -> str:
        """Return the line that the reference prints for this failure, with ``program`` as its
        name.
        """
        if not self.stage:
            return self.text
        # All phrases of the reference end in "error", except "error parsing IMEX info".
        phrase = self.stage if self.stage.startswith("error ") else f"{self.stage} error"
        return f"{program}: {phrase}: {self.text}"

    def line(self, program: str = "nvgraft") -> str:
        """Return the whole escaped message for stderr, with the hint, without the final newline."""
        text = printable(self.reference_line(program))
        if self.first_line:
            text = f"{printable_lines(self.first_line)}\n{text}"
        if self.hint:
            text += " | " + printable(self.hint)
        return text[:LINE_LIMIT]
