"""``nvgraft diff``: print how two descriptions of a container differ."""

import argparse
import sys

from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_config, add_container, add_node, source
from nvgraft_cli.shell.output import print_document

_EXAMPLES = """\
examples:
  nvgraft diff eks-t4 runfile-a10x2 --container ./web
  nvgraft diff plan.json pid:4711
  nvgraft diff plan.json /etc/cdi/nvidia.yaml --format markdown

Each side is a plan, a host snapshot or gallery host (with --container), a CDI specification (JSON
or YAML), a recorded /proc/PID/mountinfo, a live container (pid:NUMBER), or a debug log of
nvidia-container-cli.

exit code: 0 equal, 1 different, 2 trouble"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``diff``."""
    parser.description = (
        "Compare two descriptions of a container by what they mean: versions, paths, "
        "options, device rules, links."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("a", metavar="A", type=source, help="one side (- reads standard input)")
    parser.add_argument("b", metavar="B", type=source, help="the other side")
    add_container(parser, None, "none; needed for sides that are hosts")
    add_node(parser)
    add_config(parser, "for sides that are hosts: the built-in defaults")
    parser.add_argument(
        "--device", metavar="NAME", help="the device of a CDI specification (default: all)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list the entries that differ only in the driver's version",
    )
    add_answer(parser, "text", "json", "markdown")
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print the difference; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when a side cannot be used.
    """
    from nvgraft_cli.diff.compare import compare
    from nvgraft_cli.diff.readers import Context, read_side
    from nvgraft_cli.diff.render import markdown, text

    context = Context(args.container, args.env, args.config, args.device, args.mode)
    diff = compare(read_side(args.a, context), read_side(args.b, context))
    if args.format == "json":
        print_document(diff.model_dump(mode="json", by_alias=True))
    elif args.format == "markdown":
        sys.stdout.write(markdown(diff, whole=args.all))
    else:
        terminal.show(text(diff, whole=args.all, colour=terminal.colour()).removesuffix("\n"))
    return int(not diff.equal)
