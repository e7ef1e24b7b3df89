"""The paths of a CDI specification below another root."""

import posixpath
from collections.abc import Callable

from nvgraft.cdi.edits import STAGE, CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec


def with_root(before: CdiSpec, old: str, new: str, relative_to: str) -> CdiSpec:
    """Return the specification with ``new`` in place of the root ``old``.

    :param relative_to: whose paths are changed, "host" or "container".
    """

    def path(text: str) -> str:
        return replace_root(text, old, new)

    change = _of_host if relative_to == "host" else _of_container
    return _mapped(before, lambda edits: change(edits, path))


def with_dev_root(before: CdiSpec, root: str) -> CdiSpec:
    """Return the specification with the host's device nodes below ``root``."""
    root = root.rstrip("/")
    if not root:
        return before

    def below_root(edits: CdiEdits) -> CdiEdits:
        nodes = [_node(node, node.path, root + node.path) for node in edits.nodes]
        return _changed(edits, nodes, list(edits.mounts), list(edits.hooks))

    return _mapped(before, below_root)


def _mapped(before: CdiSpec, change: Callable[[CdiEdits], CdiEdits]) -> CdiSpec:
    """Return the specification with changed edits, in the lowest version that has all members."""
    devices = [
        CdiDevice(device.name, change(device.edits), device.annotations)
        for device in before.devices
    ]
    return CdiSpec(before.kind, devices, change(before.edits), annotations=before.annotations)


def replace_root(path: str, old: str, new: str) -> str:
    """Return ``path`` with the directory ``new`` in place of ``old``, if it lies there."""
    root = old.rstrip("/") + "/"
    if not f"{path}/".startswith(root):
        return path
    return posixpath.normpath(posixpath.join(new, f"{path}/".removeprefix(root)))


def _of_host(edits: CdiEdits, path: Callable[[str], str]) -> CdiEdits:
    return _changed(
        edits,
        [_node(node, node.path, path(node.host_path or node.path)) for node in edits.nodes],
        [
            CdiMount(path(mount.source), mount.target, mount.options, mount.type)
            for mount in edits.mounts
        ],
        # A hook of createContainer runs with the container's paths, its program lies on the host;
        # one of startContainer is a program of the container.
        [
            _hook(
                hook,
                hook.path if hook.stage == "startContainer" else path(hook.path),
                None if hook.stage in _IN_CONTAINER else path,
            )
            for hook in edits.hooks
        ],
    )


def _of_container(edits: CdiEdits, path: Callable[[str], str]) -> CdiEdits:
    return _changed(
        edits,
        [_node(node, path(node.path), node.host_path) for node in edits.nodes],
        [
            CdiMount(mount.source, path(mount.target), mount.options, mount.type)
            for mount in edits.mounts
        ],
        [
            _hook(
                hook,
                path(hook.path) if hook.stage == "startContainer" else hook.path,
                path if hook.stage in _IN_CONTAINER else None,
            )
            for hook in edits.hooks
        ],
    )


#: Stages whose hooks see the container's paths.
_IN_CONTAINER = (STAGE, "startContainer")


def _changed(
    edits: CdiEdits, nodes: list[CdiNode], mounts: list[CdiMount], hooks: list[CdiHook]
) -> CdiEdits:
    return CdiEdits(
        env=edits.env,
        nodes=nodes,
        hooks=hooks,
        mounts=mounts,
        gids=edits.gids,
        net_devices=edits.net_devices,
        intel_rdt=edits.intel_rdt,
    )


def _node(node: CdiNode, path: str, host_path: str) -> CdiNode:
    return CdiNode(
        path,
        host_path=host_path,
        type=node.type,
        major=node.major,
        minor=node.minor,
        mode=node.mode,
        permissions=node.permissions,
        uid=node.uid,
        gid=node.gid,
    )


def _hook(hook: CdiHook, program: str, path: Callable[[str], str] | None) -> CdiHook:
    """Return the hook with another program, and with other paths in its arguments unless ``path``
    is None.
    """
    args = hook.args
    if path is not None:
        # A link is TARGET::LINK.
        args = tuple("::".join(map(path, argument.split("::", 1))) for argument in args)
    return CdiHook(hook.stage, program, args, hook.env, hook.timeout)
