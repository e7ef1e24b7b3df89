"""Make a node of a ``nvgraft.host/1`` document, with the answers that NVML gives on a simulated
host, or of the driver's report.
"""

from nvgraft.cdi.platform import platform
from nvgraft.host.components import Host as EngineHost
from nvgraft.host.gpus import bus_id
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.inventory import read_mig_minors
from nvgraft_device_plugin.devices import (
    LEVEL_SCORES,
    NVLINK_SCORE,
    UNKNOWN_PROFILE,
    MigDevice,
    MigProfile,
    Node,
    NodeGpu,
)
from nvgraft_specs.models import simulated
from nvgraft_specs.models.host import Host
from nvgraft_specs.models.host_gpus import Gpu, Topology
from nvgraft_specs.models.host_gpus import MigDevice as RecordedMigDevice

_MIG_MODES = {"unsupported": None, "disabled": False, "enabled": True}


def read_node(host: Host, engine_host: EngineHost) -> Node:
    """Return the node of a recorded host.

    :param engine_host: the host of the same document, as the engine reads it.
    """
    tree = engine_host.tree
    gpus = tuple(_gpu(host, index) for index in range(len(host.nvml.gpus)))
    finder = FileFinder(tree, engine_host.machine, lambda: engine_host.entries)
    return Node(
        platform(finder, lambda: [gpu.model for gpu in gpus]),
        host.nvml.driver_version,
        host.nvml.cuda_version,
        gpus,
        _scores(host.topology, gpus),
        dict(read_mig_minors(tree)),
    )


def read_reported_node(engine_host: EngineHost) -> Node:
    """Return the node of a host of which only the driver's report is known: without topology, the
    memory of GPUs, and the profiles of MIG devices.
    """
    report = engine_host.report
    gpus = tuple(
        NodeGpu(
            index=index,
            minor=gpu.minor,
            uuid=gpu.uuid,
            bus_id=gpu.bus_id.upper(),
            model=gpu.model,
            brand=gpu.brand,
            arch=gpu.arch,
            memory=0,
            numa_node=None,
            mig_enabled=_MIG_MODES[gpu.mig],
            mig_devices=tuple(
                MigDevice(mig.uuid, mig.gpu_instance, mig.compute_instance, UNKNOWN_PROFILE)
                for mig in gpu.mig_devices
            ),
        )
        for index, gpu in enumerate(report.gpus)
    )
    minors = dict(read_mig_minors(engine_host.tree))
    return Node("nvml", report.driver_version, report.cuda_version, gpus, {}, minors)


def _gpu(host: Host, index: int) -> NodeGpu:
    gpu = host.nvml.gpus[index]
    values = simulated.values_of(gpu)
    address = bus_id(gpu.pci.domain, gpu.pci.bus, gpu.pci.device)
    return NodeGpu(
        index=index,
        minor=gpu.minor,
        uuid=gpu.uuid,
        bus_id=address.upper(),
        model=gpu.model,
        brand=gpu.brand,
        arch=gpu.compute_capability,
        memory=int(values.get("memory_mib") or 0),
        numa_node=_numa_node(host.topology, index),
        mig_enabled=_MIG_MODES[gpu.mig],
        mig_devices=tuple(_mig_device(gpu, device) for device in gpu.mig_devices),
    )


def _mig_device(gpu: Gpu, device: RecordedMigDevice) -> MigDevice:
    row, compute_slices = simulated.device_of(gpu, device)
    profile = UNKNOWN_PROFILE
    if row is not None:
        product = simulated.profile_of(gpu)
        rows = product.mig.profiles if product and product.mig else []
        profile = MigProfile(
            row.slices,
            compute_slices,
            row.memory_mib,
            simulated.multiprocessors(rows, row, compute_slices),
            row.name[row.name.index("gb") + 2 :],
            (row.copy_engines, row.decoders, row.encoders, row.jpegs, row.ofas),
        )
    return MigDevice(device.uuid, device.gpu_instance, device.compute_instance, profile)


def _numa_node(topology: Topology | None, index: int) -> int | None:
    nodes = (topology.numa if topology else None) or ()
    return next((node.node for node in nodes if index in node.gpus), None)


def _scores(topology: Topology | None, gpus: tuple[NodeGpu, ...]) -> dict[tuple[str, str], int]:
    """Return how near two GPUs are. Links to NVSwitches lead to no GPU, and do not count."""
    scores = {
        (gpu.uuid, other.uuid): LEVEL_SCORES[_level(topology, gpu, other)]
        for gpu in gpus
        for other in gpus
        if other is not gpu
    }
    bridges = topology.nvlink if topology and isinstance(topology.nvlink, list) else ()
    for bridge in bridges:
        first, second = (gpus[index].uuid for index in bridge.gpus)
        scores[first, second] += NVLINK_SCORE * bridge.links
        scores[second, first] += NVLINK_SCORE * bridge.links
    return scores


def _level(topology: Topology | None, gpu: NodeGpu, other: NodeGpu) -> str:
    if topology is not None and topology.levels is not None:
        return topology.levels[gpu.index][other.index]
    return "NODE" if gpu.numa_node is not None and gpu.numa_node == other.numa_node else "SYS"
