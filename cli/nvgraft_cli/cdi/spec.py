"""The text of a CDI specification, as JSON or YAML."""

import json

from nvgraft.cdi.edits import CdiSpec


def text(specification: CdiSpec, form: str) -> str:
    """Return the specification as ``json`` or ``yaml``, with a final newline."""
    data = specification.document()
    if form == "json":
        return json.dumps(data, indent=2) + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # A copy without shared lists: YAML would write them as aliases, which some readers refuse.
    return str(
        yaml.dump(
            json.loads(json.dumps(data)),
            Dumper=dumper,
            sort_keys=False,
            explicit_start=True,
            width=1 << 20,
        )
    )
