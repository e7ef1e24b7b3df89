"""``nvgraft recover``: remove what killed hooks have left in root file systems.

This reads the journals and reports; :mod:`nvgraft.apply.leftovers` removes.
"""

import argparse
import errno
import os
from collections.abc import Iterator

from nvgraft.apply import journal, left_journal
from nvgraft.apply.leftovers import KEPT, STUCK, Outcome, clear
from nvgraft.apply.targets import open_in_root
from nvgraft.base import errors
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.container.container import is_host_root
from nvgraft.system import lock, syscalls
from nvgraft.system.rundir import require_private
from nvgraft_cli.case.fuse import check_path
from nvgraft_cli.shell import logs, terminal
from nvgraft_cli.shell.arguments import add_answer, add_node
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.recover/1"

_EXAMPLES = """\
examples:
  sudo nvgraft recover --dry-run       # what would be removed
  sudo nvgraft recover

exit code: 0 nothing is left, 1 something is left (it is named), 2 bad usage or not root"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``recover``."""
    parser.description = f"""\
A hook that fails undoes its work. A hook that is killed cannot, but has listed in
{journal.DIRECTORY} what it was going to make: empty files and directories, links, the loader
cache. This command removes them if they are still as the hook makes them, and restores the former
loader cache. Running hooks are left alone; the next start on the same root file system cleans up
as well."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, and show what would be done"
    )
    add_node(parser)
    add_answer(parser)
    parser.set_defaults(run=run)


class Report:
    """The result for one journal. ``state`` is one of: cleared, running, gone, unreachable,
    damaged.
    """

    def __init__(
        self, name: str, rootfs: str, state: str, text: str, outcomes: list[Outcome] | None = None
    ) -> None:
        self.name = name
        self.rootfs = rootfs
        self.state = state
        self.text = text
        self.outcomes = outcomes or []

    @property
    def is_left(self) -> bool:
        """Whether something that the journal names is left, or may be."""
        return self.state in {"unreachable", "damaged"} or any(
            outcome.fate in {KEPT, STUCK} for outcome in self.outcomes
        )

    def document(self) -> dict[str, object]:
        things = [
            {"path": outcome.path, "fate": outcome.fate, "reason": outcome.reason}
            for outcome in self.outcomes
        ]
        return {
            "journal": self.name,
            "rootfs": self.rootfs,
            "state": self.state,
            "left": self.is_left,
            "message": self.text,
            "things": things,
        }


def run(args: argparse.Namespace) -> int:
    """Recover from every journal; return the exit code.

    :raises InputError: this is not root.
    :raises nvgraft.base.errors.Refusal: the directory of journals, or a lock, cannot be opened.
    """
    if not _is_root():
        raise InputError(
            "only root can read the journals of killed hooks | run sudo nvgraft recover"
        )
    reports = recover(dry_run=args.dry_run)
    if args.format == "json":
        print_document(
            {
                "schema": _SCHEMA,
                "dry_run": args.dry_run,
                "journals": [report.document() for report in reports],
            }
        )
    else:
        terminal.show("\n".join(_lines(reports, dry_run=args.dry_run)))
    return int(any(report.is_left for report in reports))


def _is_root() -> bool:
    return os.geteuid() == 0


def _lines(reports: list[Report], *, dry_run: bool) -> Iterator[str]:
    if not reports:
        yield "nothing to recover: no hook was killed since this machine was started"
    for report in reports:
        yield errors.printable(f"{report.rootfs or report.name}: {report.text}")
        for outcome in report.outcomes:
            would = "would be " if dry_run and outcome.fate not in {KEPT, STUCK} else ""
            reason = f": {outcome.reason}" if outcome.reason else ""
            yield errors.printable(f"  {would}{outcome.fate} {outcome.path}{reason}")


def recover(*, dry_run: bool = False) -> list[Report]:
    """Clean up after every killed hook, and remove its journal if nothing is left.

    :raises Refusal: the directory of journals or that of locks cannot be opened.
    """
    reports = []
    directory = require_private(journal.DIRECTORY) if os.path.isdir(journal.DIRECTORY) else None
    if directory is not None:
        try:
            reports = [
                _recover(directory, entry, dry_run=dry_run)
                for entry in sorted(
                    left_journal.entries_of(directory), key=lambda entry: entry.name
                )
            ]
        finally:
            syscalls.close(directory)
    if not dry_run and os.path.isdir(lock.DIRECTORY):
        reports += [
            _foreign(name, f"{lock.DIRECTORY}/{name}", problem)
            for name, problem in lock.drop_unheld().items()
        ]
    found = [report for report in reports if report is not None]
    for report in found:
        logs.debug(report.state, journal=report.name, rootfs=report.rootfs, reason=report.text)
    return found


def _foreign(name: str, path: str, problem: str) -> Report:
    """Report something that no hook has made, which is neither used nor removed."""
    return Report(name, "", "damaged", f"{problem}: not used | look at {path}, then remove it")


def _recover(directory: int, entry: left_journal.Entry, *, dry_run: bool) -> Report | None:
    """Clean up after the hook of the journal ``entry``; return None if that hook has just ended."""
    name = entry.name
    path = f"{journal.DIRECTORY}/{name}"
    logs.debug("read", journal=path, problem=entry.problem or "none")
    if entry.problem:
        return _foreign(name, path, entry.problem)
    try:
        held = lock.acquire(left_journal.lock_of(name), 0)
        if held is None:
            return Report(name, "", "running", "a hook is at work")
        with held:
            return _clear(directory, left_journal.read(directory, name), dry_run=dry_run)
    except FileNotFoundError:
        return None
    except Refusal as refusal:
        return Report(name, "", "unreachable", f"{refusal.text} | {refusal.hint}")
    except ValueError as error:
        fix = f"check the root file systems of containers that failed to start, then remove {path}"
        return Report(name, "", "damaged", f"the journal is damaged: {error} | {fix}")
    except OSError as error:
        text = f"the journal cannot be read or written: {reason(error)} | see {path}"
        return Report(name, "", "unreachable", text)


def _unlike_rootfs(rootfs_fd: int) -> str:
    """Say why a directory cannot be the root file system of a container, or return ""."""
    if is_host_root(rootfs_fd):
        return "it is the host's own root file system"
    try:
        syscalls.close(open_in_root(rootfs_fd, "/proc", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        # A runtime has mounted a procfs there before it started the hook.
        return "it is not the root file system of a container, since it has no directory /proc"
    return ""


def _clear(directory: int, left: left_journal.Left, *, dry_run: bool) -> Report:
    heading = left.heading
    if heading is None:
        if not dry_run:
            left_journal.rewrite(directory, left)
        return Report(left.name, "", "cleared", "a hook that was killed before it made anything")
    try:
        check_path(heading.rootfs)
    except InputError as error:
        return Report(left.name, heading.rootfs, "unreachable", str(error))
    try:
        rootfs_fd = syscalls.openat2(
            -1, heading.rootfs, os.O_PATH | os.O_DIRECTORY, syscalls.RESOLVE_NO_MAGICLINKS
        )
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            return Report(
                left.name,
                heading.rootfs,
                "unreachable",
                f"it cannot be opened: {error.strerror} | try again",
            )
        if not dry_run:
            os.unlink(left.name, dir_fd=directory)
        return Report(left.name, heading.rootfs, "gone", "the root file system was removed")
    try:
        if not left.is_of(journal.Heading.of(heading.rootfs, rootfs_fd, heading.uid, heading.gid)):
            fix = (
                "mount it (podman mount) and run this again, or start the container;"
                " if it was removed, remove the journal"
            )
            text = (
                "another root file system is mounted there, or none:"
                f" {journal.DIRECTORY}/{left.name} | {fix}"
            )
            return Report(left.name, heading.rootfs, "unreachable", text)
        if problem := _unlike_rootfs(rootfs_fd):
            return Report(
                left.name,
                heading.rootfs,
                "damaged",
                f"{problem}: nothing was changed | remove {journal.DIRECTORY}/{left.name}",
            )
        outcomes, rest = clear(left, rootfs_fd, dry_run=dry_run)
        if not dry_run:
            left_journal.rewrite(directory, rest)
    finally:
        syscalls.close(rootfs_fd)
    count = len(outcomes)
    return Report(
        left.name,
        heading.rootfs,
        "cleared",
        f"{count} thing{'' if count == 1 else 's'} of a hook that was killed",
        outcomes,
    )
