"""Pydantic models of the documents, and the functions that check documents and explain errors.

They are for the command line and the tests. Nothing in ``nvgraft`` may import this package:
pydantic takes longer to load than a whole hook run. The JSON schemas in ``nvgraft_specs/schemas``
are generated from these models.
"""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from nvgraft_specs.documents import DocumentError, load_json

#: For members whose names follow a pattern: pydantic's JSON schemas would allow other names too.
ONLY_SUCH_NAMES: dict[str, JsonValue] = {"additionalProperties": False}

#: An absolute path without empty parts, "." and "..".
PLAIN_PATH = r"^(/|(/([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+))+)$"

_Model = TypeVar("_Model", bound=BaseModel)


class Strict(BaseModel):
    """Base of most values: types are not converted, and unknown members are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Base of host values: types are not converted; unknown members of newer versions are kept."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


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
        first, more = first_error(error)
        cause = first["msg"][:1].lower() + first["msg"][1:]
        fix = f"see the schema {schema_name(schema)} shipped in nvgraft_specs/schemas"
        raise DocumentError(path, _json_path(first["loc"], data), cause + more, fix) from None


def first_error(error: ValidationError) -> tuple[ErrorDetails, str]:
    """Return the first error in a document, and how many more there are as text for a message."""
    # Without the inputs: each missing member would hold a copy of the whole document.
    first, *rest = error.errors(include_url=False, include_context=False, include_input=False)
    return first, f" (and {len(rest)} more)" if rest else ""


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
        inside = isinstance(current, dict | list)
        if not exists and (position < len(loc) - 1 or part == "[key]" or not inside):
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
