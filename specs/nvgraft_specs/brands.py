"""NVML's brand numbers and the names that requirements and listings use (reference behaviour 4.3)."""

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
    """Return the name of NVML's ``brand`` number; an unlisted one is Unknown."""
    return _NAMES[brand] if 0 <= brand < len(_NAMES) else "Unknown"
