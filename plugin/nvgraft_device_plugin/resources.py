"""Divide the devices of a node among resources: by MIG strategy, then by sharing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nvgraft_device_plugin.configuration import GPU_RESOURCE, VENDOR_PREFIX, Configuration
from nvgraft_device_plugin.devices import (
    UNKNOWN_PROFILE,
    Device,
    MissingCapability,
    Node,
    NodeGpu,
    mig_device,
    only,
    whole_gpu,
)
from nvgraft_device_plugin.errors import NodeError

_TEGRA, _WSL = "tegra", "all"

#: Shares of one resource: the kubelet accepts lists of 4 MiB (gRPC's limit), and a share of a MIG
#: device takes some 70 bytes.
_SHARES_LIMIT = 50_000


class Resource(NamedTuple):
    """A resource with its devices. ``shares`` is 0 if they are not shared."""

    name: str
    devices: tuple[Device, ...]
    shares: int = 0

    @property
    def endpoint(self) -> str:
        """The file name of its socket."""
        return f"nvidia-{self.name.partition('/')[2]}.sock"


class Divided(NamedTuple):
    """The resources of a node, and what was left out."""

    resources: tuple[Resource, ...]
    warnings: tuple[str, ...]


def divide(node: Node, configuration: Configuration) -> Divided:
    """Return the resources of a node.

    :raises NodeError: its MIG devices do not fit the strategy.
    """
    warnings: list[str] = []
    strategy = configuration.text("mig-strategy")
    if node.platform == "tegra":
        devices: Mapping[str, Sequence[Device]] = {GPU_RESOURCE: [only(_TEGRA)]}
    elif node.platform == "wsl":
        devices = {GPU_RESOURCE: [only(_WSL, ["/dev/dxg"])]}
    elif strategy == "single":
        devices = {GPU_RESOURCE: _single(node, warnings)}
    elif strategy == "mixed":
        devices = _mixed(node, warnings)
    else:
        devices = {GPU_RESOURCE: [whole_gpu(gpu) for gpu in node.gpus]}
        in_mig_mode = ", ".join(str(gpu.index) for gpu in node.gpus if gpu.mig_enabled)
        if in_mig_mode and configuration.uses_cdi:
            warnings.append(
                f"GPU {in_mig_mode} is in MIG mode and given as a whole, and CDI specifications"
                " have its MIG devices alone: the engine refuses containers that get it"
                " | use --mig-strategy=single or mixed"
            )
    if strategy != "none" and node.platform != "nvml":
        warnings.append(f"mig-strategy={strategy!r} is only supported with NVML")
    resources = [
        _shared(name, members, configuration, warnings)
        for name, members in devices.items()
        if members
    ]
    return Divided(tuple(resources), tuple(warnings))


def _mig_devices(gpu: NodeGpu, node: Node) -> list[Device]:
    try:
        return [
            mig_device(gpu, position, node.mig_minors) for position in range(len(gpu.mig_devices))
        ]
    except MissingCapability as error:
        raise NodeError(
            f"error building device map: {error} | look into"
            " /proc/driver/nvidia-caps/mig-minors on the node: the driver names the nodes of MIG"
            " devices there"
        ) from error


def _single(node: Node, warnings: list[str]) -> list[Device]:
    """Return all devices as one kind: plain GPUs, or MIG devices of one profile."""
    mig = [gpu for gpu in node.gpus if gpu.mig_enabled]
    if not mig:
        return [whole_gpu(gpu) for gpu in node.gpus]
    devices = [device for gpu in mig for device in _mig_devices(gpu, node)]
    empty = [gpu.index for gpu in mig if not gpu.mig_devices]
    if empty and (not devices or len(mig) < len(node.gpus)):
        raise NodeError(
            f"invalid MIG configuration: device {empty[0]} has no MIG devices configured"
        )
    warnings.extend(
        f"device {index} has no MIG devices configured: it is left out" for index in empty
    )
    if len({device.profile for gpu in mig for device in gpu.mig_devices}) > 1:
        raise NodeError("invalid MIG configuration: more than one MIG device type present on node")
    if len(mig) < len(node.gpus):
        raise NodeError(
            "invalid MIG configuration: all devices on the node must be configured with the same"
            " migEnabled value"
        )
    return devices


def _mixed(node: Node, warnings: list[str]) -> dict[str, list[Device]]:
    """Return a resource for each MIG profile, and one for GPUs without MIG."""
    resources: dict[str, list[Device]] = {GPU_RESOURCE: []}
    for gpu in node.gpus:
        if not gpu.mig_enabled:
            resources[GPU_RESOURCE].append(whole_gpu(gpu))
            continue
        if not gpu.mig_devices:
            warnings.append(f"device {gpu.index} has no MIG devices configured")
        for device, mig in zip(_mig_devices(gpu, node), gpu.mig_devices, strict=True):
            if mig.profile == UNKNOWN_PROFILE:
                warnings.append(
                    f"the profile of MIG device {device.uuid} was not recorded: it is left out"
                    " (`profile` of the MIG device in the document of the host)"
                )
                continue
            profile = mig.profile.name(gpu.memory)
            if mig.profile.compute_slices != mig.profile.gpu_slices:
                warnings.append(
                    f"MIG profile '{profile}' does not match any resource patterns: {device.uuid}"
                    " is left out"
                )
                continue
            name = f"{VENDOR_PREFIX}mig-{profile.replace('+', '.')}"
            resources.setdefault(name, []).append(device)
    return resources


def _shared(
    name: str, devices: Sequence[Device], configuration: Configuration, warnings: list[str]
) -> Resource:
    sharing = configuration.sharing
    wanted = next((r for r in sharing.resources or [] if r.name == name), None) if sharing else None
    if sharing is None or wanted is None or wanted.replicas is None:
        return Resource(name, tuple(devices))
    if configuration.mps and any(device.instances for device in devices):
        raise NodeError("sharing using MPS is not supported for MIG devices")
    if len(devices) * wanted.replicas > _SHARES_LIMIT:
        raise NodeError(
            f"{name}: {len(devices)} devices with {wanted.replicas} replicas each are more than the"
            f" {_SHARES_LIMIT:,} shares that the kubelet can be told of | write fewer replicas"
        )
    shares = tuple(share for device in devices for share in device.shares(wanted.replicas))
    return Resource(f"{name}.shared" if sharing.renameByDefault else name, shares, wanted.replicas)
