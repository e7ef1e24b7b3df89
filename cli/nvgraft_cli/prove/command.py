"""``nvgraft prove``: print whether libraries and programs will load, and from which files."""

import argparse
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import logs, terminal
from nvgraft_cli.shell.arguments import add_answer, add_case
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.prove.modules import ModuleProof
    from nvgraft_cli.prove.proof import Proof

_SCHEMA = "nvgraft.prove/1"

_EXAMPLES = """\
examples:
  nvgraft prove --container ./web --host node17.json
  nvgraft prove nvidia-smi --container image.tar --host eks-t4
  nvgraft prove --python torch --container image.tar --host eks-t4

A library is opened as by dlopen() with RTLD_NOW in the container's program.

--python finds the extension modules of a module or distribution, its other libraries, and those of
NVIDIA's wheels beside it, and says which CUDA and driver libraries they get. Each is judged in a
process of its own; what the module's Python code opens first counts for the driver's libraries.

exit code: 0 everything loads, 1 something does not (of a module: an extension module), 2 bad usage
or input, 3 the hook refuses the container, 4 a file of the image is loaded in place of the
host's"""

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
        help="a SONAME, a path, or a program in the container's PATH (default: libcuda.so.1)",
    )
    parser.add_argument(
        "--python",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module of the image's Python, such as torch (may be repeated)",
    )
    parser.add_argument(
        "--program",
        metavar="PATH",
        help="the program that opens a library, or the Python (default: the container's own)",
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
    from nvgraft_cli.pods.opening import opened_case
    from nvgraft_cli.prove.modules import prove_module
    from nvgraft_cli.prove.opened import prove_in_case

    with opened_case(args) as case:
        if not case.container.rootfs_known:
            what = "config.json" if args.container else "pod"
            raise InputError(
                f"{args.container or args.pod}: a {what} alone does not show the files to load |"
                " pass --container the bundle, its root file system or an image"
            )
        plan, refusal = case.outcome
        if refusal is not None:
            raise refusal
        if plan.decision == "skip":
            logs.get().info(f"note: the container gets nothing: {plan.reason}")
        whats = args.what or ([] if args.python else ["libcuda.so.1"])
        proofs = [prove_in_case(what, case, args.program) for what in whats]
        modules = [prove_module(module, case, args.program) for module in args.python]
    answers: list[Proof | ModuleProof] = [*proofs, *modules]
    if args.format == "json":
        print_document(
            {
                "schema": _SCHEMA,
                "proofs": [proof.document() for proof in proofs],
                "modules": [module.document() for module in modules],
            }
        )
    else:
        texts = ["\n".join(answer.lines(colour=terminal.colour())) for answer in answers]
        terminal.show("\n\n".join(texts))
    codes = {answer.exit_code for answer in answers}
    return 1 if 1 in codes else max(codes)
