"""The capabilities that the hook keeps, phase by phase; docs/security.md has the table with the reasons.

What a phase has no use for is gone for good, from the bounding set as well. The children that run modprobe, ldconfig and
NVML keep less, and say so themselves.

The C half of python-prctl is used by itself: the other half makes properties of every capability, three times over, at every
start (docs/decisions/0026).
"""

from __future__ import annotations

import errno

import _prctl

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

DAC_OVERRIDE = _prctl.CAP_DAC_OVERRIDE
_ALL = tuple(range(_prctl.CAP_LAST_CAP + 1))

#: Until the end: mounting, making files for the container's root, device rules, the loader cache, and taking it all back.
APPLY = frozenset(
    (
        _prctl.CAP_CHOWN,
        _prctl.CAP_DAC_OVERRIDE,
        _prctl.CAP_FOWNER,
        _prctl.CAP_FSETID,
        _prctl.CAP_KILL,
        _prctl.CAP_NET_ADMIN,
        _prctl.CAP_SETGID,
        _prctl.CAP_SETPCAP,
        _prctl.CAP_SETUID,
        _prctl.CAP_SYSLOG,
        _prctl.CAP_SYS_ADMIN,
        _prctl.CAP_SYS_CHROOT,
    )
)
#: Until the container's mount namespace is entered: looking at the container's process.
LOOK = APPLY | {_prctl.CAP_SYS_PTRACE}
#: Until the driver's modules and nodes are there.
START = LOOK | {_prctl.CAP_MKNOD, _prctl.CAP_SYS_MODULE}


def demand() -> None:
    """Refuse to begin without the one capability that everything needs.

    :raises Refusal: stage ``permission``, in the reference's words.
    """
    if not _has(_prctl.CAP_SYS_ADMIN):
        hint = "run it as root, or, rootless, as the root of a user namespace; the engine must not take CAP_SYS_ADMIN from its hooks"
        raise Refusal("permission", "capability change failed: operation not permitted", hint)


#: What this process has given up already.
_gone: set[int] = set()


def keep(capabilities: Collection[int]) -> None:
    """Give up every other capability for good, for this process and all that it starts."""
    others = [
        capability
        for capability in _ALL
        if capability not in capabilities and capability not in _gone
    ]
    if _has(_prctl.CAP_SETPCAP):
        forbid(others)
    _give_up(others)
    _gone.update(others)


def regain(capability: int) -> None:
    """Make a capability effective again that the kernel has only set aside, as it does when file system ids change."""
    _prctl.set_caps([capability], [], [], [], [], [])


def _has(capability: int) -> bool:
    return bool(_prctl.get_caps([capability], [], [])[_prctl.CAP_EFFECTIVE][capability])


def _give_up(capabilities: Sequence[int]) -> None:
    gone = list(capabilities)
    _prctl.set_caps(
        [], [], [], gone, gone, gone
    )  # of the effective, the permitted and the inheritable set


def forbid(capabilities: Iterable[int]) -> None:
    """Take these out of the bounding set: no program can get them again. Needs CAP_SETPCAP."""
    for capability in capabilities:
        try:
            _prctl.prctl(_prctl.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: newer than this kernel
                raise


def become(uid: int, gid: int, *, fixed_groups: bool) -> None:
    """Take these ids, no group besides, and no capability for good, not even one that is newer than this program knows.

    :param fixed_groups: whether setgroups(2) is forbidden here.
    """
    forbid(_ALL)
    # Root gets no capability by an execve.
    _prctl.prctl(_prctl.PR_SET_SECUREBITS, _prctl.SECBIT_NOROOT | _prctl.SECBIT_NOROOT_LOCKED)
    if os.getgroups() and not fixed_groups:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    confine()


def confine() -> None:
    """Keep no capability, and get none by executing something."""
    _give_up(_ALL)
    syscalls.set_no_new_privs()
