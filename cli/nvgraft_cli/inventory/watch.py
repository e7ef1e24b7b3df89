"""``nvgraft watch``: keep the cached inventory fresh, so that the container which comes after a change does not pay for it.

Only the command line is here; :mod:`nvgraft_cli.inventory.watcher` is what runs.
"""

import argparse
import sys

from nvgraft_cli.inventory.refresh import become_like_the_hook, named_config, permission_problem

_EXAMPLES = """\
examples:
  sudo nvgraft watch
  sudo nvgraft watch --format json --ask 0     # never ask NVML unless something has changed
  sudo nvgraft --debug watch                   # with every event of the kernel

docs/inventory-cache.md has a systemd unit. SIGHUP has the host read at once, SIGTERM and SIGINT end it.

exit code: 0 ended by a signal, 2 bad usage or no permission"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``watch``."""
    parser = subparsers.add_parser(
        "watch",
        help="keep what the hook knows of this host fresh",
        description="Read this host anew whenever GPUs, MIG devices or the driver change, so that the next container need not.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the config.toml of the hook (default: the one that the hook uses)",
    )
    parser.add_argument(
        "--check",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="look for changes that have no event this often (default: 10; 0: never)",
    )
    parser.add_argument(
        "--ask",
        metavar="SECONDS",
        type=_seconds,
        default=600.0,
        help="ask NVML this often, changes or not (default: 600; 0: never)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="of the log on stderr (default: text)",
    )
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError("not a number of seconds")
    return value


def run(args: argparse.Namespace) -> int:
    """Watch until a signal comes; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when --config names a file that cannot be used.
    """
    if problem := permission_problem():
        print(f"nvgraft watch: {problem}", file=sys.stderr)
        return 2
    become_like_the_hook()
    if args.config is not None:
        named_config(
            args.config
        )  # a wrong name would be waited for, for ever; the hook's own file may come later
    import asyncio

    from nvgraft_cli.inventory.watcher import Watcher
    from nvgraft_cli.shell import logs

    logs.setup(args.debug, args.format == "json")
    asyncio.run(Watcher(args.config, args.check, args.ask, logs.get("watch")).run())
    return 0
