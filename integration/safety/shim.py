"""Count the hook's system calls, and make some of them fail.

It is installed in a process that is about to run the hook (see :mod:`safety.stage`). Unlike a
tracer it knows which place of the hook makes a call, and it costs almost nothing. It covers every
call that the hook makes of ``nvgraft.system.syscalls``, ``os`` and ``prctl``. Calls of Python
itself (imports, memory) and calls that cannot fail are not covered.
"""

import _ctypes
import builtins
import mmap
import os
import posix
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import prctl

import nvgraft
from nvgraft import cdi_hook, graft
from nvgraft.base import values
from nvgraft.system import lock, syscalls

#: Bytes of a log for each process.
LOG_REGION = 1 << 20

#: The number of the hook's process. Its children follow in the order of their forks.
HOOK = 0

# fmt: off
_OS_CALLS = (
    "access", "chdir", "chmod", "chown", "close", "chroot", "dup", "dup2", "execve", "fchdir", "fchmod", "fchown", "fork", "fstat",
    "fstatvfs", "ftruncate", "getcwd", "kill", "link", "listdir", "lstat", "memfd_create", "mkdir", "mknod", "open", "pipe2", "pread",
    "read", "readlink", "rename", "rmdir", "scandir", "sendfile", "setgroups", "setresgid", "setresuid", "stat", "symlink", "truncate",
    "unlink", "utime", "waitpid", "write",
)
# fmt: on
_PRCTL_CALLS = ("capbset_drop", "set_caps", "set_no_new_privs", "set_pdeathsig", "set_securebits")
_ENGINE = os.path.dirname(nvgraft.__file__)
_PROXIES = (syscalls.__file__, values.__file__)
_kill, _getpid, _close = os.kill, os.getpid, os.close


class Site(NamedTuple):
    """A call as the hook made it: process, number, name and place."""

    process: int
    number: int
    call: str
    place: str


class Fault(NamedTuple):
    """The fault to make at a call.

    ``kind`` is one of

    - error: the call is not made, and fails with the errno ``detail``;
    - short: the kernel takes or gives half;
    - before, after: signal ``detail`` comes then;
    - torn: half is written, then SIGKILL comes;
    - orphan: the process ``detail`` is gone.
    """

    kind: str
    detail: int = 0


Faults = Mapping[tuple[int, int], Fault]


class Shim:
    """Count calls from the moment at which the hook begins to change things, and strike at
    ``faults``.
    """

    def __init__(self, faults: Faults, log: mmap.mmap | None = None) -> None:
        self._faults = faults
        self._log = log
        self._armed = False
        self._process = HOOK
        self._forked = HOOK
        self._number = 0

    def install(self) -> None:
        """Replace the calls in this process, for good."""
        for call in _OS_CALLS:
            setattr(posix, call, self._around(call, getattr(posix, call)))
        builtins.open = self._around("open", builtins.open)
        for call in _PRCTL_CALLS:
            setattr(prctl, call, self._around(call, getattr(prctl, call)))
        for call in vars(syscalls).values():
            if isinstance(call, syscalls._Call):
                call._function = self._around_raw(call._name, call._function or call._find())
        self._arm()

    def _arm(self) -> None:
        """Count the calls that take the lock, clear up and apply.

        Planning changes nothing, and treats a file that it cannot read as absent.
        """
        take = lock.lock_rootfs

        def lock_rootfs(*arguments: Any) -> Any:
            self._armed = True
            return take(*arguments)

        def unarmed(plan: Callable[..., Any]) -> Callable[..., Any]:
            def planning(*arguments: Any) -> Any:
                self._armed = False
                try:
                    return plan(*arguments)
                finally:
                    self._armed = True

            return planning

        # The hook imports the lock's function late, and finds this one then.
        vars(lock).update(lock_rootfs=lock_rootfs)
        for door in (graft, cdi_hook):
            vars(door).update(_plan=unarmed(door._plan))

    def _next(self, call: str) -> Fault | None:
        if not self._armed:
            return None
        fault = self._faults.get((self._process, self._number))
        if self._log is not None:
            self._log.write(f"{self._process} {self._number} {call} {_place()}\n".encode())
        self._number += 1
        return fault

    def _around(self, call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            fault = self._next(call)
            if fault is not None:
                if fault.kind == "error":
                    if call == "close":
                        function(*arguments)  # Linux closes the descriptor, whatever it answers
                    raise OSError(fault.detail, os.strerror(fault.detail))
                if fault.kind in {"short", "torn"}:
                    arguments = _halved(call, arguments)
                else:
                    _strike_before(fault)
            try:
                result = function(*arguments, **named)
            except OSError:
                if fault is not None:
                    _strike_after(fault)
                raise
            if call == "fork":
                self._forked += 1
                if result == 0:
                    self._process, self._number = self._forked, 0
                    if self._log is not None:
                        self._log.seek(self._process * LOG_REGION)
            if fault is not None:
                _strike_after(fault)
            return result

        return made

    def _around_raw(self, call: str, function: Callable[..., int]) -> Callable[..., int]:
        def made(*arguments: Any) -> int:
            fault = self._next(call)
            if fault is not None:
                if fault.kind == "error":
                    _ctypes.set_errno(fault.detail)
                    return -1
                _strike_before(fault)
            result = function(*arguments)
            if fault is not None:
                number = _ctypes.get_errno()
                _strike_after(fault)
                _ctypes.set_errno(number)
            return result

        return made


def _halved(call: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if call == "write":
        fd, data = arguments
        return fd, bytes(data)[: len(data) // 2]
    if call in {"read", "pread"}:
        fd, size, *rest = arguments
        return fd, max(1, size // 2), *rest
    return arguments


def _strike_before(fault: Fault) -> None:
    if fault.kind == "before":
        _kill(_getpid(), fault.detail)
    elif fault.kind == "orphan":
        _kill(fault.detail, signal.SIGKILL)


def _strike_after(fault: Fault) -> None:
    if fault.kind in {"after", "torn"}:
        _kill(_getpid(), fault.detail)


def _place() -> str:
    """Return the innermost place in the engine outside of the modules that only wrap system
    calls.
    """
    frame = sys._getframe(3)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name.startswith(_ENGINE) and name not in _PROXIES:
            return f"{name[len(_ENGINE) + 1 :]}:{frame.f_lineno}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
