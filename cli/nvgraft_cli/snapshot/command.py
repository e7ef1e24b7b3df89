"""The command line of ``nvgraft snapshot``."""

import argparse
import json
import sys
from typing import Any

from nvgraft.cdi import platform
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_config, add_node, add_output, source
from nvgraft_cli.shell.errors import InputError

_EXAMPLES = """\
examples:
  nvgraft snapshot -o node17.json
  nvgraft snapshot --name node17 --identities -o node17.json
  nvgraft snapshot --root ./driver-550 -o driver-550.json

What an upgrade would change for a container, before it is installed (`dpkg-deb -x` unpacks a
package into ./driver-550; unpack all packages of the driver that the node has, because what is
not there is shown as gone):
  nvgraft snapshot -o node17.json
  nvgraft snapshot --root ./driver-550 --gpus node17.json -o node17-550.json
  nvgraft diff node17.json node17-550.json --container ./web

The document has names, types, owners, modes and sizes of the driver's files, ELF facts, GPUs with
their UUIDs (containers ask for them), and the driver's text files under /proc. It has no
environment, no processes and no other file, and without --identities neither serial numbers nor
the host's name.

Without --gpus a driver that is not running has no GPUs. Such a document answers what the driver's
files decide, and every plan for it warns that device nodes and GPUs are not known.

exit code: 0 written, 1 this host has no working driver, 2 bad usage or input"""

_WITHOUT_GPUS = (
    "nvgraft snapshot: this document has no GPUs: plans for it have the driver's files, and no"
    " device nodes | add --gpus HOST for a host that has the GPUs"
)

#: Platform -> the driver of such a host: none that packages for Linux replace.
_OTHER_DRIVERS = {
    platform.TEGRA: "that of JetPack",
    platform.WSL: "that of Windows (WSL2)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``snapshot``."""
    parser.description = (
        "Write a nvgraft.host/1 document with all facts of a host that a plan needs. Needs no root."
    )
    parser.epilog = _EXAMPLES
    add_output(parser)
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the host's name in the document (default: host, with --identities its own)",
    )
    parser.add_argument(
        "--identities",
        action="store_true",
        help="keep the host's name, and serial numbers in the driver's text files",
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="a driver that is not running: unpacked packages, an extracted .run archive, or a root"
        " file system with it",
    )
    parser.add_argument(
        "--installed-at",
        metavar="DIR",
        default="/",
        help="with --root: the driver root at which it will be installed (default: /)",
    )
    parser.add_argument(
        "--gpus",
        metavar="HOST",
        type=source,
        help="with --root: take GPUs, device nodes, /proc and the sockets of services from this"
        " snapshot",
    )
    add_node(parser)
    add_config(parser, "the hook's own")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the document and return the exit code.

    :raises InputError: an input cannot be used.
    """
    from nvgraft.cdi.discovery import live_facts, recorded_facts
    from nvgraft.host.live import read_live_host
    from nvgraft.host.snapshot import OFFLINE_PATH
    from nvgraft_cli.case.hosts import open_host, read_configuration
    from nvgraft_cli.case.processor import read_isa_level
    from nvgraft_cli.snapshot.package import open_package, unsupported
    from nvgraft_cli.snapshot.recording import ANONYMOUS, record
    from nvgraft_specs.models.host import parse_host

    if args.root is None and (args.gpus is not None or args.installed_at != "/"):
        raise InputError("--gpus and --installed-at need --root: add --root DIR, or remove them")
    if not args.installed_at.startswith("/"):
        raise InputError(
            f"--installed-at {args.installed_at}: not an absolute path:"
            " name the driver root, such as /run/nvidia/driver"
        )
    if args.root is not None:
        gpus = None if args.gpus is None else open_host(args.gpus, None)
        if gpus is not None and not gpus.gpus_known:
            raise InputError(
                f"--gpus {args.gpus}: this document has no GPUs itself | name the document of a"
                " host that has the GPUs"
            )
        if gpus is not None and gpus.platform in _OTHER_DRIVERS:
            raise InputError(
                f"--gpus {args.gpus}: the driver of this host is {_OTHER_DRIVERS[gpus.platform]},"
                " and is not replaced by another | name a host with a driver for Linux"
            )
        facts_of_gpus = None if gpus is None else gpus.facts
        host = open_package(args.root, args.installed_at, facts_of_gpus, _warn)
        if gpus is not None and gpus.facts.machine != host.machine:
            raise InputError(
                f"--gpus {args.gpus}: this host is {gpus.facts.machine}, and the driver in"
                f" {args.root} is for {host.machine} | unpack the packages for"
                f" {gpus.facts.machine}, or name a host of that architecture"
            )
        if fault := unsupported(host.report):
            raise InputError(
                f"--gpus {args.gpus}: {fault} | unpack another driver, or leave --gpus out"
            )
        facts = None if gpus is None else recorded_facts(gpus.document or {})
        level = None if gpus is None else gpus.isa_level
    else:
        # The host as it is now, not the kept inventory.
        host = read_live_host(read_configuration(args.config), mig_profiles=True)
        logs.debug("read", host="this machine", reason="a snapshot never uses the kept inventory")
        facts = live_facts(host)
        level = read_isa_level()
    own_name = host.name if args.root is None and not args.identities else ""
    if args.name is not None:
        host.name = args.name
    elif own_name:
        host.name = ANONYMOUS
    document = record(host, OFFLINE_PATH, "", facts, level, own_name)
    if args.root is not None and args.gpus is None:
        document["without_gpus"] = True
        print(_WITHOUT_GPUS, file=sys.stderr)
    _check_names(document["files"])
    text = json.dumps(document, indent=1) + "\n"
    parse_host(text.encode(), "the snapshot")  # what is written can be read
    sys.stdout.write(text)
    return 0


def _warn(line: str) -> None:
    print(f"nvgraft snapshot: {line}", file=sys.stderr)


def _check_names(files: dict[str, dict[str, Any]]) -> None:
    """Check that a document can have the paths of its files, and the texts of their links.

    :raises InputError: one is not UTF-8.
    """
    for path, entry in files.items():
        try:
            (path + entry.get("target", "")).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{path!a}: its name or the text of its link is not UTF-8, which a document cannot"
                " have | rename it"
            ) from error
