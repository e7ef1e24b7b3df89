"""Match texts with the patterns of a shell: wildcards, and what bash knows beyond them."""

import re
from fnmatch import fnmatchcase, translate

#: The most characters of a value and a pattern that are compared by more than wildcards.
_LENGTH = 512
_PATTERN = re.compile(r"[*?\[]|[@+]\(")
#: A pattern of bash: one of several texts, once or as often as the character before says.
_CHOICE = re.compile(r"([@?*+])\(([^()]*)\)")
_OFTEN = {"@": "", "?": "?", "*": "*", "+": "+"}

#: Characters that make a regular expression more than a text.
_SPECIAL = re.compile(r"[][.*+?(){}|\\^$]")


def is_pattern(text: str) -> bool:
    """Tell whether a text has a wildcard in it."""
    return _PATTERN.search(text) is not None


def quoted(text: str) -> str:
    """Return a pattern that a text matches, and nothing else."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def matches(text: str, pattern: str) -> bool:
    """Tell whether a text matches a pattern, of which bash knows more than others."""
    if not _CHOICE.search(pattern) or len(pattern) + len(text) > _LENGTH:
        return fnmatchcase(text, pattern)
    pieces = _CHOICE.split(pattern)
    expression = _translated(pieces[0])
    for often, choices, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        # Possessive: nothing is tried twice, so that no pattern takes long.
        one = "|".join(map(_translated, choices.split("|")))
        expression += f"(?:{one}){_OFTEN[often] and _OFTEN[often] + '+'}{_translated(rest)}"
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _translated(pattern: str) -> str:
    return translate(pattern).removeprefix("(?s:").rpartition(")")[0]


def without(value: str, operator: str, pattern: str) -> str | None:
    """Return a value without the beginning (#, ##) or the end (%, %%) that matches a pattern.

    None stands for a value that is too long to be compared.
    """
    if len(value) + len(pattern) > _LENGTH:
        return None
    lengths = range(len(value) + 1)
    for length in lengths if len(operator) == 1 else reversed(lengths):
        at = length if operator[0] == "#" else len(value) - length
        piece, rest = (value[:at], value[at:]) if operator[0] == "#" else (value[at:], value[:at])
        if fnmatchcase(piece, pattern):
            return rest
    return value


def has_plain(text: str, pattern: str) -> bool | None:
    """Tell whether a text has a plain pattern in it; None for other regular expressions."""
    plain = pattern.removeprefix("^").removesuffix("$")
    if _SPECIAL.search(plain):
        return None
    if pattern.startswith("^"):
        return text == plain if pattern.endswith("$") else text.startswith(plain)
    return text.endswith(plain) if pattern.endswith("$") else plain in text
