"""The recorded hosts that ship with nvgraft: one ``nvgraft.host/1`` document each.

This module finds the documents. :mod:`nvgraft_specs.models.host` reads them, and ``nvgraft
simulate`` simulates the hosts.
"""

import os

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = ".json"


def names() -> list[str]:
    """Return the sorted names of all hosts of the gallery."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in os.listdir(_DIRECTORY) if name.endswith(_SUFFIX)
    )


def path(name: str) -> str:
    """Return the path of the document of the host ``name``.

    :raises KeyError: when there is no such host, with one line that lists the hosts.
    """
    if name not in names():
        raise KeyError(f"no simulated host {name!r}; the hosts are {', '.join(names())}")
    return os.path.join(_DIRECTORY, name + _SUFFIX)
