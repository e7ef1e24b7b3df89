"""`nvgraft simulate --fail`: what nvidia-smi, doctor, explain-error and the hook say of each failure,
on a new simulated host and on a running one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from containers import Bundle, Run
from harness import Installed

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "gcc", "x86_64")

#: Eight GPUs with NVSwitches.
SWITCHED = "h100-580"
NODE = f"failing-{os.getpid()}"

#: Failure -> nvidia-smi's words and exit code, doctor's finding, explain-error's answer to the words.
SAID: dict[str, tuple[tuple[str, int], str | None, str | None]] = {
    "nvml-init": (
        ("Failed to initialize NVML: Unknown Error", 255),
        "driver-not-loaded",
        "device-rules-lost",
    ),
    "driver-mismatch": (
        ("Failed to initialize NVML: Driver/library version mismatch", 18),
        "driver-library-mismatch",
        "the driver was upgraded",
    ),
    "lost@1": (("GPU1: GPU is lost", 15), "driver-not-loaded", "gpu-lost"),
    "xid=79@1": (("GPU1: GPU is lost", 15), "driver-not-loaded", "gpu-lost"),
    "xid=48@1": (("|   1  NVIDIA H100", 0), "gpu-errors", None),
    "ecc@1": (("|                    2 |", 0), "gpu-errors", None),
    "missing-node@1": (("|   0  NVIDIA H100", 0), "driver-not-loaded", None),
    "missing-library": (("|   0  NVIDIA H100", 0), "host-layout", None),
    "no-uvm": (("|   0  NVIDIA H100", 0), "driver-not-loaded", None),
    "slow-start=1": (("Off |   00000000:1B:00.0", 0), "nvml-slow", None),
    "fabric-manager-down": (("|   0  NVIDIA H100", 0), "fabric-manager", None),
}


#: Failure -> what cuInit returns, and how many GPUs CUDA then counts.
CUDA = {
    "no-uvm": (999, 0),
    "driver-mismatch": (803, 0),
    "fabric-manager-down": (802, 0),
    "lost@1": (0, 7),
    "missing-node@1": (0, 7),
    "ecc@1": (0, 8),
}
ASK_CUDA = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
code = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
print(code, count.value)
"""


@pytest.mark.parametrize("failure", CUDA)
def test_cuda_fails_as_on_a_node(installed: Installed, failure: str) -> None:
    """cuInit returns the error that programs see on such a node, or counts the GPUs that are left."""
    script = f"'{sys.executable}' - <<'END'\n{ASK_CUDA}END\n"
    done = on_host(installed, failure, script)
    assert done.stdout.split() == [str(number) for number in CUDA[failure]], done.stderr


def problems(doctor: str) -> set[str]:
    """Return the ids of the failures that a document of doctor has found."""
    return {result["id"] for result in json.loads(doctor)["results"] if result["findings"]}


def on_host(
    installed: Installed, failure: str, script: str, host: str = SWITCHED
) -> subprocess.CompletedProcess[str]:
    """Run a shell script on a simulated host with a failure."""
    fail = ["--fail", failure] if failure else []
    cli = str(installed.cli)
    command = [cli, "simulate", *fail, host, "--", "sh", "-c", script, cli]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("failure", SAID)
def test_who_sees_a_failure(installed: Installed, failure: str) -> None:
    """nvidia-smi fails in NVIDIA's words, doctor has the finding, explain-error knows the words."""
    (words, code), finding, meaning = SAID[failure]
    script = "nvidia-smi > /tmp/smi; echo $?; cat /tmp/smi; echo =="
    script += '; "$0" explain-error --format json - < /tmp/smi' if meaning else ""
    script += "; echo ==" + ('; "$0" doctor --format json' if finding else "")
    done = on_host(installed, failure, script)
    smi, explained, doctor = done.stdout.split("==\n")
    assert words in smi, smi
    assert smi.splitlines()[0] == str(code)
    assert finding is None or finding in problems(doctor), done.stderr
    if meaning is not None:
        assert meaning in explained


def test_a_host_without_failures_has_no_findings_of_them(installed: Installed) -> None:
    """The same host without --fail is healthy, so that the findings come from the failures."""
    found = problems(on_host(installed, "", '"$0" doctor --format json').stdout)
    assert not found & {finding for _smi, finding, _meaning in SAID.values()}


def start(bundle: Bundle, installed: Installed, failure: str, script: str) -> Run:
    """Start a container after a failure, on the host of the container tests."""
    return bundle.run(script, prepare=f"{installed.cli} simulate --fail {failure}")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("nvml-init", "nvml error: unknown error"),
        ("driver-mismatch", "nvml error: driver/library version mismatch"),
        ("lost@1", "nvml error: gpu is lost"),
        ("missing-library", "open failed: /usr/lib/x86_64-linux-gnu/libcuda.so."),
    ],
)
def test_the_hook_refuses_a_host_that_fails(
    bundle: Bundle, installed: Installed, failure: str, message: str
) -> None:
    """The hook ends the start with the reference's words, and the container does not run."""
    done = start(bundle, installed, failure, "echo started")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert message in done.stderr


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("ecc@0", "|                    2 |"),
        ("no-uvm", "NVIDIA A10"),
    ],
)
def test_a_container_starts_on_a_host_that_lacks_something(
    bundle: Bundle, installed: Installed, failure: str, words: str
) -> None:
    """What is not fatal for the hook is seen in the container."""
    look = "nvidia-smi; true"
    done = start(bundle, installed, failure, look)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


@pytest.fixture(scope="module")
def node(installed: Installed) -> Iterator[Installed]:
    """Start a node that runs until the end of the tests; its command says that it is there."""
    with subprocess.Popen(
        [
            installed.cli,
            "simulate",
            "--name",
            NODE,
            SWITCHED,
            "--",
            "sh",
            "-c",
            "echo up; exec cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "up\n"
        yield installed
        child.stdin.close()
        assert child.wait(60) == 0


def nvgraft(node: Installed, *words: str) -> subprocess.CompletedProcess[str]:
    """Run nvgraft with --node."""
    return subprocess.run(
        [node.cli, *words, "--node", NODE], capture_output=True, text=True, timeout=60, check=False
    )


def findings(node: Installed) -> set[str]:
    """Return what doctor finds on the node."""
    return problems(nvgraft(node, "doctor", "--format", "json").stdout)


def test_a_running_node_fails(node: Installed) -> None:
    """--node --fail changes a host that runs, one failure after the other; a wrong one is refused."""
    before = findings(node)
    assert "fabric-manager" not in before
    done = nvgraft(node, "simulate", "--fail", "fabric-manager-down")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fabric-manager" in findings(node)
    assert nvgraft(node, "simulate", "--fail", "driver-mismatch").returncode == 0
    now = findings(node)
    assert {"fabric-manager", "driver-library-mismatch"} <= now
    wrong = nvgraft(node, "simulate", "--fail", "lost@8")
    assert wrong.returncode == 2
    assert re.search(r"--fail: the host has no GPU 8 \| name a GPU by its index", wrong.stderr)


#: Opens NVML, says so, and asks a GPU again after the failure.
WATCH = """
import pynvml, subprocess, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetTemperature(gpu, 0), flush=True)
subprocess.run([sys.argv[1], "simulate", "--fail", "lost"], check=True)
try:
    print(pynvml.nvmlDeviceGetTemperature(gpu, 0))
except pynvml.NVMLError as error:
    print(error)
"""


def test_a_program_that_runs_sees_the_failure(installed: Installed) -> None:
    """A program that has loaded NVML before the failure sees it: the file changes in place."""
    script = f"'{sys.executable}' - \"$0\" <<'END'\n{WATCH}END\n"
    done = on_host(installed, "", script)
    assert done.stdout.splitlines() == ["30", "GPU is lost"], done.stderr


def test_a_kept_inventory_does_not_hide_a_failure(bundle: Bundle, installed: Installed) -> None:
    """The hook asks NVML again after a failure, although it had kept the answers of before."""
    cli = installed.cli
    prepare = f"{cli} inventory refresh && {cli} simulate --fail driver-mismatch"
    done = bundle.run("echo started", prepare=prepare)
    assert "started" not in done.stdout
    assert "nvml error: driver/library version mismatch" in done.stderr
