"""Run one static program from memory, confined to a container's root file system (SECURITY R31,
R37).

The program gets new mount, pid, network, IPC and UTS namespaces, a root in which only the named
directories are writable and nothing can be executed, the container root's ids without capabilities,
a short list of system calls, resource limits, an empty stdin, and a pipe for its output. It is
killed when it is late and when this process ends, with all processes that it has started. This
process keeps its own namespaces.
"""

from __future__ import annotations

import errno
import time

from nvgraft.base._os import os, signal
from nvgraft.base.values import Value
from nvgraft.system import child, launch, privileges, syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: The reference's limits, except for two. The size of a file is 1, later 2 MiB there, which is too
#: little for the loader cache of an image with many libraries: this is the largest cache that
#: nvgraft reads. Memory of its own is not limited there, and an image may make ldconfig use any
#: amount (SECURITY R41); libraries that it maps do not count.
_LIMITS = (
    (syscalls.RLIMIT_CPU, 10),
    (syscalls.RLIMIT_AS, 2 << 30),
    (syscalls.RLIMIT_DATA, 128 << 20),
    (syscalls.RLIMIT_NOFILE, 64),
    (syscalls.RLIMIT_FSIZE, 16 << 20),
    (syscalls.RLIMIT_CORE, 0),
)

#: Seconds that the program may wait without working: a process of the container could replace a
#: file by a FIFO just before it is opened. Neither mount flags nor Landlock nor seccomp prevent
#: opening one.
_STILL = 5.0

#: Bytes of the program's output that are kept, from its end.
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
    """The confinement of a program. ``writable`` has (path in the root, descriptor) of directories.

    ``pivot`` chooses pivot_root(2); otherwise chroot(2) is used.
    """

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


class ProgramEnd(Value):
    """The end of the program: ``signal`` or else exit ``code``, its last line of output, and in
    ``late`` why it was killed, if it was.
    """

    def __init__(self, status: int, late: str, output: bytes) -> None:
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.code = 0 if self.signal else os.WEXITSTATUS(status)
        self.late = late
        self.last_line = output.decode("utf-8", "replace").rstrip().rpartition("\n")[2]


def run(image: int, argv: Sequence[str], jail: Jail, timeout: float) -> ProgramEnd:
    """Run the program in the descriptor ``image`` for at most ``timeout`` seconds.

    If the jail cannot be built, the outcome has code 1 and the reason in its last line.

    :raises OSError: no process can be made.
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
                late = (
                    f"it had waited for {_STILL:g} seconds for something in the image:"
                    " a FIFO in a file's place?"
                )
            elif stopped:
                late = f"it had not finished after {timeout:.1f} seconds"
    finally:
        status = started.end(grace=0)
    return ProgramEnd(signal.SIGKILL if status is None else status, late, printed)


def _become(
    image: int, argv: Sequence[str], jail: Jail, output: int, *, fixed_groups: bool
) -> NoReturn:
    """Turn this child into the jailed program."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Python ignores SIGPIPE and SIGXFSZ, and crun starts hooks with all signals blocked.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
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
    """Make a copy of the container's mounts the root of this process, read-only except for
    ``writable``.

    The copies are recursive, because the driver's libraries are mounts in these directories.
    """
    # Copy before unshare: mounts of another mount namespace cannot be cloned.
    root = _locked_down_copy(jail.rootfs_fd)
    openings = []
    for path, fd in jail.writable:
        copy = _locked_down_copy(fd)
        # A directory that is read-only for the container stays so, and so do all mounts below it.
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
    # Private: a mount on a copy of a shared mount would propagate to the container or to the host.
    syscalls.mount_setattr(copy, _LOCKED_DOWN, syscalls.MS_PRIVATE, recursive=True)
    return copy


def _close_all_but(image: int) -> None:
    """Close every descriptor but an empty stdin, the output pipe (1 and 2) and ``image``."""
    os.dup2(os.pipe2(os.O_CLOEXEC)[0], 0)
    if image > 3:
        syscalls.close_range(3, image - 1)
    syscalls.close_range(image + 1, ~0)
