"""Find the devices that NVML does not name: those of Tegra boards, WSL2 and management containers,
IMEX channels, and those of GPUDirect Storage, MOFED and similar components.

Source: reference behaviour 10.4; NVIDIA's generator of the 1.20 line (pkg/nvcdi).
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.cdi.channels import DIRECTORY as CHANNELS
from nvgraft.cdi.channels import channel_contents
from nvgraft.cdi.discovery import Contents
from nvgraft.cdi.edits import CdiMount
from nvgraft.cdi.specification import named_devices
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.cdi.discovery import InstalledDriver
    from nvgraft.formats.tree import Tree
    from nvgraft.host.graphics_files import FileFinder
    from nvgraft.request.config import Config

_VOID = f"{names.VISIBLE_DEVICES}={names.VOID}"

#: The device nodes of a management container, and beginnings of names that it does not get.
_MANAGED = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-cap*", f"{CHANNELS}/channel*")
_NOT_MANAGED = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")
#: A management container may make device nodes.
_NOT_A_STEP = ("disable-device-node-modification",)


class ClassDevices:
    """The devices of a kind by their names, and what each of them needs (``common``)."""

    def __init__(self, devices: dict[str, Contents], common: Contents) -> None:
        self.devices = devices
        self.common = common


def gated_devices(finder: FileFinder, root: str, gate: str) -> ClassDevices:
    """Return the device ``all`` of a gated component; none if the host has no node of it.

    :param root: the driver root, as the host sees it.
    :param gate: the component's variable.
    """
    nodes, files = finder.gated(gate)
    mounts = [CdiMount(root.rstrip("/") + path, path, table.OPTIONS) for path in files]
    devices = {names.ALL: Contents(nodes=nodes, mounts=mounts)} if nodes else {}
    return ClassDevices(devices, Contents(env=[_VOID]))


def imex_channels(finder: FileFinder) -> ClassDevices:
    """Return the IMEX channels of a host."""
    nodes = finder.char_devices([f"{CHANNELS}/channel*"])
    channels = [paths.basename(node.path).removeprefix("channel") for node in nodes]
    contents = channel_contents(finder, channels)
    return ClassDevices(dict(zip(channels, contents, strict=True)), Contents(env=[_VOID]))


def wsl_devices(finder: FileFinder, root: str) -> ClassDevices:
    """Return the device ``all`` of a WSL2 host, whose GPUs have one node.

    :param root: the driver root, as the host sees it.
    """
    from nvgraft.cdi.wsl import discover_wsl

    found = discover_wsl(finder, root)
    return ClassDevices({names.ALL: found.devices[0].contents}, found.common)


def tegra_devices(
    finder: FileFinder, root: str, host_tree: Tree, config: Config, strategies: Sequence[str]
) -> ClassDevices:
    """Return the device of a Tegra board, as the base CSV files name what it needs.

    :param root: the driver root, as the host sees it.
    :param strategies: see :func:`nvgraft.cdi.specification.named_devices`.
    """
    from nvgraft.cdi.tegra import TegraDiscovery, read_csv_files

    lines = read_csv_files(host_tree, config.runtime_csv_mount_spec_path, every=False)
    compat_root = config.runtime_csv_compat_container_root
    found = TegraDiscovery(lines, finder, root, host_tree, None, compat_root).discover()
    return ClassDevices(named_devices(found, strategies), found.common)


def management_devices(finder: FileFinder, files: InstalledDriver) -> ClassDevices:
    """Return the device ``all`` of containers that manage the GPUs: all nodes of the driver, and
    its files without those of graphics. NVML is not asked.

    :raises Refusal: stage ``detection``, when the libraries of the driver's version are missing.
    """
    nodes = [
        node
        for node in finder.char_devices(_MANAGED)
        if not paths.basename(node.path).startswith(_NOT_MANAGED)
    ]
    common = files.contents().without_steps(_NOT_A_STEP) + Contents(env=[_VOID])
    return ClassDevices({names.ALL: Contents(nodes=nodes)} if nodes else {}, common)
