"""The base of the engine's value types, and decimal numbers.

``dataclasses`` costs more at start-up than the whole rest of a skipped container's hook (it loads ``inspect`` and
``re``), so values are written out by hand and share this one definition of identity.
"""

from __future__ import annotations


class Value:
    """An inert record: identity, hash and repr follow from ``__slots__``, every slot counts.

    Subclasses list their fields in ``__slots__`` and assign each one in ``__init__``; they are never changed
    afterwards.
    """

    __slots__: tuple[str, ...] = ()

    def _key(self) -> tuple[object, ...]:
        """Return every field, in the order of ``__slots__``: the only definition of what makes two values equal."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self) and isinstance(other, Value) and self._key() == other._key()
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self._key()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def number(text: str) -> int | None:
    """Return the value of a decimal number as the kernel prints minors and majors, None for any other text.

    str.isdecimal() alone takes the digits of other scripts, and more of them than int() does.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None
