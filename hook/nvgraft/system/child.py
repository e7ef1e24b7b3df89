"""A child that does one thing for the hook, and ends with it, at the latest (SECURITY R37).

It answers through a pipe. What it does, what it may still do and what its answer means is the business of who starts it.
"""

from __future__ import annotations

import _signal
import errno
import select
import time

import _prctl

from nvgraft.base._os import os
from nvgraft.base.files import readable
from nvgraft.system import syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

#: Seconds that a child gets to end by itself after it has answered, and to be gone after it was killed.
_GRACE, _KILLED = 0.1, 1.0


#: In the number of a process's clock (clock_getcpuclockid(3)): the one that the scheduler keeps, in ns.
_CPUCLOCK_SCHED = 2


class Child:
    """A running child: its number, and the descriptor ``output`` of what it writes. It has to be ended."""

    __slots__ = ("_process", "output", "pid")

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output
        self._process = syscalls.pidfd_open(pid)

    def read(self, deadline: float, limit: int) -> bytes | None:
        """Return all that it writes, cut soon after ``limit`` bytes; None when the monotonic ``deadline`` passes first."""
        data = b""
        while readable(self.output, deadline - time.monotonic()):
            chunk = os.read(self.output, 1 << 16)
            data += chunk
            if not chunk or len(data) > limit:
                return data
        return None

    def follow(self, deadline: float, kept: int, still: float = 1e6) -> tuple[bool, bytes]:
        """Wait for its end; return whether ``deadline`` came first, and the last ``kept`` bytes of what it has written.

        :param still: seconds, looked at one after the other, of which it may not spend all without working or writing anything.
        """
        written = b""
        worked = self._processor_time()
        events = select.poll()
        events.register(self._process, select.POLLIN)
        events.register(self.output, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in events.poll(min(left, still) * 1000)]
            if not ready:
                before, worked = worked, self._processor_time()
                if worked == before:
                    return True, written
            elif self.output in ready:
                if chunk := os.read(self.output, 1 << 16):
                    written = (written + chunk)[-kept:]
                else:
                    events.unregister(self.output)
            elif self._process in ready:
                return False, written
        return True, written

    def _processor_time(self) -> float:
        try:
            return time.clock_gettime(~self.pid << 3 | _CPUCLOCK_SCHED)
        except OSError:
            return -1.0  # it has ended

    def end(self, *, grace: float = _GRACE) -> int | None:
        """Kill it unless it ends within ``grace`` seconds, and return its wait status.

        None for one that the kernel cannot end, because a driver hangs: it is left behind, not waited for.
        """
        try:
            if not readable(self._process, grace):
                os.kill(self.pid, _signal.SIGKILL)
                if not readable(self._process, _KILLED):
                    return None
            return os.waitpid(self.pid, 0)[1]
        finally:
            syscalls.close(self._process)
            syscalls.close(self.output)


def start(work: Callable[[int], None], *, forks: bool = True) -> Child:
    """Run ``work``, which is given the descriptor to answer to, in a child that ends with it.

    All signals are blocked there: no handler of this process's may undo what is not the child's.

    :param forks: whether ``work`` starts processes. It is then the first one of a pid namespace, with which they all end;
        otherwise it is so where that costs nothing.
    :raises OSError: when not even a process can be made.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    started = None
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        pid = _fork(forks)
        if pid == 0:
            _become(work, reader, writer)
        started = Child(pid, reader)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        return started
    except BaseException:
        if started is None:
            syscalls.close(reader)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        else:  # a signal that had to wait until now
            started.end(grace=0)
        raise
    finally:
        syscalls.close(writer)


def _fork(forks: bool) -> int:
    # In a user namespace a pid namespace may be the last child's (see fork_in_pid_namespace): it is kept for one that forks.
    if forks or not userns.inside():
        try:
            return syscalls.fork_in_pid_namespace()
        except OSError as error:
            if forks or error.errno != errno.EPERM:
                raise
    return os.fork()


def _become(work: Callable[[int], None], reader: int, writer: int) -> NoReturn:
    code = 1
    try:
        syscalls.close(reader)
        tie(writer)
        work(writer)
        code = 0
    finally:
        os._exit(code)  # the copy of this process that it is never goes on, whatever has happened


def tie(writer: int) -> None:
    """Have the kernel kill this child when its parent ends. It forgets that when ids or capabilities change: then say it again.

    :raises OSError: EPIPE: the parent has ended before that, so nobody reads ``writer``.
    """
    _prctl.prctl(_prctl.PR_SET_PDEATHSIG, _signal.SIGKILL)
    orphaned = select.poll()
    orphaned.register(writer, 0)
    if orphaned.poll(0):
        raise OSError(errno.EPIPE, "the hook has ended")


def silence() -> None:
    """Connect stdin, stdout and stderr with /dev/null: a descendant of the hook must not hold the runtime's pipes open."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
