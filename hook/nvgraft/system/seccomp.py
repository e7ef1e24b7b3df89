"""Build seccomp filters: programs of classic BPF for
:func:`nvgraft.system.syscalls.set_seccomp_filter`.

A filter allows the calls of a list, or denies them. ALLOWED is what ldconfig may call while it
reads a container's hostile files: the list of reference behaviour 6.10 without calls that ldconfig
does not need, plus those that the ldconfig of glibc 2.36, 2.39 and 2.41 makes. Other calls fail
with EPERM, which ldconfig can report, instead of a silent kill.
"""

from __future__ import annotations

import errno

from nvgraft.base._stdlib import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: name -> its numbers on x86-64 and aarch64; None where the architecture has only a newer form of
#: the call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # The start of a static program, memory, the end.
    "execveat": (322, 281),
    "arch_prctl": (158, None),
    "set_tid_address": (218, 96),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "futex": (202, 98),
    "prlimit64": (302, 261),
    "getrandom": (318, 278),
    "brk": (12, 214),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "madvise": (28, 233),
    "exit": (60, 93),
    "exit_group": (231, 94),
    # Signals: error paths of the C library.
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "tgkill": (234, 131),
    # Facts about itself and the machine.
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "time": (201, None),
    "gettimeofday": (96, 169),
    "clock_gettime": (228, 113),
    # Reading.
    "open": (2, None),
    "openat": (257, 56),
    "close": (3, 57),
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "lseek": (8, 62),
    "fcntl": (72, 25),
    "stat": (4, None),
    "lstat": (6, None),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    # Writing: the cache, the SONAME links, error messages. Mounts, rights and ids decide where.
    "write": (1, 64),
    "writev": (20, 66),
    "ftruncate": (77, 46),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
}

#: Calls that succeed without any effect. A container's loader cache need not survive a power cut,
#: since its next start makes a new one, and waiting for a disk would be the longest step of the
#: hook.
SKIPPED: dict[str, tuple[int, int]] = {"fsync": (74, 82), "fdatasync": (75, 83)}

#: Calls that a program which only reads files or asks a driver does not need; columns as in
#: ALLOWED.
POWERS: dict[str, tuple[int | None, int | None]] = {
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    # Programs, other processes, and io_uring, whose operations filters do not see.
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # The kernel and the machine.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}

#: uname -m -> (column of the tables above, the architecture as seccomp names it, AUDIT_ARCH_*).
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_JUMP_IF_SET = 0x45  # BPF_JMP|JSET|K
#: Offsets in struct seccomp_data; the last one is the low half of the first argument.
_NUMBER_AT, _ARCHITECTURE_AT, _FLAGS_AT = 0, 4, 16
_RET_ALLOW, _RET_ERRNO, _RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_RET_EPERM = _RET_ERRNO | errno.EPERM
#: clone, and fork and vfork, by column; both architectures have one number for clone3.
_CLONE, _FORKS, _CLONE3, _CLONE_THREAD = (56, 220), ((57, 58), ()), 435, 0x00010000
_X32 = 0x40000000  # from here on, x86-64 numbers the same calls again for 32-bit pointers


def program(machine: str) -> bytes:
    """Return the filter of ALLOWED for ``machine`` (uname -m) as an array of struct sock_filter.

    A program of another architecture is killed, because its numbers mean other calls.

    :raises ValueError: the call numbers of the architecture are not known.
    """
    column, steps = _start(machine)
    allowed = [number for numbers in ALLOWED.values() if (number := numbers[column]) is not None]
    skipped = [numbers[column] for numbers in SKIPPED.values()]
    # A jump skips a number of steps: here the remaining comparisons and the returns before the
    # target.
    rest = len(allowed) + len(skipped)
    for number in allowed:
        rest -= 1
        steps.append((_JUMP_IF_EQUAL, rest + 1, 0, number))
    for number in skipped:
        rest -= 1
        steps.append((_JUMP_IF_EQUAL, rest + 2, 0, number))
    steps += [(_RETURN, 0, 0, _RET_EPERM), (_RETURN, 0, 0, _RET_ALLOW), (_RETURN, 0, 0, _RET_ERRNO)]
    return _packed(steps)


def denying(
    machine: str, calls: Mapping[str, tuple[int | None, int | None]], *, processes: bool = True
) -> bytes:
    """Return a filter for ``machine`` that lets ``calls`` fail with EPERM and allows all others.

    :param calls: columns as in ALLOWED.
    :param processes: false allows new threads but no new processes.
    :raises ValueError: the call numbers of the architecture are not known.
    """
    column, steps = _start(machine)
    denied = [number for numbers in calls.values() if (number := numbers[column]) is not None]
    if not processes:
        denied += _FORKS[column]
        # A filter cannot read the argument structure of clone3. After ENOSYS the C library calls
        # clone.
        steps += [
            (_JUMP_IF_EQUAL, 0, 1, _CLONE3),
            (_RETURN, 0, 0, _RET_ERRNO | errno.ENOSYS),
            (_JUMP_IF_EQUAL, 0, 4, _CLONE[column]),
            (_LOAD_WORD, 0, 0, _FLAGS_AT),
            (_JUMP_IF_SET, 0, 1, _CLONE_THREAD),
            (_RETURN, 0, 0, _RET_ALLOW),
            (_RETURN, 0, 0, _RET_EPERM),
        ]
    steps.append((_JUMP_IF_AT_LEAST, len(denied) + 1, 0, _X32))
    steps += [
        (_JUMP_IF_EQUAL, len(denied) - index, 0, number) for index, number in enumerate(denied)
    ]
    steps += [(_RETURN, 0, 0, _RET_ALLOW), (_RETURN, 0, 0, _RET_EPERM)]
    return _packed(steps)


def _start(machine: str) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Return the column of ``machine`` in the tables, and the first steps, which load the call's
    number.
    """
    if machine not in _MACHINES:
        raise ValueError(f"the system call numbers of {machine} are not known")
    column, architecture = _MACHINES[machine]
    return column, [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _RET_KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER_AT),
    ]


def _packed(steps: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
