"""The list of documents with a JSON schema.

``python -m nvgraft_specs.models.schemas`` writes the schemas.
"""

from pydantic import BaseModel

from nvgraft_specs.models import (
    cdi,
    diff,
    doctor,
    error,
    explain_error,
    gallery,
    gpu_profile,
    host,
    inventory,
    last_error,
    lesson,
    matrix,
    plan,
    prove,
    recover,
    register,
    schema_path,
    schema_text,
    start,
    story,
    why,
)

#: The model of each document, by the document's version.
MODELS: dict[str, type[BaseModel]] = {
    cdi.CHECK_SCHEMA: cdi.CdiCheck,
    cdi.DEVICES_SCHEMA: cdi.CdiDevices,
    diff.SCHEMA: diff.Diff,
    doctor.SCHEMA: doctor.Examination,
    error.SCHEMA: error.CommandError,
    explain_error.SCHEMA: explain_error.Analysis,
    gallery.SCHEMA: gallery.Gallery,
    gpu_profile.SCHEMA: gpu_profile.GpuProfile,
    host.SCHEMA: host.Host,
    inventory.DROP_SCHEMA: inventory.Drop,
    inventory.REFRESH_SCHEMA: inventory.Refresh,
    inventory.SCHEMA: inventory.Inventory,
    last_error.SCHEMA: last_error.LastError,
    lesson.SCHEMA: lesson.Lesson,
    matrix.SCHEMA: matrix.Matrix,
    plan.SCHEMA: plan.Plan,
    prove.SCHEMA: prove.Proofs,
    recover.SCHEMA: recover.Recovery,
    register.SCHEMA: register.Registration,
    start.SCHEMA: start.Start,
    story.SCHEMA: story.Story,
    why.SCHEMA: why.Answers,
}


def write() -> None:
    """Write all schema files."""
    for schema, model in MODELS.items():
        schema_path(schema).write_text(schema_text(model, schema), encoding="utf-8")


if __name__ == "__main__":
    write()
