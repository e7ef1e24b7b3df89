"""``nvgraft last-error``: show the last messages of the hook about a container."""

import argparse
import os

from nvgraft.base.errors import printable_lines
from nvgraft.base.files import reason
from nvgraft.report.last_error import DIRECTORY, SIZE_LIMIT, directory_of, file_name
from nvgraft.system import userns
from nvgraft.system.rundir import unlike_ours
from nvgraft_cli.shell import logs, refusals, terminal
from nvgraft_cli.shell.arguments import add_answer, add_node
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.last-error/1"

_EXAMPLES = """\
examples:
  sudo nvgraft last-error              # the newest record
  sudo nvgraft last-error 3f2a         # of the container whose id starts with 3f2a
  nvgraft last-error                   # the newest record of your own rootless containers

exit code: 0 shown, 1 there is no record, 2 bad usage or no permission"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``last-error``."""
    parser.description = (
        "Show the last messages of the hook about a container, which crun and podman"
        f" hide. Records of root's containers are kept in {DIRECTORY}, those of rootless ones in"
        f" {directory_of('UID')}, each for that user alone."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        default="",
        help="the container's id, or its beginning (default: the newest record)",
    )
    add_node(parser)
    add_answer(parser)
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print the record and return the exit code."""
    own = directory_of(userns.outer_uid())
    wanted = file_name(args.id)
    found = _records(own, wanted)
    try:
        found += _records(DIRECTORY, wanted)
    except PermissionError as error:
        if not found:
            fix = f"run the command as root; records of your own rootless containers are in {own}"
            raise InputError(f"{DIRECTORY}: {reason(error)} | {fix}") from error
    matching = [path for _, path in sorted(found, reverse=True)]
    if not matching:
        which = f"a container {args.id!r}" if args.id else "any container"
        text = f"there is no record of {which} since this machine was started"
        fix = "run the command as root, or for a rootless container as the user who started it"
        raise InputError(f"{text} | {fix}", 1)
    text = _read(matching[0])
    if args.format == "json":
        head, _, messages = text.partition("\n")
        print_document(
            {
                "schema": _SCHEMA,
                "record": head,
                "messages": messages.splitlines(),
                "refusal": _refusal(head, messages.splitlines()),
                "others": len(matching) - 1,
            }
        )
    else:
        terminal.show(printable_lines(text).removesuffix("\n"))
    return 0


def _refusal(head: str, messages: list[str]) -> dict[str, str] | None:
    """Return what is known of the error with which the hook ended; None if it did not."""
    if not messages or " exit 0 " in head:
        return None
    return refusals.describe_line(messages[-1])


def _records(directory: str, wanted: str) -> list[tuple[int, str]]:
    """Return time and path of each record whose name begins with ``wanted``; none without a
    directory.

    :raises OSError: the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            found = [
                (entry.path, entry.stat(follow_symlinks=False))
                for entry in entries
                if entry.name.startswith("id-")
            ]
    except FileNotFoundError:
        logs.debug("skipped", directory=directory, reason="there is none")
        return []
    logs.debug("read", directory=directory, records=len(found))
    records = []
    for path, status in found:
        if problem := unlike_ours(status, SIZE_LIMIT):
            line = f"{path} is not used: {problem} | remove it: no hook writes such a file"
            logs.get().info(line)
        elif os.path.basename(path).startswith(wanted):
            records.append((status.st_mtime_ns, path))
    return records


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(SIZE_LIMIT).decode("utf-8", "replace")
