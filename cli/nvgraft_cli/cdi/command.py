"""``nvgraft cdi generate``: a CDI specification of this host, or of a recorded one."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import Refusal, printable
from nvgraft_cli.case.hosts import open_host, read_configuration
from nvgraft_cli.cdi import DEFAULT_STRATEGIES, STRATEGIES
from nvgraft_cli.cdi.arguments import add_hook_path
from nvgraft_cli.shell.arguments import add_host
from nvgraft_cli.shell.output import write_whole

if TYPE_CHECKING:
    from nvgraft.host.components import Host
    from nvgraft_cli.cdi.discovery import CdiFacts

    Opened = tuple[Host, str, CdiFacts | None]

_EXAMPLES = """\
examples:
  nvgraft cdi generate --host debian-a100x8
  nvgraft cdi generate --output /etc/cdi/nvidia.yaml
  nvgraft cdi generate --host mig-h100 --device-name-strategy uuid --format json | jq '.devices[].name'

exit code: 0 written, 1 this host has no driver or no GPU to describe, 2 bad usage or input"""

_SUFFIXES = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


_NOT_RECORDED = (
    "not recorded: files that only a CDI specification has (EGL, Vulkan, OpenCL, Xorg, .so links, libraries outside of the loader"
    " cache) and the GPUs' DRM nodes: what the snapshot has of them is in | record the host again with `nvgraft snapshot`"
)


class _Output(argparse.Action):
    """A command that writes a file does more than look (:mod:`nvgraft_cli.shell.confine`)."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        namespace.output = values
        namespace.looks_only = False


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``cdi`` with its own sub-command ``generate``."""
    group = subparsers.add_parser(
        "cdi",
        help="write a CDI specification (Container Device Interface) of a host",
        epilog="example: nvgraft cdi generate --host eks-t4 --output nvidia.yaml",
    )
    group.set_defaults(looks_only=True)
    parser = group.add_subparsers(metavar="COMMAND", dest="cdi_command", required=True).add_parser(
        "generate",
        help="write the specification",
        description="Write the CDI specification of this host, or of a recorded one, in the structure of `nvidia-ctk cdi generate`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_host(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        action=_Output,
        help="where to write it (default: standard output)",
    )
    parser.add_argument(
        "--format", choices=("yaml", "json"), help="default: that of FILE's name, else yaml"
    )
    parser.add_argument(
        "--device-name-strategy",
        metavar="NAME",
        choices=STRATEGIES,
        action="append",
        help="index (0, 0:1), uuid, or type-index (gpu0, mig0:1); each gives every device a name (default: index and uuid)",
    )
    add_hook_path(parser)
    parser.set_defaults(run=run, open_first=_ask_driver, opened=None)


def _ask_driver(args: argparse.Namespace) -> None:
    """``open_first``: the driver's library needs rights that a confined command does not have (:mod:`nvgraft_cli.shell.confine`)."""
    if args.host is None:
        try:
            args.opened = _this_machine(args.config)
        except Refusal as refusal:
            args.opened = refusal


def _this_machine(config_path: str | None) -> "Opened":
    from nvgraft.host.inventory import path_missing
    from nvgraft.host.live import read_live_host, search_path
    from nvgraft_cli.cdi.discovery import live_facts

    config = read_configuration(config_path)
    host = read_live_host(config)  # with its loader cache, whatever the inventory cache knows
    path = search_path(os.environ, config)
    if path is None:
        raise path_missing()
    return host, path, live_facts(host)


def _recorded(name: str, config_path: str | None) -> "Opened":
    from nvgraft.host.snapshot import OFFLINE_PATH
    from nvgraft_cli.cdi.discovery import recorded_facts

    side = open_host(name, config_path)
    facts = recorded_facts(side.document or {})
    if facts is None:
        _say(side.label, _NOT_RECORDED)
    return side.facts, OFFLINE_PATH, facts


def run(args: argparse.Namespace) -> int:
    """Write the specification; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: for inputs that cannot be used.
    """
    from nvgraft_cli.cdi import spec
    from nvgraft_cli.cdi.discovery import discover

    try:
        if isinstance(args.opened, Refusal):
            raise args.opened
        opened = args.opened or (
            _this_machine(args.config) if args.host is None else _recorded(args.host, args.config)
        )
        found = discover(*opened)
        for line in found.missing:
            _say(opened[0].name, line)
        if not found.devices:
            raise Refusal(
                "detection",
                "no devices",
                "a CDI specification needs a GPU, or a MIG device of one, with its device nodes",
            )
    except Refusal as refusal:
        print(refusal.line(), file=sys.stderr)
        return 1
    document = spec.host_spec(
        found, args.device_name_strategy or DEFAULT_STRATEGIES, args.nvidia_cdi_hook_path
    )
    text = spec.text(
        document, args.format or _SUFFIXES.get(os.path.splitext(args.output or "")[1], "yaml")
    )
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_whole(args.output, text, 0o644)  # for engines of every user
    return 0


def _say(host: str, text: str) -> None:
    print(f"nvgraft cdi: {printable(host)}: {printable(text)}", file=sys.stderr)
