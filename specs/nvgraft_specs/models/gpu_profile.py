"""The document ``nvgraft.gpu-profile/1``: what a GPU product answers when it is simulated; and the
values that a host document may state of one GPU.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from nvgraft_specs import profiles
from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.gpu-profile/1"

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=200)]
_Number = Annotated[int, Field(ge=0, le=1 << 40)]
_Id = Annotated[int, Field(ge=0, le=0xFFFF)]
_Engines = Annotated[int, Field(ge=0, le=64)]
_Celsius = Annotated[int, Field(ge=0, le=200)]
_Watts = Annotated[float, Field(ge=0, le=10_000, strict=False)]
_Percent = Annotated[int, Field(ge=0, le=100)]


class Script(Strict):
    """A value that moves: it takes the next of `values` each `every_s` seconds, and starts again
    after the last.
    """

    every_s: Annotated[int, Field(ge=1, le=3600)]
    values: Annotated[
        list[Annotated[float, Field(ge=0, le=1 << 40, strict=False)]],
        Field(min_length=1, max_length=3600),
    ]


class GpuValues(Strict):
    """What one GPU answers. An absent key is not known, and NVML answers "not supported"."""

    architecture: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"] | None = None
    sm_count: _Number | None = Field(default=None, description="multiprocessors")
    cores: _Number | None = Field(default=None, description="CUDA cores")
    memory_mib: _Number | None = Field(default=None, description="as nvidia-smi prints it")
    memory_reserved_mib: _Number | None = None
    memory_used_mib: Script | _Number | None = Field(default=None, description="by programs")
    memory_bus_bits: _Number | None = None
    bar1_mib: _Number | None = None
    l2_kib: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    copy_engines: _Engines | None = None
    graphics_max_mhz: _Number | None = None
    sm_max_mhz: _Number | None = None
    memory_max_mhz: _Number | None = None
    video_max_mhz: _Number | None = None
    graphics_mhz: Script | _Number | None = None
    sm_mhz: Script | _Number | None = None
    memory_mhz: Script | _Number | None = None
    video_mhz: Script | _Number | None = None
    power_default_w: _Watts | None = Field(
        default=None, description="default of the power limit; as power_limit_w if it is absent"
    )
    power_limit_w: _Watts | None = None
    power_min_w: _Watts | None = None
    power_max_w: _Watts | None = None
    power_w: Script | _Watts | None = Field(default=None, description="what the GPU draws")
    temperature_c: Script | _Celsius | None = None
    memory_temperature_c: Script | _Celsius | None = None
    temperature_max_c: _Celsius | None = None
    slowdown_c: _Celsius | None = None
    shutdown_c: _Celsius | None = None
    fans: _Engines | None = Field(default=None, description="0: passively cooled")
    fan_percent: Script | _Percent | None = None
    gpu_percent: Script | _Percent | None = Field(default=None, description="utilisation")
    memory_percent: Script | _Percent | None = None
    encoder_percent: Script | _Percent | None = None
    decoder_percent: Script | _Percent | None = None
    performance_state: Annotated[int, Field(ge=0, le=15)] | None = None
    ecc: bool | None = Field(default=None, description="whether ECC is on; absent: no ECC")
    ecc_corrected: _Number | None = None
    ecc_uncorrected: _Number | None = None
    persistence_mode: bool | None = None
    compute_mode: Literal["default", "prohibited", "exclusive-process"] | None = None
    display_active: bool | None = None
    vbios: Line | None = None
    serial: Line | None = None
    board_part_number: Line | None = None
    pci_device_id: _Id | None = None
    pci_subsystem_id: _Id | None = None
    pcie_gen: Annotated[int, Field(ge=1, le=8)] | None = Field(
        default=None, description="the highest of GPU and host"
    )
    pcie_width: Annotated[int, Field(ge=1, le=32)] | None = None
    pcie_current_gen: Annotated[int, Field(ge=1, le=8)] | None = None
    pcie_current_width: Annotated[int, Field(ge=1, le=32)] | None = None
    nvlinks: Annotated[int, Field(ge=0, le=18)] | None = Field(
        default=None, description="links that the GPU has; the host's topology says where they lead"
    )
    nvlink_version: Annotated[int, Field(ge=1, le=9)] | None = Field(
        default=None, description="generation: 4 for an H100"
    )
    nvlink_mb_s: _Number | None = Field(default=None, description="one link, one direction")
    cuda_attributes: (
        dict[
            Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,3}$")],
            Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)],
        ]
        | None
    ) = Field(
        default=None,
        description="number of a CUdevice_attribute -> its value, where nvgraft computes another",
        json_schema_extra={"additionalProperties": False},
    )


class Facts(GpuValues):
    """Values of a product, with the text that they are from."""

    source: Line
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")] | None = None


class MigProfile(Strict):
    """A GPU instance profile, as `nvidia-smi mig -lgip` lists it."""

    number: _Engines = Field(description="NVML_GPU_INSTANCE_PROFILE_*")
    id: _Engines = Field(description="the id that nvidia-smi prints")
    name: Annotated[str, StringConstraints(pattern=r"^[1-8]g\.[0-9]+gb(\+[a-z.]+)?$")]
    slices: Annotated[int, Field(ge=1, le=8)]
    instances: Annotated[int, Field(ge=1, le=8)]
    sm_count: _Number
    memory_mib: _Number
    copy_engines: _Engines
    decoders: _Engines
    encoders: _Engines
    jpegs: _Engines
    ofas: _Engines
    size: Annotated[int, Field(ge=1, le=8)] = Field(description="in memory slices")
    starts: list[Annotated[int, Field(ge=0, le=7)]] = Field(min_length=1, max_length=8)


class Mig(Strict):
    """How a GPU can be divided."""

    source: Line
    profiles: list[MigProfile] = Field(min_length=1, max_length=18)


class Node(Strict):
    """Which nodes can have the product. An absent key does not limit it."""

    source: Line
    first_driver: Annotated[int, Field(ge=100, le=999)] | None = Field(
        default=None, description="the first driver branch that serves it"
    )
    last_driver: Annotated[int, Field(ge=100, le=999)] | None = Field(
        default=None, description="the last driver branch that serves it"
    )
    machine: Literal["x86_64", "aarch64"] | None = Field(
        default=None, description="the architecture of every node that has it"
    )
    gpus: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="GPUs that one node has at most"
    )


class GpuProfile(Strict):
    """One GPU product."""

    version: Literal["nvgraft.gpu-profile/1"] = Field(alias="schema")
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: Line
    models: list[Line] = Field(
        min_length=1, description="what NVML calls it, by which a host without `profile` finds it"
    )
    brand: Annotated[int, Field(ge=0, le=64)] = Field(description="NVML's brand number")
    facts: list[Facts] = Field(min_length=1)
    node: Node | None = Field(default=None, description="absent: any node can have it")
    mig: Mig | None = Field(default=None, description="absent: the product has no MIG")

    @model_validator(mode="after")
    def _each_value_once(self) -> "GpuProfile":
        seen: set[str] = set()
        for group in self.facts:
            keys = group.model_fields_set - {"source"}
            if keys & seen:
                raise ValueError(f"{min(keys & seen)} has two sources")
            seen |= keys
        return self

    def values(self) -> dict[str, Any]:
        """Return all values of the product by key."""
        return {
            key: getattr(group, key)
            for group in self.facts
            for key in group.model_fields_set - {"source"}
        }


def parse_profile(text: str) -> GpuProfile:
    """Parse the TOML text of a profile.

    :raises ValueError: it is not TOML, or not a profile; the text says what is wrong.
    """
    return GpuProfile.model_validate(tomllib.loads(text))


@cache
def load_profile(name: str) -> GpuProfile:
    """Return the profile ``name``, which is one of :func:`nvgraft_specs.profiles.names`."""
    return parse_profile(Path(profiles.path(name)).read_text(encoding="utf-8"))


def profile_of_model(model: str) -> GpuProfile | None:
    """Return the profile of the product that NVML calls ``model``, or None."""
    return next(
        (profile for profile in map(load_profile, profiles.names()) if model in profile.models),
        None,
    )
