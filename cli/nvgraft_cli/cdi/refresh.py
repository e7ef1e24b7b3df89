"""``nvgraft cdi refresh``: keep the CDI specification of this machine up to date.

The watcher of the inventory says when the driver, the GPUs or the MIG devices have changed. It asks
NVML for the inventory, and the specification is made of what the driver says then. A file that is
up to date is not touched, so that engines do not read it again; one that is gone is written again
after the next check.
"""

import argparse
import os
from collections.abc import Iterator, Sequence

from nvgraft.base.files import open_file, read_fd
from nvgraft.cdi.reader import LIMIT
from nvgraft.cdi.registry import SUFFIXES
from nvgraft_cli.case.hosts import read_configuration
from nvgraft_cli.case.specifications import read_registry
from nvgraft_cli.cdi.arguments import add_content, form_of
from nvgraft_cli.cdi.generate import specification_now
from nvgraft_cli.inventory.refresh import become_like_the_hook, named_config, require_root
from nvgraft_cli.inventory.watch import add_intervals
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import add_config, add_node
from nvgraft_cli.shell.output import write_whole

#: Where NVIDIA's own service writes.
_FILE = "/var/run/cdi/nvidia.yaml"

_EXAMPLES = """\
examples:
  sudo nvgraft cdi refresh
  sudo nvgraft cdi refresh --hooks nvgraft /etc/cdi/nvidia.json
  sudo nvgraft cdi refresh --watch            # write it again after each change
  sudo systemctl enable --now nvgraft-cdi-refresh

exit code: 0 the file is up to date, or ended by a signal; 1 the host has no driver or no GPU to
describe; 2 bad usage, no permission, or the file cannot be written"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi refresh``."""
    parser.description = (
        "Write the CDI specification of this machine, unless it is up to date. With --watch, do so"
        " again whenever GPUs, MIG devices or the driver change or the file is gone, and keep the"
        " inventory of the hook up to date, as `nvgraft watch` does."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=_FILE,
        help=f"the specification, whose name says its format (default: {_FILE})",
    )
    parser.add_argument("--watch", action="store_true", help="keep running, and act on each change")
    add_intervals(parser)
    add_content(parser)
    add_config(parser, "the one that the hook uses")
    add_node(parser)
    parser.set_defaults(run=run, looks_only=False)


def run(args: argparse.Namespace) -> int:
    """Write the specification, once or after each change, and return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: the user is not root, or the file cannot be
        written.
    :raises Refusal: the host cannot be read.
    """
    require_root()
    become_like_the_hook()
    if args.config is not None:
        named_config(args.config)
    for warning in _misplaced(args.file, read_configuration(args.config).runtime_cdi_spec_dirs):
        logs.get().warning(warning)
    if not args.watch:
        _write(args)
        return 0
    import asyncio

    from nvgraft_cli.inventory.watcher import Watcher

    watcher = Watcher(
        args.config,
        args.check,
        args.ask,
        logs.get(),
        lambda: _write(args),
        lambda: "" if os.path.exists(args.file) else f"{args.file} is gone",
    )
    asyncio.run(watcher.run())
    return 0


def _misplaced(path: str, directories: Sequence[str]) -> Iterator[str]:
    """Yield a warning if engines do not look for specifications at a path."""
    places = {os.path.realpath(directory) for directory in directories}
    if os.path.dirname(os.path.realpath(path)) not in places:
        yield (
            f"{path}: engines do not find it: they read {' and '.join(directories)} | write it"
            " there, or name its directory in spec-dirs of config.toml and in the configuration of"
            " the engine"
        )
    elif not path.endswith(SUFFIXES):
        yield (
            f"{path}: engines do not read a file of this name | let it end in"
            f" {' or '.join(SUFFIXES)}"
        )


def _outdone(path: str, directories: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each other specification because of which engines do not find the devices
    of the one at a path.
    """
    registry = read_registry(directories)
    own = os.path.realpath(path)
    winners = {
        registry.devices[name].file.path
        for name, hidden in registry.hidden
        if os.path.realpath(hidden) == own and name in registry.devices
    }
    for other in sorted(winners):
        yield f"{path}: engines take its devices from {other} | remove one of both files"
    rivals = {
        other
        for files in registry.conflicts.values()
        if own in map(os.path.realpath, files)
        for other in files
        if os.path.realpath(other) != own
    }
    for other in sorted(rivals):
        yield (
            f"{path}: engines find none of the devices that {other} has, too | remove one of both"
            " files"
        )


def _write(args: argparse.Namespace) -> None:
    """Write the specification if it differs from the file."""
    data = specification_now(args, form_of(args.file)).encode()
    if _content(args.file) == data:
        logs.debug("up to date", file=args.file)
        return
    os.makedirs(os.path.dirname(args.file) or ".", mode=0o755, exist_ok=True)
    write_whole(args.file, data, 0o644)
    logs.get().info("written", file=args.file, bytes=len(data))
    for warning in _outdone(args.file, read_configuration(args.config).runtime_cdi_spec_dirs):
        logs.get().warning(warning)


def _content(path: str) -> bytes | None:
    try:
        fd = open_file(path)
    except OSError:
        return None
    try:
        return read_fd(fd, LIMIT)
    except OSError:
        return None
    finally:
        os.close(fd)
