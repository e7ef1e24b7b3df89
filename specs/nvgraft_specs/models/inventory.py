"""The documents ``nvgraft.inventory/1`` and ``nvgraft.refresh/1``: what the hook keeps of this host (``nvgraft inventory``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.inventory/1"
REFRESH_SCHEMA = "nvgraft.refresh/1"


class MigDevice(Strict):
    """A MIG device."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(Strict):
    """A GPU as NVML described it."""

    minor: int
    uuid: str
    bus_id: str
    brand: int = Field(description="NVML's number")
    arch: str = Field(description="compute capability")
    mig: Literal["unsupported", "disabled", "enabled"]
    model: str
    mig_devices: list[MigDevice]


class Cached(Strict):
    """What is kept."""

    made: str = Field(description="UTC, ISO 8601")
    driver_version: str
    cuda_version: str
    gpus: list[Gpu]
    libraries: list[str]
    libraries32: list[str]
    checked: list[str] = Field(description="paths that are looked at before it is used")


class Inventory(Strict):
    """What `nvgraft inventory show` tells."""

    version: Literal["nvgraft.inventory/1"] = Field(alias="schema")
    file: str
    used: bool = Field(description="whether the next hook uses it")
    reason: str | None = Field(description="why not; null where it does")
    cached: Cached | None = Field(description="null where nothing is kept")


class Refresh(Strict):
    """What `nvgraft inventory refresh` has read."""

    version: Literal["nvgraft.refresh/1"] = Field(alias="schema")
    driver: str
    gpus: int
    mig_devices: int
    libraries: int
