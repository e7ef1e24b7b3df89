"""Read /etc/ld.so.conf: the directories that it names, with the files that it includes.

The text may come from a hostile image, so depth, files, patterns and names are bounded, and a
result says whether a bound was reached. The caller passes the functions that read files and
directories.
"""

from __future__ import annotations

import errno

from nvgraft.base import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/etc/ld.so.conf"

#: Bytes of one file. Distributions have a handful of files with a few lines each.
FILE_LIMIT = 64 << 10
_DEPTH = 5
_FILES = 256
_PATTERNS = 256
#: File names compared with patterns, and characters of one component of a pattern.
_NAMES = 4096
_COMPONENT = 255
#: Different characters that are matched against the brackets of one component.
_CHARACTERS = 4096
_LINES = 1024

_BLANKS = " \t\n\v\f\r"
_WILD = frozenset("*?[")


class Configuration:
    """The ``directories`` of a configuration, in order. ``beyond`` says which bound was met first,
    or is "".

    :param read: returns a file's text; raises FileNotFoundError, NotADirectoryError, or OSError
        with EFBIG for more than FILE_LIMIT bytes.
    :param names: returns the names in a directory; none, or NotADirectoryError, where there is no
        directory.
    """

    def __init__(self, read: Callable[[str], bytes], names: Callable[[str], list[str]]) -> None:
        self.directories: list[str] = []
        self.files: list[str] = []
        self.beyond = ""
        self._read = read
        self._names = names
        self._patterns = 0
        self._compared = 0

    def _meet(self, bound: str) -> None:
        self.beyond = self.beyond or bound

    def load(self, path: str = PATH, depth: int = 0) -> None:
        """Read the file ``path`` and the files that it includes, each once."""
        if path in self.files:
            return
        if depth > _DEPTH or len(self.files) == _FILES:
            self._meet(
                f"more than {_FILES} files, or files included more than {_DEPTH} levels deep"
            )
            return
        self.files.append(path)
        try:
            text = self._read(path).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            self._meet(f"more than {FILE_LIMIT >> 10} KiB in {path}")
            return
        for line in text.split("\n"):
            words = line.partition("#")[0].strip(_BLANKS)
            if words.startswith(("include ", "include\t")):
                for pattern in words[len("include") :].split():
                    self._include(paths.join(paths.dirname(path), pattern), depth)
            elif words.startswith("/") and "\0" not in words:
                if len(self.directories) == _LINES:
                    self._meet(f"more than {_LINES} directories")
                    return
                self.directories.append(words.rstrip("/") or "/")

    def _include(self, pattern: str, depth: int) -> None:
        self._patterns += 1
        if (
            self._patterns > _PATTERNS
            or "\0" in pattern
            or any(len(part) > _COMPONENT for part in pattern.split("/"))
        ):
            self._meet(f"more than {_PATTERNS} includes, or one that is no pattern of file names")
            return
        for path in self._matches(pattern):
            self.load(path, depth + 1)

    def _matches(self, pattern: str) -> list[str]:
        """Expand a pattern of file names like glob(3): sorted; without wildcards it is a path."""
        matches = [""]
        for part in filter(None, pattern.split("/")):
            if not _WILD.isdisjoint(part):
                name_pattern = Pattern(part)
                matches = [
                    f"{parent}/{name}"
                    for parent in matches
                    for name in self._listed(parent or "/")
                    if name_pattern.fits(name)
                ]
                if not name_pattern.complete:
                    self._meet(f"brackets for more than {_CHARACTERS} characters")
            else:
                matches = [f"{parent}/{part.replace(chr(92), '')}" for parent in matches]
            if len(matches) > _FILES:
                self._meet(f"an include of more than {_FILES} files")
                del matches[_FILES:]
        return matches

    def _listed(self, directory: str) -> list[str]:
        left = _NAMES - self._compared
        try:
            names = sorted(self._names(directory)) if left else []
        except NotADirectoryError:
            return []
        if len(names) > left or not left:
            self._meet(f"includes from directories with more than {_NAMES} names")
            del names[left:]
        self._compared += len(names)
        return names


class Pattern:
    """A pattern of file names: ``*``, ``?``, ``[a-z]``, ``[!a-z]`` and ``\\``. Only a leading dot
    matches one.

    All ways to match are followed together, as bits of a number, so the time is proportional to the
    length of the name for every pattern. ``complete`` is false when a bound on characters was
    reached.
    """

    def __init__(self, pattern: str) -> None:
        self.complete = True
        self._hidden = pattern.startswith(".")
        self._known: dict[str, int] = {}  # character -> bits of the tokens that match it
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
        """Tell whether a file name matches."""
        if name.startswith(".") and not self._hidden:
            return False
        stars = self._stars
        # Bit n: the first n tokens may have been matched. A star matches nothing, too.
        state = 1 | (stars & 1) << 1
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
    """A token for one character: ``literal``, or one of ``ranges``, or when ``negated`` none of
    them.
    """

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
