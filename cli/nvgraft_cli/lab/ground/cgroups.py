"""The cgroups of a container of the lab: they are this machine's own, and outlive a killed lab."""

import os
import subprocess
import sys
from types import TracebackType

_ROOT = "/sys/fs/cgroup"

#: Waits until every process of the lab has ended, then removes the cgroups with argv[1] in their
#: names. The end of the pipe is not enough: a killed lab closes it before the kernel has killed the
#: rest of the node, and a runtime that still lives may make a cgroup.
_JANITOR = f"""\
import os, select, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
try:
    first = os.pidfd_open(int(sys.stdin.buffer.readline() or 0))
except OSError:
    first = None
sys.stdin.buffer.read()
if first is not None:
    select.select([first], [], [])
for _ in range(100):
    found = [path for path, _, _ in os.walk({_ROOT!r}) if sys.argv[1] in path]
    for path in sorted(found, key=len, reverse=True):
        try:
            for pid in open(path + "/cgroup.procs").read().split():
                os.kill(int(pid), signal.SIGKILL)
            os.rmdir(path)
        except OSError:
            pass
    if not found:
        break
    time.sleep(0.05)
"""


def directories(name: str) -> list[str]:
    """Return the cgroups named ``name``, one of each hierarchy."""
    return [path for path, _, _ in os.walk(_ROOT) if os.path.basename(path) == name]


class Janitor:
    """A process that removes the cgroups with ``name`` in their names when the lab ends, however it
    ends.

    It stays outside of the simulated node, whose processes the kernel kills with the lab.

    :ivar writer: the end of the pipe that all processes of the lab hold.
    """

    def __init__(self, name: str) -> None:
        reader, self.writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-ISBc", _JANITOR, name],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(reader)

    def announce(self, pid: int, _start: str) -> None:
        """Tell the number of the node's first process, with which all others end."""
        os.write(self.writer, f"{pid}\n".encode())

    def __enter__(self) -> "Janitor":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self.writer)
        self.process.wait()
