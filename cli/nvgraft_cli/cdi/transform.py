"""``nvgraft cdi transform root``: write a specification for another root, as
`nvidia-ctk cdi transform root` does.

The specification of a driver container names paths as that container sees them, or as it sees the
driver root. Its node needs them as the host does.
"""

import argparse
import posixpath
import sys
from collections.abc import Callable

from nvgraft.cdi.edits import STAGE, CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec
from nvgraft.cdi.reader import SpecificationError
from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.cdi import spec
from nvgraft_cli.cdi.arguments import add_form, form
from nvgraft_cli.shell.arguments import STDIN, source
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs.documents import DocumentError, read_bytes

_EXAMPLES = """\
examples:
  nvgraft cdi transform root --from /host --to / --input nvidia.yaml
  nvgraft cdi generate | nvgraft cdi transform root --from / --to /run/nvidia/driver

exit code: 0 written, 2 bad usage or input"""


def add_arguments(group: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi transform root``."""
    group.description = "Write a CDI specification with other paths."
    group.epilog = _EXAMPLES
    parser = group.add_subparsers(metavar="WHAT", dest="transformed", required=True).add_parser(
        "root",
        help="replace the first directories of paths",
        description="Write a CDI specification whose paths begin with another root: sources,"
        " device nodes and hooks of the host, or with --relative-to container the paths in the"
        " container.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--from", metavar="DIR", required=True, help="the root of its paths")
    parser.add_argument("--to", metavar="DIR", required=True, help="the root to write instead")
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=source,
        default=STDIN,
        help="the specification in JSON or YAML (default, or -: standard input)",
    )
    parser.add_argument(
        "--relative-to",
        choices=("host", "container"),
        default="host",
        help="whose paths are changed (default: host)",
    )
    add_form(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the specification and return the exit code.

    :raises InputError: the specification cannot be used.
    """
    try:
        before = parse_specification(read_bytes(args.input), args.input)
    except (DocumentError, SpecificationError) as error:
        raise InputError(str(error)) from None
    after = with_root(before, vars(args)["from"], args.to, args.relative_to)
    sys.stdout.write(spec.text(after, form(args)))
    return 0


def with_root(before: CdiSpec, old: str, new: str, relative_to: str) -> CdiSpec:
    """Return the specification with ``new`` in place of the root ``old``.

    :param relative_to: whose paths are changed, "host" or "container".
    """

    def path(text: str) -> str:
        return replace_root(text, old, new)

    change = _of_host if relative_to == "host" else _of_container
    devices = [
        CdiDevice(device.name, change(device.edits, path), device.annotations)
        for device in before.devices
    ]
    edits = change(before.edits, path)
    return CdiSpec(before.kind, devices, edits, annotations=before.annotations)


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
