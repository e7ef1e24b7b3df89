"""Turn what a host has into a CDI specification.

Edits are common or of one device, none is repeated, and lists are sorted (reference behaviour
10.2).
"""

from __future__ import annotations

from nvgraft.base.values import Value
from nvgraft.cdi.discovery import Contents
from nvgraft.cdi.edits import STAGE, CdiDevice, CdiEdits, CdiHook, CdiNode, CdiSpec
from nvgraft_specs import cdi_hooks
from nvgraft_specs.graphics_files import NODE_ACCESS
from nvgraft_specs.names import ALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nvgraft.cdi.discovery import Discovered, FoundDevice

KIND = "nvidia.com/gpu"


class HookProgram(Value):
    """The program that takes the steps, and whether one process takes all of them.

    :param config: with ``together``, the config.toml that it reads; "" for the default file.
    :param timeout: of each hook, in seconds, or None.
    """

    def __init__(
        self, path: str, *, together: bool = False, config: str = "", timeout: int | None = None
    ) -> None:
        self.path = path
        self.together = together
        self.config = config
        self.timeout = timeout

    def hooks(self, steps: Iterable[Sequence[str]]) -> list[CdiHook]:
        """Return the hooks that take ``steps``, none twice."""
        listed = [list(step) for step in dict.fromkeys(map(tuple, steps))]
        if self.together and listed:
            listed = [cdi_hooks.in_one(listed, self.config)]
        return [hook(self.path, step, self.timeout) for step in listed]


def host_spec(discovered: Discovered, strategies: Sequence[str], program: HookProgram) -> CdiSpec:
    """Return the specification of a host, with an entry for each device and naming strategy, and
    ``all``.
    """
    return class_spec(KIND, named_devices(discovered, strategies), discovered.common, program)


def named_devices(discovered: Discovered, strategies: Sequence[str]) -> dict[str, Contents]:
    """Return what each device needs, once for each naming strategy that has a name for it."""
    return {
        name: device.contents
        for device in discovered.devices
        for strategy in strategies
        if (name := device_name(device, strategy))
    }


def class_spec(
    kind: str,
    devices: Mapping[str, Contents],
    common: Contents,
    program: HookProgram,
    *,
    all_device: bool = True,
) -> CdiSpec:
    """Return the specification of the devices of a kind by their names.

    :param all_device: add the device ``all``, which has all others, unless there is one.
    """
    named = dict(devices)
    if all_device:
        named.setdefault(ALL, sum(devices.values(), Contents()))
    shared = edits(common, program)
    return sorted_spec(
        kind,
        {name: _without(edits(part, program), shared) for name, part in named.items()},
        shared,
    )


def sorted_spec(kind: str, devices: Mapping[str, CdiEdits], common: CdiEdits) -> CdiSpec:
    """Return the specification with sorted lists and the lowest version that has all members."""
    return CdiSpec(
        kind, [CdiDevice(name, _sorted(devices[name])) for name in sorted(devices)], _sorted(common)
    )


def edits(contents: Contents, program: HookProgram, *, groups: bool = True) -> CdiEdits:
    """Return what a container gets as edits, without repetitions.

    :param groups: whether it gets the groups of the nodes that only their group may open.
    """
    whole = CdiEdits(
        env=contents.env,
        nodes=[
            # A mode and a group that are 0 are left out, as by the reference's encoder.
            CdiNode(
                node.path,
                major=node.rdev[0],
                minor=node.rdev[1],
                mode=node.mode or None,
                permissions=NODE_ACCESS,
                gid=node.gid or None,
            )
            for node in contents.nodes
        ],
        hooks=program.hooks(contents.steps),
        mounts=contents.mounts,
        gids=[node.gid for node in contents.nodes if groups and node.needs_group],
    )
    return CdiEdits() + whole


def hook(path: str, step: Sequence[str], timeout: int | None = None) -> CdiHook:
    """Return the hook that takes one step with the program at ``path``. Its environment is never
    empty: without one it would get the image's (CVE-2025-23266).

    nvidia-ctk has the same commands below its command ``hook``.
    """
    name = path.rpartition("/")[2]
    words = (name, "hook") if name == "nvidia-ctk" else (name,)
    return CdiHook(STAGE, path, (*words, *step), cdi_hooks.ENVIRONMENT, timeout)


def device_name(device: FoundDevice, strategy: str) -> str:
    """Return the name of a device: "uuid", "index" (0, 0:1) or "type-index" (gpu0, mig0:1)."""
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


def _without(part: CdiEdits, common: CdiEdits) -> CdiEdits:
    """Return the edits that are not common to all devices; groups are repeated."""
    return CdiEdits(
        env=[item for item in part.env if item not in common.env],
        nodes=[item for item in part.nodes if item not in common.nodes],
        hooks=[item for item in part.hooks if item not in common.hooks],
        mounts=[item for item in part.mounts if item not in common.mounts],
        gids=part.gids,
    )


def _sorted(part: CdiEdits) -> CdiEdits:
    return CdiEdits(
        env=part.env,
        nodes=sorted(part.nodes, key=lambda node: _depth_first(node.path)),
        hooks=part.hooks,
        mounts=sorted(part.mounts, key=lambda mount: _depth_first(mount.target)),
        gids=sorted(part.gids),
    )


def _depth_first(path: str) -> tuple[int, bytes]:
    return path.rstrip("/").count("/"), path.encode("utf-8", "surrogateescape")
