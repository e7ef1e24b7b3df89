"""Findings: what a person should know about a decision."""

from __future__ import annotations

from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Finding(Value):
    """A remark about a plan: a stable ``id``, a ``level`` (info or warning), a message and a
    ``hint`` what to do.
    """

    def __init__(self, id: str, level: str, message: str, hint: str = "") -> None:
        self.id = id
        self.level = level
        self.message = message
        self.hint = hint

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "level": self.level, "message": self.message, "hint": self.hint}
