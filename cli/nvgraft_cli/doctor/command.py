"""``nvgraft doctor``: what will go wrong with this host, this container, or both."""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell.arguments import add_host
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.doctor.examination import Result

_SCHEMA = "nvgraft.doctor/1"

_EXAMPLES = """\
examples:
  nvgraft doctor                                    this node
  nvgraft doctor --bundle ./web --host node17.json
  nvgraft doctor --bundle image.tar --env NVIDIA_VISIBLE_DEVICES=all --host eks-t4 --cdi /etc/cdi/nvidia.yaml

Every finding has the id of a section in docs/failures.md. What could not be checked is counted, and listed with --verbose.

exit code: 0 nothing found, 1 something found, 2 bad usage or input"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="look for what makes GPU containers fail, before they start",
        description="Check a host, a container, or a container on a host for the failures that users of GPU containers report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--bundle",
        metavar="PATH",
        help="an OCI bundle, a config.json, a root file system, or an image (default: none)",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="add to the container's environment",
    )
    add_host(parser)
    parser.add_argument(
        "--cdi",
        metavar="FILE",
        action="append",
        default=[],
        help="a CDI specification to check (default: the installed ones)",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="list also what is well, and what could not be checked",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=run, looks_only=True, open_first=_look_first)


def _look_first(args: argparse.Namespace) -> None:
    from nvgraft_cli.doctor.machine import look_first

    ask_first(args)
    look_first(args)


def run(args: argparse.Namespace) -> int:
    """Print what was found; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: for inputs that cannot be used.
    """
    from nvgraft.base.errors import Refusal
    from nvgraft_cli.case.bundle import open_container
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.doctor.examination import examine
    from nvgraft_cli.doctor.patient import Patient

    _check_readable(args.cdi)
    try:
        host = open_host(args.host, args.config)
        if args.bundle is None:
            results = examine(Patient(host, None, args.cdi))
        else:
            with open_container(args.bundle, args.env) as container:
                results = examine(Patient(host, container, args.cdi))
    except Refusal as refusal:
        print(refusal.line(), file=sys.stderr)
        return 1
    if args.format == "json":
        print_document({"schema": _SCHEMA, "results": [result.document() for result in results]})
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(_lines(results, verbose=args.verbose, colour=colour)))
    return int(any(result.findings for result in results))


def _check_readable(paths: list[str]) -> None:
    """Check that files which were named are there; what is wrong in them is a finding.

    :raises InputError: naming the first that cannot be read.
    """
    if not paths:
        return
    from nvgraft_specs.models import DocumentError, read_bytes

    for path in paths:
        try:
            read_bytes(path)
        except DocumentError as error:
            raise InputError(str(error)) from error


def _lines(results: "list[Result]", *, verbose: bool, colour: bool) -> Iterator[str]:
    colours = {"error": "31", "warning": "33"}
    for result in results:
        for finding in result.findings:
            head = f"{finding.level}: {result.failure.id}: {result.failure.title}"
            yield f"\x1b[{colours[finding.level]}m{head}\x1b[0m" if colour else head
            yield f"  {printable(finding.message)}"
            yield f"  users see  {result.failure.phrase}"
            yield f"  cause      {printable(finding.cause)}"
            yield f"  fix        {printable(finding.fix)}"
            yield ""
    well = [result for result in results if not result.findings and not result.lacking]
    lacking = [result for result in results if result.lacking]
    if verbose:
        yield from (f"ok: {result.failure.id}" for result in well)
        # One line for each reason: without a container it is the same for most of them.
        for reason in dict.fromkeys(result.lacking for result in lacking):
            ids = ", ".join(result.failure.id for result in lacking if result.lacking == reason)
            yield f"not checked: {ids}: {printable(reason)}"
    found = sum(len(result.findings) for result in results)
    yield f"{found} found, {len(well)} checked and well, {len(lacking)} not checked" + (
        "" if verbose or not lacking else " (--verbose tells why)"
    )
