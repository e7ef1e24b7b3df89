"""Running one static program, held in memory, locked into a container's root file system (SECURITY R31, R37).

New mount, pid, network, IPC and UTS namespaces; a root in which only the named directories are writable and nothing can
be executed; the container root's ids without a capability; a short list of system calls; limits; no descriptor but an
empty stdin and a pipe that is read here. The program ends when it is late, when this process ends, and with everything
that it may have started.

This process keeps its own namespaces. What may be run, and what its end means, is the caller's business.
"""

from __future__ import annotations

import _signal
import errno
import time

from nvgraft.base._os import os
from nvgraft.base.values import Value
from nvgraft.system import child, launch, privileges, syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: The reference's limits but for the size of a file, which was 1 and later 2 MiB there: an image with many libraries has a
#: larger cache. It is the size up to which nvgraft reads one.
_LIMITS = (
    (syscalls.RLIMIT_CPU, 10),
    (syscalls.RLIMIT_AS, 2 << 30),
    (syscalls.RLIMIT_NOFILE, 64),
    (syscalls.RLIMIT_FSIZE, 16 << 20),
    (syscalls.RLIMIT_CORE, 0),
)

#: Seconds that it may wait for one thing: who swaps a FIFO in for a file that it is about to open would hold it until its time is
#: over. Nothing keeps a program that has no capability from opening one, whether by mount flags, Landlock or seccomp.
_STILL = 5.0

#: Of what the program prints only the end is kept, in bytes.
_OUTPUT_KEPT = 4096
_CANNOT_EXECUTE = 127
_IMAGE_FD = 3
_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_LOCKED_DOWN = (
    syscalls.MOUNT_ATTR_RDONLY
    | syscalls.MOUNT_ATTR_NOSUID
    | syscalls.MOUNT_ATTR_NODEV
    | syscalls.MOUNT_ATTR_NOEXEC
)


class Jail(Value):
    """Where a program runs and as whom. ``writable`` are (path in the root, descriptor) of directories."""

    __slots__ = ("filter_program", "gid", "pivot", "rootfs_fd", "uid", "writable")

    def __init__(
        self,
        rootfs_fd: int,
        writable: Sequence[tuple[str, int]],
        uid: int,
        gid: int,
        filter_program: bytes,
        pivot: bool,
    ) -> None:
        self.rootfs_fd = rootfs_fd
        self.writable = tuple(writable)
        self.uid = uid
        self.gid = gid
        self.filter_program = filter_program
        self.pivot = pivot


class Outcome(Value):
    """How the program ended: ``signal`` or else ``code``, why it was killed if it was ``late``, the last line it printed."""

    __slots__ = ("code", "last_line", "late", "signal")

    def __init__(self, status: int, late: str, output: bytes) -> None:
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.code = 0 if self.signal else os.WEXITSTATUS(status)
        self.late = late
        self.last_line = output.decode("utf-8", "replace").rstrip().rpartition("\n")[2]


def run(image: int, argv: Sequence[str], jail: Jail, timeout: float) -> Outcome:
    """Run the program ``image`` for at most ``timeout`` seconds, or until it only waits; a jail that cannot be built is an end with code 1.

    :raises OSError: when not even a process can be made.
    """
    deadline = time.monotonic() + timeout
    fixed_groups = userns.groups_are_fixed()
    started = child.start(
        lambda output: _become(image, argv, jail, output, fixed_groups=fixed_groups)
    )
    late, printed = "", b""
    try:
        with launch.Interruptible():
            stopped, printed = started.follow(deadline, _OUTPUT_KEPT, _STILL)
            if stopped and time.monotonic() < deadline:
                late = f"it had waited for {_STILL:g} seconds for something in the image: a FIFO in a file's place?"
            elif stopped:
                late = f"it had not finished after {timeout:g} seconds"
    finally:
        status = started.end(grace=0)
    return Outcome(_signal.SIGKILL if status is None else status, late, printed)


def _become(
    image: int, argv: Sequence[str], jail: Jail, output: int, *, fixed_groups: bool
) -> NoReturn:
    """Turn this child into the jailed program."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Python ignores SIGPIPE and SIGXFSZ, and a runtime may have left more ignored or blocked (crun blocks them all).
        for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        _enter_root(jail)
        _close_all_but(image)
        for resource, limit in _LIMITS:
            allowed = min(limit, syscalls.get_rlimit(resource)[1])
            syscalls.set_rlimit(resource, allowed, allowed)
        privileges.become(jail.uid, jail.gid, fixed_groups=fixed_groups)
        child.tie(1)
        syscalls.set_seccomp_filter(jail.filter_program)
        code = _CANNOT_EXECUTE
        os.execve(image, list(argv), {})
    except (OSError, ValueError) as error:
        os.write(2, f"confining it failed: {error}".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _enter_root(jail: Jail) -> None:
    """Make a copy of the container's mounts this process's root, read-only but for the writable directories themselves.

    Directories are copied with what is mounted in them: the driver's libraries are mounts there.
    """
    # Copied before unshare: the descriptors are of the container's mount namespace, and from another one not copyable.
    root = _locked_down_copy(jail.rootfs_fd)
    openings = []
    for path, fd in jail.writable:
        copy = _locked_down_copy(fd)
        # What the container may not write stays so; and of what may be written only this mount, none that lies in it.
        if not os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            syscalls.mount_setattr(copy, 0, attr_clear=syscalls.MOUNT_ATTR_RDONLY)
        openings.append((path, copy))
    syscalls.unshare(
        syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    )
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.move_mount(root, os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    for path, copy in openings:
        syscalls.move_mount(
            copy, syscalls.openat2(root, path, os.O_PATH | os.O_DIRECTORY, _IN_ROOT)
        )
    for name in ("proc", "sys", "dev"):
        try:
            covered = syscalls.openat2(
                root, name, os.O_PATH | os.O_DIRECTORY, _IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
            )
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                raise
            continue
        syscalls.move_mount(syscalls.new_mount("tmpfs", {"mode": "0555"}, _LOCKED_DOWN), covered)
    os.fchdir(root)
    if jail.pivot:
        syscalls.pivot_root(".", ".")
        syscalls.umount2(".", syscalls.MNT_DETACH)
    else:
        os.chroot(".")
    os.chdir("/")


def _locked_down_copy(directory: int) -> int:
    copy = syscalls.open_tree(
        directory, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE | syscalls.AT_EMPTY_PATH
    )
    # Private as well: what is mounted on a copy of a shared mount would appear in the container, or on the host.
    syscalls.mount_setattr(copy, _LOCKED_DOWN, syscalls.MS_PRIVATE, recursive=True)
    return copy


def _close_all_but(image: int) -> None:
    """Leave an empty stdin, the output pipe as 1 and 2, and the program, which is close-on-exec."""
    os.dup2(os.pipe2(os.O_CLOEXEC)[0], 0)
    if image > 3:
        syscalls.close_range(3, image - 1)
    syscalls.close_range(image + 1, ~0)
