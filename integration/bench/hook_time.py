"""What one start of the hook costs, whole process, as ratios to a bare Python start on the same machine.

Reads PREFIX of an installation and runs on a simulated node (``./dev bench``). Each round starts, one after the other, a
bare interpreter, the hook for a container that wants no GPU, and the hook for one that wants all; each container is new,
because a second run in the same one has less to do. Times mean nothing across machines; nothing here passes or fails by them.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

BARE = ["/usr/bin/python3", "-IS", "-c", "pass"]
#: The reference hook and CLI together, where they are not at hand: 15.0 ms where a bare start took 6.5 ms.
REFERENCE = 2.3
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
CASES = {
    "no GPU": [],
    "2 GPUs, all capabilities": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"],
}


class Sample(NamedTuple):
    """One process: its wall time in seconds and its peak resident memory in bytes."""

    seconds: float
    memory: int


def measure(command: list[str], stdin: str, directory: str) -> Sample:
    """Run a command in a working directory (a runtime starts its hooks in the bundle) to its end.

    :raises SystemExit: if it fails: what does not work is not measured.
    """
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as said:
        given.write(stdin)
        given.seek(0)
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=given, stdout=said, stderr=said, env=ENVIRONMENT, cwd=directory)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            raise SystemExit(f"bench: {' '.join(command)}: exit status {process.returncode}\n{said.read()}")
    return Sample(seconds, usage.ru_maxrss * 1024)


def make_bundle(bundle: str, variables: list[str]) -> None:
    """A bundle whose config.json asks for what ``variables`` say; the rootfs is mounted by the container's process."""
    os.makedirs(f"{bundle}/rootfs")
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["sh"], "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()] + variables},
        "root": {"path": "rootfs"},
    }
    with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


def container_cgroup() -> str:
    """Make the cgroup of a container, in the device hierarchy or, without one, in the unified one."""
    v1 = "/sys/fs/cgroup/devices"
    directory = f"{v1 if os.path.isdir(v1) else '/sys/fs/cgroup'}/nvgraft-bench-{os.getpid()}"
    os.makedirs(directory, exist_ok=True)
    if directory.startswith(v1):
        with open(f"{directory}/devices.deny", "w", encoding="ascii") as file:
            file.write("a")
    return directory


def become_container(bundle: str, cgroup: str) -> None:
    """In the child: what a runtime has done when it starts the prestart hooks."""
    from nvgraft import syscalls  # of the installation that is measured

    rootfs = f"{bundle}/rootfs"
    with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", rootfs, "tmpfs", 0, "mode=755")
    for directory in ("dev", "etc", "lib64", "proc", "sys", "tmp", "usr/bin", "usr/lib/x86_64-linux-gnu"):
        os.makedirs(f"{rootfs}/{directory}")
    with open(f"{rootfs}/etc/debian_version", "w", encoding="ascii") as file:
        file.write("12.0\n")
    syscalls.mount("proc", f"{rootfs}/proc", "proc", 0)
    syscalls.mount("tmpfs", f"{rootfs}/dev", "tmpfs", 0, "mode=755")


@contextmanager
def container(bundle: str) -> Iterator[str]:
    """A new container of the bundle, as a runtime leaves it for its prestart hooks; yields the OCI state."""
    cgroup = container_cgroup()
    reader, writer = os.pipe()
    held, holder = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(holder)
        try:
            become_container(bundle, cgroup)
            os.write(writer, b"1")
            os.read(held, 1)
        finally:
            os._exit(0)
    os.close(writer)
    os.close(held)
    try:
        if not os.read(reader, 1):
            raise SystemExit("bench: no container can be made here")
        yield json.dumps({"ociVersion": "1.0.2", "id": "bench", "status": "creating", "pid": child, "bundle": bundle})
    finally:
        os.close(reader)
        os.close(holder)
        os.waitpid(child, 0)
        for _ in range(50):  # the kernel lets go of a dead task's cgroup a little later
            with suppress(OSError):
                os.rmdir(cgroup)
                break
            time.sleep(0.01)


def report(name: str, samples: list[Sample], bare: float) -> str:
    """One row: the median, and with its quartiles the ratio to the bare start and to the reference's stand-in."""
    low, middle, high = statistics.quantiles([sample.seconds for sample in samples], n=4)
    peak = max(sample.memory for sample in samples)
    # A process begins with the peak of the one that started it: below ours nothing can be said.
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = f"{'<' if peak <= floor else ' '}{peak / 1e6:5.1f} MB"
    ratio = f"{middle / bare:5.2f}x ({low / bare:.2f}-{high / bare:.2f})"
    return f"{name:<26}{middle * 1e3:7.1f} ms   {ratio:<22}{middle / bare / REFERENCE:5.2f}x   {memory}"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="start-up cost of the hook on a simulated node")
    parser.add_argument("prefix", help="an installation: PREFIX of ./dev install")
    parser.add_argument("--runs", type=int, default=30, help="rounds (at least 2)")
    options = parser.parse_args()
    sys.path.append(f"{options.prefix}/lib/nvgraft/hook")
    hook = [f"{options.prefix}/bin/nvgraft-hook", "prestart"]
    samples: dict[str, list[Sample]] = {"bare python3 -IS": [], **{name: [] for name in CASES}}
    work = tempfile.mkdtemp(prefix="nvgraft-bench.")
    try:
        for name, variables in CASES.items():
            make_bundle(f"{work}/{name}", variables)
        for _ in range(options.runs):
            samples["bare python3 -IS"].append(measure(BARE, "", work))
            for name in CASES:
                with container(f"{work}/{name}") as state:
                    samples[name].append(measure(hook, state, f"{work}/{name}"))
    finally:
        shutil.rmtree(work)
    uname = os.uname()
    bare = statistics.median(sample.seconds for sample in samples["bare python3 -IS"])
    print(f"Linux {uname.release} {uname.machine}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    print(f"median of {options.runs}, quartiles in parentheses")
    print(f"{'':<26}{'time':>10}   {'to a bare start':<22}{f'to {REFERENCE}x':>6}   {'peak':>6}")
    for name, rows in samples.items():
        print(report(name, rows, bare))
    print(f"{REFERENCE}x a bare start stands in for the reference hook and CLI, which are not at hand.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
