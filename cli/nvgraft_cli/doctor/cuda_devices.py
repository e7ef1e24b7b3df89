"""The devices that CUDA finds in a container: those that it may open, by CUDA's own rules.

Sources: CUDA C++ Programming Guide, environment variables (CUDA_VISIBLE_DEVICES: a list ends at the
first identifier that is not valid; the beginning of a UUID is enough); MIG User Guide, "CUDA Device
Enumeration" (one compute instance for a process, and no other GPU beside it). That a repeated
identifier leaves nothing, that a number may be followed by other characters, and that the first
identifier decides whether a list has numbers or UUIDs, is what PyTorch (torch/cuda/__init__.py,
_parse_visible_devices) found of the driver.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from nvgraft.base.errors import printable
from nvgraft.host.components import (
    Inventory,
    MigCapabilities,
    device_file_minor,
    mig_access_path,
)
from nvgraft.host.gpus import Gpu, MigDevice

VARIABLE = "CUDA_VISIBLE_DEVICES"

_CAPS = "/dev/nvidia-caps"
_NUMBER = re.compile(r"\+?([0-9]+)")
#: A MIG device as drivers before 470 name it: MIG-GPU-UUID/GPU instance/compute instance.
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]*)/([0-9]{1,4})/([0-9]{1,4})")
#: Characters of the variable that a message shows.
_SHOWN = 80


class CudaDevice(NamedTuple):
    """A device that CUDA can enumerate.

    :ivar gpu: the GPU; None if NVML does not know it, as on a Tegra board.
    :ivar mig: the MIG device of that GPU; None for a whole GPU.
    """

    gpu: Gpu | None
    mig: MigDevice | None = None


class CudaDevices(NamedTuple):
    """What CUDA finds in a container.

    :ivar given: the devices that the container may open.
    :ivar closed: its GPUs in MIG mode of which it may open no MIG device.
    :ivar named: those of ``given`` that CUDA_VISIBLE_DEVICES names; all if it is not set.
    :ivar found: those of ``named`` that CUDA enumerates.
    :ivar value: CUDA_VISIBLE_DEVICES, None if it is not set.
    :ivar fault: a sentence that says why CUDA_VISIBLE_DEVICES names less than it lists, or "".
    """

    given: tuple[CudaDevice, ...]
    closed: tuple[Gpu, ...]
    named: tuple[CudaDevice, ...]
    found: tuple[CudaDevice, ...]
    value: str | None
    fault: str

    @property
    def setting(self) -> str:
        """The variable with its value, for a message."""
        return f"{VARIABLE}={_shown(self.value or '')}"


def find_devices(
    given: Sequence[CudaDevice], closed: Sequence[Gpu], value: str | None
) -> CudaDevices:
    """Return what CUDA finds.

    :param given: the devices that the container may open; ``closed`` as in :class:`CudaDevices`.
    :param value: CUDA_VISIBLE_DEVICES.
    """
    named, fault = _named(given, value)
    first_mig = next((device for device in named if device.mig), None)
    found = named if first_mig is None else [first_mig]
    return CudaDevices(tuple(given), tuple(closed), tuple(named), tuple(found), value, fault)


def open_devices(
    inventory: Inventory,
    nodes: Collection[tuple[int, int]],
    paths: Collection[str],
    *,
    capabilities_open: bool,
) -> tuple[list[CudaDevice], list[Gpu]]:
    """Return the devices that a container may open, and its GPUs in MIG mode without any.

    :param nodes: major and minor numbers of the GPU nodes that the container may open.
    :param paths: what the container has mounted.
    :param capabilities_open: whether the container sees the files of all MIG capabilities in /proc.
    """
    given: list[CudaDevice] = []
    closed: list[Gpu] = []
    minors = {_capability(row): minor for row, minor in inventory.mig.minors}
    for device in inventory.devices.gpus:
        if device.node.rdev not in nodes:
            continue
        if device.gpu.mig != "enabled":
            given.append(CudaDevice(device.gpu))
            continue
        usable = [
            mig
            for mig in device.gpu.mig_devices
            if all(
                _may_open(
                    inventory.mig,
                    minors,
                    mig_access_path(device.gpu, mig, compute=compute),
                    paths,
                    capabilities_open=capabilities_open,
                )
                for compute in (False, True)
            )
        ]
        given += [CudaDevice(device.gpu, mig) for mig in usable]
        if not usable:
            closed.append(device.gpu)
    known = {device.node.rdev for device in inventory.devices.gpus}
    return given + [CudaDevice(None) for _ in set(nodes) - known], closed


def _may_open(
    mig: MigCapabilities,
    by_name: Mapping[str, int],
    path: str,
    paths: Collection[str],
    *,
    capabilities_open: bool,
) -> bool:
    """Tell whether the container has the capability of which ``path`` is the file in /proc.

    :param by_name: the minor number of each capability.
    """
    if mig.major is None:
        return capabilities_open or path in paths
    minors = [device_file_minor(entry) for entry in mig.access_files if entry.path == path]
    name = path.rpartition("/capabilities/")[2]
    if name in by_name:
        minors.append(by_name[name])
    return _CAPS in paths or any(f"{_CAPS}/nvidia-cap{minor}" in paths for minor in minors)


def _capability(row: str) -> str:
    """Return the name in /proc/driver/nvidia/capabilities of a row of mig-minors."""
    gpu, _, rest = row.partition("/")
    return f"{gpu}/mig/{rest}"


def _named(given: Sequence[CudaDevice], value: str | None) -> tuple[list[CudaDevice], str]:
    """Return the devices that the variable names, and why they are fewer than it lists."""
    if value is None:
        return list(given), ""
    if not value.strip():
        return [], f"{VARIABLE} is empty, which names no device"
    setting = f"{VARIABLE}={_shown(value)}"
    words = [word.strip() for word in value.split(",")]
    kind = _kind(words[0])
    kept: list[CudaDevice] = []
    for word in words:
        device, fault = _identified(given, word, kind)
        if device is None:
            return (
                kept,
                f"{setting} {f'ends at {_shown(word)!r}' if kept else 'names no device'}: {fault}",
            )
        if any(device is other for other in kept):
            return [], f"{setting} names {_shown(word)} twice, which leaves no device"
        kept.append(device)
    return kept, ""


def _shown(text: str) -> str:
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}[cut]")


def _kind(word: str) -> str:
    return next((prefix for prefix in ("GPU-", "MIG-") if word.startswith(prefix)), "")


def _identified(given: Sequence[CudaDevice], word: str, kind: str) -> tuple[CudaDevice | None, str]:
    """Return the device that one identifier of a list names, or None and why it names none."""
    shown = _shown(word)
    if not word:
        return None, "an identifier is empty"
    if _kind(word) != kind:
        return None, f"{shown} is not of the kind of the first identifier"
    if not kind:
        gpus = [
            device
            for index, device in enumerate(given)
            if index == 0 or device.gpu is None or given[index - 1].gpu is not device.gpu
        ]
        number = _NUMBER.match(word)
        if number is None:
            return None, f"{shown} is not a number from 0"
        if len(number[1]) > 6 or int(number[1]) >= len(gpus):
            return None, f"there is no GPU {shown} in the container, {_range(len(gpus))}"
        return gpus[int(number[1])], ""
    matches = _by_uuid(given, word)
    if len(matches) != 1:
        fault = "belongs to several devices" if matches else "is of no device in the container"
        return None, f"{shown} {fault}"
    return matches[0], ""


def _by_uuid(given: Sequence[CudaDevice], word: str) -> list[CudaDevice]:
    """Return the devices whose UUID begins with a word; the UUID of a GPU in MIG mode stands for
    its first MIG device.
    """
    old = _OLD_MIG.fullmatch(word)
    if old:
        instances = (int(old[2]), int(old[3]))
        return [
            device
            for device in given
            if device.gpu
            and device.mig
            and device.gpu.uuid.startswith(old[1])
            and (device.mig.gpu_instance, device.mig.compute_instance) == instances
        ]
    if word.startswith("MIG-"):
        return [device for device in given if device.mig and device.mig.uuid.startswith(word)]
    found: dict[str, CudaDevice] = {}
    for device in given:
        if device.gpu and device.gpu.uuid.startswith(word):
            found.setdefault(device.gpu.uuid, device)
    return list(found.values())


def _range(count: int) -> str:
    if not count:
        return "which has none"
    return "which has GPU 0 alone" if count == 1 else f"which has GPUs 0 to {count - 1}"
