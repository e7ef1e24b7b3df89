"""The cgroups of a container of the lab: they are this machine's own, and outlive a killed lab."""

import os
import subprocess
import sys
from types import TracebackType

_ROOT = "/sys/fs/cgroup"

#: Waits until every process of the lab has ended, then removes the cgroups named argv[1].
_JANITOR = f"""\
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
sys.stdin.buffer.read()
for _ in range(100):
    found = [path for path, _, _ in os.walk({_ROOT!r}) if sys.argv[1] in path.split("/")]
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
    """A process that removes the cgroups named ``name`` when the lab ends, however it ends.

    It stays outside of the simulated node, whose processes the kernel kills with the lab.
    """

    def __init__(self, name: str) -> None:
        reader, self._writer = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-ISBc", _JANITOR, name],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(reader)

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._writer)
        self._process.wait()
