"""Mount a throw-away copy of this machine, with the same paths, whose changes are kept in memory.

Every file system of this machine becomes the lower layer of an overlay, so that COMMAND finds the
working tree, its Python and its data in their places. /dev, /proc and /run are new. /sys is this
machine's own, because runtimes need the real cgroups: a cgroup that is made inside stays until it
is removed. :mod:`nvgraft_cli.simulate.host_maker` makes the copy a GPU host.
"""

import os
import stat
from collections.abc import Mapping

from nvgraft.system import syscalls
from nvgraft.system.mountinfo import Mount, parse_mountinfo

_AT_FDCWD = -100
#: The directory in which the layers are built; the copy gets a new one in its place.
_SCAFFOLD = "/run"
#: Mounts at and below these are not copied: the copy has its own.
_RENEWED = ("/proc", "/sys", "/dev", "/run")
_CHARACTER_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "ptmx": (5, 2),
}
_DEV_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


def enter() -> list[str]:
    """Replace the root of this process by the copy.

    The caller must be the first process of new mount and pid namespaces.

    :returns: notes for the user: mounts that are read-only in the copy.
    :raises OSError: a mount failed (:class:`nvgraft.system.syscalls.SyscallError` says which).
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = parse_mountinfo(file.read())
    name_servers = _resolv_conf_in_run()
    syscalls.mount(None, "/", None, syscalls.MS_PRIVATE | syscalls.MS_REC)
    syscalls.mount("tmpfs", _SCAFFOLD, "tmpfs", syscalls.MS_NODEV, "mode=0700")
    new_root = f"{_SCAFFOLD}/root"
    os.mkdir(new_root)
    read_only = []
    for index, target in enumerate(["/", *_copied(mounts)]):
        place = new_root + ("" if target == "/" else target)
        if os.path.isdir(target) and os.path.isdir(place):
            try:
                _overlay(target, place, f"{_SCAFFOLD}/{index}")
                continue
            except OSError:
                if target == "/":
                    raise
        if os.path.lexists(place):
            _show_read_only(target, place)
            read_only.append(target)
    _kernel_file_systems(new_root)
    _run(new_root, name_servers)
    os.chdir(new_root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
    return (
        [f"read-only on the simulated host, for lack of an overlay: {', '.join(read_only)}"]
        if read_only
        else []
    )


def _copied(mounts: list[Mount]) -> list[str]:
    """Return the mount points that need a layer of their own, parents first.

    Automount points are left out, because touching one may hang.
    """
    targets = {mount.point for mount in mounts if mount.point != "/" and mount.fstype != "autofs"}
    return sorted(
        target
        for target in targets
        if not target.startswith(tuple(f"{name}/" for name in _RENEWED)) and target not in _RENEWED
    )


def _overlay(lower: str, place: str, layers: str) -> None:
    status = os.stat(lower)
    for part in ("upper", "work"):
        os.makedirs(f"{layers}/{part}")
    # The root of an overlay has the owner and the mode of its upper directory.
    os.chown(f"{layers}/upper", status.st_uid, status.st_gid)
    os.chmod(f"{layers}/upper", stat.S_IMODE(status.st_mode))
    # nvgraft_cli.shell.output recognises a simulated host by SIMULATED_ROOT.
    escaped = "".join("\\" + character if character in "\\:," else character for character in lower)
    syscalls.mount(
        "overlay",
        place,
        "overlay",
        0,
        f"lowerdir={escaped},upperdir={layers}/upper,workdir={layers}/work",
    )


def _show_read_only(source: str, place: str) -> None:
    tree = syscalls.open_tree(_AT_FDCWD, source, syscalls.OPEN_TREE_CLONE)
    target = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_RDONLY)
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)
        os.close(target)


def _kernel_file_systems(new_root: str) -> None:
    syscalls.mount(
        "proc",
        f"{new_root}/proc",
        "proc",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
    )
    syscalls.mount("/sys", f"{new_root}/sys", None, syscalls.MS_BIND | syscalls.MS_REC)
    dev = f"{new_root}/dev"
    syscalls.mount("tmpfs", dev, "tmpfs", syscalls.MS_NOSUID, "mode=0755")
    for name, numbers in _CHARACTER_DEVICES.items():
        make_node(f"{dev}/{name}", stat.S_IFCHR, 0o666, numbers)
    # The kernel's log, which a kubelet and doctor read: of the host's own, not this machine's.
    os.close(os.open(f"{dev}/kmsg", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name, target in _DEV_LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/shm")
    syscalls.mount(
        "tmpfs", f"{dev}/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777"
    )
    if os.path.isdir("/dev/pts"):  # this machine's own, so that a shell keeps its terminal
        os.mkdir(f"{dev}/pts")
        syscalls.mount("/dev/pts", f"{dev}/pts", None, syscalls.MS_BIND)


def _run(new_root: str, files: Mapping[str, bytes]) -> None:
    run = f"{new_root}/run"
    syscalls.mount("tmpfs", run, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    os.mkdir(f"{run}/lock")
    os.chmod(f"{run}/lock", 0o1777)  # noqa: S103 - as every distribution has it
    for path, content in files.items():
        os.makedirs(os.path.dirname(new_root + path), exist_ok=True)
        with open(new_root + path, "wb") as file:
            file.write(content)


def _resolv_conf_in_run() -> dict[str, bytes]:
    """Return the file behind /etc/resolv.conf if it is in /run (systemd-resolved), which is
    replaced.
    """
    path = os.path.realpath("/etc/resolv.conf")
    if not path.startswith("/run/") or not os.path.isfile(path):
        return {}
    with open(path, "rb") as file:
        return {path: file.read()}


def make_node(path: str, kind: int, mode: int, numbers: tuple[int, int] = (0, 0)) -> None:
    """Make the device node, socket or named pipe ``path`` with exactly ``mode``.

    :param kind: the file type, such as stat.S_IFCHR.
    :raises OSError: EPERM if the machine forbids device nodes (a container without CAP_MKNOD).
    """
    os.mknod(path, kind | 0o600, os.makedev(*numbers))
    os.chmod(path, mode)
