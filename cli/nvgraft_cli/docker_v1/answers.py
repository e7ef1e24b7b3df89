"""What the plugin and the wrapper say of a node: the arguments of ``docker``, and its description
as text and JSON (reference behaviour 12.2, 12.3).
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from nvgraft_cli.docker_v1.errors import DockerTrouble
from nvgraft_cli.docker_v1.gpus import Driver, NodeGpu

#: The one volume, its driver, and where containers see it.
VOLUME = "nvidia_driver"
VOLUME_DRIVER = "nvidia-docker"
MOUNT_POINT = "/usr/local/nvidia"

_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def control_devices() -> list[str]:
    """Return the nodes that every container gets; nvidia-uvm-tools only where it exists."""
    return [path for path in _CONTROL if path != _CONTROL[2] or os.path.exists(path)]


def device_arguments(gpus: Iterable[NodeGpu]) -> list[str]:
    """Return the arguments that give GPUs to a container."""
    return [f"--device={path}" for path in [*control_devices(), *(gpu.path for gpu in gpus)]]


def volume_name(version: str) -> str:
    """Return the name of the volume with the driver of this version."""
    return f"{VOLUME}_{version}"


def volume_argument(version: str) -> str:
    """Return the argument that mounts the volume."""
    return f"--volume={volume_name(version)}:{MOUNT_POINT}:ro"


def known_volumes(words: Sequence[str]) -> list[str]:
    """Return the volumes that a query names, all of them for none or ``*``.

    :raises DockerTrouble: a volume is not known.
    """
    wanted = [word for word in words if word != "*"]
    for word in wanted:
        if word != VOLUME:
            raise DockerTrouble(f"invalid volume: {word} | the only volume is {VOLUME}")
    return [VOLUME]


def description(driver: Driver) -> dict[str, Any]:
    """Return the answer to /gpu/info/json."""
    return {
        "Version": {"Driver": driver.version, "CUDA": cuda_text(driver)},
        "Devices": [_device(gpu) for gpu in driver.gpus],
    }


def cuda_text(driver: Driver) -> str:
    """Return the CUDA version as people write it."""
    return f"{driver.cuda[0]}.{driver.cuda[1]}"


def _device(gpu: NodeGpu) -> dict[str, Any]:
    return {
        "UUID": gpu.uuid,
        "Path": gpu.path,
        "Model": gpu.model,
        "Power": gpu.power,
        "CPUAffinity": gpu.numa_node,
        "PCI": {"BusID": gpu.bus_id, "BAR1": gpu.bar1, "Bandwidth": gpu.pci_bandwidth},
        "Clocks": {"Cores": gpu.core_clock, "Memory": gpu.memory_clock},
        "Topology": [{"BusID": link.bus_id, "Link": link.number} for link in gpu.links] or None,
        "Family": gpu.family,
        "Arch": gpu.arch,
        "Cores": None,
        "Memory": {
            "ECC": gpu.ecc,
            "Global": gpu.memory,
            "Shared": 0,
            "Constant": 0,
            "L2Cache": 0,
            "Bandwidth": gpu.memory_bandwidth,
        },
    }


def info_text(driver: Driver) -> str:
    """Return the answer to /gpu/info."""
    lines = [
        "",
        f"Driver version:          {driver.version}",
        f"Supported CUDA version:  {cuda_text(driver)}",
    ]
    for index, gpu in enumerate(driver.gpus):
        lines += [
            "",
            f"Device #{index}",
            f"  Model:         {_or_not(gpu.model)}",
            f"  UUID:          {gpu.uuid}",
            f"  Path:          {gpu.path}",
            f"  Family:        {_or_not(gpu.family)}",
            f"  Arch:          {gpu.arch}",
            "  Cores:         N/A",
            f"  Power:         {_or_not(gpu.power, ' W')}",
            f"  CPU Affinity:  {_or_not(gpu.numa_node, before='NUMA node')}",
            "  PCI",
            f"    Bus ID:     {gpu.bus_id}",
            f"    BAR1:       {_or_not(gpu.bar1, ' MiB')}",
            f"    Bandwidth:  {_or_not(gpu.pci_bandwidth, ' MB/s')}",
            "  Memory",
            f"    ECC:        {str(gpu.ecc).lower()}",
            f"    Global:     {gpu.memory} MiB",
            "    Constant:   0 KiB",
            "    Shared:     0 KiB",
            "    L2 Cache:   0 KiB",
            f"    Bandwidth:  {_or_not(gpu.memory_bandwidth, ' MB/s')}",
            "  Clocks",
            f"    Cores:   {_or_not(gpu.core_clock, ' MHz')}",
            f"    Memory:  {_or_not(gpu.memory_clock, ' MHz')}",
        ]
        if gpu.links:
            lines.append("  P2P Available")
            lines += [f"    {link.bus_id} - {link.words}" for link in gpu.links]
    return "\n".join([*lines, "", ""])


def _or_not(value: object, unit: str = "", before: str = "") -> str:
    return "N/A" if value is None else f"{before}{value}{unit}"


def mesos_text(driver: Driver) -> str:
    """Return the answer to /mesos/cli: the description, compressed, as a node's attribute."""
    packed = zlib.compress(json.dumps(description(driver), separators=(",", ":")).encode())
    uuids = ",".join(gpu.uuid for gpu in driver.gpus)
    attribute = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    return f"--attributes=gpus:{attribute} --resources=gpus:{{{uuids}}}"
