"""Edit a JSON document without touching any other byte of it.

Parsing and writing a document again would lose digits of large numbers, repeated members, escapes
and bytes that are not UTF-8. A :class:`Document` finds the positions of values in a text that
``jsontext.loads`` has accepted, and inserts or replaces text there.
"""

from __future__ import annotations

from nvgraft.base.jsontext import JsonError, string_at, value_at
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    #: For :meth:`Document.merge`: the text of a value, texts of an array's items, or members of an
    #: object.
    Addition = str | list[str] | Mapping[str, "Addition"]

_SPACE = " \t\n\r"


class Place(Value):
    """The position of a value: ``text[start:end]``. The name of an object's member begins at
    ``name_start``.
    """

    def __init__(self, start: int, end: int, value: object, name_start: int) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.name_start = name_start


class Document:
    """A JSON document and changes to it. No two changes may overlap: append once to each parent,
    and do not change what is removed.
    """

    def __init__(self, data: bytes) -> None:
        self.text = data.decode("utf-8", "surrogateescape")
        self._changes: list[tuple[int, int, str]] = []
        #: Positions at which objects and arrays begin -> the text to append.
        self._appended: dict[int, str] = {}
        #: Positions at which objects and arrays begin -> those at which removed children begin.
        self._removed: dict[int, set[int]] = {}
        self._parents: dict[int, Place] = {}

    def root(self) -> Place:
        """Return the position of the whole value."""
        start = self._skip(0)
        value, end = value_at(self.text, start)
        return Place(start, end, value, start)

    def members(self, parent: Place) -> list[tuple[str, Place]]:
        """Return name and position of each member of an object, repeated ones included; null has
        none.
        """
        members: list[tuple[str, Place]] = []
        if parent.value is None:
            return members
        at = self._skip(parent.start + 1)
        while self.text[at] != "}":
            name_start = at
            name, at = string_at(self.text, at)
            start = self._skip(self._skip(at) + 1)
            value, end = value_at(self.text, start)
            members.append((name, Place(start, end, value, name_start)))
            at = self._next(end)
        return members

    def items(self, parent: Place) -> list[Place]:
        """Return the positions of an array's items; null has none."""
        places: list[Place] = []
        if parent.value is None:
            return places
        at = self._skip(parent.start + 1)
        while self.text[at] != "]":
            value, end = value_at(self.text, at)
            places.append(Place(at, end, value, at))
            at = self._next(end)
        return places

    def member(self, parent: Place, name: str) -> Place | None:
        """Return the position of the member ``name`` (in any case) of an object, or None.

        :raises JsonError: the object has two such members.
        """
        matches = [
            place for key, place in self.members(parent) if key.casefold() == name.casefold()
        ]
        if len(matches) > 1:
            raise JsonError(
                f'duplicate member "{name}"',
                "two readers of this document may take different ones: remove one of them",
            )
        return matches[0] if matches else None

    def append(self, parent: Place, text: str) -> None:
        """Append text to an object or array: a member (``"name":value``), an item, or several with
        commas.
        """
        self._parents[parent.start] = parent
        self._appended[parent.start] = text

    def is_appended(self, parent: Place) -> bool:
        """Tell whether something is appended to an object or array."""
        return parent.start in self._appended

    def remove(self, parent: Place, child: Place) -> None:
        """Remove a member of an object, or an item of an array."""
        self._parents[parent.start] = parent
        self._removed.setdefault(parent.start, set()).add(child.name_start)

    def merge(self, parent: Place, additions: Mapping[str, Addition]) -> None:
        """Add members to an object, and items to its arrays, making those that are missing.

        An addition that is a text becomes the value of a missing member; an existing value stays.
        An existing member has the type of its addition, or is null.

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
        """Replace a value."""
        self._changes.append((place.start, place.end, text))

    def changed(self) -> bytes:
        """Return the document with all changes made."""
        text = self.text
        changes = self._changes + [
            change for parent in self._parents.values() for change in self._in_parent(parent)
        ]
        for start, end, new in sorted(changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text.encode("utf-8", "surrogateescape")

    def _in_parent(self, parent: Place) -> list[tuple[int, int, str]]:
        """Return the changes that remove children of an object or array, and append others."""
        removed = self._removed.get(parent.start, set())
        added = self._appended.get(parent.start, "")
        children = self._children(parent) if removed else []
        kept = [child for child in children if child.name_start not in removed]
        changes = [
            (child.name_start, behind.name_start if behind else child.end, "")
            for child, behind in zip(children, [*children[1:], None], strict=False)
            if child not in kept
        ]
        if kept and children[-1] not in kept:  # the comma behind the last one that is kept
            following = children[children.index(kept[-1]) + 1]
            changes.append((kept[-1].end, following.name_start, ""))
        if added:
            comma = "," if (kept if removed else parent.value) else ""
            changes.append((parent.end - 1, parent.end - 1, comma + added))
        return changes

    def _children(self, parent: Place) -> list[Place]:
        if self.text[parent.start] == "[":
            return self.items(parent)
        return [place for _, place in self.members(parent)]

    def _skip(self, at: int) -> int:
        while self.text[at] in _SPACE:
            at += 1
        return at

    def _next(self, end: int) -> int:
        """Return the position of the next member or item, or of the closing bracket."""
        at = self._skip(end)
        return self._skip(at + 1) if self.text[at] == "," else at


def _text(added: Addition) -> str:
    """Return an addition as the JSON text of a new value."""
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
    """Tell whether an addition adds anything."""
    return bool(added) if isinstance(added, (str, list)) else any(map(_holds, added.values()))
