"""Pydantic models of the documents, and the functions that read documents and explain errors.

They are for the command line and the tests. Nothing in ``nvgraft`` may import this package:
pydantic takes longer to load than a whole hook run. The JSON schemas in ``nvgraft_specs/schemas``
are generated from these models.
"""

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

#: Bytes of a document; the largest real snapshot has some hundred KiB.
SIZE_LIMIT = 64 << 20

_PIECES = 64

#: For members whose names follow a pattern: pydantic's JSON schemas would allow other names too.
ONLY_SUCH_NAMES: dict[str, JsonValue] = {"additionalProperties": False}

#: An absolute path without empty parts, "." and "..".
PLAIN_PATH = r"^(/|(/([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+))+)$"

_Model = TypeVar("_Model", bound=BaseModel)


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


class Strict(BaseModel):
    """Base of most values: types are not converted, and unknown members are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Base of host values: types are not converted; unknown members of newer versions are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def read_bytes(path: str) -> bytes:
    """Read the document file ``path``.

    :raises DocumentError: when it cannot be read, or is larger than :data:`SIZE_LIMIT`.
    """
    try:
        # Opening a pipe without a writer would block forever. A shell's <(...) has a writer, and is
        # read to its end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            os.set_blocking(file.fileno(), True)
            # In pieces: one read of the limit takes that much memory, even for a small file.
            chunks = [
                chunk for _ in range(_PIECES + 1) if (chunk := file.read(SIZE_LIMIT // _PIECES))
            ]
            raw = b"".join(chunks)
    except OSError as error:
        cause = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise DocumentError(path, "", cause, "pass the path of a readable file") from None
    if len(raw) > SIZE_LIMIT:
        raise DocumentError(
            path, "", f"larger than {SIZE_LIMIT >> 20} MiB", "check that this is the right file"
        )
    return raw


def parse(
    model: type[_Model], schema: str, raw: bytes, path: str, default_schema: str | None = None
) -> _Model:
    """Parse the text of a document.

    :param schema: the version of the model, such as ``nvgraft.host/1``.
    :param path: the path to name in errors.
    :param default_schema: the meaning of a missing ``schema`` member; None if it is required.
    :raises DocumentError: when the text is not JSON, the document is of another kind or version, or
        a member is wrong.
    """
    data = load_json(raw, path)
    if not isinstance(data, dict):
        raise DocumentError(
            path, "$", f"should be an object, is {_kind(data)}", f"pass a document of {schema}"
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
    """Return the data of a JSON text.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not JSON, or has NaN or Infinity, which few readers know.
    """
    try:
        return json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        cause = f"not JSON: {_words(error)}" if raw.strip() else "an empty file"
        fix = "write the file again: it may be truncated"
        raise DocumentError(path, "", cause, fix) from None


def schema_name(schema: str) -> str:
    """Return the file name of a JSON schema: ``nvgraft.host-1.json`` for ``nvgraft.host/1``."""
    return schema.replace("/", "-") + ".json"


def schema_path(schema: str) -> Path:
    """Return the path of the JSON schema of ``schema``."""
    return Path(__file__).parent.parent / "schemas" / schema_name(schema)


def schema_text(model: type[BaseModel], schema: str) -> str:
    """Return the JSON schema of ``model`` as its file holds it (draft 2020-12)."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://nvgraft.invalid/schemas/{schema_name(schema)}",
    }
    return json.dumps(head | model.model_json_schema(by_alias=True), indent=1) + "\n"


def _check_version(version: object, schema: str, path: str) -> None:
    if version == schema:
        return
    kind = schema.partition("/")[0]
    if isinstance(version, str) and version.startswith(kind + "/"):
        cause = f"version {version!r} is not known, this nvgraft reads {schema!r}"
        fix = f"upgrade nvgraft, or write the document in version {schema}"
        raise DocumentError(path, "$.schema", cause, fix)
    raise DocumentError(
        path, "$.schema", f"should be {schema!r}, is {version!r}", f"pass a document of {schema}"
    )


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
    """Write pydantic's location as a JSON path, without the names of union members in it."""
    text = "$"
    current = data
    for position, part in enumerate(loc):
        if isinstance(current, dict):
            exists = part in current
        else:
            exists = isinstance(current, list) and part in range(len(current))
        if not exists and (position < len(loc) - 1 or part == "[key]"):
            continue
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if part.replace("_", "a").isalnum() else f"[{part!r}]"
        if exists and isinstance(current, dict | list):
            current = current[part]  # type: ignore[index]
        else:
            current = None
    return text
