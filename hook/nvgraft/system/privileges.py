"""Drop capabilities phase by phase; docs/security.md has the table with the reasons.

Capabilities that later phases do not need are dropped for good, from the bounding set as well. The
children that run modprobe, ldconfig and NVML drop more, by themselves.

Only the C half of python-prctl is imported: its Python half makes three property objects of every
capability at every start (docs/decisions/0002).
"""

from __future__ import annotations

import errno

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import NoReturn

try:
    import _prctl
except ImportError:

    class _Missing:
        """Stands for python-prctl where pip has installed only what planning needs."""

        def __getattr__(self, _name: str) -> NoReturn:
            hint = (
                "run apt-get install python3-prctl, or pip install python-prctl,"
                " which needs gcc and libcap-dev; planning works without it"
            )
            raise Refusal("permission", "python-prctl is not installed", hint)

    _prctl = _Missing()

# Numbers of linux/capability.h.
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP = range(9)
NET_ADMIN, SYS_MODULE, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, MKNOD, SYSLOG = 12, 16, 18, 19, 21, 27, 34

#: Until the end: to mount, make files for the container's root, allow devices, write the loader
#: cache, and undo all of it.
APPLY = frozenset(
    (
        CHOWN,
        DAC_OVERRIDE,
        FOWNER,
        FSETID,
        KILL,
        NET_ADMIN,
        SETGID,
        SETPCAP,
        SETUID,
        SYSLOG,
        SYS_ADMIN,
        SYS_CHROOT,
    )
)
#: Until the container's mount namespace is entered: to look at the container's process.
LOOK = APPLY | {SYS_PTRACE}
#: What the child that loads the driver's kernel modules and makes its device nodes keeps.
MODULES = frozenset((MKNOD, SYS_MODULE))
#: At the beginning: to start that child.
START = LOOK | MODULES


def check_installed() -> None:
    """Refuse to go on without python-prctl; a child that finds it missing cannot say how to install
    it.

    :raises Refusal: stage ``permission``.
    """
    _all()


def demand() -> None:
    """Refuse to start without CAP_SYS_ADMIN, which every later step needs.

    :raises Refusal: stage ``permission``, in the reference's words.
    """
    if not _has(SYS_ADMIN):
        hint = (
            "run the hook as root, or as the root of a user namespace;"
            " the engine must not drop CAP_SYS_ADMIN for its hooks"
        )
        raise Refusal("permission", "capability change failed: operation not permitted", hint)


#: The capabilities that this process has dropped.
_gone: set[int] = set()


def keep(capabilities: Collection[int]) -> None:
    """Drop all other capabilities for good, for this process and every process that it starts."""
    others = [
        capability
        for capability in _all()
        if capability not in capabilities and capability not in _gone
    ]
    if _has(SETPCAP):
        forbid(others)
    _give_up(others)
    _gone.update(others)


def regain(capability: int) -> None:
    """Make a permitted capability effective again, after a change of file system ids has cleared
    it.
    """
    _prctl.set_caps([capability], [], [], [], [], [])


def _all() -> range:
    return range(_prctl.CAP_LAST_CAP + 1)


def _has(capability: int) -> bool:
    return bool(_prctl.get_caps([capability], [], [])[_prctl.CAP_EFFECTIVE][capability])


def _give_up(capabilities: Sequence[int]) -> None:
    # To be removed from the effective, the permitted and the inheritable set.
    gone = list(capabilities)
    _prctl.set_caps([], [], [], gone, gone, gone)


def forbid(capabilities: Iterable[int]) -> None:
    """Drop capabilities from the bounding set, so that no program can get them. Needs
    CAP_SETPCAP.
    """
    for capability in capabilities:
        try:
            _prctl.prctl(_prctl.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this kernel does not know it
                raise


def become(uid: int, gid: int, *, fixed_groups: bool) -> None:
    """Take these ids without supplementary groups, and drop every capability for good.

    This includes capabilities that are newer than this program.

    :param fixed_groups: whether setgroups(2) is forbidden in this user namespace.
    """
    forbid(_all())
    # With this, execve gives root no capabilities.
    _prctl.prctl(_prctl.PR_SET_SECUREBITS, _prctl.SECBIT_NOROOT | _prctl.SECBIT_NOROOT_LOCKED)
    if os.getgroups() and not fixed_groups:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    confine()


def confine(*, kept: int | None = None) -> None:
    """Drop all capabilities but ``kept``, which no other program inherits, and get none by
    execve.
    """
    syscalls.set_no_new_privs()
    others = [capability for capability in _all() if capability != kept]
    _prctl.set_caps([], [], [], others, others, list(_all()))
