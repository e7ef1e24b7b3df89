"""The command line of ``nvgraft export``."""

import argparse
import json
import sys

from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell.arguments import add_answer, add_host, source
from nvgraft_cli.shell.errors import InputError

#: Nodes of one host.
_MOST_NODES = 10_000

_EXAMPLES = """\
examples:
  nvgraft export pod-volumes --host eks-t4
  nvgraft export pod-volumes --host eks-t4 --gpus 1 --image nvidia/cuda:8.0-runtime -o pod.yaml

Kubernetes 1.3 to 1.9 knew GPUs as alpha.kubernetes.io/nvidia-gpu, of which the kubelet
(--experimental-nvidia-gpus=1, later --feature-gates=Accelerators=true) gave a pod the device nodes.
The driver's files came by hostPath volumes, and LD_LIBRARY_PATH named them.

exit code: 0 written, 1 the host has no driver, 2 bad usage or input"""


_NODE_EXAMPLES = """\
examples:
  nvgraft export nodes h100-580 eks-t4 | kubectl apply -f -
  nvgraft export nodes --count 100 --plugin-flag mig-strategy=mixed ./node17.json

Each node has the resources and labels that nvgraft-device-plugin gives to HOST, and the annotation
and taint of KWOK, which keeps such nodes ready in a cluster without machines. Processors are those
of the document's topology, else 32; memory is 256Gi, as KWOK's own nodes have.

exit code: 0 written, 2 bad usage or input"""


def add_arguments(group: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``export`` and of what it writes."""
    group.description = "Write what other systems read of a host."
    group.epilog = "example: nvgraft export pod-volumes --host eks-t4"
    group.set_defaults(looks_only=True)
    kinds = group.add_subparsers(metavar="WHAT", dest="export_command", required=True)
    parser = kinds.add_parser(
        "pod-volumes",
        help="a pod of Kubernetes 1.3 to 1.9, which mounts the driver by hostPath volumes",
        description="Write a pod of the time before device plugins, for learning: it asks for GPUs"
        " and mounts the driver's files of this host, or of a recorded one, by itself.",
        epilog=_EXAMPLES,
    )
    add_host(parser)
    add_answer(parser, "yaml", "json")
    parser.add_argument("--image", default="nvidia/cuda:8.0-runtime", help="the pod's image")
    parser.add_argument(
        "--gpus",
        type=_number,
        default=1,
        metavar="N",
        help="how many GPUs it asks for (default: 1)",
    )
    parser.set_defaults(run=_pod_volumes, open_first=ask_first)
    parser = kinds.add_parser(
        "nodes",
        help="nodes for KWOK, to test what is scheduled where",
        description="Write the Node objects of a cluster of recorded hosts, for tests of"
        " schedulers: KWOK plays such nodes.",
        epilog=_NODE_EXAMPLES,
    )
    parser.add_argument(
        "hosts",
        metavar="HOST",
        type=source,
        nargs="+",
        help="a nvgraft.host/1 document, or a name of `nvgraft simulate --list`",
    )
    parser.add_argument(
        "--count",
        type=_count,
        default=1,
        metavar="N",
        help="so many nodes of each HOST (default: 1)",
    )
    parser.add_argument(
        "--plugin-flag",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a flag of the device plugin, such as mig-strategy=mixed or config-file=FILE (may be"
        " repeated)",
    )
    add_answer(parser, "yaml", "json")
    parser.set_defaults(run=_nodes, many_inputs=True)


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and 0 < int(text) <= 1024:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs | write 1 to 1024")


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and 0 < int(text) <= _MOST_NODES:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of nodes | write 1 to {_MOST_NODES}"
    )


def _nodes(args: argparse.Namespace) -> int:
    """Write the nodes; return the exit code.

    :raises InputError: a host cannot be used, or two have one name.
    """
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.export.nodes import NodeMaker, plugin_configuration
    from nvgraft_cli.shell import logs
    from nvgraft_cli.shell.output import print_document
    from nvgraft_specs.models.host import Host

    configuration = plugin_configuration(args.plugin_flag)
    makers: dict[str, NodeMaker] = {}
    for name in args.hosts:
        side = open_host(name, None)
        side.require_gpus()
        host = Host.model_validate_json(json.dumps(side.document))
        maker = NodeMaker(host, side.facts, configuration)
        if maker.name in makers:
            raise InputError(
                f"{name}: there is a host {maker.name} already | name each host once, and use"
                " --count for more nodes of it"
            )
        makers[maker.name] = maker
        for warning in maker.warnings:
            logs.get().warning(warning)
    nodes = [maker.node(number) for maker in makers.values() for number in range(args.count)]
    if args.format == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": nodes})
    else:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump_all(nodes, sys.stdout, dumper, sort_keys=False)
    return 0


def _pod_volumes(args: argparse.Namespace) -> int:
    """Write the pod; return the exit code.

    :raises InputError: the host has fewer GPUs.
    """
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.export.pod_volumes import pod
    from nvgraft_cli.shell.output import print_document

    side = open_host(args.host, args.config)
    inventory = side.inventory
    has = len(inventory.devices.gpus)
    if side.gpus_known and args.gpus > has:
        raise InputError(
            f"--gpus {args.gpus}: {side.label} has {has} | ask for as many as the node has:"
            " Kubernetes shares no GPU"
        )
    document = pod(inventory, args.image, args.gpus)
    if args.format == "json":
        print_document(document)
    else:
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False)
    return 0
