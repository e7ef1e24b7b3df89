"""GPU profiles for simulated hosts: what a product answers, one ``nvgraft.gpu-profile/1`` document
each, in TOML, with the source beside the values.

A value that NVIDIA has not published is left out; a simulated GPU then answers "not supported".
:mod:`nvgraft_specs.models.gpu_profile` reads the documents.
"""

import os

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = ".toml"


def names() -> list[str]:
    """Return the sorted names of all profiles."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in os.listdir(_DIRECTORY) if name.endswith(_SUFFIX)
    )


def path(name: str) -> str:
    """Return the path of the profile ``name``, which is one of :func:`names`."""
    return os.path.join(_DIRECTORY, name + _SUFFIX)
