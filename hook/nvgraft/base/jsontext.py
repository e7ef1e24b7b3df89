"""Strict JSON in and deterministic JSON out, without the ``json`` package.

The package costs the hook more time than all the work for a skipped container, because it loads
``re``. The C scanner and the string encoder, which it is built on, cost nothing. Only bad input
loads the words of the errors (:mod:`nvgraft.base.json_errors`).

This parser is stricter than the scanner: it accepts no NaN and no infinities, at most 64 levels and
a limited number of values, and a member that is read must not occur twice, because another reader
of the document may use the other one (SECURITY R9). As in Go, whose ``encoding/json`` reads these
documents in runc and in the reference hook, names of members match in any case. The callers know
the members.
"""

from __future__ import annotations

import sys
from _json import encode_basestring, encode_basestring_ascii, make_scanner, scanstring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_DEPTH = 64

#: Values in a document, approximately. A kernel does not pass on an environment of so many; more
#: take seconds, and 100 bytes each.
MAX_VALUES = 250_000

_SPACE = " \t\n\r"


class JsonError(Exception):
    """The document is not accepted.

    :param text: the problem, if possible in the reference's words (``unexpected EOF``).
    :param hint: the place of the problem and what it means, in nvgraft's words.
    """

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


class Repeated(dict[str, object]):
    """An object in which ``names`` occur more than once. The last value of each is used."""

    names: tuple[str, ...]


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = Repeated(members)
    seen = set()
    # set.add returns None, so the condition is true for a name that was seen before.
    repeated.names = tuple(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return repeated


def _constant(name: str) -> object:
    """Refuse the scanner's extensions of JSON: NaN, Infinity, -Infinity."""
    raise ValueError(name)


#: ``types.SimpleNamespace``, without the module ``types``.
_Namespace: Any = type(sys.implementation)

#: The context that ``make_scanner`` needs: an object with these attributes.
_RULES = _Namespace(
    strict=True,
    object_hook=None,
    object_pairs_hook=_object,
    parse_float=float,
    parse_int=int,
    parse_constant=_constant,
)

#: The types of the scanner's arrays and objects.
_CONTAINERS = frozenset((list, dict, Repeated))

_scan = make_scanner(_RULES)


def loads(data: bytes, limit: int, one_value: bool = False) -> object:
    """Return the value of a JSON document of at most ``limit`` bytes.

    Bytes that are not UTF-8 become lone surrogates: nvgraft does not use most of a container's
    configuration, and the callers check the strings that they use.

    :param one_value: ignore everything behind the first value, as the reference does for both of
        its inputs.
    :raises JsonError: the document is not accepted.
    """
    if len(data) > limit:
        hint = f"it has {len(data)} bytes; at most {limit} are accepted"
        raise JsonError("document too large", hint)
    if (
        len(data) > MAX_VALUES
        and data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES
    ):
        raise JsonError("document too large", f"it has more than {MAX_VALUES} values")
    text = data.decode("utf-8", "surrogateescape")
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _scan(text, start)
    except RecursionError:
        raise _too_deep() from None
    except (StopIteration, ValueError, SystemError):
        raise _refusal(text, start) from None
    if not one_value:
        rest = text[end:].lstrip(_SPACE)
        if rest:
            from nvgraft.base import json_errors

            raise JsonError(*json_errors.explain(text, "Extra data", len(text) - len(rest)))
    # A document with few brackets cannot be deep. All others are checked level by level.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def value_at(text: str, start: int) -> tuple[object, int]:
    """Return the value that begins at ``start``, and the index behind it, in a document that
    :func:`loads` has accepted.
    """
    value, end = _scan(text, start)
    return value, end


def string_at(text: str, start: int) -> tuple[str, int]:
    """Return the string whose quote is at ``start``, and the index behind it, in a document that
    :func:`loads` has accepted.
    """
    return scanstring(text, start + 1, True)


def members(value: dict[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """Return the members of an object that ``names`` has, under their proper names, in the
    document's order.

    :param names: case-folded name -> proper name.
    :raises JsonError: one of them occurs twice, in any case.
    """
    chosen: dict[str, object] = {}
    repeated = value.names if type(value) is Repeated else ()
    for key, item in value.items():
        name = names.get(key.casefold())
        if name is None:
            continue
        if name in chosen or key in repeated:
            raise JsonError(
                f'duplicate member "{name}"',
                "programs that read this document may use different ones; remove all but one",
            )
        chosen[name] = item
    return chosen


def dumps(value: object, indent: bool = False) -> str:
    """Return ``value`` (str, int, bool, None, list, tuple, dict) as JSON text. Members keep their
    order.

    The same characters are escaped as by :func:`nvgraft.base.errors.printable`, as JSON does it,
    because documents reach terminals and logs.

    :param indent: write each item on a line, indented by one space for each level; otherwise no
        white space.
    """
    return _dump(value, "\n" if indent else "")


def _string(value: str) -> str:
    text: str = encode_basestring(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else encode_basestring_ascii(char)[1:-1] for char in text
    )


def _dump(value: object, newline: str) -> str:
    if type(value) is str:
        return _string(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is int:
        return str(value)
    inner = newline and newline + " "
    if isinstance(value, dict):
        colon = ": " if newline else ":"
        items = [f"{_string(key)}{colon}{_dump(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{newline}}}" if items else "{}"
    if isinstance(value, (list, tuple)):
        items = [_dump(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{newline}]" if items else "[]"
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def kind(value: object) -> str:
    """Return Go's name for the type of a value."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "bool"
    if type(value) is str:
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if type(value) is list else "number"


def _too_deep() -> JsonError:
    return JsonError(
        "exceeded max depth", f"arrays and objects are nested more than {MAX_DEPTH} levels deep"
    )


def _check_depth(value: object) -> None:
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for container in level:
            children += container.values() if isinstance(container, dict) else container
        level = [child for child in children if type(child) in _CONTAINERS]
        if not level:
            return
    raise _too_deep()


def _refusal(text: str, start: int) -> JsonError:
    """Return the error for a document that the scanner does not accept."""
    from nvgraft.base import json_errors  # loaded here, because it is seldom needed

    try:
        return JsonError(*json_errors.diagnose(text, start, _scan))
    except RecursionError:
        return _too_deep()
