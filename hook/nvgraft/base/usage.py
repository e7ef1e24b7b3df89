"""The refusal of a command line. It is loaded for one that cannot be understood."""

from __future__ import annotations

from nvgraft.base.errors import Refusal, printable


class UsageError(Refusal):
    """A command line that cannot be understood; exit code 2. ``usage`` is printed below the
    text.
    """

    def __init__(self, text: str, usage: str) -> None:
        super().__init__("", text, exit_code=2)
        self.usage = usage

    def line(self, program: str = "nvgraft") -> str:
        return "\n".join(part for part in (printable(self.text), self.usage) if part)
