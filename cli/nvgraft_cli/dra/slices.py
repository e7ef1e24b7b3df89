"""ResourceSlices of a host: its GPUs and MIG devices with the names, attributes and capacities that
NVIDIA's driver gives them.

Source: deviceinfo.go and mig.go of https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.dra import DRIVER
from nvgraft_cli.pods.node import node_of, recorded_host
from nvgraft_device_plugin.devices import Node, NodeGpu
from nvgraft_specs.models import simulated
from nvgraft_specs.models.gpu_profile import MigProfile
from nvgraft_specs.models.host_gpus import Gpu

#: Kubernetes' own limit.
SLICE_LIMIT = 128

#: What the names of Kubernetes' own attributes begin with.
_STANDARD = "resource.kubernetes.io/"

#: NVML's brand numbers -> the driver's words.
_BRANDS = (
    *("Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan"),
    *("NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX"),
    *("NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX"),
)
#: Compute capability, by its beginning -> architecture.
_ARCHITECTURES = {
    "3.": "Kepler",
    "5.": "Maxwell",
    "6.": "Pascal",
    "7.0": "Volta",
    "7.2": "Volta",
    "7.": "Turing",
    "8.9": "Ada Lovelace",
    "8.": "Ampere",
    "9.": "Hopper",
    "10.": "Blackwell",
    "11.": "Blackwell",
    "12.": "Blackwell",
}
#: Capacity of a MIG device -> the member of its profile.
_ENGINES = {
    "multiprocessors": "sm_count",
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpegs",
    "ofaEngines": "ofas",
}
_MIB = 1 << 20


class DraDevice(NamedTuple):
    """A device of a slice. ``document`` is its entry there."""

    name: str
    uuid: str
    document: dict[str, Any]


class DraDevices(NamedTuple):
    """The devices of a host, and a line for each that is left out."""

    devices: list[DraDevice]
    left_out: list[str]


def dra_devices(host: HostSide) -> DraDevices:
    """Return what the driver finds on a host: GPUs without MIG mode, and MIG devices.

    :raises nvgraft.base.errors.Refusal: the host has no working driver.
    """
    node, model = node_of(host), recorded_host(host)
    found = DraDevices([], [])
    for gpu in node.gpus:
        if not gpu.mig_enabled:
            found.devices.append(_gpu(gpu, node))
        elif model is None:
            found.left_out.append(
                f"{gpu.uuid} is left out: MIG profiles of this machine are not read"
            )
        else:
            _add_mig_devices(gpu, node, model.nvml.gpus[gpu.index], found)
    return found


def resource_slices(devices: list[DraDevice], node_name: str) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices of a node: one pool of the node's name."""
    parts = [devices[i : i + SLICE_LIMIT] for i in range(0, len(devices), SLICE_LIMIT)] or [[]]
    for number, part in enumerate(parts):
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node_name}-{DRIVER}-{number}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": node_name,
                "pool": {
                    "name": node_name,
                    "generation": 1,
                    "resourceSliceCount": len(parts),
                },
                "devices": [device.document for device in part],
            },
        }


def _gpu(gpu: NodeGpu, node: Node) -> DraDevice:
    attributes = {"type": _text("gpu"), "uuid": _text(gpu.uuid), **_common(gpu, node)}
    capacity = {"memory": gpu.memory * _MIB} if gpu.memory else {}
    return _device(f"gpu-{gpu.minor}", gpu.uuid, attributes, capacity)


def _add_mig_devices(gpu: NodeGpu, node: Node, recorded: Gpu, found: DraDevices) -> None:
    starts = {number: start for number, _, start in simulated.placed(recorded)}
    for device in recorded.mig_devices:
        row, slices = simulated.device_of(recorded, device)
        start = starts.get(device.gpu_instance)
        if row is None or start is None:
            found.left_out.append(f"{device.uuid} is left out: its profile was not recorded")
        elif slices != row.slices:
            found.left_out.append(
                f"{device.uuid} is left out: {device.profile} is a part of a GPU instance"
            )
        else:
            attributes = {
                "type": _text("mig"),
                "uuid": _text(device.uuid),
                "parentUUID": _text(gpu.uuid),
                "profile": _text(row.name),
                **_common(gpu, node),
            }
            name = f"gpu-{gpu.minor}-mig-{_plain(row.name)}-{row.id}-{start}"
            found.devices.append(_device(name, device.uuid, attributes, _capacity(row, start)))


def _capacity(row: MigProfile, start: int) -> dict[str, int]:
    engines = {name: getattr(row, member) for name, member in _ENGINES.items()}
    slices = {f"memorySlice{number}": 1 for number in range(start, start + row.size)}
    return {**engines, "memory": row.memory_mib * _MIB, **slices}


def _common(gpu: NodeGpu, node: Node) -> dict[str, Any]:
    """Return the attributes that a GPU and its MIG devices share."""
    address = gpu.bus_id.lower()
    address = address.removeprefix("0000") if address.index(":") > 4 else address
    attributes: dict[str, Any] = {
        "productName": _text(gpu.model),
        "brand": _text(_BRANDS[gpu.brand] if 0 <= gpu.brand < len(_BRANDS) else "Unknown"),
        "architecture": _text(_architecture(gpu.arch)),
        "cudaComputeCapability": _version(gpu.arch),
        "driverVersion": _version(node.driver),
        "cudaDriverVersion": _version(node.cuda),
        "pcieBusID": _text(address),
        f"{_STANDARD}pciBusID": _text(address),
    }
    if gpu.numa_node is not None:
        attributes[f"{_STANDARD}numaNode"] = {"int": gpu.numa_node}
    return attributes


def _device(
    name: str, uuid: str, attributes: dict[str, Any], capacity: dict[str, int]
) -> DraDevice:
    document: dict[str, Any] = {"name": name, "attributes": attributes}
    if capacity:
        document["capacity"] = {
            member: {"value": quantity(value)} for member, value in capacity.items()
        }
    return DraDevice(name, uuid, document)


def quantity(value: int) -> str:
    """Return a number as Kubernetes writes a quantity with binary units."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if value and value % 1024**power == 0:
            return f"{value // 1024**power}{unit}"
    return str(value)


def _architecture(capability: str) -> str:
    for beginning in sorted(_ARCHITECTURES, key=len, reverse=True):
        if capability.startswith(beginning):
            return _ARCHITECTURES[beginning]
    return "Unknown"


def _plain(profile: str) -> str:
    """Return the name of a profile as a part of a device's name: 1g10gb, 1g10gb-me."""
    return re.sub(r"[^a-z0-9]+", "-", profile.replace(".", "").lower()).strip("-")


def _text(value: str) -> dict[str, str]:
    return {"string": value}


def _version(text: str) -> dict[str, str]:
    """Return a version with three numbers without leading zeros, as semantic versions are."""
    numbers = [int(number) for number in re.findall(r"[0-9]+", text)][:3]
    return {"version": ".".join(map(str, [*numbers, 0, 0][:3]))}
