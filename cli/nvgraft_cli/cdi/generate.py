"""``nvgraft cdi generate``: write a CDI specification of this host, or of a recorded one."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft_cli.case.hosts import open_host, read_configuration
from nvgraft_cli.cdi import DEFAULT_STRATEGIES, STRATEGIES
from nvgraft_cli.cdi.arguments import add_form, add_hook_path, form
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_host

if TYPE_CHECKING:
    from nvgraft.cdi.discovery import CdiFacts
    from nvgraft.host.components import Host

    Opened = tuple[Host, str, CdiFacts | None]

_EXAMPLES = """\
examples:
  nvgraft cdi generate --host debian-a100x8
  nvgraft cdi generate --output /etc/cdi/nvidia.yaml
  nvgraft cdi generate --host mig-h100 --device-name-strategy uuid --format json

exit code: 0 written, 1 the host has no driver or no GPU to describe, 2 bad usage or input"""

_NOT_RECORDED = (
    "not recorded: files that only a CDI specification has (EGL, Vulkan, OpenCL, Xorg, .so links, "
    "libraries outside of the loader cache), and DRM nodes of the GPUs; the specification contains "
    "those that the snapshot has | record the host again with `nvgraft snapshot`"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi generate``."""
    parser.description = (
        "Write the CDI specification of this host, or of a recorded one, as"
        " `nvidia-ctk cdi generate` writes it."
    )
    parser.epilog = _EXAMPLES
    add_host(parser)
    add_form(parser)
    parser.add_argument(
        "--device-name-strategy",
        metavar="NAME",
        choices=STRATEGIES,
        action="append",
        help="name devices by index (0, 0:1), uuid, or type-index (gpu0, mig0:1); may be given "
        "more than once (default: index and uuid)",
    )
    add_hook_path(parser)
    parser.set_defaults(run=run, open_first=_ask_driver, opened=None)


def _ask_driver(args: argparse.Namespace) -> None:
    """Ask the driver of this machine. For ``open_first``: a confined command has too few rights.

    See :mod:`nvgraft_cli.shell.confine`.
    """
    if args.host is None:
        try:
            args.opened = _this_machine(args.config)
        except Refusal as refusal:
            args.opened = refusal


def _this_machine(config_path: str | None) -> "Opened":
    from nvgraft.cdi.discovery import live_facts
    from nvgraft.host.inventory import path_missing
    from nvgraft.host.live import read_live_host
    from nvgraft.host.places import search_path

    config = read_configuration(config_path)
    host = read_live_host(config)  # with its loader cache, which the kept inventory lacks
    path = search_path(os.environ, config)
    if path is None:
        raise path_missing()
    return host, path, live_facts(host)


def _recorded(name: str, config_path: str | None) -> "Opened":
    from nvgraft.cdi.discovery import recorded_facts
    from nvgraft.host.snapshot import OFFLINE_PATH

    side = open_host(name, config_path)
    facts = recorded_facts(side.document or {})
    if facts is None:
        _print_note(side.label, _NOT_RECORDED)
    return side.facts, OFFLINE_PATH, facts


def run(args: argparse.Namespace) -> int:
    """Write the specification; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be used.
    """
    from nvgraft.cdi.discovery import discover
    from nvgraft.cdi.specification import HookProgram, host_spec
    from nvgraft_cli.cdi import spec

    if isinstance(args.opened, Refusal):
        raise args.opened
    opened = args.opened or (
        _this_machine(args.config) if args.host is None else _recorded(args.host, args.config)
    )
    discovered = discover(*opened)
    for line in discovered.missing:
        _print_note(opened[0].name, line)
    if not discovered.devices:
        raise Refusal(
            "detection",
            "no devices",
            "this host has no GPU or MIG device with its device nodes: check nvidia-smi -L "
            "and ls -l /dev/nvidia*",
        )
    document = host_spec(
        discovered,
        args.device_name_strategy or DEFAULT_STRATEGIES,
        HookProgram(args.nvidia_cdi_hook_path),
    )
    sys.stdout.write(spec.text(document, form(args)))
    return 0


def _print_note(host: str, text: str) -> None:
    logs.get().info(f"{host}: {text}")
