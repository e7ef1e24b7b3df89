"""Read the command line of a Python interpreter (python(1))."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Options with a value, and those that end the options: -c and -m have the rest of the line.
_VALUES, _ENDS = "WX", "cm"
#: Long options with a value in a word of its own.
_LONG_VALUES = {"--check-hash-based-pycs"}


@dataclass(frozen=True, slots=True)
class InterpreterWords:
    """What an interpreter runs.

    :ivar kind: "c", "m", or "" for a script.
    :ivar what: the text of -c, the module of -m, or the script; "" where it reads standard input.
    :ivar arguments: the words behind it.
    :ivar flags: the letters of options without a value.
    """

    kind: str
    what: str
    arguments: tuple[str, ...]
    flags: frozenset[str] = frozenset()


def read_words(words: Sequence[str]) -> InterpreterWords:
    """Return what an interpreter runs, from its arguments."""
    flags: set[str] = set()
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word.startswith("--"):
            at += word in _LONG_VALUES
            continue
        for number, letter in enumerate(word[1:], 2):
            if letter in _VALUES + _ENDS:
                value = word[number:]
                if not value and at < len(words):
                    value = words[at]
                    at += 1
                if letter in _ENDS:
                    return InterpreterWords(letter, value, tuple(words[at:]), frozenset(flags))
                break
            flags.add(letter)
    rest = tuple(words[at:])
    what = "" if rest[:1] == ("-",) else "".join(rest[:1])
    return InterpreterWords("", what, rest[1:], frozenset(flags))
