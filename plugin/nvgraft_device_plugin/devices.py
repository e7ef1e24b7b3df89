"""The devices of a node as the plugin sees them: GPUs, MIG devices, and what stands for them on
Tegra and WSL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

#: What separates the id of a device from the number of its share.
SHARE = "::"

#: Scores of how near two GPUs are, by the word of ``nvidia-smi topo -m``, and of each NVLink
#: between them.
LEVEL_SCORES = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "X": 60}
NVLINK_SCORE = 100


class MigProfile(NamedTuple):
    """What NVML tells of a MIG device: slices, memory in MiB, multiprocessors, the suffix of its
    profile's name, and how many engines for copying, decoding, encoding, JPEG and optical flow.
    """

    gpu_slices: int
    compute_slices: int
    memory: int
    multiprocessors: int
    suffix: str
    engines: tuple[int, ...] = ()

    def name(self, gpu_memory: int) -> str:
        """Return the profile's name on a GPU with so many MiB, such as 1g.5gb or 1c.3g.20gb."""
        eighths = -(-8 * self.memory // gpu_memory)
        gigabytes = round(eighths / 8 * -(-gpu_memory // 1024))
        compute = "" if self.compute_slices == self.gpu_slices else f"{self.compute_slices}c."
        return f"{compute}{self.gpu_slices}g.{gigabytes}gb{self.suffix}"


#: The profile of a MIG device of which only its ids are known.
UNKNOWN_PROFILE = MigProfile(0, 0, 0, 0, "")


class MigDevice(NamedTuple):
    """One MIG device of a GPU."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: MigProfile


@dataclass(frozen=True)
class NodeGpu:
    """One GPU. ``memory`` is in MiB, 0 if it is not known.

    ``bus_id`` is as NVML writes it. ``pci_class`` is class and subclass of the PCI device, None if
    the kernel does not tell. ``clique`` names the NVLink clique of a GPU that is attached to a
    fabric. ``virtual`` is true of a vGPU.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    model: str
    brand: int
    arch: str
    memory: int
    numa_node: int | None
    mig_enabled: bool | None
    mig_devices: tuple[MigDevice, ...] = ()
    pci_class: int | None = None
    clique: str = ""
    virtual: bool = False


class Node(NamedTuple):
    """What a node has.

    :ivar platform: nvml, tegra or wsl.
    :ivar scores: (UUID, UUID) in both orders -> how near two GPUs are.
    :ivar mig_minors: name of a MIG capability -> minor of its node.
    :ivar faults: GPUs that NVML does not answer for, with its words.
    """

    platform: str
    driver: str = ""
    cuda: str = ""
    gpus: tuple[NodeGpu, ...] = ()
    scores: Mapping[tuple[str, str], int] = {}
    mig_minors: Mapping[str, int] = {}
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """What the kubelet counts: a GPU, a MIG device, or a share of one.

    :ivar id: with a share ID::NUMBER.
    :ivar uuid: of the device without its share.
    :ivar index: by which containers name it: 0, or 0:1 for a MIG device.
    :ivar gpu: UUID of the GPU.
    :ivar instances: GPU and compute instance of a MIG device.
    :ivar paths: its nodes.
    """

    id: str
    uuid: str
    index: str
    gpu: str
    instances: tuple[int, int] | None
    paths: tuple[str, ...]
    numa_node: int | None

    def shares(self, number: int) -> list["Device"]:
        """Return so many shares of this device."""
        return [replace(self, id=f"{self.uuid}{SHARE}{share}") for share in range(number)]


class MissingCapability(Exception):
    """A MIG device whose node the driver does not name."""


def whole_gpu(gpu: NodeGpu) -> Device:
    """Return a GPU as a device."""
    path = f"/dev/nvidia{gpu.minor}"
    return Device(gpu.uuid, gpu.uuid, str(gpu.index), gpu.uuid, None, (path,), gpu.numa_node)


def mig_device(gpu: NodeGpu, position: int, minors: Mapping[str, int]) -> Device:
    """Return a MIG device of a GPU by its position.

    :raises MissingCapability: the driver does not name its capability nodes.
    """
    device = gpu.mig_devices[position]
    instance = f"gpu{gpu.minor}/gi{device.gpu_instance}"
    paths = [f"/dev/nvidia{gpu.minor}"]
    for kind, name in (
        ("GPU", f"{instance}/access"),
        ("compute", f"{instance}/ci{device.compute_instance}/access"),
    ):
        if name not in minors:
            raise MissingCapability(f"missing MIG {kind} instance capability path: {name}")
        paths.append(f"/dev/nvidia-caps/nvidia-cap{minors[name]}")
    return Device(
        device.uuid,
        device.uuid,
        f"{gpu.index}:{position}",
        gpu.uuid,
        (device.gpu_instance, device.compute_instance),
        tuple(paths),
        gpu.numa_node,
    )


def only(name: str, paths: Sequence[str] = ()) -> Device:
    """Return the one device of a Tegra or WSL node."""
    index = "all" if name == "all" else "0"
    return Device(name, name, index, name, None, tuple(paths), None)
