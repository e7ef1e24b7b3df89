"""``nvgraft why``: print why files and devices are in the container, or are not."""

import argparse

from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_case
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.why/1"

_EXAMPLES = """\
examples:
  nvgraft why nvidia-smi --container ./web --host eks-t4
  nvgraft why libnvidia-encode.so.1 /dev/nvidia1 graphics --container image.tar --host node17.json

exit code: 0 all of WHAT is in the container, 1 something is not, 2 bad usage or input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``why``."""
    parser.description = (
        "For a file, library, device or capability that is in the plan, print the "
        "steps that lead to it, and of a library that programs open the file that the "
        "container's program loads. For one that is not, print the first rule that keeps it out, "
        "and the smallest change of the container's environment that adds it."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="+",
        help="a path, library, binary, device (node, index, UUID) or capability",
    )
    add_case(parser)
    add_answer(parser)
    parser.set_defaults(run=run, looks_only=True, open_first=ask_first)


def run(args: argparse.Namespace) -> int:
    """Print the answers; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be used.
    """
    from nvgraft_cli.pods.opening import opened_case
    from nvgraft_cli.why.answer import answer

    with opened_case(args) as case:
        answers = [answer(what, case) for what in args.what]
    if args.format == "json":
        documents = [answered.document() for answered in answers]
        print_document({"schema": _SCHEMA, "answers": documents})
    else:
        texts = ["\n".join(answered.lines(colour=terminal.colour())) for answered in answers]
        terminal.show("\n\n".join(texts))
    return int(any(answered.excluded is not None for answered in answers))
