"""A finding: something a person should know of a decision, with an id that documents and tests name."""

from __future__ import annotations

from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Finding(Value):
    """Something that a person should know: a stable id, ``level`` info or warning, a message and what to do."""

    __slots__ = ("hint", "id", "level", "message")

    def __init__(self, id: str, level: str, message: str, hint: str = "") -> None:
        self.id = id
        self.level = level
        self.message = message
        self.hint = hint

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "level": self.level, "message": self.message, "hint": self.hint}
