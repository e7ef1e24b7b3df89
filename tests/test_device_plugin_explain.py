"""``nvgraft-device-plugin explain``: the first broken link, its cause and the next step."""

import http.client
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nvgraft_device_plugin import explain, mps
from nvgraft_device_plugin.configuration import load
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import NodeError
from nvgraft_device_plugin.node import NvmlError
from test_device_plugin import gpu, mig, node

GPUS = "/proc/driver/nvidia/gpus"


class Machine:
    """A node whose driver and NVML answer as a test wants."""

    watched = True
    loads = True

    def __init__(self, read: Callable[[], Node], start: Callable[[], None] = lambda: None) -> None:
        self.read = read
        self.start = start

    def stop(self) -> None:
        """Do nothing."""

    def exists(self, _path: str) -> bool:
        """Tell that there is no node."""
        return False

    def platform(self, strategy: str) -> str:
        """Return the kind of node that is wanted."""
        return "nvml" if strategy == "auto" else strategy


Explain = Callable[..., list[str]]


@pytest.fixture
def kubelet(tmp_path: Path) -> str:
    """Return the path of a kubelet's socket."""
    path = str(tmp_path / "kubelet.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    return path


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kubelet: str) -> Explain:
    """Return a function that explains a machine and returns the lines, with single blanks."""
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n")
    monkeypatch.setattr(explain, "_MODULE", str(version))
    monkeypatch.setattr(explain, "_GPUS", str(tmp_path / "gpus"))
    monkeypatch.setattr(explain, "_connect", lambda _path: None)
    monkeypatch.setattr(explain, "_told", lambda *_: [])

    def run(
        machine: Machine, *words: str, code: int, file: str = "", socket_: str = kubelet
    ) -> list[str]:
        if file:
            config = tmp_path / "config.yaml"
            config.write_text(file)
            words = (*words, f"--config-file={config}")
        monkeypatch.setattr(explain, "open_source", lambda _given: machine)
        answer, found = explain.text([f"--kubelet-socket={socket_}", *words], {})
        assert found == code, answer
        assert ("This node advertises no devices" in answer) == bool(code)
        return [" ".join(line.split()) for line in answer.splitlines()]

    return run


def two() -> Node:
    """Return a node of two GPUs."""
    return node(gpu(0), gpu(1))


def fails(text: str) -> Callable[[], None]:
    """Return what fails as NVML does."""

    def start() -> None:
        raise NvmlError(text)

    return start


def test_a_node_that_works(explained: Explain, kubelet: str) -> None:
    """Each link says what it found; only the plugin itself is not there yet."""
    assert explained(Machine(two), code=0) == [
        "configuration ok devices by envvar, ids by uuid",
        "driver ok NVIDIA UNIX x86_64 Kernel Module 550.54.15",
        "NVML ok driver 550.54.15, CUDA 12.4",
        "devices ok 0: NVIDIA A100-SXM4-40GB GPU-0; 1: NVIDIA A100-SXM4-40GB GPU-1",
        "resources ok nvidia.com/gpu x 2",
        f"kubelet ok {kubelet} answers",
        "plugin warning nobody serves nvidia.com/gpu: nvgraft-device-plugin does not run, or waits",
        "fix: start it; its log has the cause if it ends or waits",
    ]


@pytest.mark.parametrize("loads", [True, False])
def test_no_driver(
    loads: bool, explained: Explain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel module is the first link, whatever the container has of the driver's files."""
    monkeypatch.setattr(explain, "_MODULE", str(tmp_path / "none"))
    machine = Machine(two, fails("nvml init failed: Driver Not Loaded"))
    machine.loads = loads
    lines = explained(machine, code=1)
    assert lines[1].startswith("driver broken the nvidia module is not loaded")
    assert "modprobe nvidia" in lines[2] and "node selector" in lines[2]
    assert len(lines) == 4


def test_a_container_that_does_not_see_the_module(
    explained: Explain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where NVML answers, nothing is broken."""
    monkeypatch.setattr(explain, "_MODULE", str(tmp_path / "none"))
    assert explained(Machine(two), code=0)[1] == "NVML ok driver 550.54.15, CUDA 12.4"


def test_no_library(explained: Explain) -> None:
    """The driver is loaded, and this container does not have its libraries."""
    machine = Machine(two)
    machine.loads = False
    lines = explained(machine, "--driver-root-ctr-path=/d", code=1)
    assert lines[2].startswith("NVML broken libnvidia-ml.so.1 cannot be loaded, neither below /d")
    assert lines[3].startswith("fix: mount the driver root") and len(lines) == 5


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("Driver/library version mismatch", "fix: the driver was upgraded under the loaded module"),
        ("Driver Not Loaded", "fix: load the driver"),
        ("Unknown Error", "fix: run nvidia-smi on the node; if it works there, the container has"),
        ("Timeout", "fix: run nvidia-smi on the node"),
    ],
)
def test_nvml_that_does_not_start(error: str, fix: str, explained: Explain) -> None:
    """The words are NVML's, and the fix is that of the error."""
    lines = explained(Machine(two, fails(f"nvml init failed: {error}")), code=1)
    assert lines[2] == f"NVML broken nvml init failed: {error}"
    assert lines[3].startswith(fix)


def test_nvml_that_hangs(explained: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends nevertheless."""
    freed = threading.Event()
    monkeypatch.setattr(explain, "_NVML_PATIENCE", 0.01)

    def hang() -> None:
        freed.wait(20)

    lines = explained(Machine(two, hang), code=1)
    freed.set()
    assert lines[2] == "NVML broken no answer for 0 s"
    assert lines[3].startswith("fix: run nvidia-smi on the node; if it hangs too")


def test_no_gpu(explained: Explain) -> None:
    """NVML works, and there is nothing to serve."""
    lines = explained(Machine(node), code=1)
    assert lines[3] == "devices broken NVML lists no GPU"
    assert "vfio-pci" in lines[4]


def test_a_gpu_without_a_node(explained: Explain, tmp_path: Path) -> None:
    """The driver has it and NVML does not list it. The others are served."""
    for name in ("0000:00:00.0", "0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    lines = explained(Machine(two), code=0)
    assert lines[3] == "devices warning the driver has a GPU that NVML does not list: 0000:02:00.0"
    assert "/dev/nvidiaN" in lines[4]


@pytest.mark.parametrize(("gpus", "mark", "code"), [([gpu(0)], "warning", 0), ([], "broken", 1)])
def test_a_lost_gpu(gpus: list[object], mark: str, code: int, explained: Explain) -> None:
    """It is broken only if there is no other one."""
    read = node(*gpus)._replace(faults=("GPU 1: GPU is lost",))  # type: ignore[arg-type]
    lines = explained(Machine(lambda: read), code=code)
    assert lines[3] == f"devices {mark} GPU 1: GPU is lost"
    assert "nvidia-smi -r" in lines[4]


def test_a_mig_gpu_without_devices(explained: Explain) -> None:
    """Under single nothing is left, under mixed the other GPUs are."""
    read = node(gpu(0), gpu(1, enabled=True))
    lines = explained(Machine(lambda: node(gpu(0, enabled=True))), "--mig-strategy=single", code=1)
    assert lines[4].startswith("resources broken invalid MIG configuration: device 0 has no MIG")
    assert "nvidia-smi mig -cgi" in lines[5]
    lines = explained(Machine(lambda: read), "--mig-strategy=mixed", code=0)
    assert lines[4] == "resources warning device 1 has no MIG devices configured"
    lines = explained(Machine(lambda: node(gpu(0, enabled=True))), "--mig-strategy=mixed", code=1)
    assert lines[4] == "resources broken device 0 has no MIG devices configured"


def test_a_mig_gpu_that_is_given_as_a_whole(explained: Explain) -> None:
    """Containers cannot use it without a MIG device."""
    read = node(gpu(0, mig("a"), enabled=True))
    lines = explained(Machine(lambda: read), code=0)
    assert lines[4] == "resources warning GPU 0 is in MIG mode and given as a whole"
    assert lines[5] == "fix: use --mig-strategy=single or mixed to give its MIG devices"


def test_a_configuration_that_selects_nothing(explained: Explain) -> None:
    """A shared resource that the node does not have is a typing error, or another node's."""
    file = "sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 2}]}}"
    lines = explained(Machine(two), file=file, code=0)
    assert lines[4] == (
        "resources warning sharing names nvidia.com/mig-1g.5gb, which this node does not have"
    )
    assert lines[5] == "fix: share one of nvidia.com/gpu, or change --mig-strategy"
    file = "resources: {gpus: [{pattern: A100, name: big}]}"
    assert "'resources' field is not yet supported" in explained(Machine(two), file=file, code=0)[1]


def test_a_wrong_configuration(explained: Explain) -> None:
    """Cause and fix are those of the log."""
    lines = explained(Machine(two), file="version: v2", code=1)
    assert lines[0].startswith("configuration broken unable to load config: ")
    assert lines[0].endswith("unknown version: v2") and lines[1] == "fix: write version: v1"
    lines = explained(Machine(two), "--mig-strategy=x", code=1)
    assert lines[:2] == [
        "configuration broken unknown MIG strategy: x",
        "fix: write none, single or mixed",
    ]


def test_mps_that_is_not_ready(explained: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is registered before the control daemon answers."""
    file = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
    monkeypatch.setattr(mps, "ask", lambda name, root, _: f"{name} {root}")
    lines = explained(Machine(two), "--mps-root=/r", file=file, code=0)
    answer = "MPS ok the control daemon of nvidia.com/gpu answers: nvidia.com/gpu /r"
    assert lines[5] == answer

    def fail(*_: object) -> str:
        raise NodeError("error waiting for MPS daemon: no answer | start the daemon")

    monkeypatch.setattr(mps, "ask", fail)
    lines = explained(Machine(two), "--mps-root=/r", file=file, code=1)
    assert lines[5:] == [
        "MPS broken error waiting for MPS daemon: no answer",
        "fix: start the daemon",
        "This node advertises no devices before that is mended.",
    ]


def test_a_cdi_directory_that_cannot_be_written(
    explained: Explain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Strategies with CDI names need a specification."""
    monkeypatch.setattr(explain, "CDI_DIRECTORY", str(tmp_path / "cdi"))
    flag = "--device-list-strategy=cdi-cri"
    explained(Machine(two), flag, code=0)
    monkeypatch.setattr(explain, "_writable", lambda _: False)
    lines = explained(Machine(two), flag, code=1)
    assert lines[5] == f"CDI broken {tmp_path}/cdi cannot be written by this user"


def test_a_hook_program_that_is_missing(explained: Explain, tmp_path: Path) -> None:
    """The node advertises its GPUs, and a warning says that pods with them will not start."""
    words = ("--device-list-strategy=cdi-cri", f"--driver-root-ctr-path={tmp_path}")
    lines = explained(Machine(two), *words, code=0)
    assert lines[5].startswith("CDI warning CDI specifications name the hook program /usr/bin/")
    assert lines[6].startswith("fix: install it on the node, or name the path there")


def test_no_kubelet(explained: Explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is missing, is not one, or nobody listens."""
    lines = explained(Machine(two), socket_=f"{tmp_path}/none", code=1)
    assert lines[5] == f"kubelet broken {tmp_path}/none: no such file or directory"
    assert lines[6].startswith("fix: start the kubelet, and mount its directory device-plugins")
    assert "is not a socket" in explained(Machine(two), socket_=str(tmp_path), code=1)[5]
    assert "is empty" in explained(Machine(two), socket_="", code=1)[5]

    def refuse(_path: str) -> None:
        raise ConnectionRefusedError(111, os.strerror(111))

    monkeypatch.setattr(explain, "_connect", refuse)
    lines = explained(Machine(two), code=1)
    assert lines[5].endswith("kubelet.sock: connection refused")
    assert lines[6].startswith("fix: start the kubelet (systemctl status kubelet)")


@pytest.mark.parametrize(
    ("listed", "line", "code"),
    [
        ({"GPU-0": "Healthy", "GPU-1": "Healthy"}, "ok nvidia.com/gpu: 2 listed, all healthy", 0),
        (
            {"GPU-0": "Healthy", "GPU-1": "Unhealthy"},
            "warning nvidia.com/gpu: 2 listed, 1 unhealthy: GPU-1 (Xid 79)",
            0,
        ),
        (
            {"GPU-0": "Unhealthy", "GPU-1": "Unhealthy"},
            "broken nvidia.com/gpu: 2 listed, 2 unhealthy: GPU-0, GPU-1 (Xid 79)",
            1,
        ),
    ],
)
def test_what_the_plugin_lists(
    listed: dict[str, str],
    line: str,
    code: int,
    explained: Explain,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A plugin that runs is asked, and unhealthy devices have their reason."""
    (tmp_path / "nvidia-gpu.sock").touch()
    monkeypatch.setattr(explain, "_listed", lambda _path: listed)
    told = {"device": "GPU-1", "reason": "Xid 79"}
    monkeypatch.setattr(explain, "_told", lambda _given, _metric: [told])
    assert explained(Machine(two), code=code)[6] == f"plugin {line}"


def test_a_plugin_that_waits(explained: Explain, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and tells in its metrics why it is not registered."""
    told = [{"reason": "could not register: the name is taken | see the kubelet's log"}]
    monkeypatch.setattr(explain, "_told", lambda _given, metric: told * ("waiting" in metric))
    lines = explained(Machine(two), code=1)
    refused = "nvidia.com/gpu is not registered: could not register: the name is taken"
    assert lines[6:8] == [f"plugin broken {refused}", "fix: see the kubelet's log"]


@pytest.mark.parametrize(
    "answer", [b"", b"\xff\r\n\r\n", b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n\xff{"]
)
def test_another_program_at_the_address_of_the_metrics(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no answer of the plugin tells nothing. No proxy is asked for this machine."""
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")
    ours, theirs = socket.socketpair()

    def connect(connection: http.client.HTTPConnection) -> None:
        assert (connection.host, connection.port) == ("127.0.0.1", 9402)
        connection.sock = ours

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        assert explain._told(load([], {}), "nvgraft_device_plugin_waiting_info") == []
        assert theirs.recv(4096).startswith(b"GET /metrics ")


def test_a_board_without_nvml(explained: Explain) -> None:
    """Tegra and WSL have no NVML to ask."""
    lines = explained(Machine(two), "--device-discovery-strategy=tegra", code=0)
    assert lines[1:3] == [
        "platform ok tegra: NVML is not asked",
        "resources ok nvidia.com/gpu x 1",
    ]
