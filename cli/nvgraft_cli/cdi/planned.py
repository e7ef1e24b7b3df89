"""Turn a plan into a CDI specification: one device whose edits do what the plan would.

The engine that applies it creates mount points and device rules itself. Actions that CDI cannot
express are left out and listed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec, links_step
from nvgraft.cdi.specification import hook, sorted_spec
from nvgraft.plan.actions import Action, AllowDevice, Bind, Plan, Symlink, Tmpfs, UpdateLoaderCache
from nvgraft_cli.case.edits_plan import EditedContainer
from nvgraft_cli.cdi import HOOK
from nvgraft_specs import cdi_hooks

#: Not NVIDIA's kind: the device stands for one plan, and must not hide one of the host's.
KIND = "nvgraft/plan"
DEVICE = "container"

_PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"


class PlannedSpec(NamedTuple):
    """The document, and one line for each part of the plan that it lacks."""

    document: CdiSpec
    left_out: list[str]


def planned_spec(plan: Plan, hook_path: str | None) -> PlannedSpec:
    """Return the specification of a plan whose decision is ``inject``.

    :param hook_path: the program of the hooks; by default the one that the plan has, or NVIDIA's.
    """
    if isinstance(plan, EditedContainer):
        edits = sum(plan.edits, CdiEdits())
        edits.hooks = tuple(_with_program(edits.hooks, hook_path))
        return PlannedSpec(sorted_spec(KIND, {DEVICE: edits}, CdiEdits()), [])
    access = {
        (action.major, action.minor): action.access
        for action in plan.actions
        if isinstance(action, AllowDevice)
    }
    nodes: list[CdiNode] = []
    mounts: list[CdiMount] = []
    links: list[str] = []
    left_out: list[str] = []
    later_steps: list[tuple[str, ...]] = []  # after the one that creates links
    for action in plan.actions:
        if isinstance(action, Bind) and action.kind == "device" and action.rdev is not None:
            nodes.append(_node(action, access.pop(action.rdev, None)))
        elif isinstance(action, Bind) and not _in_proc(action.target):
            options = (*action.options, "bind", "private")
            mounts.append(CdiMount(action.source, action.target, options))
        elif isinstance(action, Symlink):
            links.append(f"{action.target}::{action.path}")
        elif isinstance(action, UpdateLoaderCache):
            # The links of ldconfig: not every hook program has an ldconfig to run.
            links += [f"{target}::{path}" for path, target in plan.links]
            folders = [word for path in action.directories for word in ("--folder", path)]
            later_steps.append(("update-ldcache", *folders))
        elif isinstance(action, Tmpfs):
            later_steps += _hook_instead(action)
        left_out += _not_expressed(action)
    left_out += [
        f"device rule c {major}:{minor}: no device node has this number" for major, minor in access
    ]
    edits = CdiEdits(
        env=["NVIDIA_VISIBLE_DEVICES=void"],  # a hook of the engine must leave this container alone
        nodes=nodes,
        mounts=mounts,
        hooks=[hook(hook_path or HOOK, step) for step in (*links_step(links), *later_steps)],
    )
    return PlannedSpec(sorted_spec(KIND, {DEVICE: edits}, CdiEdits()), left_out)


def _with_program(hooks: Iterable[CdiHook], path: str | None) -> Iterator[CdiHook]:
    """Yield hooks, with another program for those whose steps are known."""
    for entry in hooks:
        steps = cdi_hooks.steps_of(entry.args)
        if path is None or any(step[0] not in cdi_hooks.STEP_NAMES for step in steps):
            yield entry
        else:
            yield from (hook(path, step, entry.timeout) for step in steps)


def _node(action: Bind, access: str | None) -> CdiNode:
    major, minor = action.rdev or (0, 0)
    return CdiNode(
        action.target,
        host_path=action.source if action.source != action.target else "",
        major=major,
        minor=minor,
        permissions=access or "",
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
