"""The installed device plugin on simulated nodes that run: without any privilege, and while GPUs
fail, come and go.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from harness import CHECKOUT
from kubelets import Kubelet
from nvgraft_cli.shell import nodes

pytestmark = pytest.mark.requires("root", "runc", "gcc", "ldconfig", "overlayfs", "x86_64")

HOST = "runfile-a10x2"
FIRST = "GPU-1704f16f-6765-b770-207a-b7b63e1e9d38"
SECOND = "GPU-9982b158-eafb-d661-48b2-5a778b04dcd0"
SOCKETS = "/var/lib/kubelet/device-plugins"
NOBODY = 65534
PATIENCE = 30.0
COUNTER = itertools.count()


@pytest.fixture(scope="module")
def prefix(demand: Callable[[str], None]) -> Iterator[Path]:
    """Install with the device plugin."""
    demand("root")
    path = Path(tempfile.mkdtemp(prefix="nvgraft-plugin.", dir="/opt"))
    path.chmod(0o755)
    try:
        command = [f"{CHECKOUT}/dev", "install", f"PREFIX={path}", "--device-plugin"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        yield path
    finally:
        shutil.rmtree(path)


class Node(NamedTuple):
    """A simulated node that runs."""

    prefix: Path
    name: str
    pid: int

    @property
    def root(self) -> str:
        """The node's root directory, as this process sees it."""
        return f"/proc/{self.pid}/root"

    @property
    def sockets(self) -> str:
        """The directory of the kubelet's sockets."""
        return self.root + SOCKETS

    def command(self, *words: str) -> list[str]:
        """Return a command that runs on the node."""
        return ["nsenter", "--target", str(self.pid), "--mount", "--pid", *words]

    def fail(self, what: str) -> None:
        """Let something fail on the node."""
        words = [f"{self.prefix}/bin/nvgraft", "simulate", "--node", self.name, "--fail", what]
        subprocess.run(words, check=True, timeout=PATIENCE)

    def explain(self, *flags: str) -> str:
        """Return what ``explain`` says on the node."""
        words = self.command(f"{self.prefix}/bin/nvgraft-device-plugin", "explain", *flags)
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE).stdout


def made(prefix: Path, directory: Path, recipe: str) -> str:
    """Make the document of a host, and return its path."""
    document = directory / "host.json"
    words = [f"{prefix}/bin/nvgraft", "simulate", "--make", recipe]
    document.write_bytes(subprocess.check_output(words))
    return str(document)


@contextlib.contextmanager
def running_node(prefix: Path, host: str) -> Iterator[Node]:
    """Start a simulated node, and end it."""
    name = f"plugin-{os.getpid()}-{next(COUNTER)}"
    script = f"mkdir -p {SOCKETS} /var/run/cdi; echo there; exec cat"
    words = [f"{prefix}/bin/nvgraft", "simulate", "--name", name, host, "--", "sh", "-c", script]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "there\n"
        pid = int(Path(nodes.DIRECTORY, name).read_text().split()[0])
        try:
            yield Node(prefix, name, pid)
        finally:
            process.stdin.close()
            process.wait(PATIENCE)


class Started(NamedTuple):
    """A program that runs, and the file with what it says."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def says(self, words: str) -> None:
        """Wait until the program has said these words."""
        end = time.monotonic() + PATIENCE
        while words not in self.output.read_text():
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.01)

    def end(self, command: list[str]) -> str:
        """Run a command that ends the program, and return what the program said."""
        subprocess.run(command, check=True, timeout=PATIENCE)
        assert self.process.wait(PATIENCE) == 0, self.output.read_text()
        return self.output.read_text()


@contextlib.contextmanager
def started(command: list[str], *words: str) -> Iterator[Started]:
    """Run a program in a process group of its own, and end it."""
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(
            [*command, *words], stdin=subprocess.DEVNULL, stderr=output, start_new_session=True
        )
        try:
            yield Started(process, Path(output.name))
        except BaseException:
            print(Path(output.name).read_text())
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)


def plugin(node: Node, *flags: str, **environ: str) -> contextlib.AbstractContextManager[Started]:
    """Run the plugin on a node, with further variables."""
    program = f"{node.prefix}/bin/nvgraft-device-plugin"
    words = ["env", *(f"{name}={value}" for name, value in environ.items()), program]
    return started(node.command(*words, "--metrics-address=127.0.0.1:0", *flags))


def until_listed(
    kubelet: Kubelet, wanted: Callable[[dict[str, str]], bool], endpoint: str = "nvidia-gpu.sock"
) -> None:
    """Wait until the plugin that has registered last lists what is wanted."""
    end = time.monotonic() + PATIENCE
    listed: dict[str, str] = {}
    while time.monotonic() < end:
        with contextlib.suppress(grpc.RpcError), kubelet.plugin(endpoint) as client:
            for listed in client.lists():
                if wanted(listed):
                    return
    raise AssertionError(f"listed {listed}")


def test_without_any_privilege(prefix: Path, tmp_path: Path) -> None:
    """As user 65534, without a capability, on a read-only root: the plugin registers, lists,
    allocates, writes its CDI specification, explains itself and ends. Only the kubelet's directory
    and that of CDI can be written.
    """
    with running_node(prefix, HOST) as node:
        for directory in (node.sockets, f"{node.root}/run/cdi"):
            os.chown(directory, NOBODY, NOBODY)
        bundle = make_bundle(node, tmp_path)
        runc = node.command("runc", "--root", "/run/runc")
        with (
            Kubelet(node.sockets) as kubelet,
            started(runc, "run", "--bundle", bundle, "plugin") as container,
        ):
            os.chmod(kubelet.path, 0o666)
            (request,) = kubelet.wait_for(1)
            assert (request.resource_name, request.endpoint) == (
                "nvidia.com/gpu",
                "nvidia-gpu.sock",
            )
            with kubelet.plugin() as client:
                assert next(client.lists()) == {FIRST: "Healthy", SECOND: "Healthy"}
                answer = client.allocate(SECOND)
            state = json.loads(subprocess.check_output([*runc, "state", "plugin"]))
            assert_unprivileged(f"{node.root}/proc/{state['pid']}")
            explained = subprocess.run(
                [*runc, "exec", "plugin", *program(node, "explain")],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            log = container.end([*runc, "kill", "plugin", "TERM"])
            assert os.listdir(node.sockets) == ["kubelet.sock"]
        assert [device.name for device in answer.cdi_devices] == [
            f"k8s.device-plugin.nvidia.com/gpu={SECOND}"
        ]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == SECOND
        (name,) = os.listdir(f"{node.root}/run/cdi")
        specification = json.loads(Path(node.root, "run/cdi", name).read_text())
        assert [device["name"] for device in specification["devices"]] == [FIRST, SECOND]
    assert "stopped by a signal" in log and "Traceback" not in log
    assert explained.returncode == 0, explained.stdout + explained.stderr
    assert "nvidia.com/gpu: 2 listed, all healthy" in explained.stdout


def program(node: Node, *words: str) -> list[str]:
    """Return the command of the plugin in its container."""
    return [
        f"{node.prefix}/bin/nvgraft-device-plugin",
        *words,
        "--device-list-strategy=envvar,cdi-cri",
    ]


def make_bundle(node: Node, directory: Path) -> str:
    """Make a container whose files are the node's, read-only, and return its path on the node."""
    rootfs = directory / "rootfs"
    places = ["usr", "opt", "etc", "proc", "sys", "dev", "driver-root", "var/run/cdi", SOCKETS[1:]]
    for place in places:
        (rootfs / place).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (rootfs / link).symlink_to(f"usr/{link}")
    for parent in (directory, *directory.parents[:-1]):
        Path(node.root, str(parent)[1:]).chmod(0o755)

    def bind(source: str, target: str, *options: str) -> dict[str, Any]:
        return {
            "destination": target,
            "type": "bind",
            "source": source,
            "options": ["bind", *options],
        }

    devices = []
    for path in sorted(Path(node.root, "dev").glob("nvidia*")):
        status = path.stat()
        if stat.S_ISCHR(status.st_mode):
            numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            devices.append({"path": f"/dev/{path.name}", "type": "c", "fileMode": 0o666, **numbers})
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": NOBODY, "gid": NOBODY},
            "args": program(node),
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": str(rootfs), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            *(bind(place, place, "ro") for place in ("/usr", "/opt", "/etc")),
            bind("/", "/driver-root", "ro"),
            bind("/dev", "/driver-root/dev", "ro"),
            bind(SOCKETS, SOCKETS, "rw"),
            bind("/run/cdi", "/var/run/cdi", "rw"),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "network")],
            "devices": devices,
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
            "cgroupsPath": f"/{node.name}",
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def assert_unprivileged(process: str) -> None:
    """Ensure that a process has no privilege, and can write two directories alone."""
    status = dict(
        line.split(":\t", 1)
        for line in Path(process, "status").read_text().splitlines()
        if ":\t" in line
    )
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(NOBODY)}
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    writable = {
        fields[4]
        for line in Path(process, "mountinfo").read_text().splitlines()
        for fields in [line.split()]
        if "rw" in fields[5].split(",")
    }
    others = {path for path in writable if not path.startswith(("/proc", "/dev"))}
    assert others == {SOCKETS, "/var/run/cdi"}


def test_gpus_that_fail_and_come_back_on_a_running_node(prefix: Path) -> None:
    """An Xid makes its GPU unhealthy, with the reason in explain; a probe brings it back. A GPU
    that goes, comes or is lost is noticed.
    """
    with (
        running_node(prefix, HOST) as node,
        Kubelet(node.sockets) as kubelet,
        plugin(node, "--probe-after=2") as running,
    ):
        kubelet.wait_for(1)
        with kubelet.plugin() as client:
            lists = client.lists()
            assert next(lists) == {FIRST: "Healthy", SECOND: "Healthy"}
            node.fail("xid=31@1")  # of a program, not of the GPU
            node.fail("xid=48@0")
            assert next(lists) == {FIRST: "Unhealthy", SECOND: "Healthy"}
            assert next(lists) == {FIRST: "Healthy", SECOND: "Healthy"}
        node.fail("missing-node@1")
        kubelet.wait_for(2)
        until_listed(kubelet, lambda listed: set(listed) == {FIRST})
        assert "the driver has a GPU that NVML does not list" in node.explain()
        path = f"{node.root}/dev/nvidia1"
        os.mknod(path, stat.S_IFCHR, os.makedev(195, 1))
        os.chmod(path, 0o666)
        kubelet.wait_for(3)
        until_listed(kubelet, lambda listed: set(listed) == {FIRST, SECOND})
        node.fail("lost@1")
        until_listed(kubelet, lambda listed: listed.get(SECOND) == "Unhealthy")
        assert "nvidia.com/gpu: 2 listed, " in node.explain()
        os.kill(child(running.process.pid), signal.SIGHUP)
        kubelet.wait_for(4)
        until_listed(kubelet, lambda listed: set(listed) == {FIRST})  # the lost one is left out
        log = running.end(["kill", str(child(running.process.pid))])
    assert "Traceback" not in log
    for words in (
        "NVML reports an Xid",
        "is ignored",
        "device is healthy again",
        "GPU 1: GPU is lost: it is left out",
    ):
        assert words in log


def test_mig_devices_that_come_and_go(prefix: Path, tmp_path: Path) -> None:
    """Each change of the node's MIG devices is a new registration, without a restart."""
    document = made(prefix, tmp_path, "1 x a100-sxm4-40gb, driver 570.172.08, mig 1g.5gb 1g.5gb")
    with (
        running_node(prefix, document) as node,
        Kubelet(node.sockets) as kubelet,
        plugin(node, "--mig-strategy=mixed"),
    ):
        (request,) = kubelet.wait_for(1)
        assert request.resource_name == "nvidia.com/mig-1g.5gb"
        with kubelet.plugin(request.endpoint) as client:
            both = next(client.lists())
        assert len(both) == 2
        path = max(Path(node.root, "dev/nvidia-caps").iterdir())
        number = path.stat().st_rdev
        path.unlink()
        kubelet.wait_for(2)
        with kubelet.plugin(request.endpoint) as client:
            left = next(client.lists())
        assert len(left) == 1 and set(left) < set(both)
        os.mknod(path, stat.S_IFCHR, number)
        path.chmod(0o666)
        kubelet.wait_for(3)
        until_listed(kubelet, lambda listed: listed == both, request.endpoint)


def test_an_xid_of_a_mig_gpu_marks_all_shares(prefix: Path, tmp_path: Path) -> None:
    """Every share of every MIG device of the GPU is unhealthy, by an Xid that is enabled where all
    others are disabled, and healthy again after a probe.
    """
    file = "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}"
    document = made(prefix, tmp_path, "2 x a100-sxm4-40gb, driver 570.172.08, mig 1g.5gb 1g.5gb")
    with running_node(prefix, document) as node, Kubelet(node.sockets) as kubelet:
        Path(node.root, "etc/plugin.yaml").write_text(file)
        flags = ["--mig-strategy=mixed", "--config-file=/etc/plugin.yaml", "--probe-after=2"]
        environ = {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "74"}
        with plugin(node, *flags, **environ) as running:
            (request,) = kubelet.wait_for(1)
            with kubelet.plugin(request.endpoint) as client:
                lists = client.lists()
                shares = list(next(lists))
                assert len(shares) == 8
                node.fail("xid=48@1")
                node.fail("xid=74@1")
                assert next(lists) == {
                    share: "Healthy" if share in shares[:4] else "Unhealthy" for share in shares
                }
                assert set(next(lists).values()) == {"Healthy"}
            log = running.end(["kill", str(child(running.process.pid))])
    assert log.count("device is healthy again") == log.count("was='Xid 74'") == 4
    assert "Only these Xids count for health checks: [74]" in log


def test_a_gpu_that_comes_to_a_node_without_one(prefix: Path, tmp_path: Path) -> None:
    """A node with a driver and no GPU waits under every strategy, and serves what comes."""
    document = made(prefix, tmp_path, "1 x t4, driver 570.172.08")
    strategies = "--device-list-strategy=envvar,volume-mounts,cdi-annotations,cdi-cri"
    with running_node(prefix, document) as node, Kubelet(node.sockets) as kubelet:
        node.fail("missing-node@0")
        with plugin(node, strategies, "--driver-root-ctr-path=/") as running:
            running.says("No devices found. Waiting indefinitely.")
            assert "This node advertises no devices" in node.explain()
            os.mknod(f"{node.root}/dev/nvidia0", stat.S_IFCHR, os.makedev(195, 0))
            kubelet.wait_for(1)
            running.says("Registered device plugin")
            assert os.listdir(f"{node.root}/run/cdi")
            running.end(["kill", str(child(running.process.pid))])


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ("nvml-init", "NVML           broken   nvml init failed: Unknown Error\n"),
        (
            "driver-mismatch",
            "NVML           broken   nvml init failed: Driver/library version mism",
        ),
        ("lost@1", "devices        warning  GPU 1: GPU is lost\n"),
        ("missing-node@1", "devices        warning  the driver has a GPU that NVML does not list"),
    ],
)
def test_explain_on_a_node_that_fails(prefix: Path, failure: str, line: str) -> None:
    """The first broken link is the one that fails, with a fix in the next line."""
    program = f"{prefix}/bin/nvgraft-device-plugin"
    done = subprocess.run(
        [f"{prefix}/bin/nvgraft", "simulate", "--fail", failure, HOST, "--", program, "explain"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    before, _, after = done.stdout.partition(line)
    assert after and "broken" not in before and "warning" not in before, done.stdout
    assert "   fix: " in done.stdout
    assert done.stderr == ""


def child(process: int) -> int:
    """Return the process that nsenter has started in the node."""
    return int(Path(f"/proc/{process}/task/{process}/children").read_text())
