"""The GPUs of a side, as a person names them: the model, and the MIG devices of a GPU that is cut
into such.
"""

from collections.abc import Callable, Container, Iterable

from nvgraft.cdi import platform
from nvgraft.host.components import Inventory, mig_access_path
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.rewritten import GPU_NODE

#: WSL2's node of all GPUs, and what the GPU of a Tegra board is called.
_ALL_OF_WSL = "/dev/dxg"
_INTEGRATED = "integrated GPU"

_OWN_NODE = "/dev/nvidia"


def gpu_nodes(paths: Iterable[str]) -> list[str]:
    """Return the paths that are device nodes of GPUs, one for each GPU: that of a Tegra board has
    several, and WSL2 has one for all.
    """
    nodes = [path for path in paths if GPU_NODE.fullmatch(path)]
    boards = [path for path in nodes if path != _ALL_OF_WSL and not path.startswith(_OWN_NODE)]
    return [path for path in nodes if path not in boards[1:]]


def of_host(host: HostSide) -> list[str]:
    """Return the name of each GPU of a host. NVML does not name that of most Tegra boards.

    :raises nvgraft.base.errors.Refusal: see :attr:`HostSide.inventory`.
    """
    names = _named(host.inventory.report)
    return names or ([_INTEGRATED] if host.platform == platform.TEGRA else [])


def of_container(inventory: Inventory, nodes: Iterable[str], mounts: Container[str]) -> list[str]:
    """Return the name of each GPU that a container gets, "" for one that the host does not have.

    :param nodes: the container's device nodes.
    :param mounts: the targets of its mounts.
    """
    nodes = list(nodes)
    gpus = {f"{_OWN_NODE}{gpu.minor}": gpu for gpu in inventory.report.gpus}
    is_given = _access(inventory, {*nodes}, mounts)
    names = []
    for node in gpu_nodes(nodes):
        if node == _ALL_OF_WSL:
            names += _named(inventory.report) or [""]
        elif node in gpus:
            gpu = gpus[node]
            names.append(_name(gpu, [mig for mig in gpu.mig_devices if is_given(gpu, mig)]))
        else:
            names.append("" if node.startswith(_OWN_NODE) else _INTEGRATED)
    return names


def _named(report: DriverReport) -> list[str]:
    return [_name(gpu, gpu.mig_devices) for gpu in report.gpus]


def _access(
    inventory: Inventory, nodes: Container[str], mounts: Container[str]
) -> Callable[[Gpu, MigDevice], bool]:
    """Return the function that tells whether a container gets a MIG device: by its capability's
    node, or on drivers without such nodes by its file.
    """
    minors = dict(inventory.mig.minors)

    def is_given(gpu: Gpu, device: MigDevice) -> bool:
        instance = f"gi{device.gpu_instance}/ci{device.compute_instance}"
        minor = minors.get(f"gpu{gpu.minor}/{instance}/access")
        if inventory.mig.major is not None and minor is not None:
            return f"/dev/nvidia-caps/nvidia-cap{minor}" in nodes
        return mig_access_path(gpu, device, compute=True) in mounts

    return is_given


def _name(gpu: Gpu, devices: Iterable[MigDevice]) -> str:
    names = [device.profile or device.uuid for device in devices]
    if names:
        return f"{gpu.model} (MIG {', '.join(names)})"
    return f"{gpu.model} (no MIG device)" if gpu.mig == "enabled" else gpu.model
