"""The running device plugin, on a recorded host or a fake NVML, with a kubelet that fails in every
way.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import pynvml
import pytest
from structlog.testing import capture_logs

from kubelets import Kubelet
from nvgraft.formats.tree import LiveTree
from nvgraft_device_plugin import apart, cdi_files, health, main, manager, mps
from nvgraft_device_plugin.configuration import Configuration, load
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import NodeError
from nvgraft_device_plugin.metrics import Endpoint, Liveness, Metrics
from nvgraft_device_plugin.node import NvmlError
from nvgraft_device_plugin.source import LiveSource, RecordedSource

HOST = "runfile-a10x2"
FIRST = "GPU-1704f16f-6765-b770-207a-b7b63e1e9d38"
SECOND = "GPU-9982b158-eafb-d661-48b2-5a778b04dcd0"
#: Until something happens that has to happen.
PATIENCE = 20.0
SHARED = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugin look at its sockets a hundred times a second instead of four."""
    monkeypatch.setattr(manager, "_LOOK", 0.01)


@pytest.fixture
def directory() -> Iterator[str]:
    """Return a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dp") as path:
        yield path


def configured(*words: str, file: str = "", **environ: str) -> Configuration:
    """Return the configuration of a command line."""
    words = (*words, "--config-file=given") if file else words
    return load(words, environ, lambda _: file.encode())


class Running(NamedTuple):
    """A plugin that runs in this loop.

    :ivar task: ends with the exit code.
    :ivar logs: what it has logged.
    """

    manager: manager.Manager
    task: "asyncio.Task[int]"
    logs: list[Any]

    def said(self, words: str) -> list[Any]:
        """Return the logged events with these words."""
        return [entry for entry in self.logs if words in entry["event"]]

    async def says(self, words: str, times: int = 1) -> Any:
        """Return the last event with these words, when there are so many."""
        await until(lambda: len(self.said(words)) >= times, lambda: f"{words!r} in {self.logs}")
        return self.said(words)[-1]

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of an HTTP answer."""
        head, _, text = self.manager.endpoint.answer(f"GET {path} HTTP/1.1".encode()).partition(
            b"\r\n\r\n"
        )
        return int(head.split()[1]), text.decode()

    async def health_is(self, status: int) -> str:
        """Return the text of /healthz when it has a status."""
        await until(lambda: self.get("/healthz")[0] == status, lambda: self.get("/healthz")[1])
        return self.get("/healthz")[1]


async def until(
    true: Callable[[], object], describe: Callable[[], str] = lambda: "it does not happen"
) -> None:
    """Wait until something is true."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not true():
        assert asyncio.get_running_loop().time() < end, describe()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    directory: str, *flags: str, environ: dict[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run a plugin of a recorded host, and end it."""
    words = [
        f"--kubelet-socket={directory}/kubelet.sock",
        "--metrics-address=127.0.0.1:0",
        f"--host={HOST}",
        *flags,
    ]
    plugin = manager.Manager(words, environ or {})
    with capture_logs() as logs:
        task = asyncio.create_task(plugin.run())
        try:
            yield Running(plugin, task, logs)
        finally:
            plugin.stop()
            await task


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


# ---- allocation: logs and metrics


@in_loop
async def test_an_allocation_is_logged_and_counted(directory: str) -> None:
    """The log says which physical GPUs were given for which resource, by which strategy."""
    with Kubelet(directory) as kubelet:
        async with running(directory, "--device-list-strategy=envvar,volume-mounts") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            with kubelet.plugin() as client:
                await asyncio.to_thread(client.allocate, SECOND)
                with pytest.raises(grpc.RpcError, match="unknown device: GPU-x"):
                    await asyncio.to_thread(client.allocate, "GPU-x")
            told = await plugin.says("allocated")
            _, metrics = plugin.get("/metrics")
            refused = await plugin.says("allocation refused")
    assert (
        told["resource"],
        told["devices"],
        told["gpus"],
        told["indices"],
        told["strategies"],
    ) == (
        "nvidia.com/gpu",
        [SECOND],
        [SECOND],
        ["1"],
        ["envvar", "volume-mounts"],
    )
    assert (refused["log_level"], refused["resource"]) == ("warning", "nvidia.com/gpu")
    start = "nvgraft_device_plugin"
    for line in (
        f'{start}_devices{{health="healthy",resource="nvidia.com/gpu"}} 2.0',
        f'{start}_allocations_total{{resource="nvidia.com/gpu"}} 1.0',
        f'{start}_allocation_errors_total{{resource="nvidia.com/gpu"}} 1.0',
        f'{start}_allocate_seconds_count{{resource="nvidia.com/gpu"}} 2.0',
        f'{start}_registrations_total{{resource="nvidia.com/gpu",result="ok"}} 1.0',
    ):
        assert line in metrics.splitlines()
    assert "process_resident_memory_bytes" in metrics


@in_loop
async def test_a_share_is_logged_with_its_gpu(directory: str) -> None:
    """Two shares of one GPU are one physical GPU."""
    config = Path(directory, "config.yaml")
    config.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
    with Kubelet(directory) as kubelet:
        async with running(directory, f"--config-file={config}") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            with kubelet.plugin() as client:
                await asyncio.to_thread(client.allocate, f"{FIRST}::0", f"{FIRST}::1")
            told = await plugin.says("allocated")
    assert (told["devices"], told["gpus"]) == ([f"{FIRST}::0", f"{FIRST}::1"], [FIRST])


# ---- the endpoint


@in_loop
async def test_the_endpoint_is_on_loopback_and_can_be_switched_off(directory: str) -> None:
    """By default nobody outside of the pod reaches it."""
    with Kubelet(directory) as kubelet:
        async with running(directory, "--metrics-address=off") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
        assert not plugin.said("/metrics")
    assert configured().metrics_address == ("127.0.0.1", 9402)
    assert configured("--metrics-address=[::1]:80").metrics_address == ("::1", 80)
    assert configured(METRICS_ADDRESS=":9400").metrics_address == ("", 9400)
    assert configured(file="flags: {plugin: {metricsAddress: 'off'}}").metrics_address is None


@in_loop
async def test_an_address_in_use_is_a_warning(directory: str) -> None:
    """Pods get their GPUs although nobody can read the metrics."""
    with socket.create_server(("127.0.0.1", 0)) as other, Kubelet(directory) as kubelet:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with running(directory, f"--metrics-address={address}") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
    (told,) = plugin.said("no metrics and no liveness at")
    assert told["event"].endswith("| choose another --metrics-address, or off")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        (b"GET /healthz?x=1 HTTP/1.0\r\nA: b\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found\r\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"GET /" + b"x" * 100_000, b""),
        (b"GET", b""),
        (b"\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
    ],
)
@in_loop
async def test_what_is_not_a_request_is_closed(request_: bytes, answer: bytes) -> None:
    """The endpoint answers two paths, and reads a bounded number of bytes."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    streams = await asyncio.open_connection(sock=theirs, limit=8192)
    serving = asyncio.create_task(Endpoint(Metrics(), Liveness()).serve(*streams))
    writer.write(request_)
    writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        answered = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answered.startswith(answer) and bool(answer) == bool(answered)
        assert request_[:4] != b"HEAD" or answered.endswith(b"\r\n\r\n")
    writer.close()
    await serving


# ---- the kubelet


@in_loop
async def test_a_kubelet_that_comes_later(directory: str) -> None:
    """Its new socket is noticed, long before the next try."""
    async with running(directory) as plugin:
        told = await plugin.says("could not register nvidia.com/gpu with the kubelet at")
        assert "the socket does not exist | start the kubelet, and mount its dir" in told["event"]
        assert told["again_in_seconds"] == 30
        with Kubelet(directory) as kubelet:
            await asyncio.to_thread(kubelet.wait_for, 1)
            assert await plugin.health_is(200) == "ok\n"


@in_loop
async def test_a_kubelet_that_refuses_connections(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead kubelet leaves its socket. Each try is one line, with cause and fix."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{directory}/kubelet.sock")
    async with running(directory) as plugin:
        told = await plugin.says("could not register", times=3)
        assert "Connection refused" in told["event"]
        assert "| start the kubelet (systemctl status kubelet)" in told["event"]
        os.unlink(f"{directory}/kubelet.sock")
        with Kubelet(directory) as kubelet:
            await asyncio.to_thread(kubelet.wait_for, 1)


@in_loop
async def test_a_kubelet_that_closes_connections(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is reset is a line, and another try."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/kubelet.sock")
        listener.listen()
        listener.settimeout(0.05)
        ended = threading.Event()

        def close_all() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    listener.accept()[0].close()

        closing = asyncio.create_task(asyncio.to_thread(close_all))
        try:
            async with running(directory) as plugin:
                told = await plugin.says("could not register", times=2)
        finally:
            ended.set()
            await closing
    assert " | " in told["event"] and told["log_level"] == "error"


@pytest.mark.parametrize(
    ("service", "refusal"),
    [
        ("deviceplugin.Registration", ""),
        (
            "v1beta1.Registration",
            'requested API version "v1beta1" is not supported by kubelet. Supported version is "v1alpha"',
        ),
    ],
)
@in_loop
async def test_a_kubelet_that_speaks_an_older_version(
    directory: str, service: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says which version is missing, and which Kubernetes has it."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    with Kubelet(directory, service=service, refusal=refusal):
        async with running(directory) as plugin:
            told = await plugin.says("could not register", times=2)
    assert "this kubelet does not speak v1beta1" in told["event"]
    assert told["event"].endswith("| use Kubernetes 1.10 or newer on this node")
    assert not os.listdir(directory)


@in_loop
async def test_a_kubelet_that_refuses(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are in the log, the plugin's socket is removed, and it is tried again."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    with Kubelet(directory, refusal="the name is taken") as kubelet:
        async with running(directory) as plugin:
            told = await plugin.says("could not register", times=2)
            assert "the name is taken | see the kubelet's log" in told["event"]
            waiting = 'waiting_info{reason="could not register nvidia.com/gpu with the kubelet at'
            assert waiting in plugin.get("/metrics")[1]
            kubelet.refusal = ""
            await asyncio.to_thread(kubelet.wait_for, 1)
            await until(lambda: "waiting_info{" not in plugin.get("/metrics")[1])
        assert os.listdir(directory) == ["kubelet.sock"]


@in_loop
async def test_liveness_fails_while_a_kubelet_is_lost(directory: str) -> None:
    """The socket that was registered with is gone; a new one mends it."""
    async with running(directory) as plugin:
        with Kubelet(directory) as kubelet:
            await plugin.says("Registered device plugin")  # it has the kubelet's answer
            assert await plugin.health_is(200) == "ok\n"
        assert await plugin.health_is(503) == f"kubelet: {kubelet.path} was removed\n"
        with Kubelet(directory, refusal="not now"):
            await plugin.says("could not register")
            assert "not now" in await plugin.health_is(503)
        with Kubelet(directory) as kubelet:
            await asyncio.to_thread(kubelet.wait_for, 1)
            assert await plugin.health_is(200) == "ok\n"


@in_loop
async def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """The plugin's own socket lies beside the kubelet's."""
    async with running(str(tmp_path / "none")) as plugin:
        told = await plugin.says("could not serve")
    assert f"there is no directory {tmp_path}/none | mount the kubelet's directory" in told["event"]
    long = tmp_path / ("x" * 107)
    long.mkdir()
    async with running(str(long)) as plugin:
        told = await plugin.says("could not serve")
    assert "sock: longer than 107 bytes | mount the kubelet's directory at a" in told["event"]


# ---- NVML


class LiveNode(RecordedSource):
    """A recorded host whose NVML is watched, as on a real node."""

    watched = True

    def __init__(self) -> None:
        super().__init__(HOST)


def fake_events(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[], Any], source: type[LiveNode] = LiveNode
) -> None:
    """Let NVML's events come from a function."""
    monkeypatch.setattr(manager, "open_source", lambda _config: source())
    monkeypatch.setattr(health, "_WAIT", 1)
    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", object)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", lambda _: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSupportedEventTypes", lambda _: 8)
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", lambda *_: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: handle)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", lambda *_: wait())


def nothing() -> None:
    """Wait as NVML does when nothing happens."""
    time.sleep(0.001)
    raise pynvml.NVMLError_Timeout


def xid(number: int, gpu: str) -> Any:
    """Make NVML's event of an Xid of a whole GPU."""
    return SimpleNamespace(
        eventType=pynvml.nvmlEventTypeXidCriticalError,
        eventData=number,
        device=gpu,
        gpuInstanceId=2**32 - 1,
        computeInstanceId=2**32 - 1,
    )


@in_loop
async def test_an_xid_is_logged_and_counted(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPU is unhealthy with the reason, until NVML answers for it again."""
    events = [xid(48, SECOND), xid(13, FIRST)]
    fake_events(monkeypatch, lambda: events.pop() if events else nothing())
    with Kubelet(directory) as kubelet:
        async with running(directory, "--probe-after=0") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            marked = await plugin.says("marking device as unhealthy")
            _, metrics = plugin.get("/metrics")
            with kubelet.plugin() as client:
                lists = client.lists()
                assert (await asyncio.to_thread(next, lists))[SECOND] == "Unhealthy"
                await asyncio.to_thread(client.allocate, SECOND)
            given = await plugin.says("unhealthy devices were given")
            ignored, counted = plugin.said("NVML reports an Xid")
    assert (marked["device"], marked["reason"]) == (SECOND, "Xid 48")
    assert (ignored["xid"], ignored["health"]) == (13, "is ignored")
    assert (counted["xid"], counted["gpu"], counted["health"]) == (48, SECOND, "counts")
    assert given["reasons"] == {SECOND: "Xid 48"}
    labels = f'device="{SECOND}",reason="Xid 48",resource="nvidia.com/gpu"'
    assert f"nvgraft_device_plugin_unhealthy_info{{{labels}}} 1.0" in metrics
    assert f'nvgraft_device_plugin_xids_total{{gpu="{FIRST}",xid="13"}} 1.0' in metrics


@in_loop
async def test_nvml_that_dies_and_comes_back(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices are unhealthy and /healthz fails, with one line, until NVML answers again."""
    dead = threading.Event()
    fake_events(monkeypatch, lambda: fail() if dead.is_set() else nothing())

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    with Kubelet(directory) as kubelet:
        async with running(directory, "--probe-after=0.01") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            with kubelet.plugin() as client:
                lists = client.lists()
                assert set((await asyncio.to_thread(next, lists)).values()) == {"Healthy"}
                dead.set()
                assert "NVML: waiting for events: Driver Not Loaded" in await plugin.health_is(503)
                while set(await asyncio.to_thread(next, lists)) - {FIRST, SECOND}:
                    pass
                dead.clear()
                assert await plugin.health_is(200) == "ok\n"
                while set((await asyncio.to_thread(next, lists)).values()) != {"Healthy"}:
                    pass
            (told,) = plugin.said("NVML: waiting for events")
    assert "| run nvidia-smi on the node" in told["event"]
    assert plugin.said("NVML answers again")


@in_loop
async def test_an_end_does_not_wait_for_nvml_that_hangs(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet's grace period is short, and a kill would leave the sockets."""
    hangs, freed = threading.Event(), threading.Event()

    def wait() -> None:
        hangs.set()
        freed.wait(PATIENCE)
        raise pynvml.NVMLError_Timeout

    fake_events(monkeypatch, wait)
    monkeypatch.setattr(manager, "_PARTING", 0.01)
    monkeypatch.setattr(health, "SILENCE", 0.05)
    with Kubelet(directory) as kubelet:
        async with running(directory) as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            await until(hangs.is_set)
            assert "NVML: no answer for" in await plugin.health_is(503)
        assert os.listdir(directory) == ["kubelet.sock"]
    freed.set()
    assert plugin.task.result() == 0
    assert plugin.said("NVML does not answer: it is not shut down")


@in_loop
async def test_nvml_that_hangs_at_the_start(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin says so, fails its liveness, and can still be ended."""
    freed = threading.Event()

    class Hanging(LiveNode):
        def start(self) -> None:
            freed.wait(PATIENCE)

    monkeypatch.setattr(manager, "open_source", lambda _config: Hanging())
    monkeypatch.setattr(manager, "_PARTING", 0.01)
    monkeypatch.setattr(manager, "SILENCE", 0.02)
    async with running(directory) as plugin:
        told = await plugin.says("NVML: no answer for", times=2)
        assert "| run nvidia-smi on the node; if it hangs too" in told["event"]
        assert "NVML: no answer for" in await plugin.health_is(503)
    freed.set()
    assert plugin.task.result() == 0


@in_loop
async def test_nvml_that_does_not_start_ends_the_plugin_with_a_fix(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line has the reference's words, and what to do."""

    class Mismatched(LiveNode):
        def start(self) -> None:
            raise NvmlError("nvml init failed: Driver/library version mismatch")

    monkeypatch.setattr(manager, "open_source", lambda _config: Mismatched())
    async with running(directory) as plugin:
        assert await plugin.task == 1
    assert plugin.logs[-1]["event"].startswith(
        "error starting plugins: error getting plugins: nvml init failed: Driver/library version"
        " mismatch | the driver was upgraded under the loaded module: reboot the node"
    )


@in_loop
async def test_nvml_that_starts_later(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plugin is told to wait, it tries again while a driver is there that fails."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    errors = [NvmlError("nvml init failed: Driver Not Loaded")] * 2

    class Late(LiveNode):
        def start(self) -> None:
            if errors:
                raise errors.pop()

    fake_events(monkeypatch, nothing, source=Late)
    with Kubelet(directory) as kubelet:
        async with running(directory, "--fail-on-init-error=false") as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
    tries = plugin.said("Failed to initialize NVML: nvml init failed: Driver Not Loaded")
    assert [told["again_in_seconds"] for told in tries] == [0.01, 0.01]
    assert "| load the driver on the node (modprobe nvidia)" in tries[0]["event"]


@in_loop
async def test_a_driver_that_is_installed_later(
    directory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node without one says so once, and nothing is tried before its NVML is there."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"

    class Bare(LiveNode):
        def start(self) -> None:
            if not library.exists():
                raise NvmlError("nvml init failed: ERROR_LIBRARY_NOT_FOUND", missing=True)

        def signs(self) -> tuple[str, ...]:
            return LiveSource(str(tmp_path)).signs()

    fake_events(monkeypatch, nothing, source=Bare)
    with Kubelet(directory) as kubelet:
        async with running(directory, "--fail-on-init-error=false") as plugin:
            await plugin.says("No devices found. Waiting indefinitely.")
            library.parent.mkdir(parents=True)
            library.touch()
            await asyncio.to_thread(kubelet.wait_for, 1)
    (told,) = plugin.said("Failed to initialize NVML")
    assert "again_in_seconds" not in told


# ---- MPS


def control(directory: str, script: str) -> dict[str, str]:
    """Make a control program of MPS; return the environment that finds it."""
    path = Path(directory, "nvidia-cuda-mps-control")
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@in_loop
async def test_a_shared_resource_waits_for_its_mps_daemon(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked as the reference asks it, and until it answers nothing is registered."""
    monkeypatch.setattr(manager, "_AGAIN", 0.01)
    config, ready = Path(directory, "config.yaml"), Path(directory, "ready")
    config.write_text(SHARED)
    environ = control(
        directory,
        f'[ -e {ready} ] || {{ echo "Cannot find MPS control daemon process" >&2; exit 1; }}\n'
        '[ "$(cat)" = get_default_active_thread_percentage ] && echo 50.0\n'
        f'echo "$CUDA_MPS_PIPE_DIRECTORY" > {ready}',
    )
    flags = [f"--mps-root={directory}/mps", f"--config-file={config}"]
    with Kubelet(directory) as kubelet:
        async with running(directory, *flags, environ=environ) as plugin:
            told = await plugin.says("error waiting for MPS daemon", times=2)
            assert "Cannot find MPS control daemon process | start the MPS control" in told["event"]
            assert kubelet.registered == []
            ready.touch()
            await asyncio.to_thread(kubelet.wait_for, 1)
            healthy = await plugin.says("MPS daemon is healthy")
    assert (healthy["resource"], healthy["active_thread_percentage"]) == ("nvidia.com/gpu", "50.0")
    assert ready.read_text() == f"{directory}/mps/nvidia.com/gpu/pipe\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "nvidia-cuda-mps-control: not in PATH | give this container the driver's programs"),
        ("true", "no answer for nvidia.com/gpu at /r/nvidia.com/gpu/pipe | start the MPS control"),
        ("sleep 5", "within 0 s | restart the MPS control daemon"),
    ],
)
def test_an_mps_daemon_that_does_not_answer(
    script: str | None, words: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cause has its own fix."""
    monkeypatch.setattr(mps, "_PATIENCE", 0.2)
    environ = {"PATH": directory} if script is None else control(directory, f"exec {script}")
    with pytest.raises(NodeError) as caught:
        mps.ask("nvidia.com/gpu", "/r", environ)
    assert str(caught.value).startswith("error waiting for MPS daemon: ")
    assert words in str(caught.value)


def test_the_pipe_is_where_the_references_pods_have_it(tmp_path: Path) -> None:
    """Their container has the directory of --mps-root at /mps."""
    assert mps.pipe_directory("a/b", "/run/mps", str(tmp_path)) == f"{tmp_path}/a/b/pipe"
    assert mps.pipe_directory("a/b", "/run/mps", f"{tmp_path}/none") == "/run/mps/a/b/pipe"


# ---- the process


@contextlib.contextmanager
def process(*words: str, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the program, and kill it if it does not end."""
    command = [sys.executable, "-m", "nvgraft_device_plugin.main", *words]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command, env={"PYTHONPATH": paths, **environ}, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_signal_ends_the_process(directory: str) -> None:
    """Exit code 0, within the kubelet's grace period, and no socket is left; logs are JSON."""
    words = [
        f"--kubelet-socket={directory}/kubelet.sock",
        f"--host={HOST}",
        "--metrics-address=off",
    ]
    with Kubelet(directory) as kubelet, process(*words, NVGRAFT_LOG_FORMAT="json") as child:
        kubelet.wait_for(1)
        child.terminate()
        _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert os.listdir(directory) == []
    lines = [json.loads(line) for line in said.splitlines()]
    assert lines[-1]["event"] == "stopped by a signal"
    assert all(line["level"] and line["timestamp"] for line in lines)


def test_a_line_of_the_log_stays_one_line(directory: str) -> None:
    """What a config file or NVML says cannot change how a terminal shows the log."""
    file = Path(directory, "config.yaml")
    file.write_text('version: "v1\\n\\e[31m"')
    with process(f"--host={HOST}", f"--config-file={file}") as child:
        _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1
    assert "unknown version: v1\\x0a\\x1b[31m | write version: v1" in said.splitlines()[-1]


def test_a_log_in_json_has_no_other_lines(tmp_path: Path) -> None:
    """gRPC writes to stderr itself where a socket cannot be made."""
    words = [f"--host={HOST}", f"--kubelet-socket={tmp_path}/none/kubelet.sock"]
    with process(*words, "--metrics-address=off", NVGRAFT_LOG_FORMAT="json") as child:
        assert child.stderr is not None
        lines = iter(child.stderr.readline, "")
        assert any("could not serve" in json.loads(line)["event"] for line in lines)


@in_loop
async def test_an_end_leaves_no_thread(directory: str) -> None:
    """Threads that ask NVML end with the plugin."""
    with Kubelet(directory) as kubelet:
        async with running(directory):
            await asyncio.to_thread(kubelet.wait_for, 1)
    await until(lambda: apart.NAME not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("version: v9", "unknown version: v9 | write version: v1"),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
            "using MPS requires --mps-root",
        ),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "must be >= 2 | "),
        ("flags: {plugin: {probeAfter: soon}}", "invalid number 'soon'"),
        ("flags: {plugin: {metricsAddress: off}}", "metricsAddress: invalid value False | write a"),
    ],
)
@in_loop
async def test_a_bad_config_file_ends_the_plugin_with_one_line(
    config: str, words: str, directory: str
) -> None:
    """Cause and fix are in the last line, and the exit code is 1."""
    file = Path(directory, "config.yaml")
    file.write_text(config)
    async with running(directory, f"--config-file={file}") as plugin:
        assert await plugin.task == 1
    last = plugin.logs[-1]
    assert last["log_level"] == "error" and words in last["event"] and " | " in last["event"]


def test_a_driver_root_that_is_not_mounted(directory: str) -> None:
    """A CDI specification cannot be made without the driver's files."""
    given = configured(f"--driver-root-ctr-path={directory}/none")
    with pytest.raises(
        NodeError, match=r"none: No such file or directory \| mount the driver root"
    ):
        cdi_files.live_specification(Node("nvml"), given)


def hook_fault(root: Path, path: str, *words: str, driver_root: str = "/") -> str:
    """Return what is wrong with a hook program on the node that is seen at ``root``."""
    given = configured(
        f"--driver-root-ctr-path={root}", f"--driver-root={driver_root}",
        f"--nvidia-cdi-hook-path={path}", *words,
    )  # fmt: skip
    return cdi_files.missing_hook_program(given)


def test_a_hook_program_is_looked_for_below_the_driver_root(tmp_path: Path) -> None:
    """It is there, also behind an absolute link, or it cannot be seen, or a line says what the
    engine will do and what to name.
    """
    program = tmp_path / "opt/toolkit/hook"
    program.parent.mkdir(parents=True)
    program.write_text("")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/hook").symlink_to("/opt/toolkit/hook")
    fault = hook_fault(tmp_path, "/usr/hook")  # no execute permission yet
    assert "hook program /usr/hook, and there is no such program on the node" in fault
    assert f"(this process looks at {tmp_path}/usr/hook)" in fault
    assert "| install it on the node, or name the path" in fault
    program.chmod(0o755)
    assert hook_fault(tmp_path, "/usr/hook") == ""
    assert hook_fault(tmp_path, "/run/driver/usr/hook", driver_root="/run/driver") == ""
    assert "no such program" in hook_fault(tmp_path, "/usr/none")
    assert "no such program" in hook_fault(tmp_path, "/run/x/none", driver_root="/run/x/")
    assert "not an absolute path" in hook_fault(tmp_path, "hook")
    (tmp_path / "usr/loop").symlink_to("loop")
    assert "no such program" in hook_fault(tmp_path, "/usr/loop")


def test_a_hook_program_that_cannot_be_seen_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies outside of the driver root or where this user may not look, nothing is mounted there,
    or no hook is written.
    """
    assert hook_fault(tmp_path, "/usr/none", driver_root="/run/driver") == ""
    assert hook_fault(tmp_path / "not-mounted", "/usr/none") == ""
    assert hook_fault(tmp_path, "/usr/none", "--cdi-disable-hooks=all") == ""
    assert hook_fault(tmp_path, "/usr/none") != ""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LiveTree, "lstat", refused)
    assert hook_fault(tmp_path, "/usr/none") == ""


@pytest.mark.parametrize(
    ("strategy", "source", "times"),
    [("envvar,cdi-cri", LiveNode, 1), ("envvar", LiveNode, 0), ("cdi-cri", RecordedSource, 0)],
)
@in_loop
async def test_a_missing_hook_program_is_one_warning(
    strategy: str,
    source: type[RecordedSource],
    times: int,
    directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a CDI strategy on a real node needs it."""
    fake_events(monkeypatch, nothing)
    real = source() if source is LiveNode else source(HOST)
    monkeypatch.setattr(manager, "open_source", lambda _config: real)
    monkeypatch.setattr(cdi_files, "write", lambda name, _spec: name)
    with Kubelet(directory) as kubelet:
        words = (f"--device-list-strategy={strategy}", f"--driver-root-ctr-path={tmp_path}")
        async with running(directory, *words) as plugin:
            await asyncio.to_thread(kubelet.wait_for, 1)
            assert len(plugin.said("hook program /usr/bin/nvidia-ctk")) == times


def test_a_crash_says_where(directory: str) -> None:
    """A driver's library that ends the process leaves the place in the log."""
    script = (
        "import ctypes; from nvgraft_device_plugin import main, manager;"
        "manager.open_source = lambda _: ctypes.string_at(0); main.main(['--metrics-address=off'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr and "in _start" in done.stderr


def test_a_defect_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who meets one gets what to report, and no traceback."""

    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(main, "Manager", fail)
    monkeypatch.setattr(main, "configure_log", lambda **_: None)
    with capture_logs() as said:
        assert main.main([]) == 70
    assert [line["event"] for line in said] == [
        "a defect of nvgraft-device-plugin | report this line"
    ]
    assert said[0]["error"] == "KeyError('x')"
    assert said[0]["place"].startswith("test_device_plugin_service.py:")
