"""The edits of devices by their qualified names, from the directories of CDI specifications.

As CDI's own library does it: the edits that a file's devices share once, before those of the first
of its devices; and what a device node lacks (numbers, type, mode) comes from the host's node.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.jsontext import dumps
from nvgraft.cdi.edits import CdiEdits, CdiNode, Generated
from nvgraft.cdi.nearest import no_such_device
from nvgraft.cdi.registry import read_registry
from nvgraft.system.trusted import open_trusted_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nvgraft.cdi.registry import Registry

_ERROR = "failed to inject CDI devices: "
#: Names that a refusal explains; a container may request any number.
_EXPLAINED = 4
_FIFO = "p"
_TYPES = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: _FIFO}
#: A type that means the same as "c".
_UNBUFFERED = "u"


def inject(directories: Sequence[str], devices: Sequence[str]) -> Generated:
    """Return the edits of devices of this host. A specification that users other than root can
    write is not used: it says which files of the host root mounts (SECURITY R13).

    :param directories: where specifications are looked for, the most important one last.
    :raises Refusal: a device is in none of them, or is not what the host has at its place.
    """
    return resolve(read_registry(directories, open_specification), devices, os.lstat)


def open_specification(path: str) -> int:
    """Open a specification that root alone can write.

    :raises OSError: it cannot be opened.
    :raises nvgraft.system.trusted.Untrusted: others can write it.
    """
    return open_trusted_in(*paths.split(path))


def resolve(
    registry: Registry, devices: Sequence[str], lstat: Callable[[str], os.stat_result]
) -> Generated:
    """Return the edits of devices of a registry.

    :param lstat: returns the status of a path of the host.
    :raises Refusal: see :func:`inject`.
    """
    wanted = list(dict.fromkeys(devices))
    unknown = [name for name in wanted if name not in registry.devices]
    log = [("warning", str(error)) for error in registry.errors]
    if unknown:
        raise _unresolvable(registry, unknown)
    parts: list[CdiEdits] = []
    seen: set[str] = set()
    for name in wanted:
        found = registry.devices[name]
        if found.file.path not in seen:
            seen.add(found.file.path)
            parts.append(_completed(found.file.spec.edits, lstat, found.file.path))
        parts.append(_completed(found.device.edits, lstat, found.file.path))
    return Generated(_with_last_values(parts), log)


def _with_last_values(parts: Sequence[CdiEdits]) -> list[CdiEdits]:
    """Return the edits with each variable once: in the place of its first value, with the last."""
    last = {_name(variable): variable for part in parts for variable in part.env}
    result = []
    for part in parts:
        env = [last.pop(name) for variable in part.env if (name := _name(variable)) in last]
        result.append(_copied(part, env, part.nodes))
    return result


def _name(variable: str) -> str:
    return variable.partition("=")[0]


def _copied(edits: CdiEdits, env: Iterable[str], nodes: Iterable[CdiNode]) -> CdiEdits:
    """Return the edits with other variables and nodes."""
    return CdiEdits(
        env=env,
        nodes=nodes,
        hooks=edits.hooks,
        mounts=edits.mounts,
        gids=edits.gids,
        net_devices=edits.net_devices,
        intel_rdt=edits.intel_rdt,
    )


def _unresolvable(registry: Registry, unknown: Sequence[str]) -> Refusal:
    hints = []
    for name in unknown[:_EXPLAINED]:
        conflict = registry.conflicts.get(name)
        if conflict is not None:
            hints.append(f"{', '.join(conflict)} all have {name}: remove it from all but one")
        else:
            hints.append(no_such_device(name, list(registry.devices)))
    hints += [str(error) for error in registry.errors]
    return Refusal("", f"{_ERROR}unresolvable CDI devices {', '.join(unknown)}", "; ".join(hints))


def _completed(edits: CdiEdits, lstat: Callable[[str], os.stat_result], file: str) -> CdiEdits:
    """Return the edits with nodes that have type, numbers and mode.

    :param file: the specification, for errors.
    """
    try:
        return _copied(edits, edits.env, [_complete(node, lstat) for node in edits.nodes])
    except Refusal as refusal:
        raise Refusal(refusal.stage, refusal.text, f"{file}: {refusal.hint}") from None


def _complete(node: CdiNode, lstat: Callable[[str], os.stat_result]) -> CdiNode:
    path = node.host_path or node.path
    is_complete = bool(node.type and (node.major or node.type == _FIFO))
    try:
        status = lstat(path)
    except (OSError, ValueError) as error:
        if is_complete:
            return node
        cause = reason(error) if isinstance(error, OSError) else str(error)
        raise _bad_node(
            f"failed to stat CDI host device {dumps(path)}: {cause}",
            "write the specification again for this host, or load the driver",
        ) from None
    kind = _TYPES.get(stat.S_IFMT(status.st_mode))
    if kind is None and not is_complete:
        text = f"failed to stat CDI host device {dumps(path)}: not a device node"
        raise _bad_node(text, "name a device node in deviceNodes, and files in mounts")
    declared = "c" if node.type == _UNBUFFERED else node.type
    if not is_complete and declared not in ("", kind):
        raise _bad_node(
            f"CDI device ({dumps(node.path)}, {dumps(path)}), host type mismatch"
            f" ({node.type}, {kind})",
            "write the specification again for this host",
        )
    major, minor = node.major, node.minor
    if not major and kind != _FIFO:
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return CdiNode(
        node.path,
        host_path=node.host_path,
        type=node.type or kind or "",
        major=major,
        minor=minor,
        mode=stat.S_IMODE(status.st_mode) if node.mode is None else node.mode,
        permissions=node.permissions,
        uid=node.uid,
        gid=node.gid,
    )


def _bad_node(text: str, hint: str) -> Refusal:
    return Refusal("", f"{_ERROR}failed to inject devices: {text}", hint)
