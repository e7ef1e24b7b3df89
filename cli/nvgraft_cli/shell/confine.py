"""Confine commands that only read, before they parse documents and images of unknown origin.

``main`` calls :func:`look_only` for every command whose parser sets ``looks_only``. Such a
command first does the work that needs the caller's own rights, in the function that its parser sets
as ``open_first``. Afterwards this process and its children cannot write a file, start a program,
reach a network, another process or another namespace, mount, or regain a privilege, and their
memory and processor time are limited (SECURITY R16, R39; docs/decisions/0034).

A kernel that lacks one of these features gives less protection, never an error.
"""

import os
import resource
import signal
import sys
from collections.abc import Sequence

from nvgraft.base.errors import Refusal
from nvgraft.system import privileges, seccomp, syscalls

#: Limits: bytes of address space, and seconds of processor time. The command is killed 5 s after
#: these.
MEMORY = 2 << 30
SECONDS = 60
#: The factor for both limits of a command that takes any number of inputs.
MANY = 30

#: The one capability that root keeps, because bundles of other users may be closed to others.
_KEPT = privileges.DAC_READ_SEARCH

#: System call -> its numbers on x86-64 and aarch64. Landlock does not cover owners, modes and
#: times, and old kernels have no Landlock: calls that change a file by its name are denied here,
#: too.
DENIED: dict[str, tuple[int | None, int | None]] = {
    **seccomp.POWERS,
    # Networks.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # Files: with CAP_DAC_READ_SEARCH a handle opens any file in spite of Landlock.
    "open_by_handle_at": (304, 265),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
}

# Rights of Landlock (landlock(7)): LANDLOCK_ACCESS_FS_*, _NET_*, LANDLOCK_SCOPE_*.
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
#: Version of Landlock -> its new rights to files: the first 13, REFER, TRUNCATE, IOCTL_DEV.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_BIND_AND_CONNECT, _SOCKETS_AND_SIGNALS = 3, 3
_NETWORK_VERSION, _SCOPE_VERSION = 4, 6


def look_only(*, many_inputs: bool = False, readable: Sequence[int] = ()) -> list[str]:
    """Confine this process for good, and return which protections this kernel lacks.

    :param many_inputs: multiply the limits for a command that takes any number of inputs.
    :param readable: descriptors of directories outside of this mount namespace (``/proc/PID/root``)
        below which files may be opened. Nothing can be opened below other such directories.
    """
    missing = []
    syscalls.set_no_new_privs()
    factor = MANY if many_inputs else 1
    _limit(resource.RLIMIT_AS, MEMORY * factor, MEMORY * factor)
    seconds = _limit(resource.RLIMIT_CPU, SECONDS * factor, SECONDS * factor + 5)
    _limit(resource.RLIMIT_CORE, 0, 0)
    signal.signal(signal.SIGXCPU, lambda *_: _too_long(seconds))
    try:
        _read_only(readable)
    except OSError as error:
        missing.append(f"Landlock: {error}")
    try:
        privileges.confine(kept=_KEPT)
    except Refusal as refusal:
        missing.append(f"capabilities: {refusal.text}")
    try:
        syscalls.set_seccomp_filter(seccomp.denying(os.uname().machine, DENIED))
    except (OSError, ValueError) as error:
        missing.append(f"seccomp: {error}")
    return missing


def _limit(which: int, soft: int, hard: int) -> int:
    """Lower a resource limit, unless it is lower already, and return the soft limit."""
    before = resource.getrlimit(which)
    soft, hard = (
        wanted if have == resource.RLIM_INFINITY else min(wanted, have)
        for wanted, have in zip((soft, hard), before, strict=True)
    )
    resource.setrlimit(which, (soft, hard))
    return soft


def _too_long(seconds: int) -> None:
    print(
        f"nvgraft: the input takes more than {seconds} s of processor time | use another input:"
        " this one is damaged or malicious",
        file=sys.stderr,
    )
    os._exit(2)


def _read_only(readable: Sequence[int]) -> None:
    version = syscalls.landlock_version()
    handled = sum(rights for since, rights in _FILE_RIGHTS.items() if since <= version)
    network = _BIND_AND_CONNECT if version >= _NETWORK_VERSION else 0
    scopes = _SOCKETS_AND_SIGNALS if version >= _SCOPE_VERSION else 0
    size = 24 if version >= _SCOPE_VERSION else 16 if version >= _NETWORK_VERSION else 8
    rules = syscalls.landlock_ruleset(handled, network, scopes, size)
    try:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY)
        # output goes there after its reader has closed the pipe
        null = os.open(os.devnull, os.O_PATH)
        try:
            for directory in (root, *readable):
                syscalls.landlock_allow_beneath(rules, directory, _READ_FILE | _READ_DIR)
            syscalls.landlock_allow_beneath(rules, null, _WRITE_FILE)
        finally:
            os.close(root)
            os.close(null)
        syscalls.landlock_restrict_self(rules)
    finally:
        os.close(rules)
