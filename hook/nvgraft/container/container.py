"""The container that is being started: its process, its mounts and its root file system, held by descriptors.

Everything is opened once, checked, and from then on only the descriptors are used (SECURITY R11, R12). It is looked at
from the host's mount namespace; entering the container's is the executor's business.

A standalone container is a directory in the caller's own mount namespace, which the caller will enter later on: there is
no process and no namespace to check, the rest holds.
"""

from __future__ import annotations

import errno

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_text, reason
from nvgraft.system import privileges, syscalls, userns
from nvgraft.system.mountinfo import Mount, MountTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_STATX_ATTR_MOUNT_ROOT = 0x2000
_PID_MAX = (
    1 << 31
) - 1  # of the type; a larger number would come to mean another process on its way to the kernel


class Container:
    """A process that an engine has set up but not started, and its rootfs. Held until this process ends.

    Without ``pidfd`` it is standalone; ``pid`` is then the process that is going to be the container's.
    """

    def __init__(
        self, pid: int, pidfd: int | None, rootfs: str, rootfs_fd: int, uid: int, gid: int
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.rootfs = rootfs
        self.rootfs_fd = rootfs_fd
        self.uid = uid
        self.gid = gid
        self.mounts = MountTable()
        self._rootfs_mount = -1

    def read_mounts(self) -> None:
        """Look at the container's mounts, which planning and applying go by; see ``mounts``, by mount id.

        :raises Refusal: when the process has ended.
        """
        path = f"/proc/{'self' if self.standalone else self.pid}/mountinfo"
        text = _step(
            f"open failed: {path}", "the container's process has ended", lambda: read_text(path)
        )
        self.mounts = MountTable(text)

    @property
    def standalone(self) -> bool:
        """Whether the mount namespace is our own."""
        return self.pidfd is None

    def mount_of(self, fd: int) -> Mount:
        """Return the container's mount on which ``fd`` was opened.

        :raises Refusal: when it is none that the container had when it was opened.
        """
        mount = self.mounts.get(syscalls.mount_id(fd))
        if mount is None:
            raise Refusal(
                "mount",
                f"mount operation failed: {self.rootfs}: unknown mount",
                "the container's mounts change while it starts",
            )
        return mount

    def is_on_rootfs(self, fd: int) -> bool:
        """Tell whether ``fd`` lies on the mount of the root file system itself."""
        if self._rootfs_mount < 0:
            self._rootfs_mount = syscalls.mount_id(
                self.rootfs_fd
            )  # a descriptor never comes to be on another mount
        return syscalls.mount_id(fd) == self._rootfs_mount

    def volume_of(self, fd: int) -> str | None:
        """Return the mount point, as the container sees it, of the volume that the directory ``fd`` is on.

        None where creating is allowed: on the rootfs itself, on the runtime's own /dev, and on the tmpfs that stands for a
        kernel module's /proc/driver (SECURITY R21).
        """
        if self.is_on_rootfs(fd):
            return None
        mount = self.mount_of(fd)
        inside = self.inside(mount)
        if inside in {"/dev", "/proc/driver"} and mount.fstype == "tmpfs" and mount.root == "/":
            return None
        return inside

    def inside(self, mount: Mount) -> str:
        """Return the mount point of ``mount`` as the container will see it."""
        return (
            mount.point[len(self.rootfs) :]
            if mount.point.startswith(self.rootfs + "/")
            else mount.point
        )


def hold_process(pid: int) -> int:
    """Return a pidfd, so that from here on ``pid`` cannot come to mean another process.

    :raises Refusal: stage ``container`` for a pid that is not a container's.
    """
    hint = "the state on stdin must carry the pid of the container's first process, as the runtime sees it"
    if not 1 < pid <= _PID_MAX or pid in {os.getpid(), os.getppid()}:
        raise Refusal("container", f"invalid process id: {pid}", hint)
    try:
        pidfd = syscalls.pidfd_open(pid)
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        # The reference looks at /proc/PID first and says so.
        cause = "no such file or directory" if error.errno == errno.ESRCH else reason(error)
        raise Refusal(
            "container",
            f"stat failed: /proc/{pid}: {cause}",
            f"the container's process is gone; {hint}",
        ) from error
    if _has_no_program(pid):
        os.close(pidfd)
        raise Refusal(
            "container",
            f"invalid process id: {pid}",
            f"it is a thread of the kernel, or has ended; {hint}",
        )
    return pidfd


def _has_no_program(pid: int) -> bool:
    """Tell whether ``pid`` is a thread of the kernel, whose namespaces are the host's, or a process that has ended."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False  # not ours to look at: entering its namespace will say so
    return False


def check_rootfs_path(rootfs: str) -> None:
    """Refuse a rootfs that is the host's own root by its name alone; the reference looks no further.

    :raises Refusal: stage ``input``.
    """
    if not rootfs.startswith("/") or not rootfs.strip("/"):
        raise Refusal(
            "input",
            "invalid rootfs directory",
            f"root.path in config.json leads to {rootfs!r}: it must be a directory other than /",
        )


def open_container(pid: int, pidfd: int, rootfs: str) -> Container:
    """Open the rootfs of ``pid``, which the caller holds by ``pidfd``, and check that it is a container's.

    :param rootfs: absolute path of the rootfs; valid in the container's mount namespace, which before the runtime's pivot
        still shows the whole host.
    :raises Refusal: stages ``input`` and ``container``.
    """
    check_rootfs_path(rootfs)
    if _namespace(pid) == _namespace("self"):
        raise Refusal(
            "container",
            f"process {pid} has no mount namespace of its own",
            "a container without one would get the driver mounted over the host: give it a mount namespace",
        )
    gone = f"process {pid} is gone, or the hook is not root"
    owner = _step(f"stat failed: /proc/{pid}", gone, lambda: os.stat(f"/proc/{pid}"))
    flags = os.O_PATH | os.O_DIRECTORY
    root_fd = _step(
        f"open failed: /proc/{pid}/root",
        gone,
        lambda: os.open(f"/proc/{pid}/root", flags | os.O_CLOEXEC),
    )
    try:
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
        fix = "root.path in config.json must name the container's rootfs"
        rootfs_fd = _step(
            f"open failed: {rootfs}", fix, lambda: syscalls.openat2(root_fd, rootfs, flags, resolve)
        )
    finally:
        syscalls.close(root_fd)
    try:
        container = Container(pid, pidfd, rootfs.rstrip("/"), rootfs_fd, owner.st_uid, owner.st_gid)
        _check_rootfs(container)
    except BaseException:
        syscalls.close(rootfs_fd)
        raise
    return container


def open_standalone(rootfs: str) -> Container:
    """Open the directory ``rootfs`` of this mount namespace, in which a procfs has to be mounted already.

    The container's process is our parent, as the reference has it (reference behaviour 4.5), and what is made belongs to its
    owner.

    :raises Refusal: stages ``input`` and ``container``.
    """
    check_rootfs_path(rootfs)
    pid = os.getppid() or os.getpid()  # 0: a parent outside of this pid namespace
    flags = os.O_PATH | os.O_DIRECTORY
    rootfs_fd = _step(
        f"open failed: {rootfs}",
        "ROOTFS must be a directory",
        lambda: os.open(rootfs, flags | os.O_CLOEXEC),
    )
    try:
        path = os.readlink(f"/proc/self/fd/{rootfs_fd}")
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
        hint = "without --pid, ROOTFS needs a procfs of its own: mount one at ROOTFS/proc first"
        proc_fd = _step(
            f"stat failed: {path}/proc/{pid}",
            hint,
            lambda: syscalls.openat2(rootfs_fd, f"proc/{pid}", flags | os.O_NOFOLLOW, resolve),
        )
        owner = os.fstat(proc_fd)
        syscalls.close(proc_fd)
        uid, gid = owner.st_uid, owner.st_gid
        if uid == userns.overflow_uid() and userns.inside():
            uid, gid = (
                os.geteuid(),
                os.getegid(),
            )  # nothing can be made for somebody without a number here
        container = Container(pid, None, path, rootfs_fd, uid, gid)
        _check_no_host_root(container)
    except BaseException:
        syscalls.close(rootfs_fd)
        raise
    return container


def enter(container: Container) -> None:
    """Enter the container's mount namespace for good; from now on nothing of the host can be looked up.

    The capabilities to look at other processes are given up with it.

    :raises Refusal: when the process has ended meanwhile, or this process has a second thread (the kernel refuses then).
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Refusal(
            "initialization",
            f"the hook has {threads} threads",
            "a module on its path starts one: this is a defect of nvgraft",
        )
    text = f"open failed: /proc/{container.pid}/ns/mnt"
    pidfd = container.pidfd
    assert pidfd is not None, "a standalone container has no other namespace"
    _step(
        text,
        "the container's process has ended",
        lambda: syscalls.setns(pidfd, syscalls.CLONE_NEWNS),
    )
    privileges.keep(privileges.APPLY)


def _step(text: str, hint: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns; its failure is a refusal of stage ``container`` that starts with ``text``."""
    try:
        return call()
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        if isinstance(error, syscalls.SyscallError) and error.errno == errno.EPERM:
            hint = f"{error}: {error.fix}"
        raise Refusal("container", f"{text}: {reason(error)}", hint) from error


def _namespace(pid: int | str) -> str:
    path = f"/proc/{pid}/ns/mnt"
    return _step(
        f"open failed: {path}",
        "the container's process is gone, the hook is not root, or a security module forbids it",
        lambda: os.readlink(path),
    )


def _check_no_host_root(container: Container) -> None:
    host = os.stat("/")
    rootfs = os.fstat(container.rootfs_fd)
    if (rootfs.st_dev, rootfs.st_ino) == (host.st_dev, host.st_ino):
        raise Refusal(
            "input", "invalid rootfs directory", f"{container.rootfs} is the host's own root"
        )


def _check_rootfs(container: Container) -> None:
    _check_no_host_root(container)
    if not syscalls.mount_attributes(container.rootfs_fd) & _STATX_ATTR_MOUNT_ROOT:
        raise Refusal(
            "input",
            "invalid rootfs directory",
            f"{container.rootfs} is no mount point in the mount namespace of process {container.pid}: every runtime makes it one first",
        )
