"""Strict JSON in and deterministic JSON out, without the ``json`` package.

The package costs the hook more than a skipped container's whole work (it loads ``re``); the C scanner and the string
encoder below it cost nothing. Only bad input loads the words for what is wrong (:mod:`nvgraft.base.json_errors`).

What is stricter than the scanner: no NaN and no infinities, at most 64 levels, a bound on the values, and a member that is
read must not occur twice, because of two readers of one document the other may take the other one (SECURITY R9). What is as
in Go, whose ``encoding/json`` reads these documents in runc and in the reference hook: member names match without regard to
case. Which members there are is the callers' business.
"""

from __future__ import annotations

from _json import encode_basestring, make_scanner, scanstring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_DEPTH = 64

#: Values in a document, about. An environment that a kernel passes on has fewer; more cost seconds, and 100 bytes each.
MAX_VALUES = 250_000

_SPACE = " \t\n\r"


class JsonError(Exception):
    """The document is no JSON that we accept.

    :param text: the problem, in the words of the reference where it has some (``unexpected EOF``).
    :param hint: where it is and what it means, in our words.
    """

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


class Repeated(dict[str, object]):
    """An object in which some names occur more than once; the last one won."""

    names: tuple[str, ...]


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = Repeated(members)
    seen = set()
    # set.add returns None: true for a name that was seen before.
    repeated.names = tuple(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return repeated


def _constant(name: str) -> object:
    """Refuse an extension of the scanner's to JSON: NaN, Infinity, -Infinity."""
    raise ValueError(name)


class _Rules:
    """What ``make_scanner`` asks its context for; used as a class, so that the functions stay plain functions."""

    strict = True
    object_hook = None
    object_pairs_hook = _object
    parse_float = float
    parse_int = int
    parse_constant = _constant


#: The types of the scanner's arrays and objects.
_CONTAINERS = frozenset((list, dict, Repeated))

_scan = make_scanner(_Rules)  # type: ignore[arg-type]  # any object with these attributes


def loads(data: bytes, limit: int, one_value: bool = False) -> object:
    """Return the value of a JSON document of at most ``limit`` bytes.

    Bytes that are no UTF-8 become lone surrogates: most of a container's configuration is none of our business, and
    who reads a string that matters checks it.

    :param one_value: ignore what follows the first value, as the reference does for both of its inputs.
    :raises JsonError: for everything that is wrong with the document.
    """
    if len(data) > limit:
        raise JsonError("document too large", f"it has {len(data)} bytes; at most {limit} are read")
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
    # A document with few brackets cannot be deep; the others are walked, one level at a time.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def value_at(text: str, start: int) -> tuple[object, int]:
    """Return the value that begins at ``start``, and the index behind it, in a document that :func:`loads` has accepted."""
    value, end = _scan(text, start)
    return value, end


def string_at(text: str, start: int) -> tuple[str, int]:
    """Return the string whose quote is at ``start``, and the index behind it, in such a document."""
    return scanstring(text, start + 1, True)


def members(value: dict[str, object], wanted: Mapping[str, str]) -> dict[str, object]:
    """Return the wanted members of an object under their proper names, in the document's order.

    :param wanted: case-folded name -> proper name.
    :raises JsonError: when one of them occurs twice, in whatever case.
    """
    found: dict[str, object] = {}
    repeated = value.names if type(value) is Repeated else ()
    for key, item in value.items():
        name = wanted.get(key.casefold())
        if name is None:
            continue
        if name in found or key in repeated:
            raise JsonError(
                f'duplicate member "{name}"',
                "two readers of this document may take different ones; leave one of them",
            )
        found[name] = item
    return found


def dumps(value: object, indent: bool = False) -> str:
    """Return ``value`` (str, int, bool, None, list, tuple, dict) as JSON text; members keep their order.

    :param indent: one item a line, one space for each level, instead of no white space at all.
    """
    text = _dump(value, "\n" if indent else "")
    # A path that is no UTF-8 has lone surrogates; backslashreplace happens to write them as JSON's own escape.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _dump(value: object, newline: str) -> str:
    if type(value) is str:
        return encode_basestring(value)
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
        items = [
            f"{encode_basestring(key)}{colon}{_dump(item, inner)}" for key, item in value.items()
        ]
        return f"{{{inner}{f',{inner}'.join(items)}{newline}}}" if items else "{}"
    if isinstance(value, (list, tuple)):
        items = [_dump(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(items)}{newline}]" if items else "[]"
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def kind(value: object) -> str:
    """Return what Go calls a value of this type in its messages."""
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
    from nvgraft.base import json_errors  # half as long as this module, and seldom needed

    try:
        return JsonError(*json_errors.diagnose(text, start, _scan))
    except RecursionError:
        return _too_deep()
