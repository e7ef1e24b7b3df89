"""What find, sort, head and tail write: lists of files, and lines of a text."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.files import ShellFiles
from nvgraft_cli.prove.script.patterns import matches
from nvgraft_cli.prove.script.state import ShellState

#: The most files at which one find looks.
_LOOKED_AT = 2000
_TYPES = {"f": "file", "d": "dir", "l": "symlink"}
_DIGITS = re.compile(r"(\d+)")


@dataclass(slots=True)
class _FileSearch:
    """A command of find."""

    places: list[str]
    names: list[str]
    types: list[str]
    most: int = 64
    least: int = 0
    follows: bool = False


def found(
    arguments: list[str], state: ShellState, files: ShellFiles, *, ordered: bool
) -> str | None:
    """Return the lines that find writes, None where that is not known, or where there are none:
    other commands may bring such files.

    :param ordered: whether the lines are sorted afterwards: a directory has its files in an order
        that is not known.
    """
    search = _search(arguments)
    if search is None or any(UNKNOWN in word for word in arguments):
        return None
    lines: list[str] = []
    looked_at = 0
    try:
        for place in search.places:
            for path, kind, depth in _walk(place, 0, search, state, files):
                looked_at += 1
                if looked_at > _LOOKED_AT:
                    return None
                name = posixpath.basename(path.rstrip("/")) or "/"
                if (
                    depth >= search.least
                    and all(matches(name, pattern) for pattern in search.names)
                    and all(kind == wanted for wanted in search.types)
                ):
                    lines.append(f"{path}\n")
    except (OSError, PathError):
        return None
    return "".join(lines) if len(lines) == 1 or (lines and ordered) else None


def _search(arguments: list[str]) -> _FileSearch | None:
    """Return what find searches, None for tests that are not followed."""
    search, words = _FileSearch([], [], []), list(arguments)
    while words:
        word = words.pop(0)
        if word in {"-L", "-follow"}:
            search.follows = True
        elif word in {"-name", "-type", "-maxdepth", "-mindepth"} and words:
            value = words.pop(0)
            if word == "-name":
                search.names.append(value)
            elif word == "-type" and value in _TYPES:
                search.types.append(_TYPES[value])
            elif word == "-maxdepth" and value.isdecimal():
                search.most = min(int(value), search.most)
            elif word == "-mindepth" and value.isdecimal():
                search.least = int(value)
            else:
                return None
        elif word[:1] in {"-", "(", "!"}:
            if word not in {"-print", "-H", "-P", "-xdev", "-mount"}:
                return None
        else:
            search.places.append(word)
    search.places = search.places or ["."]
    return search


def _walk(
    path: str, depth: int, search: _FileSearch, state: ShellState, files: ShellFiles
) -> Iterator[tuple[str, str, int]]:
    """Yield a path and those below it, each with the type of its file and its depth.

    :raises OSError, PathError: they are not known.
    """
    kind = files.kind(path, state, follow=search.follows or path.endswith("/"))
    if kind is None:
        return
    yield path, kind, depth
    if kind == "dir" and depth < search.most:
        for name in files.names(path, state):
            yield from _walk(posixpath.join(path, name), depth + 1, search, state, files)


def sorted_lines(arguments: list[str], text: str) -> str | None:
    """Return what sort writes, None for options that are not followed."""
    options = {letter for word in arguments for letter in word[1:]}
    if not options <= set("Vur") or any(word[:1] != "-" for word in arguments):
        return None
    lines = text.splitlines()
    lines = sorted(set(lines) if "u" in options else lines, reverse="r" in options)
    if "V" in options:
        lines.sort(key=_by_version, reverse="r" in options)
    return "".join(f"{line}\n" for line in lines)


def _by_version(line: str) -> list[tuple[str, int]]:
    """Return a key by which numbers in lines are compared as numbers."""
    pieces = _DIGITS.split(line)
    numbers = [int(piece[:18]) for piece in pieces[1::2]]
    return list(zip(pieces[::2], [*numbers, -1], strict=True))


def selected(name: str, arguments: list[str], text: str) -> str | None:
    """Return the lines of head or tail, None for options that are not followed."""
    match = re.fullmatch(r"(?:-n ?|--lines=|-)(\d{1,4})", " ".join(arguments))
    if match is None and arguments:
        return None
    count = 10 if match is None else int(match[1])
    lines = text.splitlines(keepends=True)
    return "".join(
        lines[:count]
        if name == "head"
        else lines[len(lines) - count if count < len(lines) else 0 :]
    )
