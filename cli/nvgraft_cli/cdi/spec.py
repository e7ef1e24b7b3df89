"""Write a CDI specification.

Edits are common or of one device, none is repeated, and lists are sorted. The version is the lowest
one that has all members (reference behaviour 10.2).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from nvgraft_cli.cdi.discovery import CdiDevice, Contents, Discovered
from nvgraft_specs.graphics_files import NODE_ACCESS
from nvgraft_specs.models import cdi

KIND = "nvidia.com/gpu"

#: The name of the device that stands for all devices.
_ALL = "all"

_Item = TypeVar("_Item")


def host_spec(discovered: Discovered, strategies: Sequence[str], hook_path: str) -> cdi.Spec:
    """Return the specification of a host, with an entry for each device and naming strategy."""
    common = edits(discovered.common, hook_path)
    devices = {
        _name(device, strategy): edits(device.contents, hook_path)
        for device in discovered.devices
        for strategy in strategies
    }
    devices.setdefault(_ALL, _merged(list(devices.values())))
    shared = {_key(item) for part in _lists(common) for item in part}
    for device in devices.values():
        for part in _lists(device):
            part[:] = [item for item in part if _key(item) not in shared]
    return spec(KIND, devices, common)


def spec(kind: str, devices: dict[str, cdi.Edits], common: cdi.Edits) -> cdi.Spec:
    """Return the document with sorted lists and the lowest version that has all members."""
    for part in (common, *devices.values()):
        part.device_nodes.sort(key=lambda node: _depth_first(node.path))
        part.mounts.sort(key=lambda mount: _depth_first(mount.container_path))
        part.additional_gids.sort()
    named = [cdi.Device(name=name, containerEdits=devices[name]) for name in sorted(devices)]
    document = cdi.Spec(cdiVersion="0.3.0", kind=kind, devices=named, containerEdits=common)
    document.version = _lowest_version(document)
    return document


def edits(contents: Contents, hook_path: str) -> cdi.Edits:
    """Return ``contents`` as edits, without repetitions."""
    nodes = []
    gids = []
    for device in contents.nodes:
        major, minor = device.rdev
        # A number that is 0 is left out, as the reference's encoder does.
        entry = cdi.DeviceNode(
            path=device.path, permissions=NODE_ACCESS, major=major or None, minor=minor or None
        )
        entry.file_mode = device.mode or None
        entry.gid = device.gid or None
        nodes.append(entry)
        gids += [device.gid] if device.needs_group else []
    mounts = [
        cdi.Mount(hostPath=mount.source, containerPath=mount.target, options=list(mount.options))
        for mount in contents.mounts
    ]
    return cdi.Edits(
        env=_unique(contents.env),
        deviceNodes=_unique(nodes),
        hooks=_unique(hook(hook_path, arguments) for arguments in contents.hooks),
        mounts=_unique(mounts),
        additionalGids=_unique(gids),
    )


def hook(path: str, arguments: Sequence[str]) -> cdi.Hook:
    """Return an entry that runs the hook program at ``path``.

    nvidia-ctk has the same commands below its command ``hook``. Without an environment of its own
    the hook would get the image's (CVE-2025-23266).
    """
    name = path.rpartition("/")[2]
    words = [name, "hook"] if name == "nvidia-ctk" else [name]
    return cdi.Hook(
        hookName="createContainer",
        path=path,
        args=[*words, *arguments],
        env=["NVIDIA_CTK_DEBUG=false"],
    )


def text(document: cdi.Spec, form: str) -> str:
    """Return the document as ``json`` or ``yaml``, with a final newline."""
    data = document.model_dump(by_alias=True, exclude_defaults=True)
    if form == "json":
        return json.dumps(data, indent=2) + "\n"
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # A copy without shared lists: YAML would write them as aliases, which some readers refuse.
    return str(
        yaml.dump(
            json.loads(json.dumps(data)),
            Dumper=dumper,
            sort_keys=False,
            explicit_start=True,
            width=1 << 20,
        )
    )


def _name(device: CdiDevice, strategy: str) -> str:
    if strategy == "uuid":
        return device.uuid
    name = (
        str(device.gpu_index)
        if device.mig_index is None
        else f"{device.gpu_index}:{device.mig_index}"
    )
    if strategy == "index":
        return name
    return ("gpu" if device.mig_index is None else "mig") + name


def _merged(devices: list[cdi.Edits]) -> cdi.Edits:
    return cdi.Edits(
        env=_unique(item for device in devices for item in device.env),
        deviceNodes=_unique(item for device in devices for item in device.device_nodes),
        hooks=_unique(item for device in devices for item in device.hooks),
        mounts=_unique(item for device in devices for item in device.mounts),
        additionalGids=_unique(item for device in devices for item in device.additional_gids),
    )


def _lists(part: cdi.Edits) -> tuple[list[Any], ...]:
    return part.env, part.device_nodes, part.hooks, part.mounts


def _key(item: Any) -> str:
    return repr(item)


def _unique(items: Iterable[_Item]) -> list[_Item]:
    return list({_key(item): item for item in items}.values())


def _depth_first(path: str) -> tuple[int, bytes]:
    return path.rstrip("/").count("/"), path.encode("utf-8", "surrogateescape")


def _lowest_version(document: cdi.Spec) -> str:
    return next((version for version, needed in _NEEDS if needed(document)), "0.3.0")


def _all_edits(document: cdi.Spec) -> list[cdi.Edits]:
    return [document.edits, *(device.edits for device in document.devices)]


#: A version, and whether a document has a member that it added; the newest first.
_NEEDS: tuple[tuple[str, Callable[[cdi.Spec], bool]], ...] = (
    ("0.7.0", lambda document: any(part.additional_gids for part in _all_edits(document))),
    ("0.6.0", lambda document: "." in document.kind.partition("/")[2]),
    (
        "0.5.0",
        lambda document: (
            any(device.name[0].isdecimal() for device in document.devices)
            or any(node.host_path for part in _all_edits(document) for node in part.device_nodes)
        ),
    ),
    (
        "0.4.0",
        lambda document: any(mount.type for part in _all_edits(document) for mount in part.mounts),
    ),
)
