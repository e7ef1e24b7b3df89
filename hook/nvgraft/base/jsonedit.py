"""Changes to a JSON document that leave every other byte of it as it was.

A document that is parsed and written again loses what the reader does not know: digits of large numbers, unknown or
repeated members, escapes, bytes that are no UTF-8. Here only the places of values are looked up, in a document that
``jsontext.loads`` has accepted, and text is put there. What is changed, and why, is the caller's business.
"""

from __future__ import annotations

from _json import scanstring

from nvgraft.base.jsontext import JsonError, value_at
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    #: What :meth:`Document.merge` adds: the text of a value, texts of an array's items, or members of an object.
    Addition = str | list[str] | Mapping[str, "Addition"]

_SPACE = " \t\n\r"


class Place(Value):
    """Where a value stands: ``text[start:end]``; for a member of an object its name begins at ``name_start``."""

    __slots__ = ("end", "name_start", "start", "value")

    def __init__(self, start: int, end: int, value: object, name_start: int) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.name_start = name_start


class Document:
    """A JSON document and the changes that are to be made to it, each in a place of its own: one append to one parent."""

    __slots__ = ("_changes", "text")

    def __init__(self, data: bytes) -> None:
        self.text = data.decode("utf-8", "surrogateescape")
        self._changes: list[tuple[int, int, str]] = []

    def root(self) -> Place:
        """Return the place of the document's value."""
        start = self._skip(0)
        value, end = value_at(self.text, start)
        return Place(start, end, value, start)

    def members(self, parent: Place) -> list[tuple[str, Place]]:
        """Return each member of an object with its name, repeated ones included; null has none."""
        found: list[tuple[str, Place]] = []
        if parent.value is None:
            return found
        at = self._skip(parent.start + 1)
        while self.text[at] != "}":
            name_start = at
            name, at = scanstring(self.text, at + 1, True)
            start = self._skip(self._skip(at) + 1)
            value, end = value_at(self.text, start)
            found.append((name, Place(start, end, value, name_start)))
            at = self._next(end)
        return found

    def items(self, parent: Place) -> list[Place]:
        """Return the items of an array; null has none."""
        found: list[Place] = []
        if parent.value is None:
            return found
        at = self._skip(parent.start + 1)
        while self.text[at] != "]":
            value, end = value_at(self.text, at)
            found.append(Place(at, end, value, at))
            at = self._next(end)
        return found

    def member(self, parent: Place, name: str) -> Place | None:
        """Return the member ``name`` of an object, whose case does not matter, or None.

        :raises JsonError: there are two.
        """
        found = [place for key, place in self.members(parent) if key.casefold() == name.casefold()]
        if len(found) > 1:
            raise JsonError(
                f'duplicate member "{name}"',
                "two readers of this document may take different ones; leave one of them",
            )
        return found[0] if found else None

    def append(self, parent: Place, text: str) -> None:
        """Put a member (``"name":value``) or an item, or several with commas between them, behind the last one."""
        comma = "," if parent.value else ""
        self._changes.append((parent.end - 1, parent.end - 1, comma + text))

    def merge(self, parent: Place, additions: Mapping[str, Addition]) -> None:
        """Add to the members of an object, making what is missing: an array's items and an object's members go behind the last one,
        a text becomes the value of a member that is not there yet. What is added to has the right type, or is null.

        :raises JsonError: a member occurs twice.
        """
        missing = []
        for name, added in additions.items():
            if not _holds(added):
                continue
            place = self.member(parent, name)
            if place is None:
                missing.append(f'"{name}":{_text(added)}')
            elif isinstance(added, str):
                continue
            elif place.value is None:
                self.replace(place, _text(added))
            elif isinstance(added, list):
                self.append(place, ",".join(added))
            else:
                self.merge(place, added)
        if missing:
            self.append(parent, ",".join(missing))

    def replace(self, place: Place, text: str) -> None:
        """Put another value in the place of one."""
        self._changes.append((place.start, place.end, text))

    def keep(self, parent: Place, children: Iterable[Place]) -> str:
        """Return the text of an object or array that has only these of its members or items."""
        kept = ",".join(self.text[child.name_start : child.end] for child in children)
        return self.text[parent.start] + kept + self.text[parent.end - 1]

    def changed(self) -> bytes:
        """Return the document with all changes."""
        text = self.text
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text.encode("utf-8", "surrogateescape")

    def _skip(self, at: int) -> int:
        while self.text[at] in _SPACE:
            at += 1
        return at

    def _next(self, end: int) -> int:
        """Return where the next member or item begins, or the closing bracket stands."""
        at = self._skip(end)
        return self._skip(at + 1) if self.text[at] == "," else at


def _text(added: Addition) -> str:
    """Return the JSON text of what is added where nothing is."""
    if isinstance(added, str):
        return added
    if isinstance(added, list):
        return f"[{','.join(added)}]"
    return (
        "{"
        + ",".join(f'"{name}":{_text(value)}' for name, value in added.items() if _holds(value))
        + "}"
    )


def _holds(added: Addition) -> bool:
    """Tell whether there is anything to add."""
    return bool(added) if isinstance(added, (str, list)) else any(map(_holds, added.values()))
