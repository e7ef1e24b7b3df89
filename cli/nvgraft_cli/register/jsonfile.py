"""A JSON file that people read and edit: changes keep its order and its layout, and can be taken back to the byte.

A path is a tuple of member names from the document's top. Names are matched as Go does, whose programs read these
files: without regard to case. Finding values in the text is :mod:`nvgraft.base.jsonedit`; what a file means to an engine does
not belong here.
"""

import json
from collections.abc import Sequence, Set

from nvgraft.base import jsontext
from nvgraft.base.jsonedit import Document, Place

from . import change
from .change import CannotRegister

Path = tuple[str, ...]


class Json:
    """A JSON object as it stands in a file; changes give new ones."""

    def __init__(self, text: str, path: str) -> None:
        """Parse ``text``, the content of the file ``path``.

        :raises CannotRegister: when it is no JSON object, or nested too deeply.
        """
        data = text.encode()
        try:
            value = jsontext.loads(data, change.LIMIT)
        except jsontext.JsonError as error:
            raise CannotRegister(f"{path}: {error.text} | {error.hint}") from error
        if not isinstance(value, dict):
            raise CannotRegister(
                f"{path}: not a JSON object | name the configuration file that is meant"
            )
        self.text = text
        self._path = path
        self._document = Document(data)
        self._root = self._document.root()

    def get(self, path: Path) -> object:
        """Return the value at ``path``; None where there is none.

        :raises CannotRegister: when a name on the way occurs twice.
        """
        place = self._find(path)
        return None if place is None else place.value

    def has(self, path: Path) -> bool:
        """Return whether there is a value at ``path``, null included."""
        return self._find(path) is not None

    def is_empty(self) -> bool:
        """Return whether the object has no member."""
        return not self._root.value

    def put(self, path: Path, value: object) -> "Json":
        """Return the document with ``value`` at ``path``; objects that are missing on the way, or null, are made.

        :raises CannotRegister: when something that is no object is in the way.
        """
        parent, depth = self._root, 1
        while (
            (place := self._find(path[:depth])) is not None
            and place.value is not None
            and depth < len(path)
        ):
            parent, depth = place, depth + 1
        if not isinstance(parent.value, dict):
            raise CannotRegister(f"{self._path}: {'.'.join(path[: depth - 1])} is not an object")
        for name in reversed(path[depth:]):
            value = {name: value}
        if place is None:
            return self._insert(parent, path[depth - 1], value)
        return self._with(
            place.start,
            place.end,
            self._render(value, self._indent(place.name_start), self._is_loose(parent)),
        )

    def append(self, path: Path, value: object) -> "Json":
        """Return the document with ``value`` at the end of the array at ``path``, which is made where it is missing or null.

        :raises CannotRegister: when something else is in the way.
        """
        place = self._find(path)
        if place is None or place.value is None:
            return self.put(path, [value])
        if not isinstance(place.value, list):
            raise CannotRegister(f"{self._path}: {'.'.join(path)} is not an array")
        return self._insert(place, None, value)

    def without(self, path: Path, backup: "Json | None") -> "Json":
        """Return the document without the member at ``path``, and without what :meth:`put` made for it.

        :param backup: the document from before: what was empty there, or null, is so again; None where there was none.
        """
        name = path[-1].casefold()
        parent = self._there(path[:-1])
        places = [
            number
            for number, (key, _) in enumerate(self._document.members(parent))
            if key.casefold() == name
        ]
        return self._cut(parent, {places[0]})._tidied(path[:-1], backup)

    def restored(self, path: Path, backup: "Json") -> "Json":
        """Return the document with the value at ``path`` as it is written in ``backup``; it is there in both."""
        place, before = self._there(path), backup._there(path)
        return self._with(place.start, place.end, backup.text[before.start : before.end])

    def without_items(self, path: Path, numbers: Sequence[int], backup: "Json | None") -> "Json":
        """Return the document without these items of the array at ``path``, and without what :meth:`append` made for them."""
        return self._cut(self._there(path), set(numbers))._tidied(path, backup)

    def _tidied(self, path: Path, backup: "Json | None") -> "Json":
        """Return the document in which the object or array at ``path``, if it is empty now, is what it was before."""
        place = self._there(path)
        if place.value:
            return self
        before = None if backup is None else backup._find(path)
        if backup is None or before is None:
            return self.without(path, backup) if path else self
        # Not empty before: somebody else has emptied it since, which is none of our business.
        return self if before.value else self.restored(path, backup)

    def _find(self, path: Path) -> Place | None:
        place: Place | None = self._root
        for name in path:
            if place is None or not isinstance(place.value, dict):
                return None
            try:
                place = self._document.member(place, name)
            except jsontext.JsonError as error:
                raise CannotRegister(f"{self._path}: {error.text} | {error.hint}") from error
        return place

    def _there(self, path: Path) -> Place:
        place = self._find(path)
        assert place is not None, path
        return place

    def _children(self, parent: Place) -> list[Place]:
        if isinstance(parent.value, dict):
            return [place for _, place in self._document.members(parent)]
        return self._document.items(parent)

    def _insert(self, parent: Place, name: str | None, value: object) -> "Json":
        loose = self._is_loose(parent)
        label = "" if name is None else json.dumps(name) + (": " if loose else ":")
        children = self._children(parent)
        if children:
            space = self.text[parent.start + 1 : children[0].name_start]
            return self._with(
                children[-1].end,
                children[-1].end,
                f",{space}{label}{self._render(value, space.rpartition(chr(10))[2], loose)}",
            )
        if not loose:
            return self._with(
                parent.start + 1, parent.end - 1, label + self._render(value, "", False)
            )
        outer = self._indent(parent.name_start)
        indent = outer + self._unit()
        return self._with(
            parent.start + 1,
            parent.end - 1,
            f"\n{indent}{label}{self._render(value, indent, True)}\n{outer}",
        )

    def _cut(self, parent: Place, numbers: Set[int]) -> "Json":
        """Return the document without these children; the space around the others stays as it is."""
        children = self._children(parent)
        kept = [number for number in range(len(children)) if number not in numbers]
        if not kept:
            return self._with(parent.start + 1, parent.end - 1, "")
        # What stands in front goes with the space behind it, anything else with the comma and the space before it.
        pieces, at = [self.text[: children[0].name_start]], children[kept[0]].name_start
        for number in range(kept[0] + 1, len(children)):
            if number in numbers:
                pieces.append(self.text[at : children[number - 1].end])
                at = children[number].end
        return Json("".join([*pieces, self.text[at:]]), self._path)

    def _with(self, start: int, end: int, text: str) -> "Json":
        return Json(self.text[:start] + text + self.text[end:], self._path)

    def _is_loose(self, parent: Place) -> bool:
        """Return whether new text in ``parent`` gets lines of its own: as its other members, else as the whole document."""
        for place in (parent, self._root):
            if children := self._children(place):
                return "\n" in self.text[place.start : children[0].name_start]
        return True

    def _indent(self, at: int) -> str:
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _unit(self) -> str:
        return (
            self._indent(self._children(self._root)[0].name_start) if self._root.value else ""
        ) or "    "

    def _render(self, value: object, indent: str, loose: bool) -> str:
        if not loose:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return json.dumps(value, ensure_ascii=False, indent=self._unit()).replace(
            "\n", "\n" + indent
        )


def parsed_backup(document: change.Document) -> Json | None:
    """Return the file as it was before it was registered; None where there was none, or nothing in it."""
    return (
        Json(document.backup, document.place)
        if document.backup and not document.backup.isspace()
        else None
    )
