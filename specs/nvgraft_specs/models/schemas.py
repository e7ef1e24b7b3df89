"""The JSON schemas that ship: which there are, and how they are made. ``python -m nvgraft_specs.models.schemas`` rewrites them."""

from pydantic import BaseModel

from . import (
    diff,
    doctor,
    explain_error,
    gallery,
    host,
    inventory,
    last_error,
    matrix,
    plan,
    prove,
    recover,
    schema_path,
    schema_text,
    story,
    why,
)

#: version of a document -> its model.
MODELS: dict[str, type[BaseModel]] = {
    diff.SCHEMA: diff.Diff,
    doctor.SCHEMA: doctor.Examination,
    explain_error.SCHEMA: explain_error.Analysis,
    gallery.SCHEMA: gallery.Gallery,
    host.SCHEMA: host.Host,
    inventory.REFRESH_SCHEMA: inventory.Refresh,
    inventory.SCHEMA: inventory.Inventory,
    last_error.SCHEMA: last_error.LastError,
    matrix.SCHEMA: matrix.Matrix,
    plan.SCHEMA: plan.Plan,
    prove.SCHEMA: prove.Proofs,
    recover.SCHEMA: recover.Recovery,
    story.SCHEMA: story.Story,
    why.SCHEMA: why.Answers,
}


def write() -> None:
    """Write every schema to where it ships."""
    for schema, model in MODELS.items():
        schema_path(schema).write_text(schema_text(model, schema), encoding="utf-8")


if __name__ == "__main__":
    write()
