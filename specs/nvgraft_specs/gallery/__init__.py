"""The simulated hosts that ship with nvgraft: one ``nvgraft.host/1`` document each.

Only where they are; reading one is :mod:`nvgraft_specs.models.host`, making one real is ``nvgraft simulate``.
"""

import os

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = ".json"


def names() -> list[str]:
    """Return the names of all hosts of the gallery, sorted."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in os.listdir(_DIRECTORY) if name.endswith(_SUFFIX)
    )


def path(name: str) -> str:
    """Return the path of the document of the host ``name``.

    :raises KeyError: there is no such host; its argument is one line that names the hosts there are.
    """
    if name not in names():
        raise KeyError(f"no simulated host {name!r}; there are {', '.join(names())}")
    return os.path.join(_DIRECTORY, name + _SUFFIX)
