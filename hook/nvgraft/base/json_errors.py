"""Explain why a JSON document is not accepted, in the words of Go's ``encoding/json``, which runc
and the reference hook print.

It is loaded only if :mod:`nvgraft.base.jsontext` refuses a document.
"""

from __future__ import annotations

from _json import encode_basestring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SPACE = " \t\n\r"

#: The scanner's extensions to JSON.
_CONSTANTS = ("NaN", "Infinity", "-Infinity")


def diagnose(text: str, start: int, scan: Callable[[str, int], object]) -> tuple[str, str]:
    """Return why ``scan`` does not accept the document that begins at ``start``: Go's words, and
    the place.

    :raises RecursionError: the document is nested too deeply.
    """
    # The scanner raises a class of json.decoder, or a SystemError if that module is not loaded.
    import json.decoder

    try:
        scan(text, start)
    except StopIteration as stop:
        return explain(text, "Expecting value", stop.value)
    except json.decoder.JSONDecodeError as error:
        return explain(text, error.msg, error.pos)
    except ValueError as error:
        if str(error) in _CONSTANTS:
            return explain(text, "Expecting value", _find_constant(text, start, str(error)))
    return "number out of range", "a number has too many digits"


def explain(text: str, problem: str, at: int) -> tuple[str, str]:
    """Return Go's words for the scanner's ``problem``, and its place."""
    at, words = _classify(text, problem, at)
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    if at >= len(text):
        if not text.strip(_SPACE):
            return "EOF", "the document is empty"
        where = f"line {line}, column {column}"
        return "unexpected EOF", f"the document is truncated: it ends in {where}"
    char = text[at]
    quoted = {"'": r"'\''", '"': "'\"'"}.get(char) or f"'{encode_basestring(char)[1:-1]}'"
    return f"invalid character {quoted} {words}", f"line {line}, column {column} is not JSON"


def _classify(text: str, problem: str, at: int) -> tuple[int, str]:
    """Return the index of the offending character (the text's length if it is truncated), and Go's
    words for the fault.
    """
    words = "looking for beginning of value"
    if problem == "Expecting value":
        rest = text[at : at + 9]
        if rest[:1] == "-":
            return at + 1, "in numeric literal"
        for literal in ("true", "false", "null"):
            same = 0
            while same < len(literal) and rest[same : same + 1] == literal[same]:
                same += 1
            if same:
                return at + same, f"in literal {literal} (expecting '{literal[same : same + 1]}')"
    elif problem == "Extra data":
        words = "after top-level value"
    elif problem.startswith("Expecting property name"):
        words = "looking for beginning of object key string"
    elif problem.startswith("Expecting ':'"):
        words = "after object key"
    elif problem.startswith("Expecting ','"):
        words = (
            "after array element" if _innermost(text, at) == "[" else "after object key:value pair"
        )
    elif problem.startswith("Illegal trailing comma"):
        # From Python 3.13 on, the position is that of the comma. Go names the character that
        # follows it.
        if problem.endswith("object"):
            words = "looking for beginning of object key string"
        at = len(text) - len(text[at + 1 :].lstrip(_SPACE))
    elif problem.startswith("Invalid control character"):
        words = "in string literal"
    elif problem.startswith("Invalid \\"):
        words = "in string escape code"
        # The scanner's position is that of the backslash or behind it, depending on the escape.
        at = text.rfind("\\", 0, at + 1) + 1
        if text[at : at + 1] == "u":
            words = "in \\u hexadecimal character escape"
            at += 1
            while text[at : at + 1] and text[at] in "0123456789abcdefABCDEF":
                at += 1
    else:
        # An unterminated string, which reaches to the end.
        at = len(text)
    return at, words


def _find_constant(text: str, start: int, name: str) -> int:
    """Return the index of the first constant ``name`` outside strings."""
    while start < len(text):
        quote = text.find('"', start)
        index = text.find(name, start, quote if quote >= 0 else len(text))
        if index >= 0:
            return index
        if quote < 0:
            break
        start = _string_end(text, quote)
    return start


def _innermost(text: str, stop: int) -> str:
    """Return the innermost bracket that is open at ``stop``, or an empty string."""
    open_brackets = []
    at = 0
    while at < stop:
        char = text[at]
        if char == '"':
            at = _string_end(text, at)
            continue
        if char in "[{":
            open_brackets.append(char)
        elif char in "]}" and open_brackets:
            open_brackets.pop()
        at += 1
    return open_brackets[-1] if open_brackets else ""


def _string_end(text: str, start: int) -> int:
    """Return the index behind the string that opens at ``start``."""
    end = start
    while (end := text.find('"', end + 1)) >= 0:
        slashes = end - 1
        while text[slashes] == "\\":
            slashes -= 1
        if (end - slashes) % 2:
            return end + 1
    return len(text)
