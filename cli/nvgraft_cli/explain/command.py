"""``nvgraft explain``: the whole decision, as a story."""

import argparse
import json
import os
import sys

from nvgraft_cli.arguments import add_case
from nvgraft_cli.hosts import ask_first

_EXAMPLES = """\
examples:
  nvgraft explain --bundle ./web --host eks-t4
  nvgraft explain --bundle image.tar --env NVIDIA_VISIBLE_DEVICES=all --host node17.json | less

exit code: 0 explained (also where the hook does nothing), 1 the hook would refuse, 2 bad usage or input"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``explain``."""
    parser = subparsers.add_parser(
        "explain",
        help="tell the whole decision about a container, step by step, with what to read about each",
        description="What was asked and where that came from, what the host has, what goes where, what the kernel will be told, "
        "how programs find it, and what the original hook would have executed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_case(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=run, looks_only=True, open_first=ask_first)


def run(args: argparse.Namespace) -> int:
    """Print the story; return the exit code.

    :raises nvgraft_cli.errors.InputError: for inputs that cannot be used.
    """
    from nvgraft.errors import Refusal
    from nvgraft_cli.bundle import open_container
    from nvgraft_cli.explain import text
    from nvgraft_cli.explain.steps import tell
    from nvgraft_cli.hosts import open_host
    from nvgraft_cli.planning import Case

    try:
        with open_container(args.bundle, args.env) as container:
            story = tell(Case(open_host(args.host, args.config), container))
    except Refusal as refusal:
        print(refusal.line(), file=sys.stderr)
        return 1
    if args.format == "json":
        print(json.dumps(story.document(), indent=1))
    else:
        print("\n".join(text.lines(story, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)))
    return int(story.decision == "refuse")
