"""The capabilities that the hook keeps, phase by phase; docs/security.md has the table with the reasons.

What a phase has no use for is gone for good, from the bounding set as well. The children that run modprobe, ldconfig and
NVML keep less, and say so themselves.
"""

import errno
import os

import prctl

from nvgraft.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Until the end: mounting, making files for the container's root, device rules, the loader cache, and taking it all back.
APPLY = frozenset(
    (
        prctl.CAP_CHOWN,
        prctl.CAP_DAC_OVERRIDE,
        prctl.CAP_FOWNER,
        prctl.CAP_FSETID,
        prctl.CAP_KILL,
        prctl.CAP_NET_ADMIN,
        prctl.CAP_SETGID,
        prctl.CAP_SETPCAP,
        prctl.CAP_SETUID,
        prctl.CAP_SYSLOG,
        prctl.CAP_SYS_ADMIN,
        prctl.CAP_SYS_CHROOT,
    )
)
#: Until the container's mount namespace is entered: looking at the host, at the container's process and root file system.
LOOK = APPLY | {prctl.CAP_DAC_READ_SEARCH, prctl.CAP_SYS_PTRACE}
#: Until the driver's modules and nodes are there.
START = LOOK | {prctl.CAP_MKNOD, prctl.CAP_SYS_MODULE}


def demand() -> None:
    """Refuse to begin without the one capability that everything needs.

    :raises Refusal: stage ``permission``, in the reference's words.
    """
    if not prctl.cap_effective.sys_admin:
        hint = "run it as root, or, rootless, as the root of a user namespace; the engine must not take CAP_SYS_ADMIN from its hooks"
        raise Refusal("permission", "capability change failed: operation not permitted", hint)


def keep(capabilities: "Collection[int]") -> None:
    """Give up every other capability for good, for this process and all that it starts."""
    others = [capability for capability in prctl.ALL_CAPS if capability not in capabilities]
    if prctl.cap_effective.setpcap:
        forbid(others)
    prctl.set_caps((others, prctl.ALL_FLAGS, False))


def forbid(capabilities: "Iterable[int]") -> None:
    """Take these out of the bounding set: no program can get them again. Needs CAP_SETPCAP."""
    for capability in capabilities:
        try:
            prctl.capbset_drop(capability)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: newer than this kernel
                raise


def become(uid: int, gid: int, *, fixed_groups: bool) -> None:
    """Take these ids, no group besides, and no capability for good, not even one that is newer than this program knows.

    :param fixed_groups: whether setgroups(2) is forbidden here.
    """
    forbid(prctl.ALL_CAPS)
    # Root gets no capability by an execve.
    prctl.set_securebits(prctl.SECBIT_NOROOT | prctl.SECBIT_NOROOT_LOCKED)
    if os.getgroups() and not fixed_groups:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    confine()


def confine() -> None:
    """Keep no capability, and get none by executing something."""
    prctl.set_caps((prctl.ALL_CAPS, prctl.ALL_FLAGS, False))
    prctl.set_no_new_privs(1)
