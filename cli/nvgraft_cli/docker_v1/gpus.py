"""The GPUs of this node as nvidia-docker 1.0 described them, asked of NVML.

The original asked the CUDA runtime for architecture and memory. NVML answers the same without it;
what NVML does not tell is None here.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pynvml

from nvgraft_cli.docker_v1.errors import DockerTrouble

#: NVML's common ancestor of two GPUs -> the original's number and words of a link.
LINKS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: (6, "Same board"),
    pynvml.NVML_TOPOLOGY_SINGLE: (5, "Single PCI switch"),
    pynvml.NVML_TOPOLOGY_MULTIPLE: (4, "Multiple PCI switches"),
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: (3, "Host PCI bridge"),
    pynvml.NVML_TOPOLOGY_NODE: (2, "Same CPU socket"),
    pynvml.NVML_TOPOLOGY_SYSTEM: (1, "Cross CPU socket"),
}

#: Major compute capability -> the family's name, as far as the original knew them.
_FAMILIES = {1: "Tesla", 2: "Fermi", 3: "Kepler", 5: "Maxwell", 6: "Pascal"}

#: PCI generation -> MB/s of a lane.
_LANES = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938}


class PeerLink(NamedTuple):
    """How near another GPU is: its PCI address, and a number and words of :data:`LINKS`."""

    bus_id: str
    number: int
    words: str


class NodeGpu(NamedTuple):
    """One GPU. Memory sizes are in MiB, bandwidths in MB/s, clocks in MHz, power in watts."""

    uuid: str
    path: str
    model: str | None
    power: int | None
    numa_node: int | None
    bus_id: str
    bar1: int | None
    pci_bandwidth: int | None
    core_clock: int | None
    memory_clock: int | None
    links: tuple[PeerLink, ...]
    arch: str
    ecc: bool
    memory: int
    memory_bandwidth: int | None

    @property
    def family(self) -> str | None:
        """The family's name; None for those that came after nvidia-docker 1.0."""
        return _FAMILIES.get(int(self.arch.partition(".")[0]))


class Driver(NamedTuple):
    """The driver: its version, the CUDA version that it provides, and its GPUs in NVML's order."""

    version: str
    cuda: tuple[int, int]
    gpus: tuple[NodeGpu, ...]


@contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DockerTrouble(
            f"Could not load NVML library: {error} | run nvidia-smi on this node: the driver must"
            " work here before a container can use it"
        ) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise DockerTrouble(f"nvml: {error} | run nvidia-smi on this node") from error
    finally:
        pynvml.nvmlShutdown()


def read_driver() -> Driver:
    """Ask NVML for everything.

    :raises DockerTrouble: there is no driver, or it reports an error.
    """
    with _nvml():
        number = pynvml.nvmlSystemGetCudaDriverVersion()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return Driver(
            _text(pynvml.nvmlSystemGetDriverVersion()),
            (number // 1000, number % 1000 // 10),
            tuple(_gpu(handle, handles) for handle in handles),
        )


def _gpu(handle: object, handles: Sequence[object]) -> NodeGpu:
    bus_id = _bus_id(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    width = _known(lambda: pynvml.nvmlDeviceGetMemoryBusWidth(handle))
    memory_clock = _known(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM))
    power = _known(lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle))
    bar1 = _known(lambda: pynvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)
    return NodeGpu(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        path=f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}",
        model=_text(pynvml.nvmlDeviceGetName(handle)) or None,
        power=None if power is None else power // 1000,
        numa_node=numa_node(bus_id),
        bus_id=bus_id,
        bar1=None if bar1 is None else bar1 >> 20,
        pci_bandwidth=_pci_bandwidth(handle),
        core_clock=_known(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        memory_clock=memory_clock,
        links=tuple(_links(handle, handles)),
        arch=f"{major}.{minor}",
        ecc=bool(_known(lambda: pynvml.nvmlDeviceGetEccMode(handle)[0])),
        memory=(_known(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total) or 0) >> 20,
        # Both edges of the clock move data.
        memory_bandwidth=(
            None if width is None or memory_clock is None else 2 * memory_clock * width // 8
        ),
    )


def _links(handle: object, handles: Sequence[object]) -> Iterator[PeerLink]:
    for other in handles:
        if other is not handle:
            level = _known(partial(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other))
            if level in LINKS:
                yield PeerLink(_bus_id(other), *LINKS[level])


def _pci_bandwidth(handle: object) -> int | None:
    lanes = _known(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    generation = _known(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    lane = _LANES.get(generation or 0)
    return None if lane is None or lanes is None else lane * lanes


def numa_node(bus_id: str, devices: str = "/sys/bus/pci/devices") -> int | None:
    """Return the NUMA node of a PCI address in NVML's form; None if the device has none.

    Like the original, take node 0 where the kernel does not know the address. Newer drivers write
    the domain with eight digits and the kernel with four, so that this is always so there.
    """
    try:
        with open(os.path.join(devices, bus_id.lower(), "numa_node"), encoding="ascii") as file:
            number = int(file.read(16))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _bus_id(handle: object) -> str:
    return _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _known(ask: Callable[[], int]) -> int | None:
    """Return an answer of NVML, or None where it has none for this GPU."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def choose(gpus: Sequence[NodeGpu], ids: Sequence[str]) -> list[NodeGpu]:
    """Return the GPUs that ``ids`` name, each once, in NVML's order; all of them for no id.

    :param ids: indices in NVML's order, or beginnings of UUIDs with ``GPU-``.
    :raises DockerTrouble: an id names none.
    """
    if not ids:
        return list(gpus)
    chosen = {_index(gpus, word) for word in ids}
    return [gpu for index, gpu in enumerate(gpus) if index in chosen]


def _index(gpus: Sequence[NodeGpu], word: str) -> int:
    if word.startswith("GPU-"):
        found = next((index for index, gpu in enumerate(gpus) if gpu.uuid.startswith(word)), None)
    else:
        found = int(word) if word.isascii() and word.removeprefix("+").isdecimal() else None
    if found is None or found >= len(gpus):
        names = f"0 to {len(gpus) - 1}" if gpus else "none: this node has no GPU"
        raise DockerTrouble(
            f"invalid device: {word} | name GPUs by index ({names}) or by the beginning of a UUID"
            " of `nvidia-smi -L`"
        )
    return found
