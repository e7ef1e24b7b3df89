"""Carry out a plan, all or nothing.

Everything is made and opened first. Then the mounts are attached, descriptor to descriptor; the
cgroup and the loader cache follow. Any failure takes everything back. The order makes it safe: no
target is looked up after the first attach, so nothing attached can change what a mount's target
means (SECURITY R22, R24).
"""

from __future__ import annotations

import errno

from nvgraft.apply import cgroup
from nvgraft.apply.detached_mounts import Sources, attributes, open_sources
from nvgraft.apply.journal import Heading, Journal, JournalEntry
from nvgraft.apply.replaced_link import Link
from nvgraft.apply.restore import Owner, SharedDirectory
from nvgraft.apply.targets import Targets, open_in_root
from nvgraft.apply.undo import UndoLog
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import UNDO_FAILED, Refusal
from nvgraft.base.files import reason
from nvgraft.container.container import Container, enter
from nvgraft.plan.actions import (
    MOUNTS,
    Action,
    AllowDevice,
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
)
from nvgraft.system import syscalls, userns
from nvgraft.system.launch import hold_signals, take_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvgraft.apply.cache_step import LoaderCacheStep

#: Descriptors that the hook needs besides two for each mount and one for each directory.
_SPARE_DESCRIPTORS = 64


def apply_plan(plan: Plan, container: Container, cache: LoaderCacheStep) -> bool:
    """Configure ``container`` as ``plan`` says; return False if it was configured so already.

    This process stays in the container's mount namespace afterwards.

    :param cache: the way to write the loader cache. Its ``findings`` are complete afterwards, as
        are those of ``container``.
    :raises Refusal: with everything undone, or with the exit code UNDO_FAILED; then it names what
        is left behind.
    """
    if _is_configured(plan, container):
        return False
    hold_signals()
    undo = UndoLog()
    # Called at the end in reverse order. The undo log uses the same descriptors and runs before.
    to_close: list[Callable[[], None]] = []
    journal = Journal.begin(
        Heading.of(container.rootfs, container.rootfs_fd, container.uid, container.gid)
    )
    to_close.append(journal.close)
    try:
        _carry_out(plan, container, cache, undo, to_close, journal)
        # A signal that arrives later finds a container that is configured.
        take_signals()
        journal.end()
    except BaseException as error:
        # A second signal must not interrupt the undo.
        hold_signals()
        left = undo.run() or _end(journal)
        if left:
            first = (
                error.line() if isinstance(error, Refusal) else f"{type(error).__name__}: {error}"
            )
            raise Refusal(
                "undo",
                "left behind: " + ", ".join(left),
                f"run `nvgraft recover` to try again; the failure before: {first}",
                exit_code=UNDO_FAILED,
            ) from error
        raise
    finally:
        for close in reversed(to_close):
            _close(close)
    undo.forget()
    return True


def _close(close: Callable[[], None]) -> None:
    """Call ``close`` and ignore errors: the container is configured, or everything is undone."""
    try:
        close()
    except OSError:
        return


def _end(journal: Journal) -> list[str]:
    """End the journal of a start that was undone, and return what is left of it."""
    try:
        journal.end()
    except OSError as error:
        return [f"journal {journal.name} ({error.strerror or error})"]
    return []


def _carry_out(
    plan: Plan,
    container: Container,
    cache: LoaderCacheStep,
    undo: UndoLog,
    to_close: list[Callable[[], None]],
    journal: Journal,
) -> None:
    _allow_descriptors(plan)
    # This is the host's mount namespace. Everything of the host is looked up now.
    sources = open_sources(
        plan.actions, container.uid, container.gid, lambda path: _private_place(container, path)
    )
    to_close.append(sources.close)
    rules = [action for action in plan.actions if isinstance(action, AllowDevice)]
    devices = None
    if rules:
        devices = cgroup.find_cgroup(container.pid)
        to_close.append(devices.close)
        container.findings += devices.look_above(rules)
    updates = [action for action in plan.actions if isinstance(action, UpdateLoaderCache)]
    if updates:
        to_close.append(cache.close)
        cache.prepare()
    placement = None
    if any(map(_needs_placement, plan.actions)):
        from nvgraft.apply.placement import Placement

        placement = Placement(container, undo, journal)
        to_close.append(placement.close)
    # A container's /proc may be anything, so an undo uses a procfs of our own. In standalone mode,
    # /proc is the host's.
    procfs = _open_procfs(container)
    to_close.append(lambda: syscalls.close(procfs))
    take_signals()
    # From here on this is the container's mount namespace, and descriptors alone are used.
    if not container.standalone:
        enter(container)
    for action in updates:
        cache.survey(container, action)
    targets = Targets(container, sources, undo)
    to_close.append(targets.close)

    def announce(entries: list[JournalEntry]) -> None:
        journal.announce([*entries, devices.entry()] if devices is not None else entries)

    with Owner(container.uid, container.gid):
        targets.prepare(plan.actions, announce)
    take_signals()
    _attach(sources, targets, container, procfs, undo)
    take_signals()
    _replace_links(
        [action for action in plan.actions if isinstance(action, Symlink) and action.replaces],
        container,
        undo,
        journal,
        -1 if placement is None else placement.own_fds,
    )
    if placement is not None:
        placement.place(plan.actions)
        placement.change_modes(plan.actions)
    if devices is not None:
        devices.allow(rules, undo)
    for action in updates:
        take_signals()
        cache.update(container, plan, action, undo, journal)


def _needs_placement(action: Action) -> bool:
    return action.placed or (isinstance(action, Symlink) and action.over_file)


def _private_place(container: Container, path: str) -> int:
    """Open the directory of ``path``, for a mount that no other mount namespace may see."""
    fd = open_in_root(container.rootfs_fd, paths.dirname(path), os.O_PATH | os.O_DIRECTORY)
    if container.propagates(container.mount(syscalls.mount_id(fd))):
        syscalls.close(fd)
        raise OSError(errno.EINVAL, "shared mount", path)
    return fd


def _replace_links(
    actions: list[Symlink], container: Container, undo: UndoLog, journal: Journal, own_fds: int = -1
) -> None:
    """Make links in the place of the image's. All former ones are announced before the first
    change.

    :param own_fds: for links that may replace a file: a descriptor of our own /proc/self/fd.
    """
    owner = Owner(container.uid, container.gid)
    links = []
    for action in actions:
        parent, name = paths.split(action.path)
        try:
            directory = SharedDirectory(
                open_in_root(container.rootfs_fd, parent, os.O_RDONLY | os.O_DIRECTORY), parent
            )
            links.append(
                Link(directory, name, action.target, owner, own_fds, over_file=action.over_file)
            )
        except OSError as error:
            raise _link_refused(container, action.path, reason(error)) from error
        mount_id = syscalls.mount_id(directory.fd)
        if not links[-1].replaceable or container.volume(mount_id) is not None:
            raise _link_refused(container, action.path, "file exists")
    if links:
        journal.announce([entry for link in links for entry in link.announcements()])
    for link in links:
        try:
            link.make(undo)
        except OSError as error:
            raise _link_refused(container, link.path, reason(error)) from error


def _link_refused(container: Container, path: str, cause: str) -> Refusal:
    text = f"file creation failed: {container.rootfs}{path}: {cause}"
    hint = "give the container a writable image that nothing else changes while it starts"
    return Refusal("mount", text, hint)


def _is_configured(plan: Plan, container: Container) -> bool:
    """Tell whether every mount of ``plan`` is there: the hook ran twice for one start (SECURITY
    R36).
    """
    mounts = [action for action in plan.actions if isinstance(action, MOUNTS)]
    for action in mounts:
        try:
            fd = open_in_root(container.rootfs_fd, action.target, os.O_PATH)
        except OSError:
            return False
        try:
            mount = container.mount(syscalls.mount_id(fd))
            if mount.point != container.rootfs + action.target:
                return False
            if isinstance(action, Tmpfs):
                if mount.fstype != "tmpfs":
                    return False
                continue
            target = os.fstat(fd)
            source = os.stat(action.host_path, follow_symlinks=False)
            if (target.st_dev, target.st_ino) != (source.st_dev, source.st_ino):
                return False
        except (OSError, Refusal):
            return False
        finally:
            syscalls.close(fd)
    return bool(mounts)


def _allow_descriptors(plan: Plan) -> None:
    """Raise the soft limit to the hard one. Refuse if that is too small, before anything is
    changed.
    """
    mounts = sum([isinstance(action, MOUNTS) for action in plan.actions])
    directories = sum([isinstance(action, MakeDirectory) for action in plan.actions])
    needed = 2 * mounts + directories + _SPARE_DESCRIPTORS
    soft, hard = syscalls.get_rlimit(syscalls.RLIMIT_NOFILE)
    if soft < hard:
        syscalls.set_rlimit(syscalls.RLIMIT_NOFILE, hard, hard)
    if hard < needed:
        raise Refusal(
            "initialization",
            f"open file limit is {hard}",
            f"this plan needs {needed}: raise LimitNOFILE of the container engine",
        )


def _attach(
    sources: Sources, targets: Targets, container: Container, procfs: int, undo: UndoLog
) -> None:
    """Attach every mount to its open target, in order, and check that each arrived there."""
    attached: dict[str, tuple[Bind | Tmpfs, int, int]] = {}
    for (action, mount_fd), target_fd in zip(sources.mounts, targets.opened, strict=True):
        if action.target in attached:  # the second mount of a target hides the first
            _verify(attached.values(), container)
            attached.clear()
        mounted = _Mounted(procfs, mount_fd)
        undo.add(f"mount {action.target}", mounted.detach)
        try:
            syscalls.move_mount(mount_fd, target_fd)
        except syscalls.MissingFeature:
            raise
        except OSError as error:
            path = action.source if isinstance(action, Bind) else action.target
            raise Refusal(
                "mount", f"mount operation failed: {path}: {reason(error)}", str(error)
            ) from error
        mounted.attached = True
        attached[action.target] = action, mount_fd, sources.mount_ids[mount_fd]
    _verify(attached.values(), container)


def _verify(mounts: Iterable[tuple[Bind | Tmpfs, int, int]], container: Container) -> None:
    """Check that each target's name leads to our mount, with its options (SECURITY R26).

    Every directory is looked up again from the root, for all targets in it.

    :param mounts: action, descriptor and id of each mount. The descriptor keeps the id from being
        reused.
    """
    directories: dict[str, int] = {}
    try:
        for action, mount_fd, mount_id in mounts:
            parent, name = paths.split(action.target)
            try:
                if parent not in directories:
                    directories[parent] = open_in_root(
                        container.rootfs_fd, parent, os.O_PATH | os.O_DIRECTORY
                    )
                there = syscalls.mount_id(directories[parent], name)
            except OSError as error:
                raise _not_in_place(action, f" ({error})") from error
            bits = attributes(action.options)
            if there != mount_id or os.fstatvfs(mount_fd).f_flag & bits != bits:
                raise _not_in_place(action)
    finally:
        for fd in directories.values():
            syscalls.close(fd)


def _not_in_place(action: Bind | Tmpfs, cause: str = "") -> Refusal:
    text = f"mount operation failed: {action.target}: it is not where it was attached"
    hint = "something moved or covered it: let nothing change the image and its volumes meanwhile"
    return Refusal("mount", text, hint + cause)


def _open_procfs(container: Container) -> int:
    """Open a procfs through which descriptors can be named: the container's may be anything
    (SECURITY R29).

    A rootless process may not mount one for a pid namespace of the host. It then uses the procfs of
    the mount namespace in which it was started, as in standalone mode.
    """
    if not container.standalone:
        try:
            return syscalls.new_mount("proc", {"subset": "pid"}, 0)
        except OSError as error:
            if error.errno != errno.EPERM or not userns.inside():
                raise
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


class _Mounted:
    """A mount to attach, and its removal by descriptor through a procfs of our own."""

    def __init__(self, procfs: int, mount_fd: int) -> None:
        self._procfs = procfs
        self._mount_fd = mount_fd
        self.attached = False

    def detach(self) -> None:
        """Unmount it, if it was attached."""
        if self.attached:
            os.fchdir(self._procfs)
            syscalls.umount2(f"self/fd/{self._mount_fd}", syscalls.MNT_DETACH)
