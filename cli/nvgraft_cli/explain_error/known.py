"""The known errors of ``nvgraft_specs.errors``, ready to be matched."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from nvgraft_specs import errors

#: A word of a phrase or of a text, in small letters.
_WORD = re.compile(r"[a-z]+")
#: The name of a piece in a pattern.
_PIECE = re.compile(r"\{([a-z_]+)\}")
#: Characters of distinct words for which one expression for all words is worth being compiled.
_MANY = 1 << 12
#: A quotation mark: a paste with one has not lost them. Markdown makes backticks of them.
QUOTE = re.compile("[\"']")
#: Any quotation mark, in the characters that a pattern excludes.
_ANY_QUOTE = re.compile("[\"'`]")
#: Marks that get lost on the way through chat programs and web pages: Markdown takes an underscore
#: for the begin or the end of italics.
_MARKS = str.maketrans("", "", "\"'`[]_")
_SPACES = re.compile(" {2,}")
#: In a pattern: such a mark or a choice of them, with its repetition; a choice with a backslash in
#: it; one of an underscore and other marks; any number of characters but these; and what is none
#: of that.
_TOKEN = re.compile(
    r"(?:(?P<mark>{mark}|\[(?:{mark})+\])|(?P<slash>\[(?:{mark}|\\\\)+\]))(?:[?*+]|\{{[\d,]+\}})?"
    r"|(?P<either>\[[ .:-]*_[ .:-]*\])(?![?*+{{])"
    r"|\[\^(?P<but>(?:\\.|[^]\\])*\][*+])|\[(?:\\.|[^]\\])*\]|\\.".format(
        mark=r"\\?[\"'`]|\\[\[\]]|_"
    )
)
#: What programs put between and into the words of an error, or leave out.
_BETWEEN = re.compile("[ _']")


@dataclass(frozen=True, slots=True)
class Other:
    """Another cause of an error.

    :ivar on: the context that the paste has to name, or "".
    :ivar says: an expression for what the paste has to say, in small letters, or "".
    """

    on: str
    says: str
    text: str

    def told(self, small: str, contexts: frozenset[str]) -> bool:
        """Return whether it is a cause in a text in small letters that names some contexts."""
        return (not self.on or self.on in contexts) and (
            not self.says or re.search(self.says, small) is not None
        )


@dataclass(frozen=True, eq=False)
class KnownError:
    """A known error; its keys are described in :mod:`nvgraft_specs.errors`.

    :ivar place: where it stands in the order of the rows: the earlier of two wins.
    """

    place: int
    id: str
    failure: str
    stage: str
    fixed_by: str
    says: tuple[str, ...]
    pattern: str
    numbers: tuple[tuple[str, int], ...]
    symptom: bool
    passing: str
    hides: tuple[str, ...]
    hints: bool
    on: str
    unless: frozenset[str]
    last: bool
    cause: str
    otherwise: tuple[Other, ...]
    rarer: tuple[str, ...]
    next: tuple[str, ...]

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern; compiled for the rows whose phrase occurs only."""
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def phrases(self) -> tuple[tuple[str, str], ...]:
        """The phrases, each with its longest word, as :func:`words_in` looks for it."""
        return _phrases(self.says)

    @cached_property
    def names_part(self) -> bool:
        """Whether the row knows the name of a part, which is also that of files and packages."""
        return "elsewhere" in self.unless

    @cached_property
    def bare_phrases(self) -> tuple[tuple[str, str], ...]:
        """The phrases for a text that :func:`without_marks` has made."""
        says = tuple(map(without_marks, self.says))
        return self.phrases if says == self.says else _phrases(says)

    @cached_property
    def bare_regex(self) -> re.Pattern[str]:
        """The pattern for a text that :func:`without_marks` has made."""
        return _bare_regex(self.pattern)


@dataclass(frozen=True)
class Layer:
    """A program that passes on errors of others.

    :ivar place: ``engine``, ``start`` (it takes part in the start of a container) or ``inside``.
    """

    name: str
    says: tuple[str, ...]
    passes: str
    place: str

    @cached_property
    def phrases(self) -> tuple[tuple[str, str], ...]:
        """The phrases, each with its longest word, as :func:`words_in` looks for it."""
        return _phrases(self.says)


@dataclass(frozen=True)
class Spelling:
    """How programs print an error number, or its words.

    :ivar of: whose number it is: ``cuda`` or ``nvml``.
    :ivar regex: the first group that matched is the number or its words.
    :ivar words: the numbers by their words, which are in small letters without spaces.
    """

    of: str
    says: tuple[str, ...]
    regex: re.Pattern[str]
    words: dict[str, int]

    @cached_property
    def bare_says(self) -> tuple[str, ...]:
        """The phrases for a text that :func:`without_marks` has made."""
        return tuple(map(without_marks, self.says))

    @cached_property
    def bare_regex(self) -> re.Pattern[str]:
        """The pattern for a text that :func:`without_marks` has made."""
        return _bare_regex(self.regex.pattern)

    def number(self, said: str) -> int:
        """Return the number that ``said`` is or means."""
        return self.words.get(_BETWEEN.sub("", said.lower())) or int(said)


@dataclass(frozen=True, slots=True)
class ForeignWords:
    """What programs print in another language, in small letters, and the English words.

    :ivar inner: a word of it that stands between others, or "": a text without it is not searched.
    :ivar letters: its characters: nor is a text without one of them.
    """

    words: str
    english: str
    inner: str
    letters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Word:
    """What a word of the system, an exit code or a signal means in any error.

    :ivar regex: what decides where a phrase occurs, or None; ``means`` refers to its groups.
    :ivar ends: whether it ends a program, whatever that found before.
    """

    says: tuple[str, ...]
    regex: re.Pattern[str] | None
    means: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about errors.

    :ivar layers: from the outside in.
    :ivar foreign: what programs print in other languages, longest first.
    :ivar general: the meanings of words in general, the telling ones first.
    :ivar checks: the two checks for an unknown error, by the place of the program that said it.
    :ivar contexts: how a paste names the surroundings of which a cause depends, by name.
    :ivar tables: what a text says of a group, by the table's name: patterns and texts in order.
    """

    rows: tuple[KnownError, ...]
    layers: tuple[Layer, ...]
    foreign: tuple[ForeignWords, ...]
    spellings: tuple[Spelling, ...]
    general: tuple[Word, ...]
    checks: dict[str, tuple[str, ...]]
    contexts: dict[str, re.Pattern[str]]
    tables: dict[str, tuple[tuple[re.Pattern[str], str], ...]]


@cache
def known() -> Known:
    """Read the data of :mod:`nvgraft_specs.errors`."""
    folder = Path(errors.__file__).parent
    data = [tomllib.loads((folder / f"{name}.toml").read_text("utf-8")) for name in errors.FILES]
    tables = {name: table for file in data for name, table in file.items() if name != "error"}
    foreign = [
        ForeignWords(
            other,
            row["english"],
            max(other.split()[1:-1], key=len, default=""),
            frozenset(other),
        )
        for row in tables["words"]
        for other in row["others"]
    ]
    pieces = tables["pieces"]
    return Known(
        tuple(
            _row(place, row, tables["steps"], tables["surroundings"], pieces)
            for place, row in enumerate(row for file in data for row in file.get("error", ()))
        ),
        tuple(
            Layer(row["name"], tuple(row["says"]), row["passes"], row["place"])
            for row in tables["layer"]
        ),
        tuple(sorted(foreign, key=lambda one: -len(one.words))),
        tuple(_spelling(row) for row in tables["spelling"]),
        tuple(
            Word(
                tuple(row["says"]),
                re.compile(_whole(row["pattern"], pieces), re.IGNORECASE)
                if "pattern" in row
                else None,
                _bare(row["means"]),
                row.get("ends", False),
            )
            for row in tables["general"]
        ),
        {place: tuple(map(_bare, steps)) for place, steps in tables["checks"].items()},
        {name: re.compile(pattern) for name, pattern in tables["contexts"].items()},
        {
            name: tuple((re.compile(pattern, re.IGNORECASE), _bare(text)) for pattern, text in rows)
            for name, rows in tables["tables"].items()
        },
    )


@cache
def foreign(*, ascii_only: bool) -> tuple[ForeignWords, ...]:
    """Return what programs print in other languages, or what of it an ASCII text can have."""
    return tuple(one for one in known().foreign if not ascii_only or one.words.isascii())


@cache
def _rows_by_word() -> dict[str, list[KnownError]]:
    """Return the rows of which a phrase has this longest word; "" is that of one without words."""
    rows: dict[str, list[KnownError]] = {}
    for row in known().rows:
        for word in {word for _, word in (*row.phrases, *row.bare_phrases)}:
            rows.setdefault(word, []).append(row)
    return rows


def rows_with(words: frozenset[str], numbers: Set[tuple[str, int]]) -> list[KnownError]:
    """Return the rows that may match a text, in their order.

    :param words: what :func:`words_in` finds in it.
    :param numbers: the error numbers in it.
    """
    by_word = _rows_by_word()
    found = {row for word in words for row in by_word.get(word, ())}
    if numbers:
        found.update(row for row in known().rows if not numbers.isdisjoint(row.numbers))
    return sorted(found, key=lambda row: row.place)


@cache
def _longest_words(*, marked: bool) -> frozenset[str]:
    """Return the longest word of each phrase; "" is that of a phrase without words."""
    layers = (word for layer in known().layers for _, word in layer.phrases)
    rows = (row.phrases if marked else row.bare_phrases for row in known().rows)
    return frozenset((*(word for phrases in rows for _, word in phrases), *layers))


def words_in(small: str, *, marked: bool = True) -> frozenset[str]:
    """Return the longest words of phrases that are in a text: a phrase without its own is not.

    Each word of the text is searched once, however often it occurs: logs repeat theirs.

    :param marked: whether the text has its marks; one without them is short.
    """
    words = f" {' '.join(frozenset(_WORD.findall(small)))} "
    # Compiling the expression takes longer than looking for each word in a short text.
    if not marked or (len(words) < _MANY and not _any_word.cache_info().currsize):
        return frozenset(word for word in _longest_words(marked=marked) if word in words)
    any_word, beginnings = _any_word()
    found = {""}
    match = any_word.search(words)
    while match:
        found |= beginnings[match[0]]
        match = any_word.search(words, match.start() + 1)
    return frozenset(found)


@cache
def _any_word() -> tuple[re.Pattern[str], dict[str, frozenset[str]]]:
    """Return an expression for the longest word of a phrase that begins at a place, and for each
    such word those that begin it.

    The expression branches once for each letter, so that a place where none begins costs little.
    """
    words = _longest_words(marked=True) - {""}
    tree: dict[str, Any] = {}
    for word in words:
        branch = tree
        for letter in word:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return re.compile(_branches(tree)), {
        word: frozenset(word[:end] for end in range(1, len(word) + 1)) & words for word in words
    }


def _branches(tree: dict[str, Any]) -> str:
    """Return the expression of a tree of letters: "" marks where a word may end."""
    choices = "|".join(letter + _branches(tree[letter]) for letter in tree if letter)
    if not choices:
        return ""
    return f"(?:{choices}){'?' if '' in tree else ''}"


def without_marks(text: str) -> str:
    """Return ``text`` without quotation marks, brackets and underscores."""
    return _SPACES.sub(" ", text.translate(_MARKS))


def _bare_regex(pattern: str) -> re.Pattern[str]:
    """Return an expression for a text that :func:`without_marks` has made."""
    return re.compile(_SPACES.sub(" ", _TOKEN.sub(_bare_token, pattern)), re.IGNORECASE)


def _bare_token(token: re.Match[str]) -> str:
    """Return what a token of a pattern is where the marks are gone: what they enclosed ends at a
    space.
    """
    if token["mark"]:
        return ""
    if token["slash"]:
        return r"\\*"
    if token["either"]:
        return f"{token[0]}?"
    return rf"[^\s{token['but']}" if _ANY_QUOTE.search(token["but"] or "") else token[0]


def _phrases(says: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((phrase, _longest(phrase)) for phrase in says)


def _longest(phrase: str) -> str:
    """Return the longest word of ``phrase``, with a space where the phrase ends the word."""
    words = (
        " " * (word.start() > 0) + word[0] + " " * (word.end() < len(phrase))
        for word in _WORD.finditer(phrase)
    )
    return max(words, key=len, default="")


def _spelling(row: dict[str, Any]) -> Spelling:
    words: dict[str, int] = row.get("words", {})
    longest = sorted(words, key=len, reverse=True)
    any_words = "|".join(re.escape(each).replace(r"\ ", "[ _]?") for each in longest)
    patterns = "|".join(f"(?:{each})" for each in row["patterns"])
    return Spelling(
        row["of"],
        tuple(row["says"]),
        re.compile(patterns.replace("{words}", any_words), re.IGNORECASE),
        {_BETWEEN.sub("", each): number for each, number in words.items()},
    )


def _row(
    place: int,
    row: dict[str, Any],
    steps: dict[str, str],
    surroundings: dict[str, str],
    pieces: dict[str, str],
) -> KnownError:
    return KnownError(
        place=place,
        id=row["id"],
        failure=row.get("failure", ""),
        stage=row["stage"],
        fixed_by=errors.FIXED_BY[row.get("fixed_by", "node")],
        says=tuple(row["says"]),
        pattern=_whole(row.get("pattern", ""), pieces),
        numbers=tuple((of, number) for of in ("cuda", "nvml") for number in row.get(of, ())),
        symptom=row.get("symptom", False),
        passing=row.get("passing", ""),
        hides=tuple(row.get("hides", ())),
        hints=row.get("hints", False),
        on=row.get("on", ""),
        unless=frozenset(row.get("unless", ())),
        last=row.get("last", False),
        cause=_bare(row["cause"]),
        otherwise=tuple(_otherwise(row.get("otherwise", ()), surroundings)),
        rarer=tuple(map(_bare, row.get("rarer", ()))),
        next=tuple(
            _bare(steps[step[1:]] if step.startswith("=") else step) for step in row["next"]
        ),
    )


def _whole(pattern: str, pieces: dict[str, str]) -> str:
    """Return a pattern with its pieces."""
    return _PIECE.sub(lambda name: pieces[name[1]], pattern)


def _always_told(other: str | dict[str, str]) -> bool:
    return isinstance(other, str) and not other.startswith("=")


def _otherwise(
    others: Iterable[str | dict[str, str]], surroundings: dict[str, str]
) -> Iterator[Other]:
    """Yield the other causes, those first that are told where the paste says so."""
    own = {other.get("on") for other in others if isinstance(other, dict)}
    for other in sorted(others, key=_always_told):
        if isinstance(other, dict):
            yield Other(other.get("on", ""), other.get("says", ""), _bare(other["text"]))
        elif other == "=surroundings":
            yield from (
                Other(on, "", _bare(text)) for on, text in surroundings.items() if on not in own
            )
        else:
            yield Other("", "", _bare(other))


def _bare(text: str) -> str:
    """Return ``text`` without the backticks that mark its commands."""
    return text.replace("`", "")


def filled(text: str, groups: tuple[str, ...]) -> str:
    """Return ``text`` with the groups of a match for {1}, and for {1:TABLE} what a table says."""

    def of(reference: re.Match[str]) -> str:
        index = int(reference[1]) - 1
        group = groups[index].rstrip(":,;.\"'\\") if index < len(groups) else "it"
        if not reference[2]:
            return group
        rows = known().tables[reference[2]]
        found = ((match, text) for pattern, text in rows if (match := pattern.fullmatch(group)))
        return next((match.expand(text) for match, text in found), group)

    return re.sub(r"\{(\d)(?::(\w+))?\}", of, text)
