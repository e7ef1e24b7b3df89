"""Reading /etc/ld.so.conf: the directories that it names, with the files that it includes.

The text is an image's. What is read, and how deep and how much, is bounded; whatever lies beyond is left out and said so.
Files and directories are looked at through the functions that a caller gives: this module knows no file system.
"""

from __future__ import annotations

import errno

from nvgraft.base import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/etc/ld.so.conf"

#: Bytes of one file, and how much is read in all; a distribution has a handful of files of some lines.
FILE_LIMIT = 64 << 10
_DEPTH = 5
_FILES = 256
_PATTERNS = 256
#: Names that are compared with patterns, and characters of one component of a pattern.
_NAMES = 4096
_COMPONENT = 255
#: Different characters that are looked up in the brackets of a component.
_CHARACTERS = 4096
_LINES = 1024

_BLANKS = " \t\n\v\f\r"
_WILD = frozenset("*?[")


class Configuration:
    """``directories`` in their order, as they are written; ``complete`` is false when a bound left something out.

    :param read: returns a file's text; raises FileNotFoundError where there is none, and OSError with EFBIG for more than
        FILE_LIMIT bytes.
    :param names: returns the names in a directory, none where there is no directory.
    """

    def __init__(self, read: Callable[[str], bytes], names: Callable[[str], list[str]]) -> None:
        self.directories: list[str] = []
        self.files: list[str] = []
        self.complete = True
        self._read = read
        self._names = names
        self._patterns = 0
        self._compared = 0

    def load(self, path: str = PATH, depth: int = 0) -> None:
        """Take what the file ``path`` says, and what it includes; a file counts once."""
        if path in self.files:
            return
        if depth > _DEPTH or len(self.files) == _FILES:
            self.complete = False
            return
        self.files.append(path)
        try:
            text = self._read(path).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            self.complete = False
            return
        for line in text.split("\n"):
            words = line.partition("#")[0].strip(_BLANKS)
            if words.startswith(("include ", "include\t")):
                for pattern in words[len("include") :].split():
                    self._include(paths.join(paths.dirname(path), pattern), depth)
            elif words.startswith("/") and "\0" not in words:
                if len(self.directories) == _LINES:
                    self.complete = False
                    return
                self.directories.append(words.rstrip("/") or "/")

    def _include(self, pattern: str, depth: int) -> None:
        self._patterns += 1
        if (
            self._patterns > _PATTERNS
            or "\0" in pattern
            or any(len(part) > _COMPONENT for part in pattern.split("/"))
        ):
            self.complete = False
            return
        for path in self._matches(pattern):
            self.load(path, depth + 1)

    def _matches(self, pattern: str) -> list[str]:
        """Return the paths that a pattern of file names stands for, sorted, as glob(3) does; one without wildcards is a path."""
        found = [""]
        for part in filter(None, pattern.split("/")):
            if not _WILD.isdisjoint(part):
                wanted = Pattern(part)
                found = [
                    f"{parent}/{name}"
                    for parent in found
                    for name in self._listed(parent or "/")
                    if wanted.fits(name)
                ]
                self.complete = self.complete and wanted.complete
            else:
                found = [f"{parent}/{part.replace(chr(92), '')}" for parent in found]
            if len(found) > _FILES:
                self.complete = False
                del found[_FILES:]
        return found

    def _listed(self, directory: str) -> list[str]:
        names = sorted(self._names(directory))
        left = _NAMES - self._compared
        if len(names) > left:
            self.complete = False
            del names[left:]
        self._compared += len(names)
        return names


class Pattern:
    """A pattern of file names: ``*``, ``?``, ``[a-z]``, ``[!a-z]`` and ``\\``; a leading dot has to be written.

    All ways to match are followed at once, as bits of a number, so the time is a name's length whatever the pattern.
    ``complete`` is false when names hold more characters than are looked up in brackets.
    """

    __slots__ = ("_any", "_brackets", "_end", "_hidden", "_known", "_literal", "_stars", "complete")

    def __init__(self, pattern: str) -> None:
        self.complete = True
        self._hidden = pattern.startswith(".")
        self._known: dict[str, int] = {}  # character -> the tokens that take it
        self._literal: dict[str, int] = {}
        self._brackets: list[tuple[int, _Characters]] = []
        self._stars = self._any = 0
        bit = 1
        last = None
        for token in _tokens(pattern):
            if token is _STAR and last is _STAR:
                continue
            if token is _STAR:
                self._stars |= bit
            elif token is _ANY:
                self._any |= bit
            elif token.literal:
                self._literal[token.literal] = self._literal.get(token.literal, 0) | bit
            else:
                self._brackets.append((bit, token))
            last = token
            bit <<= 1
        self._end = bit

    def fits(self, name: str) -> bool:
        """Tell whether a file name fits."""
        if name.startswith(".") and not self._hidden:
            return False
        stars = self._stars
        state = (
            1 | (stars & 1) << 1
        )  # a bit for each number of tokens that may have been matched; a star may stand for nothing
        for character in name:
            state = (state & self._taking(character)) << 1 | state & stars
            if not state:
                return False
            state |= (state & stars) << 1
        return bool(state & self._end)

    def _taking(self, character: str) -> int:
        tokens = self._known.get(character)
        if tokens is None:
            tokens = self._any | self._literal.get(character, 0)
            if self._brackets and len(self._known) == _CHARACTERS:
                self.complete = False
                return tokens
            for bit, token in self._brackets:
                if token.has(character):
                    tokens |= bit
            self._known[character] = tokens
        return tokens


class _Characters:
    """One character of a name: ``literal``, or any of ``ranges``, or any but those when ``negated``."""

    __slots__ = ("literal", "negated", "ranges")

    def __init__(
        self, ranges: list[tuple[str, str]], *, negated: bool = False, literal: str = ""
    ) -> None:
        self.ranges = ranges
        self.negated = negated
        self.literal = literal

    def has(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


_STAR = _Characters([])
_ANY = _Characters([], negated=True)


def _tokens(pattern: str) -> list[_Characters]:
    tokens = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            tokens.append(_STAR)
        elif character == "?":
            tokens.append(_ANY)
        elif (
            character == "["
            and (end := pattern.find("]", at + 1 + (pattern[at : at + 1] in {"!", "^"}))) >= 0
        ):
            tokens.append(_bracket(pattern[at:end]))
            at = end + 1
        else:
            if character == "\\" and at < len(pattern):
                character = pattern[at]
                at += 1
            tokens.append(_Characters([], literal=character))
    return tokens


def _bracket(inside: str) -> _Characters:
    negated = inside[:1] in {"!", "^"}
    if negated:
        inside = inside[1:]
    ranges = []
    at = 0
    while at < len(inside):
        wide = inside[at + 1 : at + 2] == "-" and at + 2 < len(inside)
        ranges.append((inside[at], inside[at + 2 * wide]))
        at += 3 if wide else 1
    return _Characters(ranges, negated=negated)
