"""A plan as a CDI specification: one device whose edits put into a container what that plan would.

The engine that applies it makes mount points and device rules itself. What CDI has no word for is left out, and told.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nvgraft.plan.actions import Action, AllowDevice, Bind, Plan, Symlink, Tmpfs, UpdateLoaderCache
from nvgraft_cli.cdi.spec import hook, spec
from nvgraft_specs.models import cdi

#: Not NVIDIA's: what it stands for is one container's plan, and it must not hide a device of the host's own specification.
KIND = "nvgraft/plan"
DEVICE = "container"

_PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"


class PlannedSpec(NamedTuple):
    """The document, and one line for each thing of the plan that is not in it."""

    document: cdi.Spec
    left_out: list[str]


def planned_spec(plan: Plan, hook_path: str) -> PlannedSpec:
    """Return the specification of a plan whose decision is ``inject``."""
    access = {
        (action.major, action.minor): action.access
        for action in plan.actions
        if isinstance(action, AllowDevice)
    }
    edits = cdi.Edits(
        env=["NVIDIA_VISIBLE_DEVICES=void"]
    )  # so that a hook of the engine's leaves this container alone
    links: list[str] = []
    left_out: list[str] = []
    late: list[tuple[str, ...]] = []
    for action in plan.actions:
        if isinstance(action, Bind) and action.kind == "device" and action.rdev is not None:
            edits.device_nodes.append(_node(action, access.pop(action.rdev, None)))
        elif isinstance(action, Bind) and not _in_proc(action.target):
            options = [*action.options, "bind", "private"]
            edits.mounts.append(
                cdi.Mount(hostPath=action.source, containerPath=action.target, options=options)
            )
        elif isinstance(action, Symlink):
            links.append(f"{action.target}::{action.path}")
        elif isinstance(action, UpdateLoaderCache):
            # What ldconfig would make: not every hook program has an ldconfig to run.
            links += [f"{target}::{path}" for path, target in plan.links]
            late.append(
                (
                    "update-ldcache",
                    *(word for directory in action.directories for word in ("--folder", directory)),
                )
            )
        elif isinstance(action, Tmpfs):
            late += _stand_in(action)
        left_out += _not_expressed(action)
    left_out += [
        f"device rule c {major}:{minor}: it belongs to no device node" for major, minor in access
    ]
    if links:
        arguments = [word for link in links for word in ("--link", link)]
        edits.hooks.append(hook(hook_path, ["create-symlinks", *arguments]))
    edits.hooks += [hook(hook_path, arguments) for arguments in late]
    return PlannedSpec(spec(KIND, {DEVICE: edits}, cdi.Edits()), left_out)


def _node(action: Bind, access: str | None) -> cdi.DeviceNode:
    major, minor = action.rdev or (0, 0)
    source = action.source if action.source != action.target else None
    return cdi.DeviceNode(
        path=action.target, hostPath=source, major=major, minor=minor or None, permissions=access
    )


def _in_proc(path: str) -> bool:
    return path == "/proc" or path.startswith("/proc/")


def _stand_in(action: Tmpfs) -> Iterator[tuple[str, ...]]:
    """Yield the hook that does for a container what this mount and the files in it are for."""
    if action.target == "/proc/driver/nvidia":
        yield ("disable-device-node-modification",)
    elif action.target.endswith(_PROFILES):
        yield ("update-application-profile",)


def _not_expressed(action: Action) -> Iterator[str]:
    if isinstance(action, Bind) and _in_proc(action.target):
        yield f"{action.target}: engines refuse mounts below /proc"
    elif isinstance(action, Tmpfs) and not list(_stand_in(action)):
        yield f"{action.target}: a file system that is made for the container"
