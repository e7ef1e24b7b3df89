"""Editing a JSON document as text: what is not edited keeps its bytes, its order and its layout.

A path is a tuple of member names from the document's top. Names are matched as Go does, whose programs read these
files: without regard to case. What a document means to an engine does not belong here.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvgraft import jsontext

from .change import CannotRegister, Document

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 8 << 20
_SPACE = " \t\r\n"
_decoder = json.JSONDecoder()

Path = tuple[str, ...]


@dataclass(frozen=True)
class _Node:
    """A value and where it stands; a member's span begins with its name."""

    start: int
    end: int
    value_start: int
    name: str | None
    children: tuple["_Node", ...]


class Json:
    """A parsed JSON document together with its text; edits give new documents."""

    def __init__(self, text: str, path: str) -> None:
        """Parse ``text``, the content of the file ``path``.

        :raises CannotRegister: when it is no JSON, or nested too deeply.
        """
        try:
            jsontext.loads(text.encode(), _LIMIT)
        except jsontext.JsonError as error:
            raise CannotRegister(f"{path}: {error.text} | {error.hint}") from error
        self.text = text
        self._path = path
        self._root = _node(text, _skip(text, 0), None)
        if not text.startswith("{", self._root.start):
            raise CannotRegister(f"{path}: not a JSON object")

    def get(self, path: Path) -> object:
        """Return the value at ``path``; None where there is none.

        :raises CannotRegister: when a name on the way occurs twice.
        """
        node = self._find(path)
        return None if node is None else _decoder.raw_decode(self.text, node.value_start)[0]

    def put(self, path: Path, value: object) -> "Json":
        """Return the document with ``value`` at ``path``; objects that are missing on the way, or null, are made.

        :raises CannotRegister: when something that is no object is in the way.
        """
        for depth in range(len(path)):
            parent = self._object(path[:depth])
            node = self._find(path[: depth + 1])
            if node is not None and (depth + 1 < len(path)) and self.get(path[: depth + 1]) is not None:
                continue
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            if node is None:
                return self._insert(parent, path[depth], value)
            indent = self._indent(node.start)
            return self._with(node.value_start, node.end, self._render(value, indent, self._is_loose(parent)))
        raise ValueError("an empty path")

    def append(self, path: Path, value: object) -> "Json":
        """Return the document with ``value`` at the end of the array at ``path``, which is made where it is missing or null.

        :raises CannotRegister: when something else is in the way.
        """
        if self.get(path) is None:
            return self.put(path, [value])
        node = self._find(path)
        if node is None or not self.text.startswith("[", node.value_start):
            raise CannotRegister(f"{self._path}: {'.'.join(path)} is not an array")
        return self._insert(node, None, value)

    def without_items(self, path: Path, places: "Sequence[int]", backup: "Json | None") -> "Json":
        """Return the document without these items of the array at ``path``, and without what :meth:`append` made for them."""
        document = self
        for place in sorted(places, reverse=True):
            parent = document._find(path)
            assert parent is not None
            document = document._cut(parent, place)
        return document._tidied(path, backup)

    def without(self, path: Path, backup: "Json | None") -> "Json":
        """Return the document without the member at ``path``, and without what :meth:`put` made for it.

        :param backup: the document from before: what was empty there, or null, is so again; None where there was none.
        """
        parent, node = self._find(path[:-1]), self._find(path)
        assert parent is not None
        assert node is not None
        return self._cut(parent, parent.children.index(node))._tidied(path[:-1], backup)

    def is_empty(self) -> bool:
        """Return whether the document has no member."""
        return not self._root.children

    def _tidied(self, path: Path, backup: "Json | None") -> "Json":
        node = self._find(path)
        if node is None or node.children:
            return self
        before = None if backup is None else backup._find(path)
        if backup is not None and before is not None:
            # Not empty before: somebody else has emptied it since, which is none of our business.
            text = "" if before.children else backup.text[before.value_start : before.end]
            return self._with(node.value_start, node.end, text) if text else self
        return self.without(path, backup) if path else self

    def _find(self, path: Path) -> _Node | None:
        node = self._root
        for depth, name in enumerate(path):
            found = [child for child in node.children if child.name is not None and child.name.casefold() == name.casefold()]
            if len(found) > 1:
                shown = ".".join(path[: depth + 1])
                raise CannotRegister(f"{self._path}: {shown} occurs twice | two readers may take different ones; leave one of them")
            if not found:
                return None
            node = found[0]
        return node

    def _object(self, path: Path) -> _Node:
        node = self._find(path)
        assert node is not None
        if not self.text.startswith("{", node.value_start):
            raise CannotRegister(f"{self._path}: {'.'.join(path)} is not an object")
        return node

    def _insert(self, parent: _Node, name: str | None, value: object) -> "Json":
        loose = self._is_loose(parent)
        label = "" if name is None else json.dumps(name) + (": " if loose else ":")
        if parent.children:
            first, last = parent.children[0], parent.children[-1]
            space = self.text[parent.value_start + 1 : first.start]
            indent = space.rpartition("\n")[2] if "\n" in space else self._indent(parent.start)
            return self._with(last.end, last.end, f",{space}{label}{self._render(value, indent, loose)}")
        inside = self.text[parent.value_start + 1 : parent.end - 1]
        if not loose:
            return self._with(parent.value_start + 1, parent.end - 1, label + self._render(value, "", False))
        outer = self._indent(parent.start)
        indent = outer + self._unit()
        end = inside if "\n" in inside else f"\n{outer}"
        return self._with(parent.value_start + 1, parent.end - 1, f"\n{indent}{label}{self._render(value, indent, True)}{end}")

    def _cut(self, parent: _Node, place: int) -> "Json":
        children = parent.children
        if len(children) == 1:
            return self._with(parent.value_start + 1, parent.end - 1, "")
        if place:
            return self._with(children[place - 1].end, children[place].end, "")
        return self._with(children[0].start, children[1].start, "")

    def _with(self, start: int, end: int, text: str) -> "Json":
        return Json(self.text[:start] + text + self.text[end:], self._path)

    def _is_loose(self, parent: _Node) -> bool:
        """Return whether new text in ``parent`` gets lines of its own: as its other members, else as the whole document."""
        for node in (parent, self._root):
            if node.children:
                return "\n" in self.text[node.value_start : node.children[0].start]
        return True

    def _indent(self, at: int) -> str:
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _unit(self) -> str:
        first = self._root.children[:1]
        return (self._indent(first[0].start) if first else "") or "    "

    def _render(self, value: object, indent: str, loose: bool) -> str:
        if not loose:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return json.dumps(value, ensure_ascii=False, indent=self._unit()).replace("\n", "\n" + indent)


def parsed_backup(document: Document) -> Json | None:
    """Return the file as it was before it was registered; None where there was none, or nothing in it."""
    return Json(document.backup, document.place) if document.backup and not document.backup.isspace() else None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _node(text: str, at: int, start: int | None, name: str | None = None) -> _Node:
    """Return the value at ``at`` of a document that is known to be JSON."""
    start = at if start is None else start
    if text[at] not in "{[":
        return _Node(start, _decoder.raw_decode(text, at)[1], at, name, ())
    children: list[_Node] = []
    cursor = _skip(text, at + 1)
    while text[cursor] not in "}]":
        child_start, child_name = cursor, None
        if text[at] == "{":
            child_name, cursor = _decoder.raw_decode(text, cursor)
            cursor = _skip(text, _skip(text, cursor) + 1)  # over the colon
        children.append(_node(text, cursor, child_start, child_name))
        cursor = _skip(text, children[-1].end)
        if text[cursor] == ",":
            cursor = _skip(text, cursor + 1)
    return _Node(start, cursor + 1, at, name, tuple(children))
