"""The names of NVML's brand numbers, as requirements and listings use them.

Source: reference behaviour 4.3.
"""

_NAMES = (
    "Unknown",
    "Quadro",
    "Tesla",
    "NVS",
    "GRID",
    "GeForce",
    "TITAN",
    "VApps",
    "VPC",
    "VCS",
    "VWS",
    "CloudGaming",
    "QuadroRTX",
    "NvidiaRTX",
    "Nvidia",
    "GeForceRTX",
    "TitanRTX",
)


def name(brand: int) -> str:
    """Return the name of a brand number, "Unknown" for an unlisted one."""
    return _NAMES[brand] if 0 <= brand < len(_NAMES) else "Unknown"


#: Brands of cards for desktops. The newer names are those of RTX cards.
_CONSUMER = frozenset(("GeForce", "TITAN", "GeForceRTX", "TitanRTX"))


def has_forward_compatibility(brand: int, model: str) -> bool:
    """Tell whether CUDA's forward compatibility libraries may serve a GPU.

    NVIDIA supports them on data center GPUs and on selected RTX boards, never on cards for
    desktops (CUDA Compatibility, Forward Compatibility).
    """
    words = model.lower().split()
    return name(brand) not in _CONSUMER and "geforce" not in words and "titan" not in words
