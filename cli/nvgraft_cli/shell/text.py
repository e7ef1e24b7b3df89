"""Render a plan as text: files grouped by the capability that asked for them, devices, links,
findings.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

from nvgraft.base.errors import printable
from nvgraft.base.values import Value
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
)
from nvgraft.plan.edit_actions import AddGroup, AllowNode, MakeNode, RunHook, SetVariable
from nvgraft_specs import cdi_hooks

_GROUPS = ("utility", "compute", "video", "graphics", "display", "ngx", "")


def size(count: int) -> str:
    """Format a number of bytes with at most three digits and a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def render(plan: Plan, *, colour: bool) -> str:
    """Return the text of a plan without its final newline. Control characters are escaped."""
    safe: Plan = _printable(plan)
    return "\n".join(_lines(safe, _Style(colour)))


def columns(rows: Iterable[tuple[str, str]], indent: str = "  ") -> Iterator[str]:
    """Yield rows of a word and a text, with the texts below each other and escaped."""
    rows = list(rows)
    width = max((len(word) for word, _ in rows), default=0)
    yield from (f"{indent}{word:<{width}}  {printable(text)}" for word, text in rows)


def _printable(value: Any) -> Any:
    """Return a copy with control characters escaped, since images and foreign hosts choose many
    names.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_printable, value))
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, Value):
        copy = object.__new__(type(value))
        vars(copy).update(_printable(vars(value)))
        return copy
    return value


class _Style:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def head(self, text: str) -> str:
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def warn(self, text: str) -> str:
        return self._paint("33", text)


def _lines(plan: Plan, style: _Style) -> Iterator[str]:
    yield style.head(f"{plan.decision}: {plan.reason}")
    if not isinstance(plan, Injection):
        return
    yield from _facts(plan)
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    files = [action for action in binds if action.kind == "file" and action.origin == "driver"]
    for group in _GROUPS:
        chosen = [action for action in files if action.why.capability == group]
        if chosen:
            yield ""
            title = group or "always"
            yield (
                style.head(f"{title}")
                + f"  {_count(chosen, 'file')}, {size(sum(action.size for action in chosen))}"
            )
            yield from _table(chosen)
    yield from _section(
        style,
        "sockets and directories",
        [action for action in binds if action.kind != "file" and action.origin == "driver"],
    )
    yield from _edits(plan.actions, style)
    yield from _devices(plan.actions, style)
    yield from _kernel_views(plan.actions, style)
    yield from _links(plan, style)
    for action in plan.actions:
        if isinstance(action, UpdateLoaderCache):
            yield ""
            yield style.head("loader cache") + "  rebuilt with " + ", ".join(action.directories)
    yield from _findings(plan, style)


def _edits(actions: Iterable[Action], style: _Style) -> Iterator[str]:
    """Say what only CDI edits have: variables, groups, hooks, and files that these hooks write."""
    variables = [action for action in actions if isinstance(action, SetVariable)]
    if variables:
        yield ""
        yield style.head("variables")
        yield from (f"  {action.name}={action.value}" for action in variables)
    groups = [str(action.gid) for action in actions if isinstance(action, AddGroup)]
    if groups:
        yield ""
        yield style.head("groups") + "  " + ", ".join(groups)
    hooks = [action for action in actions if isinstance(action, RunHook)]
    if hooks:
        yield ""
        yield style.head("hooks")
        yield from (f"  {action.stage}: {_shortened(action)}" for action in hooks)


def _shortened(hook: RunHook) -> str:
    """Return the command line of a hook, of which only the first words of each step are shown."""
    steps = [word for word in hook.args[1:] if word in cdi_hooks.STEP_NAMES]
    return f"{hook.path} {', '.join(steps) or ' '.join(hook.args[1:])}"


def _count(items: list[Bind], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")


def _facts(plan: Injection) -> Iterator[str]:
    host, request, target = plan.host, plan.request, plan.target
    root = "" if host.root == "/" else f" at {host.root}"
    yield f"  host      {host.name}{root}: driver {host.driver_version}, CUDA {host.cuda_version}"
    yield f"  devices   {','.join(request.devices) or 'none'}  ({request.devices_from})"
    capabilities = ", ".join(request.capabilities) or "no capability"
    yield f"  driver    {capabilities}  ({request.capabilities_from})"
    if request.requirements:
        yield f"  requires  {'; '.join(request.requirements)}"
    yield f"  rootfs    {target.rootfs}: libraries go to {target.libs_dir}"


def _table(actions: Iterable[Bind]) -> Iterator[str]:
    rows = [
        (posixpath.basename(action.source), size(action.size), _where(action)) for action in actions
    ]
    width = max(len(name) for name, _, _ in rows)
    for name, amount, where in rows:
        yield f"  {name:<{width}}  {amount:>9}  {where}"


def _where(action: Bind) -> str:
    source, target = posixpath.dirname(action.source), posixpath.dirname(action.target)
    return source if source == target else f"{source} -> {target}"


def _section(style: _Style, title: str, actions: list[Bind]) -> Iterator[str]:
    if actions:
        yield ""
        yield style.head(title)
        for action in actions:
            yield f"  {action.source}" + (
                "" if action.source == action.target else f" -> {action.target}"
            )


def _devices(actions: Iterable[Action], style: _Style) -> Iterator[str]:
    nodes = [action for action in actions if isinstance(action, Bind) and action.origin == "dev"]
    allowed = {
        (action.major, action.minor) for action in actions if isinstance(action, AllowDevice)
    }
    access = {
        (action.type, action.major, action.minor): action.access
        for action in actions
        if isinstance(action, AllowNode)
    }
    shown = {action.rdev for action in nodes}
    if nodes:
        yield ""
        yield style.head("devices")
    for action in nodes:
        number = "{}:{}".format(*action.rdev) if action.rdev else "directory"
        verdict = (
            ""
            if action.rdev is None
            else "allowed"
            if action.rdev in allowed
            else "not allowed: no-cgroups = true"
        )
        if isinstance(action, MakeNode):
            rule = access.get((action.type, *(action.rdev or ())), "no rule")
            verdict = f"{rule:<3}  {action.mode:04o} {action.uid}:{action.gid}"
        yield f"  {action.target:<28} {number:>9}  {verdict}  {style.dim(action.why.row)}".rstrip()
    others = sorted(allowed - {number for number in shown if number})
    if others:
        yield (
            f"  and {len(others)} more device number(s) allowed: {others[0][0]}:{others[0][1]}"
            f" to {others[-1][0]}:{others[-1][1]}"
        )


def _kernel_views(actions: Iterable[Action], style: _Style) -> Iterator[str]:
    views = [
        action
        for action in actions
        if isinstance(action, Tmpfs) or (isinstance(action, Bind) and action.origin == "proc")
    ]
    if views:
        yield ""
        yield style.head("the driver's own files")
        for action in views:
            kind = "tmpfs" if isinstance(action, Tmpfs) else "bind"
            yield f"  {action.target}  {style.dim(kind)}"


def _links(plan: Plan, style: _Style) -> Iterator[str]:
    links = [
        (action.path, action.target, "nvgraft")
        for action in plan.actions
        if isinstance(action, Symlink)
    ]
    links += [(path, target, "loader cache step") for path, target in plan.links]
    if links:
        yield ""
        yield style.head("links")
        width = max(len(posixpath.basename(path)) for path, _, _ in links)
        for path, target, maker in sorted(links):
            yield f"  {posixpath.basename(path):<{width}} -> {target}  {style.dim(maker)}"


def _findings(plan: Plan, style: _Style) -> Iterator[str]:
    if plan.findings:
        yield ""
        yield style.head("findings")
    for finding in plan.findings:
        mark = style.warn(finding.level) if finding.level == "warning" else finding.level
        yield f"  {mark} {finding.id}: {finding.message}"
        if finding.hint:
            yield f"      {style.dim(finding.hint)}"
