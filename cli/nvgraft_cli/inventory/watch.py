"""The command line of ``nvgraft watch``; see :mod:`nvgraft_cli.inventory.watcher`."""

import argparse
import contextlib

from nvgraft_cli.inventory.refresh import (
    become_like_the_hook,
    hook_config,
    named_config,
    require_root,
)
from nvgraft_cli.shell.arguments import add_config, add_format, add_node

_EXAMPLES = """\
examples:
  sudo nvgraft watch
  sudo nvgraft watch --format json --ask 0     # call NVML only after a change
  sudo nvgraft --debug watch                   # log every event of the kernel
  sudo nvgraft watch --starts                  # which containers start, and what the hook does
  sudo nvgraft watch --starts --format json | jq 'select(.hook == "refused")'

docs/inventory-cache.md has a systemd unit. On SIGHUP the host is read immediately; SIGTERM and
SIGINT end the command.

--starts needs the node's initial pid and network namespaces: in a pod, hostPID and hostNetwork. A
hook that ends before it can be looked at is not seen.

exit code: 0 ended by a signal, 2 bad usage or no permission"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``watch``."""
    parser.description = (
        "Read this host again whenever GPUs, MIG devices or the driver change, so that"
        " the next container does not wait for it; with --starts, show containers that start."
    )
    parser.epilog = _EXAMPLES
    add_node(parser)
    add_config(parser, "the one that the hook uses")
    add_intervals(parser)
    parser.add_argument(
        "--starts",
        action="store_true",
        help="show the starts of containers on this node instead, and what the hook did for each",
    )
    add_format(parser, text="format of the log on stderr, or of --starts (default: text)")
    parser.set_defaults(run=run)


def add_intervals(parser: argparse.ArgumentParser) -> None:
    """Add ``--check`` and ``--ask``."""
    parser.add_argument(
        "--check",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="how often to check for changes without an event (default: 10; 0: never)",
    )
    parser.add_argument(
        "--ask",
        metavar="SECONDS",
        type=_seconds,
        default=600.0,
        help="how often to call NVML without a change (default: 600; 0: never)",
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds | write 10 or 0.5")


def run(args: argparse.Namespace) -> int:
    """Watch until a signal comes, and return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: --config names a file that cannot be used.
    """
    require_root()
    become_like_the_hook()
    if args.config is not None:
        # Check a named file now. The hook's own file may be missing: it may come later.
        named_config(args.config)
    import asyncio

    if args.starts:
        from nvgraft_cli.starts import watching

        show = watching.watch(lambda: hook_config(args.config), json_lines=args.format == "json")
        asyncio.run(show)
        return 0
    from nvgraft_cli.inventory.watcher import Watcher
    from nvgraft_cli.shell import logs

    if args.format == "json":
        logs.setup(args.subcommand, debug=args.debug, json=True)
    asyncio.run(Watcher(args.config, args.check, args.ask, logs.get()).run())
    return 0
