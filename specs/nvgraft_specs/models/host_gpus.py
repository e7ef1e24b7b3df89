"""The GPUs of a host document: what NVML reports of them, and how they are connected."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nvgraft_specs.models import Open, Strict
from nvgraft_specs.models.gpu_profile import GpuValues

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x20\x7f]+$")]
#: The minor number of a device node; GPU and compute instances of MIG have nodes too.
Minor = Annotated[int, Field(ge=0, lt=1 << 20)]
#: GPUs that a simulated host can have; SIM_GPU_LIMIT of the stand-ins.
GPU_LIMIT = 64
#: A position in `nvml.gpus`.
GpuIndex = Annotated[int, Field(ge=0, lt=GPU_LIMIT)]
Number32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]


class PciAddress(Open):
    """The PCI address of a GPU, as NVML reports it; the function is always 0."""

    domain: Number32
    bus: Annotated[int, Field(ge=0, le=0xFF)]
    device: Annotated[int, Field(ge=0, le=0x1F)]


class MigDevice(Open):
    """One MIG device of a GPU."""

    uuid: Word
    gpu_instance: Minor
    compute_instance: Minor
    profile: Word | None = Field(
        default=None, description="as `nvidia-smi mig` names it: 1g.10gb, or 1c.3g.40gb"
    )
    start: Annotated[int, Field(ge=0, le=7)] | None = Field(
        default=None, description="memory slice at which the GPU instance starts"
    )


class Gpu(Open):
    """One GPU. `minor` is the number of its device node, which may differ from its NVML index."""

    minor: Minor
    uuid: Word
    pci: PciAddress
    brand: int = Field(description="NVML's brand number")
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    mig: Literal["unsupported", "disabled", "enabled"]
    model: Line
    mig_devices: list[MigDevice]
    profile: str | None = Field(
        default=None,
        description="what the GPU answers when it is simulated: a name of nvgraft_specs/profiles;"
        " default: the profile of `model`, if there is one",
    )
    values: GpuValues | None = Field(
        default=None, description="answers that differ from the profile's"
    )


class Nvml(Open):
    """NVML's report of the host, with the GPUs in the order of its index."""

    driver_version: Word
    cuda_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    gpus: list[Gpu]


class NumaNode(Strict):
    """A NUMA node, and the GPUs that are attached to it."""

    node: Annotated[int, Field(ge=0, lt=1024)]
    cpus: Annotated[str, StringConstraints(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$")]
    gpus: list[GpuIndex] = Field(max_length=GPU_LIMIT)


class Bridge(Strict):
    """NVLinks that lead from one GPU to another."""

    gpus: tuple[GpuIndex, GpuIndex]
    links: Annotated[int, Field(ge=1, le=18)]


class Topology(Strict):
    """How the GPUs of a host are connected. An absent key is not known."""

    nvlink: Literal["switch"] | list[Bridge] | None = Field(
        default=None,
        description="switch: all links of all GPUs lead to NVSwitches, and a fabric manager is"
        " needed",
    )
    numa: list[NumaNode] | None = Field(default=None, max_length=64)
    levels: list[list[Literal["X", "PIX", "PXB", "PHB", "NODE", "SYS"]]] | None = Field(
        default=None,
        max_length=GPU_LIMIT,
        description="a row for each GPU, as `nvidia-smi topo -m` prints it without NVLink; default:"
        " NODE within a NUMA node, else SYS; without `numa` there is one node",
    )
