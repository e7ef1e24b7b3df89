"""Containers in this process's own mount namespace.

``nvgraft configure`` opens them, and the hooks of the stage createContainer: a runtime starts these
in the container's namespaces before it changes the root.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.container.container import (
    Container,
    check_no_host_root,
    check_rootfs_path,
    namespace,
    step,
)
from nvgraft.system import syscalls, userns


def open_own(rootfs: str) -> Container:
    """Open the directory ``rootfs`` of this mount namespace, for a hook in the container's own
    namespaces. This process's user owns everything that is made.

    :raises Refusal: stages ``input`` and ``container``.
    """
    check_rootfs_path(rootfs)
    rootfs_fd = step(
        f"open failed: {rootfs}",
        "root.path in config.json must be a directory",
        lambda: os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
    )
    path = os.readlink(f"/proc/self/fd/{rootfs_fd}")
    container = Container(os.getpid(), None, path, rootfs_fd, os.geteuid(), os.getegid())
    try:
        check_no_host_root(container)
    except BaseException:
        syscalls.close(rootfs_fd)
        raise
    return container


def is_own_namespace(pid: int) -> bool:
    """Tell whether a hook for the container of ``pid`` is in the container's mount namespace
    already: at the stage createContainer. There ``pid`` is often a number of another pid namespace
    than that of /proc, or 0.

    :raises Refusal: stage ``container``: the process has ended.
    """
    outside = os.readlink("/proc/self") != str(os.getpid())
    return outside or pid <= 1 or pid == os.getppid() or namespace(pid) == namespace("self")


def open_standalone(rootfs: str) -> Container:
    """Open the directory ``rootfs`` of this mount namespace, on whose /proc a procfs must be
    mounted.

    As in the reference (reference behaviour 4.5), the container's process is this process's parent,
    and its owner owns everything that is made.

    :raises Refusal: stages ``input`` and ``container``.
    """
    check_rootfs_path(rootfs)
    pid = os.getppid() or os.getpid()  # 0: a parent outside of this pid namespace
    flags = os.O_PATH | os.O_DIRECTORY
    rootfs_fd = step(
        f"open failed: {rootfs}",
        "ROOTFS must be a directory",
        lambda: os.open(rootfs, flags | os.O_CLOEXEC),
    )
    try:
        path = os.readlink(f"/proc/self/fd/{rootfs_fd}")
        resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
        hint = "without --pid, ROOTFS needs a procfs of its own: mount one at ROOTFS/proc first"
        proc_fd = step(
            f"stat failed: {path}/proc/{pid}",
            hint,
            lambda: syscalls.openat2(rootfs_fd, f"proc/{pid}", flags | os.O_NOFOLLOW, resolve),
        )
        owner = os.fstat(proc_fd)
        syscalls.close(proc_fd)
        uid, gid = owner.st_uid, owner.st_gid
        if uid == userns.overflow_uid() and userns.inside():
            # The parent's owner has no number in this user namespace, so nothing can be made for
            # him.
            uid, gid = os.geteuid(), os.getegid()
        container = Container(pid, None, path, rootfs_fd, uid, gid)
        check_no_host_root(container)
    except BaseException:
        syscalls.close(rootfs_fd)
        raise
    return container
