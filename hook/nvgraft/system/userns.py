"""Whether this process is in a user namespace, and who its ids are there.

In one, most of the host's users have no number: the kernel shows each of them as the overflow id, root among them.
"""

from __future__ import annotations

from nvgraft.base._os import os

_IDENTITY = ["0", "0", "4294967295"]
_OVERFLOW = 65534


def inside() -> bool:
    """Tell whether this process is in a user namespace other than the first one."""
    # A kernel without user namespaces has no map at all.
    return any(
        _read(f"/proc/self/{name}").split() not in ([], _IDENTITY)
        for name in ("uid_map", "gid_map")
    )


def groups_are_fixed() -> bool:
    """Tell whether setgroups(2) is forbidden here for good, as it is where a user without privileges made the namespace."""
    return _read("/proc/self/setgroups").strip() == "deny"


def overflow_uid() -> int:
    """Return the uid as which the kernel shows a user who has no number here."""
    text = _read("/proc/sys/kernel/overflowuid").strip()
    return int(text) if text.isdecimal() else _OVERFLOW


def is_root(uid: int) -> bool:
    """Tell whether a file of owner ``uid`` counts as the host root's: in a user namespace its owner may have no number
    (SECURITY R23)."""
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
