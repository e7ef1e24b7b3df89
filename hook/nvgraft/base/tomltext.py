"""Parse TOML with one kind of error.

The parser, tomllib, is imported only when it is used, because it imports ``typing`` and ``re``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: Characters of a document.
LIMIT = 1 << 20

#: Keys, parts of dotted keys and items of arrays in a document, approximately. The parser needs a
#: KiB for each part of a key.
MAX_VALUES = 100_000

#: Parts of a dotted key. The time and the memory of the parser grow with their square: a key with
#: 50,000 parts takes 16 s and 10 GB.
MAX_PARTS = 32

#: One part of a key. The possessive quantifiers and the look-behinds keep the time linear.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = rf"(?<![A-Za-z0-9_\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}"


def loads(text: str) -> dict[str, Any]:
    """Return the tables of a TOML document.

    :raises ValueError: the text is not TOML (the message ends in the position: ``(at line 1, column
        2)``), is nested too deeply, is too large, or has an integer of more than 64 bits, which
        TOML does not allow.
    """
    import tomllib

    _check_bounds(text)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("arrays or tables are nested too deeply") from None
    except ValueError:
        raise ValueError("a number is out of range") from None
    level: list[Any] = [tables]
    while level:
        children = [
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        ]
        if any(isinstance(child, int) and child.bit_length() > 64 for child in children):
            raise ValueError("a number is out of range")
        level = [child for child in children if isinstance(child, (dict, list))]
    return tables


def _check_bounds(text: str) -> None:
    if len(text) > LIMIT:
        raise ValueError(f"it has {len(text)} characters, more than {LIMIT}")
    values = sum([text.count(mark) for mark in ".=,[{"])
    if values > MAX_VALUES:
        raise ValueError(f"it has {values} values and parts of keys, more than {MAX_VALUES}")
    if text.count(".") < MAX_PARTS:
        return
    import re  # tomllib has loaded it

    if match := re.search(_LONG_KEY, text):
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        raise ValueError(f"a key has more than {MAX_PARTS} parts (at line {line}, column {column})")
