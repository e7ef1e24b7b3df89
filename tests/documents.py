"""What commands print for machines, judged by the schema that ships and by the model that it is made from."""

import json
from functools import cache
from typing import Any

import jsonschema

from nvgraft_specs.models import parse, schema_path
from nvgraft_specs.models.schemas import MODELS


@cache
def _validator(schema: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema_path(schema).read_text()))


def read_document(text: str) -> dict[str, Any]:
    """Return the document that ``text`` is, once its schema and its model have accepted it; they admit no member that they do not name."""
    data: dict[str, Any] = json.loads(text)
    schema = data["schema"]
    _validator(schema).validate(data)
    parse(MODELS[schema], schema, text.encode(), "output")
    return data
