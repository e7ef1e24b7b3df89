"""Confine a child that runs code or reads text that this process does not trust.

The child calls these functions itself, after it has loaded what it needs and before it begins:
it closes inherited descriptors, limits its resources, and gives up ids, capabilities and the
system calls that it does not need.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.system import child, privileges, seccomp, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def close_all_but(writer: int) -> None:
    """Close all descriptors but ``writer``; stdin, stdout and stderr become /dev/null."""
    child.silence()
    if writer > 3:
        syscalls.close_range(3, writer - 1)
    syscalls.close_range(writer + 1, ~0)


def limit(limits: Sequence[tuple[int, int]]) -> None:
    """Lower resource limits, each given as its number and its value, unless they are lower
    already.
    """
    for resource, value in limits:
        allowed = min(value, syscalls.get_rlimit(resource)[1])
        syscalls.set_rlimit(resource, allowed, allowed)


def overflow_ids() -> tuple[int, int]:
    """Return the kernel's overflow user and group id, which own nothing."""
    ids = []
    for name in ("overflowuid", "overflowgid"):
        try:
            with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
                ids.append(int(file.read()))
        except (OSError, ValueError):
            ids.append(65534)
    return ids[0], ids[1]


def give_up(writer: int, uid: int, gid: int, *, fixed_groups: bool) -> None:
    """Take these ids if this is root, and give up all capabilities, new processes and the system
    calls of :data:`nvgraft.system.seccomp.POWERS`, for good.

    :param writer: the descriptor of the answer; the child ends with its reader.
    :param fixed_groups: as for :func:`nvgraft.system.privileges.become`.
    """
    if os.geteuid() == 0:
        privileges.become(uid, gid, fixed_groups=fixed_groups)
    else:
        privileges.confine()
    child.tie(writer)
    try:
        syscalls.set_seccomp_filter(
            seccomp.denying(os.uname().machine, seccomp.POWERS, processes=False)
        )
    except ValueError:
        # The numbers of this machine's system calls are unknown. ldconfig is refused there; what
        # is confined here has given up its ids and capabilities.
        return
