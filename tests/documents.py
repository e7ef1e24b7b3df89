"""Check JSON output of commands against its shipped schema and its model."""

import json
from functools import cache
from typing import Any

import jsonschema_rs

from nvgraft_specs.models import parse, schema_path
from nvgraft_specs.models.schemas import MODELS


@cache
def _validator(schema: str) -> Any:
    return jsonschema_rs.Draft202012Validator(json.loads(schema_path(schema).read_text()))


def read_document(text: str) -> dict[str, Any]:
    """Return the document in ``text`` after a check by its schema and its model.

    Both refuse unknown members.
    """
    data: dict[str, Any] = json.loads(text)
    schema = data["schema"]
    _validator(schema).validate(data)
    parse(MODELS[schema], schema, text.encode(), "output")
    return data
