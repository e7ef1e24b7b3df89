"""``nvgraft prove``: print whether libraries and programs will load, and from which files."""

import argparse

from nvgraft.base.errors import Refusal
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import logs, terminal
from nvgraft_cli.shell.arguments import add_answer, add_case
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.prove/1"

_EXAMPLES = """\
examples:
  nvgraft prove --container ./web --host node17.json
  nvgraft prove /usr/bin/nvidia-smi --container image.tar --host eks-t4

A library is opened as by dlopen() in the container's program. Missing symbols are not found.

exit code: 0 everything loads, 1 something does not, 2 bad usage or input, 3 the hook refuses the
container, 4 a file of the image is loaded in place of the host's"""

_REFUSED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``prove``."""
    parser.description = (
        "Follow the dynamic loader as it loads a library or program in the container "
        "with the driver mounted."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="*",
        default=["libcuda.so.1"],
        help="a SONAME or a path (default: libcuda.so.1)",
    )
    parser.add_argument(
        "--program",
        metavar="PATH",
        help="the program that opens a library (default: the container's own)",
    )
    add_case(parser)
    add_answer(parser)
    parser.set_defaults(run=run, looks_only=True, open_first=ask_first)


def run(args: argparse.Namespace) -> int:
    """Print the answers; return the exit code.

    :raises InputError: when an input cannot be used, or is a config.json without files.
    :raises Refusal: the hook refuses the container, or the image is beyond a bound.
    """
    try:
        return _prove_all(args)
    except Refusal as refusal:
        refusal.exit_code = _REFUSED
        raise


def _prove_all(args: argparse.Namespace) -> int:
    from nvgraft_cli.case.bundle import open_container
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.case.planning import Case
    from nvgraft_cli.prove.opened import prove_in_case

    with open_container(args.container, args.env) as container:
        if not container.rootfs_known:
            raise InputError(
                f"{args.container}: a config.json alone does not show the files to load | pass "
                "--container the bundle, its root file system or an image"
            )
        case = Case(open_host(args.host, args.config), container, args.mode)
        plan, refusal = case.outcome
        if refusal is not None:
            raise refusal
        if plan.decision == "skip":
            logs.get().info(f"note: the container gets nothing: {plan.reason}")
        proofs = [prove_in_case(what, case, args.program) for what in args.what]
    if args.format == "json":
        print_document({"schema": _SCHEMA, "proofs": [proof.document() for proof in proofs]})
    else:
        texts = ["\n".join(proof.lines(colour=terminal.colour())) for proof in proofs]
        terminal.show("\n\n".join(texts))
    codes = {proof.exit_code for proof in proofs}
    return 1 if 1 in codes else max(codes)
