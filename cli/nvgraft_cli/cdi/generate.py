"""``nvgraft cdi generate``: write a CDI specification of this host, or of a recorded one."""

import argparse
import sys

from nvgraft.base.errors import Refusal
from nvgraft_cli.case.hosts import read_configuration
from nvgraft_cli.cdi.arguments import add_content, add_form, form
from nvgraft_cli.cdi.content import RecordedHost, SpecContent, ThisHost
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_host
from nvgraft_cli.shell.errors import InputError

_EXAMPLES = """\
examples:
  nvgraft cdi generate --host debian-a100x8
  nvgraft cdi generate --hooks nvgraft --output /etc/cdi/nvidia.yaml
  nvgraft cdi generate --host mig-h100 --device-name-strategy uuid --format json
  nvgraft cdi generate --mode management --output /etc/cdi/management.yaml
  nvgraft cdi generate --driver-root /run/nvidia/driver --dev-root /

exit code: 0 written, 1 the host has no driver or no device to describe, 2 bad usage or input"""

#: Modes whose specification has files of the driver.
_WITH_FILES = ("auto", "nvml", "management")

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
    add_content(parser)
    parser.set_defaults(run=run, open_first=_ask_driver, opened=None)


def _ask_driver(args: argparse.Namespace) -> None:
    """Ask the driver of this machine. For ``open_first``: a confined command has too few rights.

    See :mod:`nvgraft_cli.shell.confine`.
    """
    if args.host is None:
        try:
            args.opened = specification_now(args, form(args))
        except Refusal as refusal:
            args.opened = refusal


def specification_now(args: argparse.Namespace, text_form: str) -> str:
    """Return the text of this machine's specification.

    :raises Refusal: this machine has no driver or no device.
    :raises InputError: --config names a file that cannot be used.
    """
    config = read_configuration(args.config)
    host = ThisHost(config, args.driver_root, args.dev_root)
    return _text(SpecContent(args, config), host, text_form)


def run(args: argparse.Namespace) -> int:
    """Write the specification; return the exit code.

    :raises InputError: when an input cannot be used.
    """
    if isinstance(args.opened, Refusal):
        raise args.opened
    text = args.opened
    if args.host is not None:
        if args.driver_root is not None:
            raise InputError("--driver-root: the recorded host has its own | remove the option")
        host = RecordedHost(args.host, args.config, args.dev_root)
        if host.facts is None and args.mode in _WITH_FILES:
            _print_note(host.label, _NOT_RECORDED)
        text = _text(SpecContent(args, host.config), host, form(args))
    elif text is None:
        text = specification_now(args, form(args))
    sys.stdout.write(text)
    return 0


def _text(content: SpecContent, host: ThisHost | RecordedHost, text_form: str) -> str:
    from nvgraft_cli.cdi import spec

    written, notes = content.specification(host)
    for note in notes:
        _print_note(host.label, note)
    return spec.text(written, text_form)


def _print_note(host: str, text: str) -> None:
    logs.get().info(f"{host}: {text}")
