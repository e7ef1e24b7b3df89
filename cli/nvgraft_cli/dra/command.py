"""The command line of ``nvgraft dra``."""

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.cdi import HOOK
from nvgraft_cli.cdi.arguments import add_hook_path
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_answer, add_host, source
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.case.hosts import HostSide

_SLICES = """\
examples:
  nvgraft dra slices --host h100-580
  nvgraft dra slices --host h100-580 | kubectl apply -f -

exit code: 0 written, 1 the host has no driver, 2 bad usage or input"""

_PREPARE = """\
examples:
  nvgraft dra prepare --claim claim.yaml --host h100-580
  nvgraft dra prepare --claim claim.yaml --format cdi -o /etc/cdi/claim.json

The claim must be allocated (status.allocation), since CEL selectors are not evaluated.

exit code: 0 written, 1 a device of the claim is not on the host, 2 bad usage or input"""


def add_arguments(group: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``dra`` and its commands."""
    group.description = (
        "Write what NVIDIA's DRA driver for GPUs (resource.k8s.io/v1) publishes of a host, and"
        " prepares for a claim. nvgraft has no kubelet plugin for DRA yet."
    )
    group.epilog = "example: nvgraft dra slices --host h100-580"
    group.set_defaults(looks_only=True)
    commands = group.add_subparsers(metavar="WHAT", dest="dra_command", required=True)
    slices = commands.add_parser(
        "slices",
        help="the ResourceSlices of a host, with the attributes that claims select by",
        description="Write the ResourceSlices of this host, or of a recorded one: its GPUs and MIG"
        " devices with names, attributes and capacities.",
        epilog=_SLICES,
    )
    add_host(slices)
    slices.add_argument(
        "--node-name",
        metavar="NAME",
        help="the name of the Kubernetes node and of its pool (default: the host's)",
    )
    add_answer(slices, "yaml", "json")
    slices.set_defaults(run=_slices, open_first=ask_first)
    prepare = commands.add_parser(
        "prepare",
        help="the CDI specification and CDI device ids of an allocated claim",
        description="Write what the driver prepares for an allocated ResourceClaim: the CDI"
        " specification of its devices (cdi), and the ids that the kubelet passes to the engine"
        " (claims).",
        epilog=_PREPARE,
    )
    prepare.add_argument(
        "--claim",
        metavar="FILE",
        type=source,
        required=True,
        help="the ResourceClaim, in YAML or JSON (- reads standard input)",
    )
    add_host(prepare)
    add_hook_path(prepare)
    help_text = "default: yaml; cdi: the CDI specification alone (JSON)"
    add_answer(prepare, "yaml", "json", "cdi", text=help_text)
    prepare.set_defaults(run=_prepare, open_first=ask_first)


def _slices(args: argparse.Namespace) -> int:
    """Write the slices; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: the host cannot be used.
    """
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.dra.slices import dra_devices, resource_slices

    host = open_host(args.host, args.config)
    host.require_gpus()
    found = dra_devices(host)
    for line in found.left_out:
        logs.get().warning(line)
    documents = list(resource_slices(found.devices, args.node_name or _node_name(host)))
    if args.format == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": documents})
    else:
        _print_yaml(*documents)
    return 0


def _node_name(host: "HostSide") -> str:
    """Return the name of a host as that of a Kubernetes node."""
    return re.sub(r"[^a-z0-9.-]+", "-", host.facts.name.lower()).strip("-.") or "node"


def _prepare(args: argparse.Namespace) -> int:
    """Write the prepared claim; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: the claim or the host cannot be used.
    """
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.dra.claims import NO_POOL, prepare, read_claim
    from nvgraft_cli.dra.slices import dra_devices

    claim = read_claim(args.claim)
    if claim.configured:
        logs.get().warning(f"the parameters of claim {claim.name} (sharing) are not applied here")
    host = open_host(args.host, args.config)
    host.require_gpus()
    name = _node_name(host)
    for pool in sorted({result.pool for result in claim.results} - {name, NO_POOL}):
        logs.get().warning(
            f"claim {claim.name} has devices of pool {pool}, and the pool of this host is {name}:"
            " they are taken for this host's devices of the same names"
        )
    hook = args.nvidia_cdi_hook_path or HOOK
    document = prepare(claim, host, dra_devices(host).devices, hook)
    if args.format == "yaml":
        _print_yaml(document)
    else:
        print_document(document["cdi"] if args.format == "cdi" else document)
    return 0


def _print_yaml(*documents: dict[str, Any]) -> None:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes equal values once more, not as an alias."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    yaml.dump_all(documents, sys.stdout, Dumper=Dumper, sort_keys=False)
