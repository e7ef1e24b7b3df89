"""``nvgraft diff``: print how two descriptions of a container differ."""

import argparse
import sys
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_container, add_host, source
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.diff.sides import Side

_EXAMPLES = """\
examples:
  nvgraft diff eks-t4 runfile-a10x2
  nvgraft diff eks-t4 runfile-a10x2 --container ./web
  nvgraft diff web-1.tar web-2.tar --host eks-t4
  nvgraft diff --mode legacy,jit-cdi --container ./web --host eks-t4   # before, after an update
  nvgraft diff plan.json pid:4711
  nvgraft diff plan.json /etc/cdi/nvidia.yaml --format markdown
  nvgraft plan --pod pod.yaml --format json | nvgraft diff ./web -

Each side is a host (a snapshot or a gallery host), a container on the host of --host, a plan, a
CDI specification (JSON or YAML), a recorded /proc/PID/mountinfo, a live container (pid:NUMBER), a
debug log of nvidia-container-cli, or a pod of `nvgraft export pod-volumes`. Hosts are compared by
what they have and by what becomes of the containers of the documentation, or with --container by
its plans.

exit code: 0 equal, or both refuse with the same words; 1 different; 2 trouble, or with
--require-inject a side that does not inject"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``diff``."""
    parser.description = (
        "Compare two descriptions of a container by what they mean: versions, paths, "
        "options, device rules, links."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "a",
        metavar="A",
        type=source,
        nargs="?",
        help="one side (- reads standard input); with two modes --container can name it",
    )
    parser.add_argument(
        "b", metavar="B", type=source, nargs="?", help="the other side; none with two modes"
    )
    add_container(parser, None, "none: hosts are compared without a container", two_modes=True)
    add_host(parser)
    parser.add_argument(
        "--device", metavar="NAME", help="the device of a CDI specification (default: all)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="list every entry that differs, with reasons, modes and raw values",
    )
    parser.add_argument(
        "--require-inject",
        action="store_true",
        help="exit with 2 if the hook refuses or skips the container of a side",
    )
    add_answer(parser, "text", "json", "markdown")
    parser.set_defaults(run=run, looks_only=True, open_first=_ask_first)


def _ask_first(args: argparse.Namespace) -> None:
    """Ask this machine's driver if a side is a container to plan for it."""
    from nvgraft_cli.diff.readers import is_container

    if any(is_container(side) for side in (_first(args), args.b) if side is not None):
        ask_first(args)


def run(args: argparse.Namespace) -> int:
    """Print the difference; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when a side cannot be used.
    """
    from nvgraft_cli.diff.compare import compare
    from nvgraft_cli.diff.render import markdown, text

    sides = _sides(args)
    alone = [side for side in sides if side.kind == "host"]
    if len(alone) == 1:
        raise InputError(
            f"{alone[0].label}: a host without a container has no plan | name the container with "
            "--container PATH"
        )
    diff = compare(sides[0], sides[1])
    if args.format == "json":
        print_document(diff.model_dump(mode="json", by_alias=True))
    elif args.format == "markdown":
        sys.stdout.write(markdown(diff, whole=args.all))
    else:
        terminal.show(text(diff, whole=args.all, colour=terminal.colour()).removesuffix("\n"))
    if args.require_inject and (stopped := next(filter(_stopped, sides), None)) is not None:
        decision, reason = stopped.decision or ("", "")
        line = (
            f"{stopped.label}: {decision}: {reason} | --require-inject needs both sides to inject"
        )
        print(f"nvgraft diff: {printable(line)}", file=sys.stderr)
        return 2
    return int(not diff.equal)


def _first(args: argparse.Namespace) -> str | None:
    """Return what A names: with two modes and no A that is the container of --container."""
    first: str | None = args.a
    container: str | None = args.container
    return container if first is None and "," in args.mode else first


def _sides(args: argparse.Namespace) -> "list[Side]":
    """Read the two sides: two descriptions, or one container in two modes.

    :raises InputError: one is missing, or there is one too many.
    """
    from nvgraft_cli.diff.readers import Context, read_side

    modes = args.mode.split(",")
    if len(modes) == 2 and args.b is not None:
        raise InputError(
            f"--mode {args.mode}: {args.b} is one side too many | compare one container in two"
            " modes, or two sides in one"
        )
    first = _first(args)
    if first is None:
        raise InputError("A is missing | name two sides, or a container in two modes")
    if len(modes) == 1 and args.b is None:
        raise InputError("B is missing | name the other side, or two modes: --mode legacy,jit-cdi")
    in_first = (first, "--container" if args.a is None else "A")
    named = [in_first, in_first if len(modes) == 2 else (args.b, "B")]
    container = None if args.a is None else args.container
    sides = []
    for (name, named_by), mode in zip(named, modes if len(modes) == 2 else modes * 2, strict=True):
        context = Context(container, args.env, args.config, args.device, mode, args.host, named_by)
        side = read_side(name, context)
        if len(modes) == 2:
            side.label = f"{side.label} in mode {mode}"
        sides.append(side)
    return sides


def _stopped(side: "Side") -> bool:
    """Tell whether the container of a side gets no driver."""
    return side.decision is not None and side.decision[0] != "inject"
