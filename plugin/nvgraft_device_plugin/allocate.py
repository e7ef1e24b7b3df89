"""Allocate: what a container gets for the devices that the kubelet has chosen, by each strategy."""

import os
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import SHARE, Device
from nvgraft_device_plugin.errors import RequestError
from nvgraft_device_plugin.resources import Resource

#: Vendor of the CDI kinds that the plugin writes.
CDI_VENDOR = "k8s.device-plugin.nvidia.com"

_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_VOLUME_ROOT = "/var/run/nvidia-container-devices"
CHANNELS = "/dev/nvidia-caps-imex-channels"
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

#: Flag -> the CDI class and the variable of what it switches on.
OPTIONAL_PARTS = {
    "gdrcopy-enabled": ("gdrcopy", "NVIDIA_GDRCOPY"),
    "gds-enabled": ("gds", "NVIDIA_GDS"),
    "mofed-enabled": ("mofed", "NVIDIA_MOFED"),
}


class Allocator(NamedTuple):
    """What is the same for every container of a resource.

    :ivar channels: IMEX channels that containers get.
    :ivar classes: CDI classes for which there is a specification.
    :ivar exists: tells whether this process sees a node.
    """

    resource: Resource
    configuration: Configuration
    channels: Sequence[str] = ()
    classes: Collection[str] = ()
    exists: Callable[[str], bool] = os.path.exists

    def allocate(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the members of a container's answer.

        :raises RequestError: the kubelet asks for what there is not.
        """
        devices = self._devices(ids)
        names = list(dict.fromkeys(self._name(device) for device in devices))
        strategies = self.configuration.strategies
        answer: dict[str, Any] = {"envs": {}, "mounts": [], "devices": []}
        if self.configuration.uses_cdi:
            answer |= self._cdi(names, strategies)
        if self.configuration.mps and self.resource.shares:
            self._add_mps(answer)
        for flag, (_, variable) in OPTIONAL_PARTS.items():
            if self.configuration.switch(flag):
                answer["envs"][variable] = "enabled"
        if "envvar" in strategies:
            answer["envs"][_VISIBLE_DEVICES] = ",".join(names)
            if self.channels:
                answer["envs"]["NVIDIA_IMEX_CHANNELS"] = ",".join(self.channels)
        if "volume-mounts" in strategies:
            answer["envs"][_VISIBLE_DEVICES] = _VOLUME_ROOT
            answer["mounts"] += [
                {"container_path": f"{_VOLUME_ROOT}/{name}", "host_path": "/dev/null"}
                for name in [*names, *(f"imex/{channel}" for channel in self.channels)]
            ]
        if strategies & {"envvar", "volume-mounts"} and self.configuration.switch(
            "pass-device-specs"
        ):
            answer["devices"] = self._nodes(devices)
        return answer

    def _devices(self, ids: Sequence[str]) -> list[Device]:
        known = {device.id: device for device in self.resource.devices}
        start = f'invalid allocation request for "{self.resource.name}": invalid request: '
        for identifier in ids:
            if identifier not in known:
                raise RequestError(f"{start}unknown device: {identifier}")
        if self.resource.shares and len(ids) > 1 and self.configuration.at_most_one:
            raise RequestError(
                f"{start}maximum request size for shared resources is 1; found {len(ids)}"
            )
        return [known[identifier] for identifier in ids]

    def _name(self, device: Device) -> str:
        by_index = self.configuration.text("device-id-strategy") == "index"
        return device.index if by_index else device.id.partition(SHARE)[0]

    def _cdi(self, names: Sequence[str], strategies: Collection[str]) -> dict[str, Any]:
        qualified = [f"{CDI_VENDOR}/gpu={name}" for name in names]
        qualified += [f"{CDI_VENDOR}/imex-channel={channel}" for channel in self.channels]
        qualified += [
            f"{CDI_VENDOR}/{name}=all"
            for flag, (name, _) in OPTIONAL_PARTS.items()
            if self.configuration.switch(flag) and name in self.classes
        ]
        members: dict[str, Any] = {}
        if "cdi-annotations" in strategies and qualified:
            prefix = self.configuration.text("cdi-annotation-prefix")
            key = f"{prefix}nvidia-device-plugin_{uuid.uuid4()}"
            members["annotations"] = {key: ",".join(qualified)}
        if "cdi-cri" in strategies:
            members["cdi_devices"] = [{"name": name} for name in qualified]
        return members

    def _add_mps(self, answer: dict[str, Any]) -> None:
        root = self.configuration.text("mps-root")
        pipe = f"/mps/{self.resource.name}/pipe"
        answer["envs"]["CUDA_MPS_PIPE_DIRECTORY"] = pipe
        answer["mounts"] += [
            {"container_path": pipe, "host_path": f"{root}/{self.resource.name}/pipe"},
            {"container_path": "/dev/shm", "host_path": f"{root}/shm"},  # noqa: S108
        ]

    def _nodes(self, devices: Sequence[Device]) -> list[dict[str, str]]:
        paths = [path for device in devices for path in device.paths]
        if paths != ["/dev/dxg"]:
            paths = [*(path for path in _CONTROL if self.exists(path)), *paths]
            paths += [f"{CHANNELS}/channel{channel}" for channel in self.channels]
        root = self.configuration.dev_root.rstrip("/")
        return [
            {"container_path": path, "host_path": root + path, "permissions": "rw"}
            for path in paths
        ]
