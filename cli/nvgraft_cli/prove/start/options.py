"""Read the words between a program that starts another one and the command that it starts."""

import re
import shlex
from collections.abc import Collection, Iterator

#: The start of NAME=VALUE.
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def without_options(words: list[str], values: set[str]) -> list[str]:
    """Return the words behind options, of which those in ``values`` are followed by their value."""
    position = 0
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        position += 2 if word in values else 1
        if word == "--":
            break
    return words[position:]


def take_options(words: list[str], values: Collection[str]) -> Iterator[tuple[str, str]]:
    """Take the options that stand before a command from its words, and yield each with its value.

    :param values: those that take a value, also as a word of its own.
    """
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option == "--":
            return
        if option in values and not equals and words:
            value = words.pop(0)
        yield option, value


def take_assignments(words: list[str]) -> dict[str, str]:
    """Take the assignments that stand before a command from its words, and return them."""
    assigned = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        assigned[name] = value
    return assigned


def split_words(text: str) -> list[str]:
    """Split a text as a shell does; return nothing for one with an open quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return []
