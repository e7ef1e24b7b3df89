"""The labels of a node that tell of its GPUs, as NVIDIA's GPU feature discovery 0.20 writes them.

Where the MIG devices of a node do not fit the strategy, the labels agree with what the plugin
advertises.
"""

import re
from collections.abc import Iterator, Sequence

from nvgraft_device_plugin.configuration import VENDOR_PREFIX, Configuration, SharedResource
from nvgraft_device_plugin.devices import UNKNOWN_PROFILE, MigProfile, Node, NodeGpu
from nvgraft_device_plugin.errors import NodeError
from nvgraft_device_plugin.resources import divide

#: Class and subclass of a PCI device -> the mode of a GPU.
_MODES = {0x0300: "graphics", 0x0302: "compute"}
_UNKNOWN = "unknown"

#: Compute capability -> family, from this version on to the next.
_FAMILIES = {
    (1, 0): "tesla",
    (2, 0): "fermi",
    (3, 0): "kepler",
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (12, 0): "blackwell",
    (13, 0): "rubin",
}

_ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")


def node_labels(
    node: Node, configuration: Configuration, machine: str = _UNKNOWN
) -> dict[str, str]:
    """Return the labels of a node, sorted by their names.

    :param machine: the kind of the machine, such as the product name of its firmware.
    :raises NodeError: the driver's version, or a MIG device, cannot be described.
    """
    labels = {"vgpu.present": _bool(any(gpu.virtual for gpu in node.gpus))}
    if configuration.mps and any(gpu.mig_enabled for gpu in node.gpus):
        raise NodeError(
            "error creating sharing labeler: failed to check MPS-capable: MPS sharing is not"
            " supported for mig devices"
        )
    if node.gpus:
        labels |= {
            "gpu.machine": _words(machine),
            "mig.capable": _bool(any(gpu.mig_enabled is not None for gpu in node.gpus)),
            "mps.capable": _bool(configuration.mps),
            "gpu.mode": _mode(node.gpus),
            **dict(_versions(node)),
            **_of_gpus(node, configuration),
            **_of_mig_devices(node, configuration),
        }
        cliques = {gpu.clique for gpu in node.gpus if gpu.clique}
        if len(cliques) == 1:
            labels["gpu.clique"] = cliques.pop()
    return {VENDOR_PREFIX + name: labels[name] for name in sorted(labels)}


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _words(text: str) -> str:
    """Return a text as a label may have it: without marks, with hyphens for blanks."""
    return "-".join(re.sub(r"[^A-Za-z0-9_. -]", "", text).split())


def _mode(gpus: Sequence[NodeGpu]) -> str:
    classes = {gpu.pci_class for gpu in gpus}
    return _MODES.get(classes.pop() or 0, _UNKNOWN) if len(classes) == 1 else _UNKNOWN


def _versions(node: Node) -> Iterator[tuple[str, str]]:
    parts = node.driver.split(".")
    if len(parts) not in {2, 3}:
        raise NodeError(
            f'error getting driver version: Version "{node.driver}" does not match format "X.Y[.Z]"'
        )
    parts = [*parts, ""][:3]
    cuda = node.cuda.split(".")
    # The first two groups are the names of older versions.
    yield from zip(
        (f"cuda.driver.{name}" for name in ("major", "minor", "rev")), parts, strict=True
    )
    yield from zip((f"cuda.runtime.{name}" for name in ("major", "minor")), cuda, strict=True)
    names = ("major", "minor", "revision")
    yield from zip((f"cuda.driver-version.{name}" for name in names), parts, strict=True)
    yield "cuda.driver-version.full", node.driver
    yield from zip((f"cuda.runtime-version.{name}" for name in names[:2]), cuda, strict=True)
    yield "cuda.runtime-version.full", node.cuda


def _of_gpus(node: Node, configuration: Configuration) -> dict[str, str]:
    """Return the labels of whole GPUs.

    A node with several models has those of the last, and a GPU without MIG comes before one with.
    """
    labels: dict[str, str] = {}
    whole = [gpu for gpu in node.gpus if not gpu.mig_enabled]
    for gpu in [*(gpu for gpu in node.gpus if gpu.mig_enabled), *whole]:
        count = sum(other.model == gpu.model for other in node.gpus)
        labels |= (
            _base("gpu", gpu.model, count, configuration)
            if gpu in whole
            else _unshared("gpu", gpu.model, count, 0)
        )
        if gpu.memory:
            labels["gpu.memory"] = str(gpu.memory)
        labels |= _architecture(gpu.arch)
    return labels


def _architecture(arch: str) -> dict[str, str]:
    major, minor = (int(part) for part in arch.split("."))
    found = [name for start, name in _FAMILIES.items() if start[0] == major and start[1] <= minor]
    return {
        "gpu.family": found[-1] if found else "undefined",
        "gpu.compute.major": str(major),
        "gpu.compute.minor": str(minor),
    }


def _of_mig_devices(node: Node, configuration: Configuration) -> dict[str, str]:
    """Return the labels of MIG devices, by the strategy."""
    strategy = configuration.text("mig-strategy")
    if strategy == "none":
        return {}
    labels = {"mig.strategy": strategy}
    mig = [(gpu, device.profile) for gpu in node.gpus for device in gpu.mig_devices]
    if strategy == "mixed":
        mig = [(gpu, profile) for gpu, profile in mig if profile != UNKNOWN_PROFILE]
        for gpu, profile in mig:
            name = _profile_name(gpu, profile)
            count = sum(_profile_name(*other) == name for other in mig)
            labels |= _mig_labels(f"mig-{name}", gpu, profile, count, configuration)
        return labels
    enabled = [gpu for gpu in node.gpus if gpu.mig_enabled]
    if not enabled:
        return labels
    try:
        divide(node, configuration)
    except NodeError:
        product = f"{_words(enabled[0].model)}-MIG-INVALID"
        return labels | {
            "gpu.product": product,
            "gpu.count": "0",
            "gpu.replicas": "0",
            "gpu.sharing-strategy": "",
            "gpu.memory": "0",
        }
    return labels | _mig_labels("gpu", *mig[0], len(mig), configuration)


def _profile_name(gpu: NodeGpu, profile: MigProfile) -> str:
    if profile == UNKNOWN_PROFILE:
        raise NodeError(
            f"unable to get attributes of a MIG device of GPU {gpu.index} | of a host document:"
            " write its `profile`"
        )
    return profile.name(gpu.memory).replace("+", ".")


def _mig_labels(
    name: str, gpu: NodeGpu, profile: MigProfile, count: int, configuration: Configuration
) -> dict[str, str]:
    model = f"{gpu.model} MIG {_profile_name(gpu, profile)}"
    engines = zip(_ENGINES, profile.engines, strict=True)
    return {
        **_base(name, model, count, configuration),
        f"{name}.memory": str(profile.memory),
        f"{name}.multiprocessors": str(profile.multiprocessors),
        f"{name}.slices.gi": str(profile.gpu_slices),
        f"{name}.slices.ci": str(profile.compute_slices),
        **{f"{name}.engines.{engine}": str(number) for engine, number in engines},
    }


def _base(name: str, model: str, count: int, configuration: Configuration) -> dict[str, str]:
    """Return product, count and sharing of a resource."""
    shared = _shared(VENDOR_PREFIX + name, configuration)
    if shared is None or shared.replicas is None:
        return _unshared(name, model, count, 1)
    sharing = configuration.sharing
    renamed = sharing is not None and sharing.renameByDefault
    return _unshared(name, model if renamed else f"{model} SHARED", count, shared.replicas) | {
        f"{name}.sharing-strategy": "mps" if configuration.mps else "time-slicing"
    }


def _unshared(name: str, model: str, count: int, replicas: int) -> dict[str, str]:
    return {
        f"{name}.product": _words(model),
        f"{name}.count": str(count),
        f"{name}.replicas": str(replicas),
        f"{name}.sharing-strategy": "none",
    }


def _shared(resource: str, configuration: Configuration) -> SharedResource | None:
    sharing = configuration.sharing
    resources = (sharing.resources if sharing else None) or []
    return next((shared for shared in resources if shared.name == resource), None)
