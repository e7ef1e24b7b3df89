"""Pydantic models of the documents, and what reading a document from outside needs: versions, and errors a person can act on.

For the command line and the tests. The engine reads documents without pydantic (it costs more at start-up than a whole
hook run), so nothing in ``nvgraft`` may import this package. The JSON schemas beside it are generated from these models.
"""

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

#: Larger files are not read: the biggest real snapshot is some hundred KiB.
SIZE_LIMIT = 64 << 20

_PIECES = 64

#: For members whose names follow a pattern: JSON schemas made by pydantic allow any other name beside it.
ONLY_SUCH_NAMES: dict[str, JsonValue] = {"additionalProperties": False}

#: An absolute path without empty parts, "." and "..".
PLAIN_PATH = r"^(/|(/([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+))+)$"

_Model = TypeVar("_Model", bound=BaseModel)


class DocumentError(ValueError):
    """A document cannot be used.

    :param path: the file, as the user named it.
    :param where: JSON path of the offending member (``$.nvml.gpus[0].minor``), or ``""`` for the file as a whole.
    :param cause: what is wrong.
    :param fix: what to do about it.
    """

    def __init__(self, path: str, where: str, cause: str, fix: str) -> None:
        super().__init__(path, where, cause, fix)
        self.path = path
        self.where = where
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        place = f"{self.path}: {self.where}" if self.where else self.path
        return f"{place}: {self.cause} | {self.fix}"


class Strict(BaseModel):
    """Base of plan values: no conversions, no unknown members."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Base of host values: no conversions, but unknown members are kept, since newer snapshots add keys beside ours."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def read_bytes(path: str) -> bytes:
    """Read the document file ``path``.

    :raises DocumentError: it cannot be read, or is larger than :data:`SIZE_LIMIT`.
    """
    try:
        # A pipe that nobody has opened for writing would be waited for, for ever; one of a shell's <(...) is open, and is read to its end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            os.set_blocking(file.fileno(), True)
            # In pieces: one read of the limit would take that much memory for the smallest file.
            chunks = [
                chunk for _ in range(_PIECES + 1) if (chunk := file.read(SIZE_LIMIT // _PIECES))
            ]
            raw = b"".join(chunks)
    except OSError as error:
        cause = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise DocumentError(path, "", cause, "give the path of a readable file") from None
    if len(raw) > SIZE_LIMIT:
        raise DocumentError(
            path, "", f"larger than {SIZE_LIMIT >> 20} MiB", "this is no such document"
        )
    return raw


def parse(
    model: type[_Model], schema: str, raw: bytes, path: str, default_schema: str | None = None
) -> _Model:
    """Turn the text of a document into a ``model``.

    :param schema: the version that this model is of, such as ``nvgraft.host/1``.
    :param path: named in errors.
    :param default_schema: what a missing ``schema`` member means; None: it must be there.
    :raises DocumentError: not JSON, another kind or a newer version of document, or members of the wrong type.
    """
    data = load_json(raw, path)
    if not isinstance(data, dict):
        raise DocumentError(
            path, "$", f"should be an object, is {_kind(data)}", f"give a document of {schema}"
        )
    _check_version(data.get("schema", default_schema), schema, path)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False)
        more = f" (and {len(rest)} more)" if rest else ""
        cause = first["msg"][:1].lower() + first["msg"][1:]
        fix = f"see the schema {schema_name(schema)} shipped in nvgraft_specs/schemas"
        raise DocumentError(path, _json_path(first["loc"], data), cause + more, fix) from None


def load_json(raw: bytes, path: str) -> Any:
    """Return what the JSON text ``raw`` says.

    :param path: named in errors.
    :raises DocumentError: it is none, or says what not every reader understands alike.
    """
    try:
        return json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        cause = f"not JSON: {_words(error)}" if raw.strip() else "it is empty"
        raise DocumentError(path, "", cause, "the file may be truncated: write it again") from None


def schema_name(schema: str) -> str:
    """Return the file name of the JSON schema of ``schema``: ``nvgraft.host/1`` is described by ``nvgraft.host-1.json``."""
    return schema.replace("/", "-") + ".json"


def schema_path(schema: str) -> Path:
    """Return where the JSON schema of ``schema`` lies on disk."""
    return Path(__file__).parent.parent / "schemas" / schema_name(schema)


def schema_text(model: type[BaseModel], schema: str) -> str:
    """Return the JSON schema of ``model`` as it is checked in (draft 2020-12)."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://nvgraft.invalid/schemas/{schema_name(schema)}",
    }
    return json.dumps(head | model.model_json_schema(by_alias=True), indent=1) + "\n"


def _check_version(found: object, schema: str, path: str) -> None:
    if found == schema:
        return
    kind = schema.partition("/")[0]
    if isinstance(found, str) and found.startswith(kind + "/"):
        fix = f"upgrade nvgraft, or write the document as {schema}"
        raise DocumentError(
            path, "$.schema", f"version {found!r} is not known, this nvgraft reads {schema!r}", fix
        )
    raise DocumentError(
        path, "$.schema", f"should be {schema!r}, is {found!r}", f"give a document of {schema}"
    )


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _words(error: Exception) -> str:
    """Return what is wrong with a text, without advice about Python."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return (
            f"{error.msg[:1].lower()}{error.msg[1:]} in line {error.lineno}, column {error.colno}"
        )
    return "a number with too many digits" if "digits" in str(error) else str(error)


def _kind(data: object) -> str:
    names = {
        list: "an array",
        str: "a string",
        int: "a number",
        float: "a number",
        bool: "a boolean",
    }
    return names.get(type(data), "null")


def _json_path(loc: tuple[int | str, ...], data: object) -> str:
    """Write pydantic's location as a JSON path: the names of union members, which it mixes in, are left out."""
    text = "$"
    current = data
    for position, part in enumerate(loc):
        known = (
            part in current
            if isinstance(current, dict)
            else isinstance(current, list) and part in range(len(current))
        )
        if not known and (position < len(loc) - 1 or part == "[key]"):
            continue
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if part.replace("_", "a").isalnum() else f"[{part!r}]"
        current = current[part] if known and isinstance(current, dict | list) else None  # type: ignore[index]
    return text
