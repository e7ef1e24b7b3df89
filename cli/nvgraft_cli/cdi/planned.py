"""Turn a plan into a CDI specification: one device whose edits do what the plan would.

The engine that applies it creates mount points and device rules itself. Actions that CDI cannot
express are left out and listed.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nvgraft.plan.actions import Action, AllowDevice, Bind, Plan, Symlink, Tmpfs, UpdateLoaderCache
from nvgraft_cli.cdi.spec import hook, spec
from nvgraft_specs.models import cdi

#: Not NVIDIA's kind: the device stands for one plan, and must not hide one of the host's.
KIND = "nvgraft/plan"
DEVICE = "container"

_PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"


class PlannedSpec(NamedTuple):
    """The document, and one line for each part of the plan that it lacks."""

    document: cdi.Spec
    left_out: list[str]


def planned_spec(plan: Plan, hook_path: str) -> PlannedSpec:
    """Return the specification of a plan whose decision is ``inject``."""
    access = {
        (action.major, action.minor): action.access
        for action in plan.actions
        if isinstance(action, AllowDevice)
    }
    # A hook of the engine must leave this container alone.
    edits = cdi.Edits(env=["NVIDIA_VISIBLE_DEVICES=void"])
    links: list[str] = []
    left_out: list[str] = []
    later_hooks: list[tuple[str, ...]] = []  # after the one that creates links
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
            # The links of ldconfig: not every hook program has an ldconfig to run.
            links += [f"{target}::{path}" for path, target in plan.links]
            folders = [word for path in action.directories for word in ("--folder", path)]
            later_hooks.append(("update-ldcache", *folders))
        elif isinstance(action, Tmpfs):
            later_hooks += _hook_instead(action)
        left_out += _not_expressed(action)
    left_out += [
        f"device rule c {major}:{minor}: no device node has this number" for major, minor in access
    ]
    if links:
        arguments = [word for link in links for word in ("--link", link)]
        edits.hooks.append(hook(hook_path, ["create-symlinks", *arguments]))
    edits.hooks += [hook(hook_path, arguments) for arguments in later_hooks]
    return PlannedSpec(spec(KIND, {DEVICE: edits}, cdi.Edits()), left_out)


def _node(action: Bind, access: str | None) -> cdi.DeviceNode:
    major, minor = action.rdev or (0, 0)
    source = action.source if action.source != action.target else None
    return cdi.DeviceNode(
        path=action.target, hostPath=source, major=major, minor=minor or None, permissions=access
    )


def _in_proc(path: str) -> bool:
    return path == "/proc" or path.startswith("/proc/")


def _hook_instead(action: Tmpfs) -> Iterator[tuple[str, ...]]:
    """Yield the hook that has the effect of this mount and its files, if there is one."""
    if action.target == "/proc/driver/nvidia":
        yield ("disable-device-node-modification",)
    elif action.target.endswith(_PROFILES):
        yield ("update-application-profile",)


def _not_expressed(action: Action) -> Iterator[str]:
    if isinstance(action, Bind) and _in_proc(action.target):
        yield f"{action.target}: engines refuse mounts below /proc"
    elif isinstance(action, Tmpfs) and not list(_hook_instead(action)):
        yield f"{action.target}: CDI cannot describe a new tmpfs with files"
