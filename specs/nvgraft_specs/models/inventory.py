"""The documents ``nvgraft.inventory/1`` and ``nvgraft.refresh/1``: the kept inventory of this host.

Written by ``nvgraft inventory``.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.inventory/1"
REFRESH_SCHEMA = "nvgraft.refresh/1"
DROP_SCHEMA = "nvgraft.drop/1"


class MigDevice(Strict):
    """A MIG device."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(Strict):
    """A GPU as NVML reported it."""

    minor: int
    uuid: str
    bus_id: str
    brand: int = Field(description="NVML's brand number")
    arch: str = Field(description="compute capability")
    mig: Literal["unsupported", "disabled", "enabled"]
    model: str
    mig_devices: list[MigDevice]


class Cached(Strict):
    """The kept inventory."""

    made: str = Field(description="the time at which it was written: UTC, ISO 8601")
    driver_version: str
    cuda_version: str
    gpus: list[Gpu]
    libraries: list[str]
    libraries32: list[str]
    checked: list[str] = Field(description="paths that are checked for changes before it is used")


class Inventory(Strict):
    """The output of `nvgraft inventory show`."""

    version: Literal["nvgraft.inventory/1"] = Field(alias="schema")
    file: str
    used: bool = Field(description="whether the next hook uses it")
    reason: str | None = Field(description="why the next hook does not use it; null if it does")
    cached: Cached | None = Field(description="null if no inventory is kept")


class Refresh(Strict):
    """The output of `nvgraft inventory refresh`: what it has read."""

    version: Literal["nvgraft.refresh/1"] = Field(alias="schema")
    driver: str
    gpus: int
    mig_devices: int
    libraries: int


class Drop(Strict):
    """What ``inventory drop`` has removed."""

    version: Literal["nvgraft.drop/1"] = Field(alias="schema")
    directory: str
    dropped: int = Field(description="the number of removed files", ge=0)
