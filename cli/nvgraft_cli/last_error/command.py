"""``nvgraft last-error``: show the last messages of the hook about a container."""

import argparse
import os
import sys

from nvgraft.base.errors import printable
from nvgraft.report.last_error import DIRECTORY, SIZE_LIMIT, file_name
from nvgraft.system.rundir import unlike_ours
from nvgraft_cli.shell.arguments import add_format
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.last-error/1"

_EXAMPLES = """\
examples:
  sudo nvgraft last-error              # the newest record
  sudo nvgraft last-error 3f2a         # of the container whose id starts with 3f2a

exit code: 0 shown, 1 there is no record, 2 bad usage or no permission"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``last-error``."""
    parser.description = (
        "Show the last messages of the hook about a container, which crun and podman"
        " hide."
        f" Records are kept in {DIRECTORY}, for root."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        default="",
        help="the container's id, or its beginning (default: the newest record)",
    )
    add_format(parser)
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print the record and return the exit code."""
    try:
        names = _newest_first()
    except FileNotFoundError:
        names = []
    except OSError as error:
        print(
            f"nvgraft last-error: {DIRECTORY}: {(error.strerror or str(error)).lower()} |"
            " run the command as root",
            file=sys.stderr,
        )
        return 2
    wanted = file_name(args.id)
    matching = [name for name in names if name.startswith(wanted)]
    if not matching:
        which = f"a container {args.id!r}" if args.id else "any container"
        print(
            f"nvgraft last-error: there is no record of {which} since this machine was started",
            file=sys.stderr,
        )
        return 1
    text = _read(matching[0])
    if args.format == "json":
        head, _, messages = text.partition("\n")
        print_document(
            {
                "schema": _SCHEMA,
                "record": head,
                "messages": messages.splitlines(),
                "others": len(matching) - 1,
            }
        )
    else:
        print(text, end="")
    return 0


def _newest_first() -> list[str]:
    with os.scandir(DIRECTORY) as entries:
        records = [
            (entry.name, entry.stat(follow_symlinks=False))
            for entry in entries
            if entry.name.startswith("id-")
        ]
    ages = []
    for name, status in records:
        if problem := unlike_ours(status, SIZE_LIMIT):
            line = f"{DIRECTORY}/{name} is not used: {problem} | no hook has made it: remove it"
            print(printable(f"nvgraft last-error: {line}"), file=sys.stderr)
        else:
            ages.append((status.st_mtime_ns, name))
    return [name for _, name in sorted(ages, reverse=True)]


def _read(name: str) -> str:
    fd = os.open(os.path.join(DIRECTORY, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(SIZE_LIMIT).decode("utf-8", "replace")
