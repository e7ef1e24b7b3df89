"""Remove what a killed hook has left in a root file system, by its journal (SECURITY R35).

A thing is removed only if the journal names it and it is still what nvgraft makes: an empty file,
an empty directory or the very link, made while that hook was at work. Lookups start at the root's
descriptor, follow no links and stay on the root file system's own mount, because a volume may cover
what was made.

Mounts and device rules need no work: they ended with the container's mount namespace and cgroup.
Child processes ended with the hook.
"""

from __future__ import annotations

import errno

from nvgraft.apply import journal, left_journal
from nvgraft.apply.journal import Heading, JournalEntry
from nvgraft.apply.left_journal import Left
from nvgraft.apply.restore import Owner, put_back
from nvgraft.apply.targets import open_in_root, unlike
from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.values import Value
from nvgraft.container.container import Container
from nvgraft.system import syscalls
from nvgraft.system.lock import acquire, lock_name
from nvgraft.system.rundir import require_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What became of a thing. REMOVED: taken away. RESTORED: the former one is back. KEPT: left alone,
#: because it is not nvgraft's any more. STUCK: still there, because it could not be reached or
#: removed now.
REMOVED, RESTORED, KEPT, STUCK = "removed", "restored", "kept", "stuck"

_SAME_MOUNT = syscalls.RESOLVE_NO_XDEV
_NOT_A_FILE = "it is not a file any more"


class Outcome(Value):
    """What became of ``path``: one of the constants above, and the reason."""

    def __init__(self, fate: str, path: str, reason: str = "") -> None:
        self.fate = fate
        self.path = path
        self.reason = reason


def clear(left: Left, rootfs_fd: int, *, dry_run: bool = False) -> tuple[list[Outcome], Left]:
    """Remove what ``left`` names in the root file system, newest first. Missing things are not
    reported.

    :param dry_run: change nothing, and return what would become of each thing, as far as can be
        seen.
    :returns: the outcomes, and the journal of what is still to do.
    """
    assert left.heading is not None
    outcomes: list[Outcome] = []
    stuck: list[JournalEntry] = []
    former = {
        kind: {entry.path for entry in left.entries if entry.kind == kind}
        for kind in ("was-link", "was-file")
    }
    for entry in reversed(left.entries):
        work = _Work(left, left.heading, rootfs_fd, entry, former, dry_run=dry_run)
        outcomes_of_entry = work.run()
        outcomes += outcomes_of_entry
        if any(outcome.fate == STUCK for outcome in outcomes_of_entry):
            stuck.append(entry)
    return outcomes, Left(left.name, left.heading, tuple(reversed(stuck)), left.written)


class _Work:
    """Taking back one entry of a journal."""

    def __init__(
        self,
        left: Left,
        heading: Heading,
        rootfs_fd: int,
        entry: JournalEntry,
        former: dict[str, set[str]],
        *,
        dry_run: bool,
    ) -> None:
        self._since = heading.since
        self._until = left.until
        self._owner = Owner(heading.uid, heading.gid)
        self._rootfs_fd = rootfs_fd
        self._entry = entry
        self._former = former
        self._dry_run = dry_run

    def run(self) -> list[Outcome]:
        path = self._entry.path
        if self._entry.kind == "devices":
            return []
        is_directory = self._entry.kind == "links"
        try:
            parent = open_in_root(
                self._rootfs_fd,
                path if is_directory else paths.dirname(path),
                os.O_RDONLY | os.O_DIRECTORY,
                _SAME_MOUNT,
            )
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return []  # the thing went with its directory
            return [_stuck(path, error)]
        try:
            if is_directory:
                return self._new_links(parent)
            return self._one(parent, path, paths.basename(path))
        except OSError as error:
            return [_stuck(path, error)]
        finally:
            syscalls.close(parent)

    def _new_links(self, directory: int) -> list[Outcome]:
        """Remove the links in ``directory`` that the journal does not list as there before."""
        outcomes = []
        for name in sorted(os.listdir(directory)):
            path = paths.join(self._entry.path, name)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if (
                stat.S_ISLNK(status.st_mode)
                and path not in self._former["was-link"]
                and not self._other_times(status)
            ):
                self._change(lambda name=name: os.unlink(name, dir_fd=directory))  # type: ignore[misc]
                outcomes.append(Outcome(REMOVED, path))
        return outcomes

    def _one(self, parent: int, path: str, name: str) -> list[Outcome]:
        entry = self._entry
        try:
            path_fd = open_in_root(parent, name, os.O_PATH, _SAME_MOUNT)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            if not entry.kind.startswith("was-"):
                return []
            self._change(lambda: put_back(parent, name, entry, self._owner))
            return [Outcome(RESTORED, path)]
        try:
            status = os.fstat(path_fd)
            if entry.kind == "was-mode":
                return self._former_mode(path_fd, path, status)
            target = os.readlink("", dir_fd=path_fd) if stat.S_ISLNK(status.st_mode) else ""
        finally:
            syscalls.close(path_fd)
        if entry.kind.startswith("was-"):
            return self._put_former_back(parent, path, name, status, target)
        if entry.kind == "absent":
            is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
            why = "" if is_file else _NOT_A_FILE
        else:
            if entry.kind == "link" and not target and path in self._former["was-file"]:
                return []  # the file that the link was to replace
            why = unlike(entry.kind, status, "".join(entry.fields), lambda: target)
        why = why or self._other_times(status)
        if why:
            return [Outcome(KEPT, path, why)]
        try:
            if entry.kind == "dir":
                self._change(lambda: os.rmdir(name, dir_fd=parent))
            else:
                self._change(lambda: os.unlink(name, dir_fd=parent))
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return [Outcome(KEPT, path, "it is not empty")]
            raise
        return [Outcome(REMOVED, path)]

    def _put_former_back(
        self, parent: int, path: str, name: str, status: os.stat_result, target: str
    ) -> list[Outcome]:
        """Put back what the entry says was there, unless it is still there or something else is."""
        entry = self._entry
        if status.st_ctime_ns < self._since:
            return []
        if why := self._other_times(status):
            return [Outcome(KEPT, path, why)]
        if entry.kind == "was-link" and stat.S_ISLNK(status.st_mode):
            if (target, str(status.st_uid), str(status.st_gid)) == entry.fields:
                return []
        elif not stat.S_ISREG(status.st_mode):
            return [Outcome(KEPT, path, _NOT_A_FILE)]

        def exchange() -> None:
            os.unlink(name, dir_fd=parent)
            put_back(parent, name, entry, self._owner)

        self._change(exchange)
        return [Outcome(RESTORED, path)]

    def _former_mode(self, path_fd: int, path: str, status: os.stat_result) -> list[Outcome]:
        """Give back the permissions, unless they have been changed since."""
        before, ours = map(int, self._entry.fields)
        if stat.S_IMODE(status.st_mode) != ours or status.st_ctime_ns < self._since:
            return []
        if why := self._other_times(status):
            return [Outcome(KEPT, path, why)]
        own_fds = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._change(lambda: os.chmod(str(path_fd), before, dir_fd=own_fds))
        finally:
            syscalls.close(own_fds)
        return [Outcome(RESTORED, path)]

    def _other_times(self, status: os.stat_result) -> str:
        """Say when ``status`` was changed, if that was not while the hook was at work."""
        if status.st_ctime_ns < self._since:
            return "it is older than the interrupted start"
        return "something else changed it later" if status.st_ctime_ns > self._until else ""

    def _change(self, step: Callable[[], None]) -> None:
        if not self._dry_run:
            step()


def take_over(container: Container, warn: Callable[[str], None]) -> None:
    """Remove what a hook killed while at work on the root file system of ``container`` has left.

    The caller holds the lock of that root file system. Things that cannot be reached now stay in
    their journal, for ``nvgraft recover``. What is not a journal is named, and no more than that
    (SECURITY R43).

    :raises OSError: when a journal of this root file system cannot be read or written: the things
        that it names could then not be told from what this start makes.
    """
    directory = require_private(journal.DIRECTORY)
    if directory is None:
        return
    try:
        mine = Heading.of(container.rootfs, container.rootfs_fd, container.uid, container.gid)
        entries = left_journal.entries_of(directory)
        journals = [entry for entry in entries if not entry.problem]
        for entry in journals:
            if left_journal.inode_of(entry.name) == mine.inode:
                _take_over(directory, entry.name, mine, container, warn)
        if odd := [entry for entry in entries if entry.problem]:
            others = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
            warn(
                f"{journal.DIRECTORY}/{odd[0].name} is not used: {odd[0].problem}{others}"
                " | run nvgraft recover, which names all of them, and remove them"
            )
        _drop_oldest(directory, journals, warn)
    finally:
        syscalls.close(directory)


def _take_over(
    directory: int, name: str, mine: Heading, container: Container, warn: Callable[[str], None]
) -> None:
    try:
        left = left_journal.read(directory, name)
    except (FileNotFoundError, ValueError):
        # Another start has ended, or the journal is damaged (`nvgraft recover` says so).
        return
    if left.heading is None:
        if left_journal.lock_of(name) == lock_name(mine.device, mine.inode):
            left_journal.rewrite(directory, left)
        return
    if not left.is_of(mine):
        return
    outcomes, rest = clear(left, container.rootfs_fd)
    left_journal.rewrite(directory, rest)
    undone = sum(outcome.fate in {REMOVED, RESTORED} for outcome in outcomes)
    warn(
        "the last hook on this root file system was killed; "
        f"{undone} of the things that it had made were taken away"
        " | look for the cause in the engine's log: a hook timeout may be too short"
    )


def _drop_oldest(
    directory: int, journals: list[left_journal.Entry], warn: Callable[[str], None]
) -> None:
    """Remove the oldest ``journals`` of killed hooks beyond KEPT of them, or KEPT_BYTES.

    What they name is as harmless as what a start leaves that succeeds. A full /run is not.
    """
    count, size, dropped = len(journals), sum(entry.size for entry in journals), 0
    for entry in journals:
        if count <= left_journal.KEPT and size <= left_journal.KEPT_BYTES:
            break
        held = acquire(left_journal.lock_of(entry.name), 0)
        if held is None:
            continue
        with held:
            try:
                os.unlink(entry.name, dir_fd=directory)
                dropped += 1
            except FileNotFoundError:
                pass  # taken over above, or its hook has ended
        count, size = count - 1, size - entry.size
    if dropped:
        warn(
            f"{dropped} of the journals of killed hooks were dropped, because more than"
            f" {left_journal.KEPT} of them, or {left_journal.KEPT_BYTES >> 20} MiB, were in"
            f" {journal.DIRECTORY} | run nvgraft recover after hooks were killed, and look for"
            " the cause in the engine's log"
        )


def _stuck(path: str, error: OSError) -> Outcome:
    if error.errno == errno.EXDEV:
        return Outcome(STUCK, path, "it is on another mount now")
    return Outcome(STUCK, path, (error.strerror or str(error)).lower())
