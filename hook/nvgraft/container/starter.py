"""Who has started a process, and root file systems that are not mount points.

``nvgraft configure`` takes such a root file system only from the program that started both.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_text
from nvgraft.system import syscalls
from nvgraft.system.trusted import Untrusted, open_trusted_directory


def has_same_starter(pid: int) -> bool:
    """Tell whether ``pid`` is a child of this process, or of one that has started this process,
    maybe through others.

    Init is only accepted as a direct parent: it adopts processes that it has not started.
    """
    starter = _parent(pid)
    ancestor = os.getppid()
    if starter and starter in {os.getpid(), ancestor}:
        return True
    while ancestor > 1 and ancestor != starter:
        ancestor = _parent(ancestor)
    return ancestor > 1


def _parent(pid: int) -> int:
    """Return the parent of ``pid``. It is 0 when ``pid`` has ended or the parent is in another pid
    namespace.
    """
    try:
        text = read_text(f"/proc/{pid}/stat")
    except OSError:
        return 0
    # The name before the state may have any characters.
    return int(text.rpartition(")")[2].split()[1])


def check_no_mount_point(
    rootfs: str, rootfs_fd: int, root_fd: int, pid: int, by_its_starter: bool
) -> None:
    """Check a rootfs that is not a mount point: it must belong to the caller, who has started the
    container's process.

    Otherwise a wrong path or pid would have files made in a directory of the host.

    :param rootfs: its path, and ``rootfs_fd`` the descriptor of it.
    :param root_fd: the root of the container's mount namespace.
    :param pid: the container's process, ``by_its_starter``: whether the program that started it has
        started this process too.
    :raises Refusal: stage ``input``.
    """
    text = "invalid rootfs directory"
    hint = (
        f"{rootfs} is not a mount point in the mount namespace of process"
        f" {pid}: bind it on itself first, as runtimes do"
    )
    if not by_its_starter:
        raise Refusal("input", text, hint)
    try:
        fd = open_trusted_directory(root_fd, rootfs)
    except Untrusted as error:
        hint = f"{hint}, or let only the caller be able to change it ({error})"
        raise Refusal("input", text, hint) from error
    except OSError as error:
        raise Refusal("input", text, f"{hint} ({error})") from error
    opened, trusted = os.fstat(rootfs_fd), os.fstat(fd)
    syscalls.close(fd)
    if (opened.st_dev, opened.st_ino) != (trusted.st_dev, trusted.st_ino):
        raise Refusal("input", text, f"{rootfs} was replaced meanwhile")
