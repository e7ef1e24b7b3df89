"""The document ``nvgraft.plan/1`` of a plan. Commands print it; the hook needs none.

Its keys have a fixed order, so that equal inputs give byte-equal text.
"""

from __future__ import annotations

from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft.plan.edit_actions import AddGroup, MakeNode, RunHook, SetVariable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvgraft.request.request import Request

SCHEMA = "nvgraft.plan/1"


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the document of ``plan``."""
    made_from: dict[str, Any] = {"host": {}, "request": {}, "target": {}}
    if isinstance(plan, Injection):
        made_from = {
            "host": dict(vars(plan.host)),
            "request": request_document(plan.request),
            "target": dict(vars(plan.target)),
        }
    return {
        "schema": SCHEMA,
        "decision": plan.decision,
        "reason": plan.reason,
        **made_from,
        "actions": [action_document(action) for action in plan.actions],
        "links": dict(plan.links),
        "findings": [finding.document() for finding in plan.findings],
    }


def request_document(request: Request) -> dict[str, Any]:
    """Return the ``request`` of a plan's document."""
    return {
        "devices": list(request.devices),
        "capabilities": list(request.capabilities),
        "requirements": list(request.requirements),
        "mig_config": request.mig_config,
        "mig_monitor": request.mig_monitor,
        "imex_channels": list(request.imex_channels.written),
        "devices_from": request.devices_from,
        "capabilities_from": request.capabilities_from,
    }


def action_document(action: Action) -> dict[str, Any]:
    """Return an action as its entry in a plan's document."""
    return {"op": action.op, **_fields(action), "why": dict(vars(action.why))}


def _fields(action: Action) -> dict[str, Any]:
    """Return the members of the entry that depend on the kind of the action."""
    if isinstance(action, Bind | Tmpfs):
        return _mount(action)
    if isinstance(action, MakeDirectory):
        return {"path": action.path, "mode": _octal(action.mode)}
    if isinstance(action, WriteFile):
        return {"path": action.path, "mode": _octal(action.mode), "content": action.content}
    if isinstance(action, Symlink):
        return {"path": action.path, "target": action.target}
    if isinstance(action, AllowDevice):
        device = {"type": action.type, "major": action.major, "minor": action.minor}
        return {**device, "access": action.access}
    if isinstance(action, UpdateLoaderCache):
        return {"dirs": list(action.directories)}
    if isinstance(action, SetVariable):
        return {"name": action.name, "value": action.value}
    if isinstance(action, AddGroup):
        return {"gid": action.gid}
    if isinstance(action, RunHook):
        return {
            "stage": action.stage,
            "path": action.path,
            "args": list(action.args),
            "env": list(action.env),
            "timeout": action.timeout,
        }
    raise TypeError(f"no action: {action!r}")


def _mount(action: Bind | Tmpfs) -> dict[str, Any]:
    if isinstance(action, Tmpfs):
        return {
            "type": "tmpfs",
            "source": "tmpfs",
            "target": action.target,
            "options": list(action.options),
            "data": {"mode": _octal(action.mode)},
        }
    document: dict[str, Any] = {
        "type": "bind",
        "kind": action.kind,
        "source": action.source,
        "target": action.target,
        "options": list(action.options),
        "mode": _octal(action.mode),
    }
    if action.rdev is not None:
        document["rdev"] = list(action.rdev)
    if isinstance(action, MakeNode):
        document |= {"node": action.type, "uid": action.uid, "gid": action.gid}
    return document


def _octal(mode: int) -> str:
    return f"{mode:04o}"
