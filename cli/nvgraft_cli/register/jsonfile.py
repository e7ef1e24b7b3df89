"""Edit JSON files of people: changes keep order and layout, and can be undone to the byte.

A path is a tuple of member names from the top of the document. Names match in any case, as in Go,
whose programs read these files. :mod:`nvgraft.base.jsonedit` finds the values in the text.
"""

import json
from collections.abc import Sequence, Set

from nvgraft.base import jsontext
from nvgraft.base.jsonedit import Document, Place
from nvgraft_cli.register import change
from nvgraft_cli.register.change import CannotRegister

Path = tuple[str, ...]


class Json:
    """A JSON object in a file. Changes return a new object."""

    def __init__(self, text: str, path: str) -> None:
        """Parse ``text``, the content of the file ``path``.

        :raises CannotRegister: the text is not a JSON object, or is nested too deeply.
        """
        data = text.encode()
        try:
            value = jsontext.loads(data, change.LIMIT)
        except jsontext.JsonError as error:
            raise CannotRegister(f"{path}: {error.text} | {error.hint}") from error
        if not isinstance(value, dict):
            raise CannotRegister(f"{path}: not a JSON object | name a JSON configuration file")
        self.text = text
        self._path = path
        self._document = Document(data)
        self._root = self._document.root()

    def get(self, path: Path) -> object:
        """Return the value at ``path``, or None.

        :raises CannotRegister: a name on the way occurs twice.
        """
        place = self._find(path)
        return None if place is None else place.value

    def has(self, path: Path) -> bool:
        """Return whether there is a value at ``path``; null is one."""
        return self._find(path) is not None

    def is_empty(self) -> bool:
        """Return whether the object has no member."""
        return not self._root.value

    def put(self, path: Path, value: object) -> "Json":
        """Return the document with ``value`` at ``path``, making objects that are missing or null.

        :raises CannotRegister: a value on the way is not an object.
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
        """Return the document with ``value`` appended to the array at ``path``, made if missing or
        null.

        :raises CannotRegister: the value at ``path`` is not an array.
        """
        place = self._find(path)
        if place is None or place.value is None:
            return self.put(path, [value])
        if not isinstance(place.value, list):
            raise CannotRegister(f"{self._path}: {'.'.join(path)} is not an array")
        return self._insert(place, None, value)

    def without(self, path: Path, backup: "Json | None") -> "Json":
        """Return the document without the member at ``path``, and without objects that :meth:`put`
        made.

        :param backup: the former document, in which such objects may have been empty or null; None
            if there was none.
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
        """Return the document with the text of the value at ``path`` from ``backup``; both have
        it.
        """
        place, before = self._there(path), backup._there(path)
        return self._with(place.start, place.end, backup.text[before.start : before.end])

    def without_items(self, path: Path, numbers: Sequence[int], backup: "Json | None") -> "Json":
        """Return the document without items of the array at ``path``, and without what
        :meth:`append` made.
        """
        return self._cut(self._there(path), set(numbers))._tidied(path, backup)

    def _tidied(self, path: Path, backup: "Json | None") -> "Json":
        """Return the document with an empty object or array at ``path`` as it was in ``backup``."""
        place = self._there(path)
        if place.value:
            return self
        before = None if backup is None else backup._find(path)
        if backup is None or before is None:
            return self.without(path, backup) if path else self
        # It was not empty before, so somebody else has emptied it: leave it.
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
        """Return the document without these children, and with the space around the others."""
        children = self._children(parent)
        kept = [number for number in range(len(children)) if number not in numbers]
        if not kept:
            return self._with(parent.start + 1, parent.end - 1, "")
        # The first children are cut with the space behind them, others with the comma and space
        # before.
        pieces, at = [self.text[: children[0].name_start]], children[kept[0]].name_start
        for number in range(kept[0] + 1, len(children)):
            if number in numbers:
                pieces.append(self.text[at : children[number - 1].end])
                at = children[number].end
        return Json("".join([*pieces, self.text[at:]]), self._path)

    def _with(self, start: int, end: int, text: str) -> "Json":
        return Json(self.text[:start] + text + self.text[end:], self._path)

    def _is_loose(self, parent: Place) -> bool:
        """Return whether new members of ``parent`` get lines of their own, like its other members,
        or else those of the whole document.
        """
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


def parsed_backup(file: change.ConfigFile) -> Json | None:
    """Return the backup of a file; None if there is none, or if it is blank."""
    return Json(file.backup, file.place) if file.backup and not file.backup.isspace() else None
