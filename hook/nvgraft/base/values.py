"""The base of the engine's value types.

``dataclasses`` costs more at start-up than all the work for a skipped container: it loads
``inspect`` and ``re``. Therefore each value type has an ``__init__``, and inherits the rest from
here.
"""

from __future__ import annotations


class Value:
    """An inert record, whose fields are the attributes that ``__init__`` assigns.

    Every field counts for equality, hash and repr. Nothing is assigned later, and a value type has
    no ``__slots__``: :func:`vars` would not see them.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(frozenset(vars(self).items()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


def number(text: str) -> int | None:
    """Return the value of a decimal number of at most nine digits, or None for any other text.

    str.isdecimal() alone also accepts the digits of other scripts, and more of them than int()
    does.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None
