"""Parse TOML with one kind of error.

The parser, tomllib, is imported only when it is used, because it imports ``typing`` and ``re``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def loads(text: str) -> dict[str, Any]:
    """Return the tables of a TOML document.

    :raises ValueError: the text is not TOML (the message ends in the position: ``(at line 1, column
        2)``), is nested too deeply, or has an integer of more than 64 bits, which TOML does not
        allow.
    """
    import tomllib

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
