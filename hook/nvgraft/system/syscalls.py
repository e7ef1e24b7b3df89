"""The system calls that Python's ``os`` module does not have, under the names of their man pages.

A failed call raises :class:`SyscallError`, whose text is the call with decoded flags. A call that
the kernel does not have raises :class:`MissingFeature`, so that an old kernel is not mistaken for a
missing file. This module has no policy: the callers decide which calls are made, and in which
order.

Paths are ``str`` or ``bytes`` without NUL bytes (C would see a shorter path). Every returned
descriptor is close-on-exec. Interrupted calls are repeated.
"""

from __future__ import annotations

import errno
import sys

from nvgraft.base._os import os
from nvgraft.base.paths import fsencode
from nvgraft.system._ffi import (
    CHAR_P,
    CHAR_P_OR_NULL,
    INT,
    LONG,
    SIZE,
    UINT,
    ULONG,
    VOID_P,
    address,
    find_function,
    get_errno,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvgraft.system._ffi import Result, Type

# Flags, as in the kernel's uapi headers.
AT_EMPTY_PATH = 0x1000
AT_FDCWD = -100
AT_STATX_DONT_SYNC = 0x4000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSMOUNT_CLOEXEC = 1
FSOPEN_CLOEXEC = 1
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 1, 2, 4, 16
LOCK_EX, LOCK_NB = 2, 4
MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
O_PATH = os.O_PATH
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_AS = 0, 1, 2, 4, 7, 9
STATX_BASIC_STATS = 0x7FF
STATX_BTIME = 0x800
STATX_MNT_ID = 0x1000
AT_SECURE = 23
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

#: System call -> (number on x86-64, number in the generic table of aarch64 and newer ports).
_NUMBERS = {
    "bpf": (321, 280),
    # the C library's function emulates a missing call, and leaves fields empty
    "statx": (332, 291),
    "pivot_root": (155, 41),
    # the C library's functions return the previous id as an int, which a large one makes negative
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "renameat2": (316, 276),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "pidfd_open": (434, 434),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}
#: Calls that need no privilege: EPERM means that a seccomp filter hides them.
_FREE = frozenset({"openat2", "pidfd_open", "close_range", "statx"})

_GENERIC = os.uname().machine != "x86_64"

_RESOLVE_NAMES = (
    (0x01, "NO_XDEV"),
    (0x02, "NO_MAGICLINKS"),
    (0x04, "NO_SYMLINKS"),
    (0x08, "BENEATH"),
    (0x10, "IN_ROOT"),
)
_ATTR_NAMES = ((0x1, "RDONLY"), (0x2, "NOSUID"), (0x4, "NODEV"), (0x8, "NOEXEC"))
_OPEN_NAMES = (
    (os.O_PATH, "O_PATH"),
    (os.O_DIRECTORY, "O_DIRECTORY"),
    (os.O_NOFOLLOW, "O_NOFOLLOW"),
    (os.O_CREAT, "O_CREAT"),
    (os.O_EXCL, "O_EXCL"),
    (os.O_WRONLY, "O_WRONLY"),
    (os.O_RDWR, "O_RDWR"),
    (os.O_NONBLOCK, "O_NONBLOCK"),
)
_STATX_NAMES = (
    (STATX_BASIC_STATS, "STATX_BASIC_STATS"),
    (STATX_MNT_ID, "STATX_MNT_ID"),
    (STATX_BTIME, "STATX_BTIME"),
)
_CLONE_NAMES = (
    (CLONE_NEWNS, "NEWNS"),
    (CLONE_NEWUTS, "NEWUTS"),
    (CLONE_NEWIPC, "NEWIPC"),
    (CLONE_NEWUSER, "NEWUSER"),
    (CLONE_NEWPID, "NEWPID"),
    (CLONE_NEWNET, "NEWNET"),
)


class SyscallError(OSError):
    """A system call failed. ``str()`` is the call with decoded flags and the error's name; ``fix``
    is a general hint.
    """

    fix = "a seccomp filter or security module forbids it, or the hook lacks a capability"

    def __init__(self, number: int, call: str | Callable[[], str]) -> None:
        super().__init__(number, os.strerror(number))
        self._call = call

    @property
    def call(self) -> str:
        """The failed call with its arguments, as text. It is formatted only on access, because
        callers expect many of the failures.
        """
        return self._call if isinstance(self._call, str) else self._call()

    def __str__(self) -> str:
        return f"{self.call}: {errno.errorcode.get(self.errno or 0, self.errno)}: {self.strerror}"


class MissingFeature(SyscallError):
    """The kernel does not have this call (ENOSYS), or a seccomp filter hides it (SECURITY R34)."""

    fix = "use Linux 5.12 or newer, without a seccomp filter that forbids the call"


def _decode(flags: int, names: tuple[tuple[int, str], ...]) -> str:
    words = [name for bit, name in names if bit and flags & bit == bit]
    rest = flags & ~sum(bit for bit, _ in names)
    return "|".join(words + ([hex(rest)] if rest else [])) or "0"


def _path(path: str | bytes) -> bytes:
    raw = fsencode(path) if isinstance(path, str) else path
    if 0 in raw:
        raise ValueError(f"path with a NUL byte: {path!r}")
    return raw


class _Call:
    """One system call with its argument types, repeated after EINTR. Its function is looked up at
    the first call.
    """

    def __init__(self, name: str, *types: Type, result: Result | None = None) -> None:
        self._name = name
        self._types = types
        self._result = result
        self._number: tuple[int, ...] = ()
        self._function: Callable[..., int] | None = None

    def _find(self) -> Callable[..., int]:
        if self._name in _NUMBERS:
            self._function = find_function("syscall", (INT, *self._types), LONG)
            self._number = (_NUMBERS[self._name][_GENERIC],)
        else:
            self._function = find_function(self._name, self._types, self._result)
        return self._function

    def __call__(self, call: str | Callable[[], str], *args: object) -> int:
        """Make the call. ``call`` is the text of its arguments for an error, or a function that
        returns it.
        """
        function = self._function or self._find()
        args = self._number + args
        while True:
            result = function(*args)
            if result >= 0:
                return result
            number = get_errno()
            if number != errno.EINTR:
                raise self._failure(number, call)

    def _failure(self, number: int, call: str | Callable[[], str]) -> SyscallError:
        missing = number == errno.ENOSYS or (number == errno.EPERM and self._name in _FREE)
        kind = MissingFeature if missing else SyscallError
        if isinstance(call, str):
            return kind(number, f"{self._name}({call})")
        return kind(number, lambda: f"{self._name}({call()})")


def _words(*values: int) -> bytes:
    """Return a structure of unsigned 64-bit fields."""
    return b"".join([value.to_bytes(8, sys.byteorder) for value in values])


_openat2 = _Call("openat2", INT, CHAR_P, CHAR_P, SIZE)
_open_tree = _Call("open_tree", INT, CHAR_P, UINT)
_move_mount = _Call("move_mount", INT, CHAR_P, INT, CHAR_P, UINT)
_mount_setattr = _Call("mount_setattr", INT, CHAR_P, UINT, CHAR_P, SIZE)
_fsopen = _Call("fsopen", CHAR_P, UINT)
_fsconfig = _Call("fsconfig", INT, UINT, CHAR_P_OR_NULL, CHAR_P_OR_NULL, INT)
_fsmount = _Call("fsmount", INT, UINT, UINT)
_pidfd_open = _Call("pidfd_open", INT, UINT)
_close_range = _Call("close_range", UINT, UINT, UINT)
_pivot_root = _Call("pivot_root", CHAR_P, CHAR_P)
_renameat2 = _Call("renameat2", INT, CHAR_P, INT, CHAR_P, UINT)
_bpf = _Call("bpf", INT, VOID_P, UINT)
_setns = _Call("setns", INT, INT)
_unshare = _Call("unshare", INT)
_umount2 = _Call("umount2", CHAR_P, INT)
_mount = _Call("mount", CHAR_P_OR_NULL, CHAR_P, CHAR_P_OR_NULL, ULONG, CHAR_P_OR_NULL)
_fcntl = _Call("fcntl", INT, INT, INT)
_prctl = _Call("prctl", INT, ULONG, VOID_P, ULONG, ULONG)
_getauxval = _Call("getauxval", ULONG, result=LONG)
_flock = _Call("flock", INT, INT)
# setfsuid and setfsgid return the previous id, and never an error.
_setfsuid = _Call("setfsuid", UINT)
_setfsgid = _Call("setfsgid", UINT)
_prlimit = _Call("prlimit64", INT, INT, CHAR_P_OR_NULL, VOID_P)
_landlock_create_ruleset = _Call("landlock_create_ruleset", CHAR_P_OR_NULL, SIZE, UINT)
_landlock_add_rule = _Call("landlock_add_rule", INT, UINT, CHAR_P, UINT)
_landlock_restrict_self = _Call("landlock_restrict_self", INT, UINT)
_statx = _Call("statx", INT, CHAR_P, INT, UINT, VOID_P)


#: struct open_how by (flags, mode, resolve), of which there are few.
_HOW: dict[tuple[int, int, int], bytes] = {}
#: struct mount_attr by (set, clear, propagation).
_MOUNT_ATTR: dict[tuple[int, int, int], bytes] = {}


def openat2(dirfd: int, unsafe_path: str | bytes, flags: int, resolve: int, mode: int = 0) -> int:
    """Open ``unsafe_path`` below ``dirfd``. The flags ``resolve`` forbid ways out of it
    (openat2(2), Linux 5.6).
    """

    def call() -> str:
        return (
            f"{dirfd}, {unsafe_path!r}, {_decode(flags, _OPEN_NAMES)},"
            f" {_decode(resolve, _RESOLVE_NAMES)}"
        )

    how = _HOW.get((flags, mode, resolve))
    if how is None:
        how = _HOW[flags, mode, resolve] = _words(flags | os.O_CLOEXEC, mode, resolve)
    return _openat2(call, dirfd, _path(unsafe_path), how, len(how))


def open_tree(dirfd: int, path: str | bytes, flags: int) -> int:
    """Open a mount, or with OPEN_TREE_CLONE a detached copy of it (open_tree(2), Linux 5.2)."""
    return _open_tree(
        lambda: f"{dirfd}, {path!r}, {flags:#x}", dirfd, _path(path), flags | OPEN_TREE_CLOEXEC
    )


def move_mount(mount_fd: int, target_fd: int) -> None:
    """Attach the detached mount ``mount_fd`` to the open file or directory ``target_fd``. No path
    is resolved.
    """
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _move_mount(lambda: f"{mount_fd}, {target_fd}", mount_fd, b"", target_fd, b"", flags)


def mount_setattr(
    mount_fd: int,
    attr_set: int,
    propagation: int = 0,
    attr_clear: int = 0,
    *,
    recursive: bool = False,
) -> None:
    """Set MOUNT_ATTR_* and the propagation type of the mount ``mount_fd`` in one step (Linux
    5.12).
    """
    attr = _MOUNT_ATTR.get((attr_set, attr_clear, propagation))
    if attr is None:
        attr = _MOUNT_ATTR[attr_set, attr_clear, propagation] = _words(
            attr_set, attr_clear, propagation, 0
        )
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)

    def call() -> str:
        return (
            f"{mount_fd}, set={_decode(attr_set, _ATTR_NAMES)},"
            f" clear={_decode(attr_clear, _ATTR_NAMES)}, propagation={propagation:#x}"
        )

    _mount_setattr(call, mount_fd, b"", flags, attr, len(attr))


def new_mount(fstype: str, options: dict[str, str], attributes: int) -> int:
    """Make a file system and return its detached mount (fsopen, fsconfig, fsmount)."""
    context = _fsopen(f"{fstype!r}", fstype.encode(), FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            _fsconfig(
                f"{fstype}: {key}={value}",
                context,
                FSCONFIG_SET_STRING,
                key.encode(),
                value.encode(),
                0,
            )
        _fsconfig(f"{fstype}: CMD_CREATE", context, FSCONFIG_CMD_CREATE, None, None, 0)
        return _fsmount(
            f"{fstype}, {_decode(attributes, _ATTR_NAMES)}", context, FSMOUNT_CLOEXEC, attributes
        )
    finally:
        close(context)


def pidfd_open(pid: int) -> int:
    """Open a pidfd for the process ``pid`` (pidfd_open(2), Linux 5.3). It never refers to another
    process, even if the number is reused.
    """
    return _pidfd_open(str(pid), pid, 0)


def close(fd: int) -> None:
    """Close ``fd``. Errors are ignored: Linux releases the descriptor in any case."""
    try:
        os.close(fd)
    except OSError:
        return


def close_range(first: int, last: int) -> None:
    """Close every descriptor from ``first`` to ``last``."""
    _close_range(f"{first}, {last}", first, last & 0xFFFFFFFF, 0)


def setns(fd: int, kinds: int) -> None:
    """Enter the namespaces ``kinds`` of a namespace file or a pidfd. NEWNS needs a process with one
    thread.
    """
    _setns(f"{fd}, {_decode(kinds, _CLONE_NAMES)}", fd, kinds)


def unshare(kinds: int) -> None:
    """Move this process into new namespaces of ``kinds``."""
    _unshare(_decode(kinds, _CLONE_NAMES), kinds)


def fork_in_pid_namespace() -> int:
    """Fork a child that is process 1 of a new pid namespace: when it ends, the kernel ends all its
    descendants.

    Signals without a handler do not reach process 1, except SIGKILL from this process.
    """
    own = pidfd_open(os.getpid())
    pid = -1
    try:
        unshare(CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            # The new namespace is only for this child: later ones start in this process's own
            # again.
            if pid != 0:
                _return_to_pid_namespace(own)
    finally:
        close(own)
    return pid


def _return_to_pid_namespace(own: int) -> None:
    try:
        setns(own, CLONE_NEWPID)
    except SyscallError as error:
        # A process that may make a pid namespace may return to its own, except in a user namespace
        # that shares the host's pid namespace. There this was the last child: the kernel refuses
        # more after the child's namespace has ended.
        if error.errno != errno.EPERM:
            raise


def pivot_root(new_root: str, put_old: str) -> None:
    """Make ``new_root`` the root of this mount namespace."""
    _pivot_root(f"{new_root!r}, {put_old!r}", _path(new_root), _path(put_old))


def rename(old: str, new: str, flags: int) -> None:
    """Rename ``old`` to ``new`` with RENAME_NOREPLACE or RENAME_EXCHANGE (renameat2(2)).

    :raises SyscallError: EINVAL if the file system does not know the flag.
    """
    call = f"{old!r}, {new!r}, {flags:#x}"
    _renameat2(call, AT_FDCWD, _path(old), AT_FDCWD, _path(new), flags)


def umount2(path: str | bytes, flags: int) -> None:
    """Unmount the topmost mount at ``path``."""
    _umount2(f"{path!r}, {flags:#x}", _path(path), flags)


def mount(
    source: str | None, target: str, fstype: str | None, flags: int, data: str | None = None
) -> None:
    """Mount by paths (mount(2)). Only for namespaces that nvgraft has made: in a container's, paths
    are not safe (SECURITY R24).
    """
    texts = [None if text is None else _path(text) for text in (source, target, fstype, data)]
    _mount(f"{source!r}, {target!r}, {fstype!r}, {flags:#x}", *texts[:3], flags, texts[3])


def seal(memfd: int) -> None:
    """Forbid all later changes of the memory file ``memfd`` and of its seals.

    The file must never have been mapped. F_SEAL_WRITE would exclude writable mappings too. But it
    fails with EBUSY if the kernel holds one of the pages, which happens on a busy machine that
    moves and counts pages.
    """
    seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE
    _fcntl(f"{memfd}, F_ADD_SEALS", memfd, F_ADD_SEALS, seals)


def flock(fd: int, operation: int) -> None:
    """Lock the open file ``fd``. The kernel releases the lock with the last descriptor
    (flock(2)).
    """
    _flock(f"{fd}, {operation}", fd, operation)


def set_fs_ids(uid: int, gid: int) -> None:
    """Create files as ``uid``:``gid`` from now on. setfsuid(2) reports no error, so the ids are
    read back.

    :raises SyscallError: EPERM if the kernel did not accept the ids. EOVERFLOW only occurs later,
        when a file is made.
    """
    _setfsgid(str(gid), gid)
    _setfsuid(str(uid), uid)
    for call, name, number in ((_setfsgid, "setfsgid", gid), (_setfsuid, "setfsuid", uid)):
        if call("-1", 0xFFFFFFFF) != number:
            raise SyscallError(errno.EPERM, f"{name}({number})")


def set_rlimit(resource: int, soft: int, hard: int) -> None:
    """Set a limit of this process (prlimit(2)), in the unit of the resource."""
    _prlimit(f"{resource}, {soft}, {hard}", 0, resource, _words(soft, hard), 0)


def get_rlimit(resource: int) -> tuple[int, int]:
    """Return the soft and the hard limit of this process."""
    _prlimit(str(resource), 0, resource, None, _RESULT_AT)
    return _RESULT[0], _RESULT[1]


_STATX_FIELDS = STATX_MNT_ID | STATX_BTIME
#: Nothing of these fields ever changes: no server of a file system need be asked.
_STATX_FLAGS = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC

#: Memory for the result of one call, struct statx or struct rlimit, as words of 64, 32 and 16 bits.
_MEMORY = bytearray(256)
_RESULT_AT = address(_MEMORY)
_RESULT = memoryview(_MEMORY).cast("Q")
_HALVES = memoryview(_MEMORY).cast("I")
_QUARTERS = memoryview(_MEMORY).cast("H")


def identity(fd: int) -> tuple[int, int]:
    """Return device and inode of ``fd``, as fstat(2) does, without asking the server of a FUSE file
    system (statx(2)).
    """
    _fill_result(fd)
    return os.makedev(_HALVES[0x88 // 4], _HALVES[0x8C // 4]), _RESULT[0x20 // 8]


def mount_id(fd: int, name: str = "") -> int:
    """Return the id, as in mountinfo, of the mount that ``fd`` was opened on (statx(2), Linux
    5.8).

    :param name: a name in the directory ``fd``: return the id of the topmost mount there instead.
    """
    _fill_result(fd, name)
    return _RESULT[0x90 // 8]


def source_of_mount(fd: int) -> tuple[int, int, tuple[int, int], int]:
    """Return what fstat(2) and :func:`mount_id` tell of ``fd``, in one call: type and permissions,
    owner, device number, and the id of its mount.
    """
    _fill_result(fd, flags=AT_EMPTY_PATH, fields=STATX_BASIC_STATS | STATX_MNT_ID)
    rdev = _HALVES[0x80 // 4], _HALVES[0x84 // 4]
    return _QUARTERS[0x1C // 2], _HALVES[0x14 // 4], rdev, _RESULT[0x90 // 8]


def mount_attributes(fd: int) -> int:
    """Return the STATX_ATTR_ bits of ``fd``. 0x2000 means that it is the root of a mount (statx(2),
    Linux 5.8).
    """
    _fill_result(fd)
    return _RESULT[0x08 // 8]


def birth_time(fd: int) -> int:
    """Return the birth time of the open file ``fd`` in nanoseconds; 0 if its file system does not
    record it (statx(2)).
    """
    _fill_result(fd)
    if not _HALVES[0] & STATX_BTIME:
        return 0
    return memoryview(_MEMORY).cast("q")[0x50 // 8] * 10**9 + _HALVES[0x58 // 4]


def _fill_result(
    fd: int, name: str = "", *, flags: int = _STATX_FLAGS, fields: int = _STATX_FIELDS
) -> None:
    """Have the kernel write struct statx of ``fd``, or of ``name`` in it, into the memory for
    results.
    """

    def call() -> str:
        return f"{fd}, {name!r}, {_decode(fields, _STATX_NAMES)}"

    _statx(call, fd, _path(name) if name else b"", flags, fields, _RESULT_AT)


def bpf(command: int, attributes: bytearray) -> int:
    """Call bpf(2) with the caller's ``union bpf_attr``, into which the kernel may write results."""
    return _bpf(f"command {command}", command, address(attributes), len(attributes))


def is_secure_execution() -> bool:
    """Tell whether this program has more rights than its caller, by set-user-ID or the like
    (AT_SECURE, getauxval(3)).
    """
    return bool(_getauxval("AT_SECURE", AT_SECURE))


def set_dumpable(allowed: bool) -> None:
    """Allow or forbid core dumps of this process, and ptrace by processes of the same user
    (PR_SET_DUMPABLE).
    """
    _prctl(f"PR_SET_DUMPABLE, {allowed:d}", PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def set_parent_death_signal(number: int) -> None:
    """Make the kernel send this process a signal when its parent ends (PR_SET_PDEATHSIG)."""
    _prctl(f"PR_SET_PDEATHSIG, {number}", PR_SET_PDEATHSIG, number, 0, 0, 0)


def set_no_new_privs() -> None:
    """Keep this process and its children from gaining rights by executing a program
    (PR_SET_NO_NEW_PRIVS).
    """
    _prctl("PR_SET_NO_NEW_PRIVS, 1", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def set_seccomp_filter(program: bytes) -> None:
    """Install a classic BPF program (an array of ``struct sock_filter``) as this thread's seccomp
    filter.
    """

    code = bytearray(program)
    length = (len(program) // 8).to_bytes(2, sys.byteorder)
    # struct sock_fprog
    header = bytearray(length + bytes(6) + address(code).to_bytes(8, sys.byteorder))
    _prctl("PR_SET_SECCOMP, FILTER", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address(header), 0, 0)


def landlock_version() -> int:
    """Return the version of the kernel's Landlock, 1 or more (landlock(7), Linux 5.13).

    :raises MissingFeature: the kernel has no Landlock.
    :raises SyscallError: EOPNOTSUPP if Landlock is switched off.
    """
    return _landlock_create_ruleset("VERSION", None, 0, 1)


def landlock_ruleset(file_access: int, network: int, scopes: int, size: int) -> int:
    """Make a set of rules that forbids these kinds of access, unless a rule allows them.

    :param size: bytes of ``struct landlock_ruleset_attr`` in the kernel's version of Landlock.
    """
    attr = _words(file_access, network, scopes)
    return _landlock_create_ruleset(f"{file_access:#x}, {network:#x}, {scopes:#x}", attr, size, 0)


def landlock_allow_beneath(ruleset: int, directory: int, file_access: int) -> None:
    """Allow ``file_access`` to ``directory`` (or a file) and everything beneath it."""
    # struct landlock_path_beneath_attr is packed.
    rule = file_access.to_bytes(8, sys.byteorder) + directory.to_bytes(4, sys.byteorder)
    _landlock_add_rule(f"{ruleset}, {directory}, {file_access:#x}", ruleset, 1, rule, 0)


def landlock_restrict_self(ruleset: int) -> None:
    """Apply ``ruleset`` to this thread and its children for good. Needs no_new_privs."""
    _landlock_restrict_self(str(ruleset), ruleset, 0)
