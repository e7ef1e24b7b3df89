"""``nvgraft matrix``: print which containers would run on which hosts."""

import argparse
import os
import sys

from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_config, add_mode, source
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

_EXAMPLES = """\
examples:
  nvgraft matrix eks-t4 mig-h100 --containers ./web ./training
  nvgraft matrix fleet/ --containers bundles/ --format csv > matrix.csv

exit code: 0 every container runs or asks for no GPU on every host, 1 some are refused,
2 bad usage or input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``matrix``."""
    parser.description = (
        "Plan every container on every host, from files alone. Hosts with equal "
        "documents are planned once."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "hosts",
        metavar="HOST",
        type=source,
        nargs="*",
        help="a nvgraft.host/1 document, a directory of them, or a gallery host",
    )
    parser.add_argument(
        "--host",
        dest="named_hosts",
        metavar="HOST",
        type=source,
        action="extend",
        nargs="+",
        default=[],
        help="more HOSTs, as an option",
    )
    parser.add_argument(
        "--containers",
        "--bundles",
        metavar="DIR",
        type=source,
        action="extend",
        nargs="+",
        required=True,
        help="OCI bundles, or a directory of bundles",
    )
    add_mode(parser)
    add_config(parser, "the built-in defaults")
    add_answer(parser, "text", "csv", "json")
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one per CPU)",
    )
    parser.set_defaults(run=run, looks_only=True, many_inputs=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print the matrix; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be used.
    """
    from nvgraft_cli.matrix import compute, render

    names = [*args.hosts, *args.named_hosts]
    if not names:
        raise InputError("HOST is missing | name hosts as arguments, or behind --host")
    hosts = compute.expand(names, "nvgraft.host/1 document (*.json)", ".json")
    matrix = compute.compute(
        hosts, compute.expand(args.containers, "OCI bundle", ""), args.config, args.jobs, args.mode
    )
    if args.format == "json":
        print_document(matrix.model_dump(mode="json", by_alias=True))
    elif args.format == "csv":
        sys.stdout.write(render.table(matrix))
    else:
        terminal.show(render.text(matrix, colour=terminal.colour()).removesuffix("\n"))
    return int(any(cell.outcome == "refused" for row in matrix.hosts for cell in row.cells))
