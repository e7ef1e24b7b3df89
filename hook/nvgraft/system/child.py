"""Run a function in a child process that ends with the hook at the latest (SECURITY R37).

The child answers through a pipe. The caller confines it and reads its answer.
"""

from __future__ import annotations

import errno
import select
import time

from nvgraft.base._os import os, signal
from nvgraft.base.files import readable
from nvgraft.system import syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

#: Seconds for a child to end by itself after its answer, and to disappear after SIGKILL.
_GRACE, _KILLED = 0.1, 1.0


#: The clock type, in the id of a process's clock (clock_getcpuclockid(3)), that counts scheduled
#: time.
_CPUCLOCK_SCHED = 2


class Child:
    """A running child process. Read its answer from the descriptor ``output``, and call
    :meth:`end`.
    """

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output
        self._process = syscalls.pidfd_open(pid)

    def read(self, deadline: float, limit: int) -> bytes | None:
        """Return all output, truncated soon after ``limit`` bytes, or None after the monotonic
        ``deadline``.
        """
        data = b""
        while readable(self.output, deadline - time.monotonic()):
            chunk = os.read(self.output, 1 << 16)
            data += chunk
            if not chunk or len(data) > limit:
                return data
        return None

    def follow(self, deadline: float, kept: int, still: float = 1e6) -> tuple[bool, bytes]:
        """Wait for the end; return whether the child had to be given up, and its last ``kept``
        bytes of output.

        :param deadline: the monotonic time after which it is given up.
        :param still: seconds without processor time and output after which it is given up.
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
            return -1.0  # the child has ended

    def end(self, *, grace: float = _GRACE) -> int | None:
        """Kill the child unless it ends within ``grace`` seconds, and return its wait status.

        None stands for a child that the kernel cannot end because a driver hangs; it is left
        behind.
        """
        try:
            if not readable(self._process, grace):
                os.kill(self.pid, signal.SIGKILL)
                if not readable(self._process, _KILLED):
                    return None
            return os.waitpid(self.pid, 0)[1]
        finally:
            syscalls.close(self._process)
            syscalls.close(self.output)


def start(work: Callable[[int], None], *, forks: bool = True) -> Child:
    """Start a child that calls ``work`` with the descriptor for its answer, and then ends.

    All signals are blocked in the child, since the handlers of this process would undo this
    process's work.

    :param forks: whether ``work`` starts processes. The child is then the first process of a pid
        namespace, so that they all end with it. Otherwise it is so where that is possible.
    :raises OSError: no process can be made.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    started = None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = _fork(forks)
        if pid == 0:
            _become(work, reader, writer)
        started = Child(pid, reader)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return started
    except BaseException:
        if started is None:
            syscalls.close(reader)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        else:  # a pending signal was delivered by the line above
            started.end(grace=0)
        raise
    finally:
        syscalls.close(writer)


def _fork(forks: bool) -> int:
    # In a user namespace only one pid namespace may be possible (see fork_in_pid_namespace): it is
    # kept for a child that forks.
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
        os._exit(code)  # the child is a copy of this process and must never continue as one


def tie(writer: int) -> None:
    """Let the kernel kill this child when its parent ends.

    Call it again after each change of ids or capabilities, which resets this.

    :raises OSError: EPIPE: the parent has ended already, so nobody reads ``writer``.
    """
    syscalls.set_parent_death_signal(signal.SIGKILL)
    orphaned = select.poll()
    orphaned.register(writer, 0)
    if orphaned.poll(0):
        raise OSError(errno.EPIPE, "the hook has ended")


def silence() -> None:
    """Connect stdin, stdout and stderr with /dev/null, so that no descendant holds the runtime's
    pipes.
    """
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
