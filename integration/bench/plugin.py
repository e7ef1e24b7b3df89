"""Measure the device plugin on a simulated node, with a kubelet of the tests: how soon it lists its
devices, how long Allocate takes, how much memory it needs, and what 4,480 shares cost.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import structlog

from kubelets import Kubelet, Plugin
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.configuration import load
from nvgraft_device_plugin.devices import Device
from nvgraft_device_plugin.metrics import Metrics
from nvgraft_device_plugin.resources import Resource
from nvgraft_device_plugin.server import ResourceServer

#: Allocates before memory is measured for the first time.
_WARM = 500


@contextlib.contextmanager
def running(prefix: str, kubelet: Kubelet, *flags: str) -> Iterator[tuple[int, float]]:
    """Run the plugin; yield its process number, and the clock before its start."""
    command = [
        f"{prefix}/bin/nvgraft-device-plugin",
        f"--kubelet-socket={kubelet.path}",
        "--metrics-address=127.0.0.1:0",
        "--device-list-strategy=envvar,cdi-cri",
        "--driver-root-ctr-path=/",
        *flags,
    ]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid, began
        finally:
            process.terminate()


def first_list(prefix: str, directory: str) -> tuple[float, float]:
    """Return the seconds from the program's start, and from its registration, to its first list."""
    with Kubelet(directory) as kubelet, running(prefix, kubelet) as (_, began):
        kubelet.wait_for(1)
        registered = time.perf_counter()
        with kubelet.plugin() as plugin:
            next(plugin.lists())
        listed = time.perf_counter()
    return listed - began, listed - registered


def megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def allocations(prefix: str, directory: str, count: int) -> dict[str, Any]:
    """Return the seconds of each Allocate, the memory after them, and its growth."""
    seconds = []
    with Kubelet(directory) as kubelet, running(prefix, kubelet) as (pid, _):
        kubelet.wait_for(1)
        with kubelet.plugin() as plugin:
            names = list(next(plugin.lists()))
            for _ in range(_WARM):
                plugin.allocate(names[0])
            before = megabytes(pid)
            for number in range(count):
                began = time.perf_counter()
                plugin.allocate(names[number % len(names)])
                seconds.append(time.perf_counter() - began)
            after = megabytes(pid)
    return {"seconds": seconds, "megabytes": after, "growth": after - before}


def preferences(directory: str, rounds: int) -> list[float]:
    """Return the seconds of GetPreferredAllocation for 64 of the shares of a large node, with the
    kubelet's call around it.
    """
    devices = [
        share
        for gpu in range(64)
        for position in range(7)
        for name in [f"MIG-{gpu:032x}-{position}"]
        for share in Device(
            name, name, f"{gpu}:{position}", f"GPU-{gpu}", (position, 0), (), 0
        ).shares(10)
    ]
    resource = Resource("nvidia.com/gpu", tuple(devices), 10)
    server = ResourceServer(
        Allocator(resource, load([], {})), directory, {}, structlog.get_logger(), Metrics()
    )

    def ask() -> list[float]:
        names = [device.id for device in devices]
        seconds = []
        with Plugin(server.path) as plugin:
            for _ in range(rounds):
                began = time.perf_counter()
                assert len(plugin.preferred(names, 64)) == 64
                seconds.append(time.perf_counter() - began)
        return seconds

    async def serve() -> list[float]:
        await server.start()
        try:
            return await asyncio.to_thread(ask)
        finally:
            await server.stop()

    return asyncio.run(serve())


def measure(prefix: str, request: str) -> int:
    """Measure what a request asks for, and print it as JSON."""
    wanted = json.loads(request)
    os.makedirs("/var/run/cdi", exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/run") as directory:
        starts = [first_list(prefix, directory) for _ in range(wanted["rounds"])]
        answer = {
            "starts": starts,
            "allocations": allocations(prefix, directory, wanted["allocations"]),
            "preferences": preferences(directory, max(wanted["rounds"], 5)),
        }
    print(json.dumps(answer))
    return 0
