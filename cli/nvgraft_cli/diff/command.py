"""``nvgraft diff``: print how two descriptions of a container differ."""

import argparse
import os
import sys

from nvgraft_cli.shell.arguments import add_config

_EXAMPLES = """\
examples:
  nvgraft diff eks-t4 runfile-a10x2 --bundle ./web
  nvgraft diff plan.json pid:4711
  nvgraft diff plan.json /etc/cdi/nvidia.yaml --format markdown

Each side is a plan, a host snapshot or gallery host (with --bundle), a CDI specification (JSON or
YAML), a recorded /proc/PID/mountinfo, a live container (pid:NUMBER), or a debug log of
nvidia-container-cli.

exit code: 0 equal, 1 different, 2 trouble"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``diff``."""
    parser = subparsers.add_parser(
        "diff",
        help="compare plans, hosts, CDI specifications, live containers and debug logs",
        description="Compare two descriptions of a container by what they mean: versions, paths, "
        "options, device rules, links.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="one side")
    parser.add_argument("b", metavar="B", help="the other side")
    parser.add_argument(
        "--bundle",
        metavar="PATH",
        help="the container to plan, for sides that are hosts (see `nvgraft plan --help`)",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="add to that container's environment",
    )
    add_config(parser)
    parser.add_argument(
        "--device", metavar="NAME", help="the device of a CDI specification (default: all)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also list the entries that differ only in the driver's version",
    )
    parser.add_argument(
        "--format", choices=("text", "json", "markdown"), default="text", help="default: text"
    )
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print the difference; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when a side cannot be used.
    """
    from nvgraft_cli.diff.compare import compare
    from nvgraft_cli.diff.readers import Context, read_side
    from nvgraft_cli.diff.render import markdown, text

    context = Context(args.bundle, args.env, args.config, args.device)
    diff = compare(read_side(args.a, context), read_side(args.b, context))
    if args.format == "json":
        print(diff.model_dump_json(by_alias=True, indent=1))
    elif args.format == "markdown":
        sys.stdout.write(markdown(diff, whole=args.all))
    else:
        sys.stdout.write(
            text(diff, whole=args.all, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        )
    return int(not diff.equal)
