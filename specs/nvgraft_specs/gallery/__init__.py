"""The recorded hosts that ship with nvgraft: one ``nvgraft.host/1`` document each.

This module finds the documents. :mod:`nvgraft_specs.models.host` reads them, and ``nvgraft
simulate`` simulates the hosts.
"""

import binascii
import os

#: Host -> CRC-32 of its document as it ships. The tests check these documents; a document that
#: somebody has changed or added is checked when it is read.
CHECKSUMS = {
    "b200-580": 0x93FCD61B,
    "debian-a100x8": 0xFBA47A92,
    "debian-a10g-index": 0xB02687EF,
    "debian-compat32": 0xDCBAA855,
    "eks-t4": 0x257FA4AF,
    "gb200-580": 0x43706E22,
    "h100-550": 0x54CDF614,
    "h100-580": 0x9299666E,
    "l40s-580": 0xA9035DAA,
    "jetson-orin": 0x59AE0DBC,
    "mig-h100": 0x115712FF,
    "operator-driver-root": 0xCB53F855,
    "runfile-a10x2": 0x13D66AE3,
    "wsl2-rtx3090": 0xB6FF1551,
}

#: Hosts that only the runtime's modes with CDI edits serve: a Tegra board, and WSL2.
WITHOUT_HOOK = ("jetson-orin", "wsl2-rtx3090")

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = ".json"


def names() -> list[str]:
    """Return the sorted names of all hosts of the gallery."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in os.listdir(_DIRECTORY) if name.endswith(_SUFFIX)
    )


def with_hook() -> list[str]:
    """Return the sorted names of the hosts that mode legacy, which is the hook's, serves."""
    return [name for name in names() if name not in WITHOUT_HOOK]


def path(name: str) -> str:
    """Return the path of the document of the host ``name``.

    :raises KeyError: when there is no such host, with one line that lists the hosts.
    """
    if name not in names():
        raise KeyError(f"no simulated host {name!r}; the hosts are {', '.join(names())}")
    return os.path.join(_DIRECTORY, name + _SUFFIX)


def is_shipped(name: str, raw: bytes) -> bool:
    """Return whether ``raw`` is the document of the host ``name`` as it ships."""
    return CHECKSUMS.get(name) == binascii.crc32(raw)
