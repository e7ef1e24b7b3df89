"""Find the line of a value in a JSON text. It is loaded only if a document is not accepted."""

from __future__ import annotations

from nvgraft.base.jsontext import string_at, value_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SPACE = " \t\n\r"


def line_of(raw: bytes, members: Sequence[str | int]) -> int:
    """Return the line of a value, or of the last part on the way to it that exists, in a text that
    :func:`nvgraft.base.jsontext.loads` accepts.

    :param members: the names and indices that lead to the value.
    """
    text = raw.decode("utf-8", "surrogateescape")
    start = at = _skip(text, 0)
    for member in members:
        found = _find(text, at, member)
        if found is None:
            break
        start, at = found
    return text.count("\n", 0, start) + 1


def _find(text: str, at: int, member: str | int) -> tuple[int, int] | None:
    """Return where a member of the value at ``at`` begins, with its name, and where its value
    does. The last one of a name counts.
    """
    is_object = text[at] == "{"
    if text[at] not in "{[" or is_object is not isinstance(member, str):
        return None
    found = None
    index = 0
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        start = at
        name: str | int = index
        if is_object:
            name, at = string_at(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if name == member:
            found = start, at
        at = _skip(text, value_at(text, at)[1])
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1
    return found


def _skip(text: str, at: int) -> int:
    """Return the index of the next character that is not white space."""
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at
