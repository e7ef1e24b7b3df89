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
