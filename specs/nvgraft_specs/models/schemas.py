"""The JSON schemas that ship: which there are, and how they are made. ``python -m nvgraft_specs.models.schemas`` rewrites them."""

from pydantic import BaseModel

from . import diff, host, matrix, plan, schema_path, schema_text

#: version of a document -> its model.
MODELS: dict[str, type[BaseModel]] = {diff.SCHEMA: diff.Diff, host.SCHEMA: host.Host, matrix.SCHEMA: matrix.Matrix, plan.SCHEMA: plan.Plan}


def write() -> None:
    """Write every schema to where it ships."""
    for schema, model in MODELS.items():
        schema_path(schema).write_text(schema_text(model, schema), encoding="utf-8")


if __name__ == "__main__":
    write()
