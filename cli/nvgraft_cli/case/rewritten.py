"""Recognise a config.json that has CDI edits of NVIDIA devices already: an engine or
nvidia-container-runtime added them before it was recorded.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.driver import library_version
from nvgraft_cli.case.edits import Origin
from nvgraft_specs import catalogue, cdi_hooks, names

if TYPE_CHECKING:
    from nvgraft_cli.case.hosts import HostSide

#: The origin of edits that are in config.json already.
IN_CONFIG = Origin(maker="config.json")

#: The stages at which a runtime calls the hook.
_BEFORE = ("prestart", "createRuntime")
#: The node of one GPU, or of all of WSL2 or of a Tegra board.
GPU_NODE = re.compile(r"/dev/(nvidia[0-9]+|dxg|nvhost-gpu|nvgpu/igpu0/ctrl)")
#: How the device nodes begin that CDI edits of NVIDIA devices have.
_NODES = ("/dev/nvidia", "/dev/dri/", "/dev/dxg", "/dev/nvhost", "/dev/nvmap", "/dev/nvgpu/")

#: Steps that no runtime adds in mode legacy: there links and compat alone are made by CDI hooks.
_OF_EDITS = frozenset(cdi_hooks.STEP_NAMES) - {
    cdi_hooks.CREATE_SYMLINKS,
    cdi_hooks.ENABLE_CUDA_COMPAT,
}


def edits_in(container: ContainerSide) -> str:
    """Return what tells that config.json has CDI edits already, or "" if nothing does.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
    """
    signs = list(dict.fromkeys([*_programs(container), *_variables(container)]))
    signs = signs or [*_passed(container)]
    return f"CDI edits are in this config.json already: {', '.join(signs)}" if signs else ""


def calls_hook(container: ContainerSide) -> bool:
    """Tell whether config.json calls the prestart hook."""
    stages = container.member("hooks")
    return any(
        isinstance(hook, dict) and posixpath.basename(str(hook.get("path"))) in names.HOOK_NAMES
        for stage, hooks in (stages.items() if isinstance(stages, dict) else ())
        if stage in _BEFORE and isinstance(hooks, list)
        for hook in hooks
    )


def taken_edits(container: ContainerSide, host: "HostSide") -> tuple[ContainerSide, CdiEdits]:
    """Return the container without the CDI edits that its config.json has, and these edits.

    They are the calls of CDI hooks, the GPUs' device nodes, and the bind mounts of files that are
    at the same path on the host, or have a driver's version in their name. Variables and groups
    stay in config.json.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration, or this machine
        has no working driver.
    """
    document = json.loads(json.dumps(container.document))
    nodes: list[CdiNode] = []
    mounts: list[CdiMount] = []
    hooks: list[CdiHook] = []

    def mounts_host_file(mount: object) -> bool:
        taken = _mount(mount, host)
        if isinstance(taken, CdiNode):
            nodes.append(taken)
        elif taken is not None:
            mounts.append(taken)
        return taken is not None

    def is_gpu_node(device: object) -> bool:
        taken = _node(device)
        nodes.extend([taken] if taken is not None else ())
        return taken is not None

    _take(document, "mounts", mounts_host_file)
    linux = document.get("linux")
    if isinstance(linux, dict):
        _take(linux, "devices", is_gpu_node)
    stages = document.get("hooks")
    for stage in stages if isinstance(stages, dict) else ():

        def is_of_cdi(hook: object, stage: str = stage) -> bool:
            if is_cdi_hook(hook) and isinstance(hook, dict):
                words = tuple(word for word in _words(hook) if isinstance(word, str))
                hooks.append(CdiHook(stage, hook["path"], words))
                return True
            return False

        _take(stages, stage, is_of_cdi)
    rest = container.rewritten(json.dumps(document).encode())
    return rest, CdiEdits(nodes=nodes, mounts=mounts, hooks=hooks)


def _take(parent: dict[str, Any], member: str, takes: Callable[[object], bool]) -> None:
    """Remove the items of a list that are taken."""
    items = parent.get(member)
    if isinstance(items, list):
        parent[member] = [item for item in items if not takes(item)]


def _node(device: object) -> CdiNode | None:
    """Return a device of config.json as an edit, if it is one of a GPU."""
    if not isinstance(device, dict):
        return None
    path, major, minor = device.get("path"), device.get("major"), device.get("minor")
    if not isinstance(path, str) or not path.startswith(_NODES):
        return None
    if not isinstance(major, int) or not isinstance(minor, int):
        return None
    mode, uid, gid = (device.get(name) for name in ("fileMode", "uid", "gid"))
    return CdiNode(
        path,
        major=major,
        minor=minor,
        mode=mode if isinstance(mode, int) else None,
        uid=uid if isinstance(uid, int) else 0,
        gid=gid if isinstance(gid, int) else 0,
    )


def _mount(mount: object, host: "HostSide") -> CdiMount | CdiNode | None:
    """Return a mount of config.json as an edit, if it is one of a file of the host."""
    if not isinstance(mount, dict):
        return None
    source, target, options = (mount.get(key) for key in ("source", "destination", "options"))
    words = tuple(word for word in options or () if isinstance(word, str))
    if not isinstance(source, str) or not isinstance(target, str):
        return None
    if mount.get("type") != "bind" and not {"bind", "rbind"} & set(words):
        return None
    root, tree = host.facts.root.rstrip("/"), host.facts.tree
    versioned = library_version(source) is not None
    if not versioned and source not in (target, f"{root}{target}"):
        return None
    path = source.removeprefix(root) if source.startswith(f"{root}/") else source
    try:
        node = tree.find(path)[1]
    except (PathError, OSError):
        node = None
    if node is not None and node.rdev is not None:
        return CdiNode(target, host_path=source, major=node.rdev[0], minor=node.rdev[1])
    if versioned or (node is not None and node.type in {"file", "socket"}):
        return CdiMount(source, target, words)
    return None


def is_cdi_hook(hook: object) -> bool:
    """Tell whether an entry of a list of hooks calls nvgraft-cdi-hook, or NVIDIA's program."""
    return bool(_program(hook))


def _program(hook: object) -> str:
    """Return how an entry calls the program, "" if it calls another one."""
    path = hook.get("path") if isinstance(hook, dict) else None
    name = posixpath.basename(path) if isinstance(path, str) else ""
    if name in (cdi_hooks.PROGRAM, cdi_hooks.REFERENCE_PROGRAM):
        return name
    is_ctk = name == cdi_hooks.CTK_PROGRAM and _words(hook)[1:2] == [cdi_hooks.CTK_WORD]
    return f"{name} {cdi_hooks.CTK_WORD}" if is_ctk else ""


def _words(hook: object) -> list[object]:
    args = hook.get("args") if isinstance(hook, dict) else None
    return args if isinstance(args, list) else []


def _programs(container: ContainerSide) -> Iterator[str]:
    """Yield the programs of hooks that only CDI edits have."""
    stages = container.member("hooks")
    for hooks in stages.values() if isinstance(stages, dict) else ():
        for hook in hooks if isinstance(hooks, list) else ():
            words = {word for word in _words(hook) if isinstance(word, str)}
            if (program := _program(hook)) and words & _OF_EDITS:
                yield program


def _variables(container: ContainerSide) -> Iterator[str]:
    """Yield variables that only CDI edits set."""
    if names.LIBCUDA_DIR in container.spec.env:
        yield names.LIBCUDA_DIR


def _passed(container: ContainerSide) -> Iterator[str]:
    """Yield a GPU's node and a file of the driver that are passed at their own paths, beside the
    variable by which CDI edits keep the hook from acting.
    """
    if container.spec.env.get(names.VISIBLE_DEVICES) != names.VOID:
        return
    devices = container.member("linux", "devices")
    found = [_node(device) for device in (devices if isinstance(devices, list) else ())]
    nodes = [node.path for node in found if node is not None and GPU_NODE.fullmatch(node.path)]
    rows = tuple(row.name for row in catalogue.LIBRARIES)
    programs = {row.name for row in catalogue.BINARIES}
    mounts = container.member("mounts")
    paths = (
        mount["destination"]
        for mount in (mounts if isinstance(mounts, list) else ())
        if isinstance(mount, dict)
        and isinstance(mount.get("destination"), str)
        and mount.get("source") == mount["destination"]
    )
    for path in paths:
        name = posixpath.basename(path)
        if nodes and (name in programs or name.startswith(rows)):
            yield nodes[0]
            yield path
            return
