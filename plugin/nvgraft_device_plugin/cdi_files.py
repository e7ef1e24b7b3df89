"""The CDI specifications of a node's devices, by the engine's own generator."""

import fnmatch
import json
import os
from collections.abc import Callable, Iterator, Sequence

from nvgraft.base.errors import Refusal
from nvgraft.base.paths import join
from nvgraft.cdi.discovery import CdiFacts, discover, live_facts
from nvgraft.cdi.edits import CdiDevice, CdiEdits, CdiNode, CdiSpec
from nvgraft.cdi.specification import HookProgram, device_name, edits, sorted_spec
from nvgraft.formats.ldcache import SIZE_LIMIT
from nvgraft.formats.ldcache_entries import parse
from nvgraft.formats.tree import LiveTree, PathError, open_tree_at
from nvgraft.formats.tree import Node as TreeNode
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport, Gpu
from nvgraft.host.gpus import MigDevice as EngineMigDevice
from nvgraft.host.places import read_majors
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft_device_plugin.allocate import CDI_VENDOR, CHANNELS, OPTIONAL_PARTS
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node, NodeGpu
from nvgraft_device_plugin.errors import NodeError
from nvgraft_device_plugin.files import write_whole
from nvgraft_device_plugin.resources import Resource

DIRECTORY = "/var/run/cdi"

_ACCESS = "rw"
#: CDI class -> names of its nodes below /dev.
_NODES = {
    "gdrcopy": ("gdrdrv",),
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/uverbs*", "infiniband/rdma_cm"),
}


def specifications(
    resources: Sequence[Resource],
    configuration: Configuration,
    make_gpus: Callable[[], CdiSpec],
    names: Callable[[str], list[str]],
    channels: Sequence[str] = (),
) -> Iterator[tuple[str, CdiSpec]]:
    """Yield class and specification of each CDI class that this node has something for.

    :param make_gpus: makes the specification of GPUs and MIG devices.
    :param names: lists a directory of the node's /dev.
    :param channels: the IMEX channels that containers get.
    :raises NodeError: the driver's files are not below the driver root.
    """
    if any(resource.devices for resource in resources):
        yield "gpu", make_gpus()
    if channels:
        devices = [
            CdiDevice(
                channel, CdiEdits(nodes=[_node(f"{CHANNELS}/channel{channel}", configuration)])
            )
            for channel in channels
        ]
        yield "imex-channel", CdiSpec(f"{CDI_VENDOR}/imex-channel", devices, CdiEdits())
    for flag, (name, _) in OPTIONAL_PARTS.items():
        nodes = list(_nodes(names, _NODES[name])) if configuration.switch(flag) else []
        if nodes:
            part = CdiEdits(nodes=[_node(path, configuration) for path in nodes])
            yield name, CdiSpec(f"{CDI_VENDOR}/{name}", [CdiDevice("all", part)], CdiEdits())


def _nodes(names: Callable[[str], list[str]], patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        directory = os.path.dirname(f"/dev/{pattern}")
        try:
            found = sorted(names(directory))
        except OSError:
            continue
        for name in fnmatch.filter(found, os.path.basename(pattern)):
            yield f"{directory}/{name}"


def _node(path: str, configuration: Configuration) -> CdiNode:
    return CdiNode(path, host_path=configuration.dev_root.rstrip("/") + path, permissions=_ACCESS)


class _NodeTree(LiveTree):
    """The driver root as this process sees it, with this process's own /proc."""

    def __init__(self, root: str) -> None:
        super().__init__(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), root)
        self._own = open_tree_at("/")

    def close(self) -> None:
        self._own.close()
        super().close()

    def lstat(self, path: str) -> TreeNode | None:
        return self._own.lstat(path) if path.startswith("/proc/") else super().lstat(path)

    def listdir(self, path: str) -> list[str]:
        return self._own.listdir(path) if path.startswith("/proc/") else super().listdir(path)

    def read(self, path: str, limit: int) -> bytes:
        if path.startswith("/proc/"):
            return self._own.read(path, limit)
        return super().read(path, limit)


def live_specification(node: Node, configuration: Configuration) -> CdiSpec:
    """Return the specification of this machine's GPUs and MIG devices.

    :raises NodeError: the driver's files are not below the driver root.
    """
    root = configuration.text("driver-root-ctr-path")
    try:
        tree = _NodeTree(root)
    except OSError as error:
        raise NodeError(
            f"unable to create cdi spec file: {root}: {error.strerror} | mount the driver root"
            " there, or name its path with --driver-root-ctr-path"
        ) from error
    try:
        try:
            entries = parse(tree.read("/etc/ld.so.cache", SIZE_LIMIT))
        except (OSError, ValueError, PathError):
            entries = []
        report = DriverReport(node.driver, node.cuda, tuple(_engine_gpu(gpu) for gpu in node.gpus))
        host = Host(
            name=os.uname().nodename,
            root=configuration.text("driver-root"),
            tree=tree,
            entries=entries,
            report=report,
            majors=read_majors(),
            machine=os.uname().machine,
        )
        return gpu_specification(host, live_facts(host), configuration)
    finally:
        tree.close()


def gpu_specification(host: Host, facts: CdiFacts | None, configuration: Configuration) -> CdiSpec:
    """Return the specification of a host's GPUs and MIG devices, live or recorded.

    :raises NodeError: the driver's files are not below the driver root.
    """
    try:
        discovered = discover(host, OFFLINE_PATH, facts)
    except Refusal as error:
        raise NodeError(f"unable to create cdi spec file: {error.text}") from error
    if not discovered.devices:
        raise NodeError(
            "unable to create cdi spec file: invalid spec, no devices: no GPU has its node below"
            f" {configuration.text('driver-root-ctr-path')} | mount the driver root with its /dev"
        )
    program = HookProgram(configuration.text("nvidia-cdi-hook-path"))
    disabled = set(configuration.words("cdi-disable-hooks"))
    by_index = configuration.text("device-id-strategy") == "index"
    strategy = "index" if by_index else "uuid"
    devices = {device_name(device, strategy): device.contents for device in discovered.devices}
    spec = sorted_spec(
        f"{CDI_VENDOR}/gpu",
        {name: edits(part.without_steps(disabled), program) for name, part in devices.items()},
        edits(discovered.common.without_steps(disabled), program),
    )
    return _with_host_nodes(spec, configuration.dev_root.rstrip("/"))


def _engine_gpu(gpu: NodeGpu) -> Gpu:
    mig = {None: "unsupported", False: "disabled", True: "enabled"}[gpu.mig_enabled]
    devices = tuple(
        EngineMigDevice(mig.uuid, mig.gpu_instance, mig.compute_instance) for mig in gpu.mig_devices
    )
    return Gpu(
        gpu.minor, gpu.uuid, gpu.bus_id.lower(), gpu.brand, gpu.arch, mig, gpu.model, devices
    )


def _with_host_nodes(spec: CdiSpec, root: str) -> CdiSpec:
    """Return a specification that names each node on the host: an engine looks there."""

    def moved(part: CdiEdits) -> CdiEdits:
        for node in part.nodes:
            node.host_path = join(root + "/", node.path.lstrip("/"))
        return part

    devices = [CdiDevice(device.name, moved(device.edits)) for device in spec.devices]
    return CdiSpec(spec.kind, devices, moved(spec.edits))


def missing_hook_program(configuration: Configuration) -> str:
    """Return what is wrong and the fix, behind a bar, if CDI specifications name a hook program
    that the node does not have; else nothing.

    The program is looked for below the driver root. One that lies elsewhere on the node is not seen
    by this process, and not judged.
    """
    if "all" in configuration.words("cdi-disable-hooks"):
        return ""
    path = configuration.text("nvidia-cdi-hook-path")
    fix = (
        " | install it on the node, or name the path there of nvidia-cdi-hook, nvidia-ctk or"
        " nvgraft-cdi-hook with --nvidia-cdi-hook-path"
    )
    start = f"CDI specifications name the hook program {path}"
    end = "the engine starts no container that gets a CDI device"
    if not path.startswith("/"):
        return f"{start}, which is not an absolute path: {end}{fix}"
    driver_root = configuration.text("driver-root").rstrip("/") + "/"
    seen_root = configuration.text("driver-root-ctr-path")
    if not path.startswith(driver_root) or not os.path.isdir(seen_root):
        return ""
    below = "/" + path.removeprefix(driver_root)
    tree = open_tree_at(seen_root)
    try:
        _, found = tree.find(below)
    except (PathError, OSError) as error:
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
            return ""  # this user may not look there
        found = None
    finally:
        tree.close()
    if found is not None and found.type == "file" and found.mode & 0o111:
        return ""
    seen = join(seen_root.rstrip("/") + "/", below.lstrip("/"))
    where = "" if seen == path else f" (this process looks at {seen})"
    return f"{start}, and there is no such program on the node{where}: {end}{fix}"


def write(name: str, spec: CdiSpec, directory: str = DIRECTORY) -> str:
    """Write a specification as a whole; return its path.

    :raises NodeError: the directory cannot be written.
    """
    path = os.path.join(directory, f"{CDI_VENDOR}-{name}.json")
    try:
        write_whole(path, json.dumps(spec.document(), indent=2))
    except OSError as error:
        raise NodeError(
            f"unable to create cdi spec file: {path}: {error.strerror} | mount {directory} writable"
        ) from error
    return path
