"""Tell whether this process is in a user namespace, and what ids mean there.

In a user namespace most users of the host, root included, have no id. The kernel shows all of them
as the overflow id.
"""

from __future__ import annotations

from nvgraft.base._os import os

_IDENTITY = ["0", "0", "4294967295"]
_OVERFLOW = 65534


def inside() -> bool:
    """Tell whether this process is in a user namespace other than the first one."""
    # A kernel without user namespaces has no such files.
    return any(
        _read(f"/proc/self/{name}").split() not in ([], _IDENTITY)
        for name in ("uid_map", "gid_map")
    )


def outer_uid() -> int:
    """Return the uid of this process's user in the parent user namespace; in the first one the uid
    itself.
    """
    uid = os.geteuid()
    for row in _read("/proc/self/uid_map").splitlines():
        first, outside, count = map(int, row.split())
        if first <= uid < first + count:
            return outside + uid - first
    return uid


def groups_are_fixed() -> bool:
    """Tell whether setgroups(2) is forbidden, as it is in a namespace that an unprivileged user
    made.
    """
    return _read("/proc/self/setgroups").strip() == "deny"


def overflow_uid() -> int:
    """Return the uid that the kernel shows for users without an id in this namespace."""
    text = _read("/proc/sys/kernel/overflowuid").strip()
    return int(text) if text.isdecimal() else _OVERFLOW


def is_root(uid: int) -> bool:
    """Tell whether ``uid`` stands for the host's root, which may be the overflow id (SECURITY
    R23).
    """
    return uid == 0 or (uid == overflow_uid() and inside())


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", "replace")
    finally:
        os.close(fd)
