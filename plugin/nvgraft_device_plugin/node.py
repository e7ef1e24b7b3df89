"""Read this machine as a node: find NVML below the driver root, and ask it."""

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pynvml

from nvgraft.formats.tree import open_tree_at
from nvgraft.host.inventory import read_mig_minors
from nvgraft_device_plugin.devices import (
    LEVEL_SCORES,
    NVLINK_SCORE,
    MigDevice,
    MigProfile,
    Node,
    NodeGpu,
)

NVML_SONAME = "libnvidia-ml.so.1"
_DXCORE = "libdxcore.so"
_DEVICES = "/sys/bus/pci/devices"
_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)

#: NVML's common ancestor of two GPUs -> its score.
_SCORES = {
    pynvml.NVML_TOPOLOGY_SYSTEM: LEVEL_SCORES["SYS"],
    pynvml.NVML_TOPOLOGY_NODE: LEVEL_SCORES["NODE"],
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: LEVEL_SCORES["PHB"],
    pynvml.NVML_TOPOLOGY_MULTIPLE: LEVEL_SCORES["PXB"],
    pynvml.NVML_TOPOLOGY_SINGLE: LEVEL_SCORES["PIX"],
    pynvml.NVML_TOPOLOGY_INTERNAL: LEVEL_SCORES["X"],
}
_MOST_LINKS = 18

#: Number of a profile of GPU instances -> the suffix of its name.
_SUFFIXES = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
}
_PROFILES = 17


HANG_FIX = (
    "run nvidia-smi on the node; if it hangs too, look for Xids in dmesg, start"
    " nvidia-persistenced, or reboot the node"
)
#: A part of NVML's words for an error -> the fix.
_REMEDIES = {
    "LIBRARY_NOT_FOUND": "mount the driver root at the path of --driver-root-ctr-path, or start"
    " this container with the NVIDIA runtime (runtimeClassName) so that the driver is mounted",
    "version mismatch": "the driver was upgraded under the loaded module: reboot the node, or"
    " reload the nvidia modules when no process uses a GPU",
    "Driver Not Loaded": "load the driver on the node (modprobe nvidia), and mount its nodes",
    "Insufficient Permissions": "let this user open /dev/nvidiactl (mode 0666)",
    "GPU is lost": "look for Xids in dmesg; reset the GPU (nvidia-smi -r), or reboot the node",
    "Unknown Error": "run nvidia-smi on the node; if it works there, the container has lost its"
    " device rules: start it again",
}


def remedy(text: str) -> str:
    """Return what to do about an error of NVML."""
    for words, fix in _REMEDIES.items():
        if words.lower() in text.lower():
            return fix
    return "run nvidia-smi on the node: it reports the same error"


class NvmlError(Exception):
    """NVML is missing or reports an error, in the reference's words. ``missing``: it cannot be
    loaded.
    """

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


def find(root: str, name: str) -> str:
    """Return the path of a library below the driver root, else its name for the loader."""
    for directory in _DIRECTORIES:
        path = os.path.join(root, directory, name)
        if os.path.exists(path):
            return path
    return name


def _load(root: str, name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(find(root, name))
    except OSError:
        return None


class Nvml:
    """NVML, loaded from below a driver root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._library = _load(root, NVML_SONAME)

    @property
    def loads(self) -> bool:
        """Tell whether there is a library that can be loaded."""
        return self._library is not None

    def start(self) -> None:
        """Initialise NVML.

        :raises NvmlError: it cannot be loaded, or reports an error.
        """
        if self._library is None:
            raise NvmlError("nvml init failed: ERROR_LIBRARY_NOT_FOUND", missing=True)
        pynvml.nvmlLib = self._library
        pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"nvml init failed: {_words(error)}") from error

    def stop(self) -> None:
        """End what :meth:`start` has begun."""
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return


def platform(root: str, strategy: str, *, has_nvml: bool) -> str:
    """Return what kind of node this is: nvml, tegra or wsl.

    :param strategy: of the flag device-discovery-strategy.
    """
    if strategy != "auto":
        return strategy
    if _load(root, _DXCORE) is not None:
        return "wsl"
    release = any(os.path.exists(f"{place}/etc/nv_tegra_release") for place in (root, ""))
    if not has_nvml and (release or _soc_family().startswith("tegra")):
        return "tegra"
    return "nvml"


def _soc_family() -> str:
    try:
        with open("/sys/devices/soc0/family", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip().lower()
    except OSError:
        return ""


def read_node() -> Node:
    """Ask NVML for the GPUs of this node.

    :raises NvmlError: it does not answer.
    """
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        handles: dict[int, object] = {}
        found: list[NodeGpu] = []
        faults: list[str] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(_gpu(index, handles[index], faults))
            except pynvml.NVMLError as error:
                faults.append(f"GPU {index}: {_words(error)}")
        gpus = tuple(found)
        return Node(
            "nvml",
            _text(pynvml.nvmlSystemGetDriverVersion()),
            f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus,
            _scores(gpus, handles),
            _mig_minors(),
            tuple(faults),
        )
    except pynvml.NVMLError as error:
        raise NvmlError(f"nvml: {_words(error)}") from error


def _gpu(index: int, handle: object, faults: list[str]) -> NodeGpu:
    bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    modes = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    enabled = None if modes is None else bool(modes[0])
    return NodeGpu(
        index=index,
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        bus_id=bus_id,
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        brand=pynvml.nvmlDeviceGetBrand(handle),
        arch=f"{major}.{minor}",
        memory=_memory(handle),
        numa_node=numa_node(bus_id),
        mig_enabled=enabled,
        mig_devices=tuple(_mig_devices(handle, f"GPU {index}", faults)) if enabled else (),
        pci_class=_pci_class(bus_id),
        clique=_clique(handle),
        virtual=_ask(pynvml.nvmlDeviceGetVirtualizationMode, handle)
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
    )


def _memory(handle: object) -> int:
    facts = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return 0 if facts is None else facts.total >> 20


def _clique(handle: object) -> str:
    """Return cluster and clique of a GPU that is attached to an NVLink fabric, else nothing."""
    facts = pynvml.c_nvmlGpuFabricInfo_t()
    if _ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(facts)) is None:
        return ""
    cluster = UUID(bytes=bytes(facts.clusterUuid))
    attached = facts.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and not facts.status
    return f"{cluster}.{facts.cliqueId}" if attached and cluster.int else ""


def _mig_devices(handle: object, gpu: str, faults: list[str]) -> Iterator[MigDevice]:
    """Yield the MIG devices of a GPU. One that NVML does not describe is a fault: somebody may be
    destroying it.
    """
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if device is None:
            continue
        try:
            instance = pynvml.nvmlDeviceGetGpuInstanceId(device)
            yield MigDevice(
                _text(pynvml.nvmlDeviceGetUUID(device)),
                instance,
                pynvml.nvmlDeviceGetComputeInstanceId(device),
                _mig_profile(handle, device, instance),
            )
        except pynvml.NVMLError as error:
            faults.append(f"{gpu}: MIG device {position}: {_words(error)}")


def _mig_profile(handle: object, device: object, instance: int) -> MigProfile:
    facts = pynvml.nvmlDeviceGetAttributes_v2(device)
    return MigProfile(
        facts.gpuInstanceSliceCount,
        facts.computeInstanceSliceCount,
        facts.memorySizeMB,
        facts.multiprocessorCount,
        _suffix(handle, instance),
        (
            facts.sharedCopyEngineCount,
            facts.sharedDecoderCount,
            facts.sharedEncoderCount,
            facts.sharedJpegCount,
            facts.sharedOfaCount,
        ),
    )


def _suffix(handle: object, instance: int) -> str:
    """Return the suffix of the name of a GPU instance's profile."""
    taken = _ask(pynvml.nvmlDeviceGetGpuInstanceById, handle, instance)
    facts = None if taken is None else _ask(pynvml.nvmlGpuInstanceGetInfo, taken)
    if facts is None:
        return ""
    for number in range(_PROFILES):
        profile = _ask(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 1)
        if profile is not None and profile.id == facts.profileId:
            return _SUFFIXES.get(number, "")
    return ""


def _scores(gpus: tuple[NodeGpu, ...], handles: dict[int, object]) -> dict[tuple[str, str], int]:
    addresses = {gpu.bus_id: gpu for gpu in gpus}
    scores: dict[tuple[str, str], int] = {}
    for gpu in gpus:
        handle = handles[gpu.index]
        for other in gpus:
            if other is not gpu:
                level = _ask(
                    pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, handles[other.index]
                )
                scores[gpu.uuid, other.uuid] = _SCORES.get(level, 0)
        for link in range(_MOST_LINKS):
            remote = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is None:
                break
            peer = addresses.get(_text(remote.busId))
            active = _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
            if active and peer is not None and peer is not gpu:
                scores[gpu.uuid, peer.uuid] += NVLINK_SCORE
    return scores


def numa_node(bus_id: str, devices: str = _DEVICES) -> int | None:
    """Return the NUMA node of a GPU; None if it has none, or the kernel does not know it.

    :param bus_id: with eight digits of the domain, of which the kernel has the last four.
    """
    number = _kernel_number(bus_id, "numa_node", devices)
    return number if number is not None and number >= 0 else None


def _pci_class(bus_id: str) -> int | None:
    number = _kernel_number(bus_id, "class", _DEVICES)
    return None if number is None else number >> 8


def _kernel_number(bus_id: str, name: str, devices: str) -> int | None:
    address = bus_id.lower()
    address = address.removeprefix("0000") if address.index(":") > 4 else address
    try:
        with open(os.path.join(devices, address, name), encoding="ascii") as file:
            return int(file.read(16), 0)
    except (OSError, ValueError):
        return None


def _mig_minors() -> dict[str, int]:
    tree = open_tree_at("/")
    try:
        return dict(read_mig_minors(tree))
    finally:
        tree.close()


def _words(error: pynvml.NVMLError) -> str:
    """Return the library's own words for an error."""
    return _text(_ask(pynvml.nvmlErrorString, error.value) or str(error))


def _ask(function: Callable[..., Any], *arguments: object) -> Any:
    """Return an answer of NVML, or None where it has none for this device."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
