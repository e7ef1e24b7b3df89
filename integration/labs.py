"""Functions of the tests that run `nvgraft lab`."""

import os
import select
import subprocess
import sys
from pathlib import Path

from harness import CHECKOUT

LAB = [sys.executable, "-m", "nvgraft_cli.shell.main", "lab"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("hook", "cli", "specs")),
}


def start(*words: str) -> "subprocess.Popen[str]":
    """Start a lab that reads its commands from a pipe, in a process group of its own."""
    return subprocess.Popen(
        [*LAB, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def processes() -> set[str]:
    """Return the processes of labs and of their containers."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "nvgraft-lab" in words or "shell.main lab" in words:
            found.add(f"{path.parent.name} {words}")
    return found


def traces() -> tuple[str, set[str], set[str], list[str]]:
    """Return what a lab could leave on this machine."""
    mounts = Path("/proc/self/mountinfo").read_text()
    cgroups = {path for path, _, _ in os.walk("/sys/fs/cgroup") if "nvgraft-lab" in path}
    devices = sorted(name for name in os.listdir("/dev") if "nvidia" in name)
    return mounts, processes(), cgroups, devices


def wait_for(pidfd: int) -> None:
    """Wait for the end of a process of a lab, and close ``pidfd``."""
    assert select.select([pidfd], [], [], 20)[0], "a process of the lab does not end"
    os.close(pidfd)
