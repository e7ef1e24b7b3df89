"""Find what is wrong with CDI specifications on this machine: what engines refuse, what they cannot
mount or run, and what is not this driver's any more.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nvgraft.cdi.edits import STAGE, CdiEdits, CdiHook, CdiNode
from nvgraft.cdi.reader import SpecificationError, SpecificationFile
from nvgraft.cdi.registry import Registry
from nvgraft.system.trusted import Untrusted, open_trusted, open_trusted_in
from nvgraft_cli.case.driver import library_version

#: Names that are shown of many.
_SHOWN = 3

#: Stages whose hooks runtimes may start with the container's environment.
_IN_CONTAINER = (STAGE, "startContainer")

_WRITE_AGAIN = "write it again: nvgraft cdi generate --output {}"


class SpecFinding(NamedTuple):
    """Something wrong with a file; ``line`` is 0 where no line is named."""

    id: str
    level: str
    file: str
    line: int
    message: str
    hint: str


def unusable(error: SpecificationError) -> SpecFinding:
    """Return the finding for a file or directory that cannot be used."""
    return SpecFinding("invalid", "error", error.path, error.line, error.cause, error.fix)


def between(registry: Registry) -> Iterator[SpecFinding]:
    """Find devices that several files have."""
    conflicts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, paths in registry.conflicts.items():
        conflicts[paths].append(name)
    for paths, names in conflicts.items():
        cause = f"{_some(names)}: {' and '.join(paths[:-1])} has this device, too"
        fix = "no engine finds a device of two files of one directory: remove one of the files"
        yield SpecFinding("conflict", "error", paths[-1], 0, cause, fix)
    hidden: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, path in registry.hidden:
        if name in registry.devices:
            hidden[path, registry.devices[name].file.path].append(name)
    for (path, other), names in hidden.items():
        cause = f"{_some(names)}: hidden by {other}"
        yield SpecFinding("hidden", "warning", path, 0, cause, "remove the file that is not used")


def check(file: SpecificationFile, driver_version: str | None) -> Iterator[SpecFinding]:
    """Find what is wrong with a specification on this machine.

    :param driver_version: of the loaded kernel module; None if none is loaded.
    """
    edits = (file.spec.edits, *(device.edits for device in file.spec.devices))
    fix = f"containers will not start; {_WRITE_AGAIN.format(file.path)}"
    sources = dict.fromkeys(
        mount.source for part in edits for mount in part.mounts if mount.type in ("", "bind")
    )
    missing = [path for path in sources if not os.path.exists(path)]
    if missing:
        cause = f"{len(missing)} of {len(sources)} sources do not exist: {_some(missing)}"
        yield SpecFinding("source-missing", "error", file.path, 0, cause, fix)
    nodes = list(dict.fromkeys(node for part in edits for node in part.nodes))
    places = dict.fromkeys(_place(node) for node in nodes)
    missing = [path for path in places if not os.path.exists(path)]
    if missing:
        cause = f"{len(missing)} of {len(places)} device nodes do not exist: {_some(missing)}"
        yield SpecFinding("node-missing", "error", file.path, 0, cause, fix)
    yield from _writable(file.path)
    yield from _stale(file.path, edits, driver_version)
    for node in nodes:
        if _place(node) not in missing:
            yield from _node(file.path, node)
    for hook in dict.fromkeys((hook.stage, hook.path) for part in edits for hook in part.hooks):
        yield from _program(file.path, *hook)
    bare = [hook for part in edits for hook in part.hooks if _is_bare(hook)]
    if bare:
        cause = f"{bare[0].path} has no env: it gets the variables of the image (CVE-2025-23266)"
        fix = _WRITE_AGAIN.format(file.path)
        yield SpecFinding("hook-environment", "error", file.path, 0, cause, fix)


def _writable(path: str) -> Iterator[SpecFinding]:
    """Check that only root can write the specification, as nvgraft-runtime demands."""
    directory, name = os.path.split(os.path.abspath(path))
    try:
        os.close(open_trusted_in(directory, name))
    except Untrusted as problem:
        cause = f"nvgraft-runtime takes no device of it: {problem}"
        yield SpecFinding("writable", "warning", path, 0, cause, problem.hint)
    except OSError:
        return  # it is gone, or another check has said it


def _stale(
    path: str, edits: Sequence[CdiEdits], driver_version: str | None
) -> Iterator[SpecFinding]:
    versions = {
        version
        for part in edits
        for mount in part.mounts
        if (version := library_version(mount.source)) is not None
    }
    if driver_version is not None and versions and driver_version not in versions:
        cause = f"it is of driver {_some(sorted(versions))}, and the loaded one is {driver_version}"
        yield SpecFinding("stale", "error", path, 0, cause, _WRITE_AGAIN.format(path))


def _place(node: CdiNode) -> str:
    return node.host_path or node.path


def _node(path: str, node: CdiNode) -> Iterator[SpecFinding]:
    """Check a node that exists."""
    place = _place(node)
    fix = _WRITE_AGAIN.format(path)
    status = os.stat(place)
    mode = status.st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or (node.type == "p" and stat.S_ISFIFO(mode))):
        cause = f"{place} is not a device"
        yield SpecFinding("not-a-device", "error", path, 0, cause, fix)
        return
    declared = stat.S_ISBLK if node.type == "b" else stat.S_ISCHR
    if node.type in {"b", "c", "u"} and not declared(mode):
        cause = f"{place} is not of type {node.type}"
        yield SpecFinding("not-a-device", "error", path, 0, cause, fix)
        return
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    if node.major and (node.major, node.minor) != numbers:
        cause = f"{place} has the numbers {numbers[0]}:{numbers[1]}, not {node.major}:{node.minor}"
        yield SpecFinding("node-numbers", "error", path, 0, cause, fix)


def _program(path: str, stage: str, program: str) -> Iterator[SpecFinding]:
    """Check a hook's program. Those of startContainer are the image's."""
    if stage == "startContainer":
        return
    fix = "install it, or write the specification with another one: --nvidia-cdi-hook-path"
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        cause = f"hook {program}: there is no such program, so no container starts"
        yield SpecFinding("hook-missing", "error", path, 0, cause, fix)
        return
    try:
        os.close(open_trusted(os.path.realpath(program)))
    except Untrusted as problem:
        cause = f"hook {program}: {problem}"
        yield SpecFinding("hook-writable", "error", path, 0, cause, problem.hint)
    except OSError:
        return  # it can be run and not read


def _is_bare(hook: CdiHook) -> bool:
    return hook.stage in _IN_CONTAINER and not hook.env


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
