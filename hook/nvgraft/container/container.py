"""The container that is being started: its process, its mounts and its root file system, held by
descriptors.

Everything is opened once and checked; from then on only the descriptors are used (SECURITY R11,
R12). The container is read from the host's mount namespace; the executor enters the container's
with :func:`enter`.

A standalone container is a directory in the caller's own mount namespace, in which the caller
starts a program later. It has no process and no namespace to check; all other checks are made.

A bare container is a directory without a procfs that ``configure`` prepares for the program that
started the container's process: gVisor's runsc and its gofer. The directory need not be a mount
point, because the process mounts it later (docs/decisions/0057).
"""

from __future__ import annotations

import errno

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_text, reason
from nvgraft.formats.tree import Bounds
from nvgraft.system import privileges, syscalls
from nvgraft.system.mountinfo import (
    Mount,
    MountTable,
    fuse_mounts,
    keeps_deleted_files,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nvgraft.base.finding import Finding

    T = TypeVar("T")

_STATX_ATTR_MOUNT_ROOT = 0x2000
_PROC_ROOT_INODE = 1
#: Bytes of a container's mountinfo. The kernel allows a namespace 100,000 mounts by default; their
#: lines have some 150 bytes each.
_MOUNTS_LIMIT = 32 << 20
#: The largest value of the kernel's type: a larger number would be cut off and mean another
#: process.
_PID_MAX = (1 << 31) - 1


class Container:
    """A process that an engine has set up but not started, and its rootfs. Its descriptors are open
    until this process ends.

    Without ``pidfd`` the container is standalone; ``pid`` is then the process that will become the
    container's.
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
        #: Whether the program that started ``pid`` has started this process too, for ``configure``.
        self.by_its_starter = False
        #: Whether this is a bare container; known once the mounts are read.
        self.bare = False
        self.bounds = Bounds()
        #: What is noticed about the container while the plan is applied.
        self.findings: list[Finding] = []
        #: The FUSE mounts of the container's mount namespace.
        self.fuse: list[Mount] = []
        #: The mount points of those FUSE volumes, as the container sees them, that must not be
        #: touched.
        self.shunned: tuple[str, ...] = ()
        self._rootfs_mount = -1

    def bound(self, limits: tuple[int, int, int, int]) -> None:
        """Begin to count what is read; ``limits`` are the arguments of ``Bounds``."""
        self.bounds = Bounds(*limits)

    def read_mounts(self, allow_fuse: Callable[[], bool] = lambda: True) -> None:
        """Read the container's mounts into ``mounts`` (by mount id), which planning and applying
        use.

        :param allow_fuse: tells whether config.toml allows to look at FUSE file systems; called
            only if there are some.
        :raises Refusal: the process has ended, or its root file system is on a FUSE file system
            that is not allowed.
        """
        path = f"/proc/{'self' if self.standalone else self.pid}/mountinfo"
        try:
            text = read_text(path, _MOUNTS_LIMIT)
        except OSError as error:
            hint = "the container's process has ended"
            if error.errno == errno.EFBIG:
                hint = f"its mounts have more than {_MOUNTS_LIMIT >> 20} MiB: give it fewer volumes"
            raise Refusal("container", f"open failed: {path}: {reason(error)}", hint) from error
        self.mounts = MountTable(text)
        self.fuse = fuse_mounts(text)
        if self.fuse and not allow_fuse():
            from nvgraft.container.fuse import shunned_volumes

            self.shunned = shunned_volumes(self.rootfs, self.rootfs_fd, self.fuse)
        self.bare = self.by_its_starter and not self._has_procfs()

    def _has_procfs(self) -> bool:
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
        try:
            fd = syscalls.openat2(self.rootfs_fd, "proc", os.O_PATH | os.O_DIRECTORY, resolve)
        except OSError:
            return False  # there is none, or it is a link or a file, which the plan refuses
        try:
            return self.is_procfs(fd)
        finally:
            syscalls.close(fd)

    def is_procfs(self, fd: int) -> bool:
        """Tell whether the directory ``fd`` is the root of a procfs."""
        mount = self.mounts.get(syscalls.mount_id(fd))
        return (
            mount is not None and mount.fstype == "proc" and os.fstat(fd).st_ino == _PROC_ROOT_INODE
        )

    @property
    def standalone(self) -> bool:
        """Whether the container is in this process's mount namespace."""
        return self.pidfd is None

    def is_mount_point(self) -> bool:
        """Tell whether the root file system is a mount of its own."""
        return bool(syscalls.mount_attributes(self.rootfs_fd) & _STATX_ATTR_MOUNT_ROOT)

    def mount(self, mount_id: int) -> Mount:
        """Return the container's mount ``mount_id``, which an open descriptor is on.

        :raises Refusal: the container had no such mount when its mounts were read.
        """
        mount = self.mounts.get(mount_id)
        if mount is None:
            raise Refusal(
                "mount",
                f"mount operation failed: {self.rootfs}: unknown mount",
                "the container's mounts change while it starts: stop the program that changes them",
            )
        return mount

    def is_rootfs(self, mount_id: int) -> bool:
        """Tell whether ``mount_id`` is the mount of the root file system itself."""
        if self._rootfs_mount < 0:
            # The mount of an open descriptor never changes, so it is asked for once.
            self._rootfs_mount = syscalls.mount_id(self.rootfs_fd)
        return mount_id == self._rootfs_mount

    def volume(self, mount_id: int) -> str | None:
        """Return the mount point, as the container sees it, of the mount ``mount_id``, if that is a
        volume.

        It is None for mounts where files may be made: the rootfs itself, the runtime's own /dev,
        and the tmpfs that stands for a kernel module's /proc/driver (SECURITY R21).
        """
        if self.is_rootfs(mount_id):
            return None
        mount = self.mount(mount_id)
        inside = self.inside(mount)
        if inside in {"/dev", "/proc/driver"} and mount.fstype == "tmpfs" and mount.root == "/":
            return None
        return inside

    def keeps_deleted_files(self, fd: int) -> bool:
        """Tell whether deleted files stay in their directory until they are closed, on the file
        system that ``fd`` is on.
        """
        try:
            mount = self.mounts.get(syscalls.mount_id(fd))
        except OSError:
            return False  # there is no way to tell
        return mount is not None and keeps_deleted_files(mount.fstype)

    def inside(self, mount: Mount) -> str:
        """Return the mount point of ``mount`` as the container will see it."""
        inside = mount.point.startswith(self.rootfs + "/")
        return mount.point[len(self.rootfs) :] if inside else mount.point

    def propagates(self, mount: Mount) -> bool:
        """Tell whether a mount that is made below ``mount`` appears in other mount namespaces.

        In a bare container :func:`enter` ends that.
        """
        return mount.shared and not self.bare


def hold_process(pid: int) -> int:
    """Open a pidfd for ``pid``. The number may be reused after the process ends; :func:`enter` uses
    the pidfd and then fails.

    :raises Refusal: stage ``container`` for a pid that is not a container's.
    """
    hint = (
        "the state on stdin must have the pid of the container's first process, as the runtime"
        " sees it"
    )
    if not 1 < pid <= _PID_MAX or pid in {os.getpid(), os.getppid()}:
        raise Refusal("container", f"invalid process id: {pid}", hint)
    try:
        pidfd = syscalls.pidfd_open(pid)
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        # The reference first calls stat() on /proc/PID, and its error names that.
        cause = "no such file or directory" if error.errno == errno.ESRCH else reason(error)
        raise Refusal(
            "container",
            f"stat failed: /proc/{pid}: {cause}",
            f"the container's process has ended; {hint}",
        ) from error
    if _has_no_program(pid):
        os.close(pidfd)
        raise Refusal(
            "container",
            f"invalid process id: {pid}",
            f"it is a kernel thread, or has ended; {hint}",
        )
    return pidfd


def _has_no_program(pid: int) -> bool:
    """Tell whether ``pid`` is a kernel thread, which has the host's namespaces, or a process that
    has ended.
    """
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False  # this user may not read the link: entering its namespace will fail
    return False


def check_rootfs_path(rootfs: str) -> None:
    """Check that the path is absolute and not that of the host's root, as the reference does.

    :raises Refusal: stage ``input``.
    """
    if not rootfs.startswith("/") or not rootfs.strip("/"):
        raise Refusal(
            "input",
            "invalid rootfs directory",
            f"root.path in config.json leads to {rootfs!r}: set it to a directory other than /",
        )


def open_container(pid: int, pidfd: int, rootfs: str, *, by_its_starter: bool = False) -> Container:
    """Open the rootfs of ``pid``, for which the caller has opened ``pidfd``, and check that it is a
    container's.

    :param rootfs: absolute path of the rootfs in the container's mount namespace, which before the
        runtime's pivot_root still has the whole host.
    :param by_its_starter: accept a bare container, if this process and ``pid`` were started by the
        same program.
    :raises Refusal: stages ``input`` and ``container``.
    """
    check_rootfs_path(rootfs)
    if namespace(pid) == namespace("self"):
        raise Refusal(
            "container",
            f"process {pid} has no mount namespace of its own",
            "give the container a mount namespace: without one the driver would be mounted"
            " over the host",
        )
    gone = f"process {pid} has ended, or the hook does not run as root"
    owner = step(f"stat failed: /proc/{pid}", gone, lambda: os.stat(f"/proc/{pid}"))
    flags = os.O_PATH | os.O_DIRECTORY
    root_fd = step(
        f"open failed: /proc/{pid}/root",
        gone,
        lambda: os.open(f"/proc/{pid}/root", flags | os.O_CLOEXEC),
    )
    try:
        rootfs_fd = _open_rootfs(pid, root_fd, rootfs)
        try:
            container = Container(
                pid, pidfd, rootfs.rstrip("/"), rootfs_fd, owner.st_uid, owner.st_gid
            )
            check_no_host_root(container)
            mounted = container.is_mount_point()
            if by_its_starter or not mounted:
                from nvgraft.container.starter import check_no_mount_point, has_same_starter

                container.by_its_starter = by_its_starter and has_same_starter(pid)
                if not mounted:
                    check_no_mount_point(
                        container.rootfs, rootfs_fd, root_fd, pid, container.by_its_starter
                    )
        except BaseException:
            syscalls.close(rootfs_fd)
            raise
    finally:
        syscalls.close(root_fd)
    return container


def _open_rootfs(pid: int, root_fd: int, rootfs: str) -> int:
    """Open ``rootfs`` from the root of the mount namespace of ``pid``."""
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
    try:
        return step(
            f"open failed: {rootfs}",
            "set root.path in config.json to the container's rootfs",
            lambda: syscalls.openat2(root_fd, rootfs, os.O_PATH | os.O_DIRECTORY, resolve),
        )
    except Refusal as refusal:
        cause = refusal.__cause__
        missing = isinstance(cause, OSError) and cause.errno == errno.ENOENT
        if not missing or is_host_root(root_fd):
            raise
        hint = (
            f"process {pid} does not have the host's root as before a start: it is a sandbox"
            " (gVisor, Kata Containers), which a prestart hook cannot serve; for gVisor, run"
            " runsc --nvproxy and name the hook nvidia-container-runtime-hook"
        )
        raise Refusal(refusal.stage, refusal.text, hint) from cause


def enter(container: Container) -> None:
    """Enter the container's mount namespace for good; from then on no path of the host can be
    opened.

    The process also gives up its capabilities to read other processes. The namespace is that of the
    process that the pidfd refers to: setns(2) fails if it has ended, even if its number now means
    another process.

    The mounts of a bare container's namespace are made slaves, which gVisor's gofer does itself
    later: until then they are those of the host, and what is mounted below them would appear there.

    :raises Refusal: the process has ended, or this process has a second thread (which the kernel
        refuses).
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Refusal(
            "initialization",
            f"the hook has {threads} threads",
            "this is a defect of nvgraft, please report it: a module that it loads starts threads",
        )
    text = f"open failed: /proc/{container.pid}/ns/mnt"
    pidfd = container.pidfd
    assert pidfd is not None, "a standalone container has no other namespace"
    step(
        text,
        "the container's process has ended",
        lambda: syscalls.setns(pidfd, syscalls.CLONE_NEWNS),
    )
    privileges.keep(privileges.APPLY)
    if container.bare:
        fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        syscalls.mount_setattr(fd, 0, syscalls.MS_SLAVE, recursive=True)
        syscalls.close(fd)


def step(text: str, hint: str, call: Callable[[], T]) -> T:
    """Return the result of ``call``. If it fails, refuse in stage ``container`` with ``text`` and
    the cause.
    """
    try:
        return call()
    except syscalls.MissingFeature:
        raise
    except OSError as error:
        if isinstance(error, syscalls.SyscallError) and error.errno == errno.EPERM:
            hint = f"{error}: {error.fix}"
        raise Refusal("container", f"{text}: {reason(error)}", hint) from error


def namespace(pid: int | str) -> str:
    """Return the name of the mount namespace of ``pid``.

    :raises Refusal: stage ``container``: it cannot be read.
    """
    path = f"/proc/{pid}/ns/mnt"
    return step(
        f"open failed: {path}",
        "the container's process has ended, the hook does not run as root, or a security"
        " module forbids it",
        lambda: os.readlink(path),
    )


def is_host_root(rootfs_fd: int) -> bool:
    """Tell whether the directory ``rootfs_fd`` is the root of this process."""
    host = os.stat("/")
    return syscalls.identity(rootfs_fd) == (host.st_dev, host.st_ino)


def check_no_host_root(container: Container) -> None:
    """Check that the rootfs is not the root of this process.

    :raises Refusal: stage ``input``.
    """
    if is_host_root(container.rootfs_fd):
        raise Refusal(
            "input", "invalid rootfs directory", f"{container.rootfs} is the host's own root"
        )
