"""``nvgraft snapshot``: write a host down, to plan on it elsewhere."""

import argparse
import json
import sys

from nvgraft.base.errors import Refusal
from nvgraft_cli.shell.arguments import add_config
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole

_EXAMPLES = """\
examples:
  nvgraft snapshot -o node17.json
  nvgraft snapshot --root ./driver-550-unpacked --gpus node17.json -o node17-550.json
  nvgraft diff node17.json node17-550.json --bundle ./web

What is in it: names, types, owners, modes and sizes of the driver's files, ELF facts, GPUs with their identifiers, and the
driver's own text files under /proc. No environment, no processes, no other file.

exit code: 0 written, 1 this host has no driver that answers, 2 bad usage or input"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``snapshot``."""
    parser = subparsers.add_parser(
        "snapshot",
        help="write this host, or a driver that is not installed yet, as a document to plan on",
        description="Write a nvgraft.host/1 document: all that a plan needs to know of a host. Needs no root.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write it (default: standard output)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the host's name in the document (default: its own)"
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="a driver that is not running: unpacked packages, or its root file system",
    )
    parser.add_argument(
        "--installed-at",
        metavar="DIR",
        default="/",
        help="with --root: the driver root it is meant for (default: /)",
    )
    parser.add_argument(
        "--gpus",
        metavar="HOST",
        help="with --root: take GPUs, device nodes and /proc from this snapshot",
    )
    add_config(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the document; return the exit code.

    :raises InputError: for inputs that cannot be used.
    """
    from nvgraft.host.live import read_live_host
    from nvgraft.host.snapshot import OFFLINE_PATH
    from nvgraft_cli.case.hosts import open_host, read_configuration
    from nvgraft_cli.case.processor import read_isa_level
    from nvgraft_cli.cdi.discovery import live_facts, recorded_facts
    from nvgraft_cli.snapshot.package import open_package
    from nvgraft_cli.snapshot.recording import record
    from nvgraft_specs.models.host import parse_host

    if args.root is None and (args.gpus is not None or args.installed_at != "/"):
        raise InputError(
            "--gpus and --installed-at say something about --root DIR: name it, or leave them out"
        )
    if not args.installed_at.startswith("/"):
        raise InputError(
            f"--installed-at {args.installed_at}: no absolute path: name the driver root, such as /run/nvidia/driver"
        )
    try:
        if args.root is not None:
            gpus = None if args.gpus is None else open_host(args.gpus, None)
            host = open_package(args.root, args.installed_at, None if gpus is None else gpus.facts)
            facts = None if gpus is None else recorded_facts(gpus.document or {})
            level = None if gpus is None else gpus.isa_level
        else:
            host = read_live_host(
                read_configuration(args.config)
            )  # as it is now, whatever the inventory cache knows
            facts = live_facts(host)
            level = read_isa_level()
        if args.name is not None:
            host.name = args.name
        document = record(host, OFFLINE_PATH, "", facts, level)
    except Refusal as refusal:
        print(refusal.line(), file=sys.stderr)
        return 1
    text = json.dumps(document, indent=1) + "\n"
    parse_host(text.encode(), args.output or "standard output")  # what is written can be read
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_whole(args.output, text)
    return 0
