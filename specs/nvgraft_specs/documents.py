"""Read the text of documents, and name what is wrong with it, without pydantic.

:mod:`nvgraft_specs.models` checks the content.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Bytes of a document; the largest real snapshot has some hundred KiB.
SIZE_LIMIT = 8 << 20

#: Members and items of a document, approximately; the largest real snapshot has some thousand, and
#: a plan with 2,048 IMEX channels 55,000. Each takes up to 2 KiB of memory.
VALUE_LIMIT = 80_000

#: Nested arrays and objects; a real document has less than ten.
DEPTH_LIMIT = 64

_PIECES = 64

#: A string, so that brackets in it do not count, or a bracket.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.DOTALL)


class DocumentError(ValueError):
    """A document cannot be used.

    :param path: the file, as the user named it.
    :param where: the JSON path of the wrong member (``$.nvml.gpus[0].minor``), or "" for the file.
    :param cause: what is wrong.
    :param fix: what to do, as an instruction.
    """

    def __init__(self, path: str, where: str, cause: str, fix: str) -> None:
        super().__init__(path, where, cause, fix)
        self.path = path
        self.where = where
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        location = f"{self.path}: {self.where}" if self.where else self.path
        return f"{location}: {self.cause} | {self.fix}"


def read_bytes(path: str, limit: int = SIZE_LIMIT) -> bytes:
    """Read the document file ``path``.

    :raises DocumentError: when it cannot be read, or is larger than ``limit``.
    """
    try:
        # Opening a pipe without a writer would block forever. A shell's <(...) has a writer, and is
        # read to its end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            os.set_blocking(file.fileno(), True)
            # In pieces: one read of the limit takes that much memory, even for a small file.
            chunks = [chunk for _ in range(_PIECES + 1) if (chunk := file.read(limit // _PIECES))]
            raw = b"".join(chunks)
    except OSError as error:
        cause = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise DocumentError(path, "", cause, "pass the path of a readable file") from None
    if len(raw) > limit:
        raise DocumentError(
            path, "", f"larger than {limit >> 20} MiB", "check that this is the right file"
        )
    return raw


def check_values(count: int, path: str) -> None:
    """Check the number of values of a document.

    :raises DocumentError: there are more than :data:`VALUE_LIMIT`.
    """
    if count > VALUE_LIMIT:
        raise DocumentError(
            path,
            "",
            f"it has {count:,} values, more than {VALUE_LIMIT:,}",
            "check that this is the right file",
        )


def _check_bounds(raw: bytes, path: str) -> None:
    """Check the number of values and the depth of a JSON text before it is parsed.

    :raises DocumentError: it has too many, or is too deep.
    """
    check_values(raw.count(b",") + raw.count(b"[") + raw.count(b"{"), path)
    depth = 0
    for match in _TOKEN.finditer(raw):
        token = match[0]
        depth += (token in {b"[", b"{"}) - (token in {b"]", b"}"})
        if depth > DEPTH_LIMIT:
            raise DocumentError(
                path,
                "",
                f"not JSON: nested too deeply: more than {DEPTH_LIMIT} levels",
                "write the file again: it may be truncated",
            )


#: Byte order marks of UTF-8 and UTF-16.
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def load_json(raw: bytes, path: str) -> Any:
    """Return the data of a JSON text.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not JSON, has NaN or Infinity, which few readers know, or is
        too large or too deep.
    """
    _check_bounds(raw, path)
    try:
        return json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        cause = f"not JSON: {_words(error)}" if raw.strip() else "an empty file"
        fix = "write the file again: it may be truncated"
        if raw.startswith(_MARKS):
            cause = "not JSON: it begins with a byte order mark"
            fix = "save it as UTF-8 without one, which Windows PowerShell's > does not do"
        raise DocumentError(path, "", cause, fix) from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _words(error: Exception) -> str:
    """Return what is wrong with a text, without the parts of Python's message about Python."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return (
            f"{error.msg[:1].lower()}{error.msg[1:]} in line {error.lineno}, column {error.colno}"
        )
    return "a number with too many digits" if "digits" in str(error) else str(error)
