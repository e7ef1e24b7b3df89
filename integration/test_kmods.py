"""The load-kmods step for real: a driver root, device nodes, and a modprobe that records its
start.
"""

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import run_in_mount_namespace
from nvgraft.base.finding import Finding
from nvgraft.host import kmods
from nvgraft.system import syscalls

pytestmark = pytest.mark.requires("root", "busybox")

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")

#: It takes modprobe's place. The shell reads /proc itself, so it records how it was started.
#: Loading a module lists its major.
STAND_IN = """#!{shell}
IFS= read -r environment < {proc}/self/environ
{{
    echo "argv $0 $*"
    echo "env [$environment]"
    echo "fds" {proc}/self/fd/*
    echo "null $(readlink {proc}/self/fd/0) $(readlink {proc}/self/fd/2)"
    while read -r line; do echo "$line"; done < {proc}/self/status
}} > {record}/$1
{action}
echo "511 nvidia-uvm" >> {devices}
"""


class DriverRoot:
    """A driver root with a shell, a fake /proc and an empty /dev; the real /proc will be at
    ``/host`` in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "record"
        for name in ("sbin", "bin", "dev", "host", "record", "proc/driver/nvidia"):
            (path / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        for name in ("sh", "sleep", "readlink"):
            shutil.copy(busybox, path / "bin" / name)
        self.devices = path / "proc/devices"
        self.devices.write_text(
            "Character devices:\n195 nvidia\n507 nvidia-caps-imex-channels\n509 nvidia-caps\n"
        )
        self.access("mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n")

    def access(self, name: str, text: str) -> None:
        file = self.path / "proc/driver/nvidia/capabilities" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)

    def modprobe(self, action: str = "", path: str = "sbin/modprobe") -> None:
        """Install the stand-in; ``action`` is a line of shell that it runs as well."""
        script = STAND_IN.format(
            shell="/bin/sh", proc="/host", record="/record", devices="/proc/devices", action=action
        )
        (self.path / path).write_text(script)
        (self.path / path).chmod(0o755)

    def load(self, *channels: int, create: bool = True) -> list[Finding]:
        """Run the step in a mount namespace where the root has the real /proc at /host."""

        def step() -> list[Finding]:
            syscalls.mount(
                "/proc", str(self.path / "host"), None, syscalls.MS_BIND | syscalls.MS_REC
            )
            return kmods.load_modules(str(self.path), channels, create)

        return run_in_mount_namespace(step)

    def nodes(self) -> dict[str, str]:
        """Return everything in /dev: type, mode, owner and number."""
        return _nodes(self.path / "dev")


def _nodes(dev: Path) -> dict[str, str]:
    nodes = {str(path.relative_to(dev)): path.lstat() for path in sorted(dev.rglob("*"))}
    return {
        name: (
            f"{stat.filemode(node.st_mode)} {node.st_uid}:{node.st_gid} "
            f"{os.major(node.st_rdev)}:{os.minor(node.st_rdev)}"
        )
        for name, node in nodes.items()
    }


def _recorded(file: Path) -> dict[str, str]:
    lines = [line.replace("\t", " ").partition(" ") for line in file.read_text().splitlines()]
    return {name.rstrip(":"): value.strip() for name, _, value in lines}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverRoot:
    """A driver root on a host with one GPU whose modules are not loaded."""
    device = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (tmp_path / "sys/module").mkdir()
    monkeypatch.setattr(kmods, "_SYS", str(tmp_path / "sys"))
    return DriverRoot(tmp_path / "driver")


NODES = {
    "nvidia-caps": "drwxr-xr-x 0:0 0:0",
    "nvidia-caps/nvidia-cap1": "cr-------- 0:0 509:1",
    "nvidia-caps-imex-channels": "drwxr-xr-x 0:0 0:0",
    "nvidia-caps-imex-channels/channel5": "crw-rw-rw- 0:0 507:5",
    "nvidia-modeset": "crw-rw-rw- 0:0 195:254",
    "nvidia-uvm": "crw-rw-rw- 0:0 511:0",
    "nvidia-uvm-tools": "crw-rw-rw- 0:0 511:1",
    "nvidia0": "crw-rw-rw- 0:0 195:0",
    "nvidiactl": "crw-rw-rw- 0:0 195:255",
}
ONLY_TWO = f"{1 << 16 | 1 << 27:016x}"  # CAP_SYS_MODULE and CAP_MKNOD


def _check_record(record: Path, program: str) -> None:
    ran = sorted(record.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert [file.name for file in ran] == list(MODULES)
    for file in ran:
        seen = _recorded(file)
        assert seen["argv"] == f"{program} {file.name}"
        assert seen["env"] == "[]"
        assert seen["null"] == "/dev/null /dev/null"
        # The shell lists them through the first free descriptor, and keeps its script at 10 or
        # above.
        assert sorted(
            int(Path(name).name) for name in seen["fds"].split() if int(Path(name).name) < 10
        ) == [0, 1, 2, 3]
        assert (seen["CapEff"], seen["CapPrm"], seen["CapBnd"], seen["CapAmb"]) == (
            ONLY_TWO,
            ONLY_TWO,
            ONLY_TWO,
            "0" * 16,
        )
        assert (seen["NoNewPrivs"], seen["SigBlk"]) == ("1", "0" * 16)
        assert (
            len(seen["NSpid"].split())
            == len(_recorded(Path("/proc/self/status"))["NSpid"].split()) + 1
        )


def test_loads_the_modules_and_makes_the_nodes_in_the_driver_root(root: DriverRoot) -> None:
    """modprobe runs in the root, with two capabilities, no variable, no descriptor; loading gave
    uvm its major.
    """
    root.modprobe()
    assert root.load(5) == []
    assert root.nodes() == NODES
    _check_record(root.record, "/sbin/modprobe")


def test_loads_them_on_a_host_without_a_driver_root(root: DriverRoot, tmp_path: Path) -> None:
    """With root / it is the host's own modprobe and the host's own /dev."""

    def step() -> tuple[list[Finding], dict[str, str]]:
        record = tmp_path / "host-record"
        record.mkdir()
        sbin = os.path.realpath("/sbin")
        null = os.open("/dev/null", os.O_PATH)
        for directory in (sbin, "/dev", "/proc/driver"):
            syscalls.mount("tmpfs", directory, "tmpfs", 0, "mode=0755")
        os.mknod("/dev/null", stat.S_IFCHR | 0o666, os.fstat(null).st_rdev)
        syscalls.mount(str(root.devices), "/proc/devices", None, syscalls.MS_BIND)
        shutil.copytree(root.path / "proc/driver/nvidia", "/proc/driver/nvidia")
        script = STAND_IN.format(
            shell="/bin/sh", proc="/proc", record=record, devices=root.devices, action=""
        )
        Path("/sbin/modprobe").write_text(script)
        Path("/sbin/modprobe").chmod(0o755)
        return kmods.load_modules("/", (5,), True), _nodes(Path("/dev"))

    findings, nodes = run_in_mount_namespace(step)
    assert findings == []
    assert nodes.pop("null").startswith("c")
    assert nodes == NODES
    _check_record(tmp_path / "host-record", "/sbin/modprobe")


def test_a_second_run_starts_nothing(
    root: DriverRoot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No process is started once modules and nodes exist; another channel is new work."""
    root.modprobe()
    assert root.load(5) == []
    for module in MODULES:
        (tmp_path / "sys/module" / module.replace("-", "_")).mkdir()

    def refused() -> int:
        raise OSError("a process is started")

    monkeypatch.setattr(syscalls, "fork_in_pid_namespace", refused)
    assert root.load(5) == []
    assert root.load(6, create=False) == []
    [finding] = root.load(6)
    assert "a process is started" in finding.message


def test_only_nodes_are_made_when_the_modules_are_loaded(root: DriverRoot, tmp_path: Path) -> None:
    """A missing node alone does not run modprobe."""
    for module in MODULES:
        (tmp_path / "sys/module" / module.replace("-", "_")).mkdir()
    root.devices.write_text(root.devices.read_text() + "511 nvidia-uvm\n")
    assert root.load(5) == []
    assert root.nodes() == NODES


def test_without_the_driver_itself_nothing_else_is_tried(root: DriverRoot) -> None:
    """When nvidia cannot be loaded, the only finding names it, with modprobe's exit code."""
    root.modprobe("exit 3")
    [finding] = root.load()
    assert (finding.id, finding.level) == ("load-kmods", "warning")
    assert (
        finding.message
        == "the kernel module nvidia was not loaded: /sbin/modprobe failed with exit code 3"
    )
    assert f"chroot {root.path} modprobe nvidia" in finding.hint
    assert root.nodes() == {}
    assert [file.name for file in root.record.iterdir()] == ["nvidia"]


def test_a_module_that_fails_costs_its_own_nodes_only(root: DriverRoot) -> None:
    """uvm, ended by a signal, is reported, and modeset is loaded after it."""
    root.modprobe("[ $1 != nvidia-uvm ] || kill -SEGV $$")
    [finding] = root.load(5)
    assert finding.message == (
        "the kernel module nvidia-uvm was not loaded: /sbin/modprobe was ended by signal "
        f"{signal.SIGSEGV:d}"
    )
    assert root.nodes() == {name: node for name, node in NODES.items() if "uvm" not in name}


@pytest.mark.parametrize("path", ["usr/sbin/modprobe", "usr/bin/modprobe"])
def test_finds_modprobe_where_distributions_have_it(root: DriverRoot, path: str) -> None:
    """The first of the known places counts; nothing is looked up on a PATH."""
    (root.path / path).parent.mkdir(parents=True)
    root.modprobe(path=path)
    root.modprobe(path="record/../host-modprobe")
    assert root.load(5) == []
    assert _recorded(root.record / "nvidia")["argv"] == f"/{path} nvidia"


def test_no_modprobe_and_no_root_are_findings(root: DriverRoot) -> None:
    """A missing modprobe or root does not stop the hook, and each is named."""
    [finding] = root.load()
    assert finding.message.startswith(
        "the kernel module nvidia was not loaded: there is no /sbin/modprobe"
    )
    [finding] = run_in_mount_namespace(lambda: kmods.load_modules("/no/such/root", (), True))
    assert (
        finding.message
        == "kernel modules were not loaded: /no/such/root: no such file or directory"
    )


def test_what_is_there_is_left_alone(root: DriverRoot) -> None:
    """A right node keeps its mode and owner; a wrong one, or a dangling link, is reported and
    stays.
    """
    root.modprobe()
    dev = root.path / "dev"
    os.mknod(dev / "nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    os.chown(dev / "nvidiactl", 7, 8)
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 9))
    (dev / "nvidia-modeset").symlink_to("/nowhere")
    findings = root.load(5)
    assert [finding.message for finding in findings] == [
        f"the device node {dev}/nvidia0 is missing or wrong: it is not a character device 195:0",
        (
            f"the device node {dev}/nvidia-modeset is missing or wrong: it is not a character device "
            "195:254"
        ),
    ]
    assert f"mknod -m 666 {dev}/nvidia0 c 195 0" in findings[0].hint
    assert root.nodes()["nvidiactl"] == "crw------- 7:8 195:255"
    assert root.nodes()["nvidia0"] == "crw------- 0:0 195:9"
    assert os.readlink(dev / "nvidia-modeset") == "/nowhere"


def test_another_owner_needs_more_than_the_child_may(root: DriverRoot) -> None:
    """A node whose group differs from root's is made with its mode, stays root's, and is
    reported.
    """
    root.modprobe()
    (root.path / "proc/driver/nvidia/params").write_text(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    )
    findings = root.load()
    assert len(findings) == 5
    assert findings[0].message == (
        f"the device node {root.path}/dev/nvidiactl is missing or wrong: owner 0:44 not set: "
        "operation not permitted (EPERM)"
    )
    assert root.nodes()["nvidiactl"] == "crw-rw---- 0:0 195:255"


def test_a_driver_unknown_to_the_kernel_has_no_node(root: DriverRoot) -> None:
    """A module whose major is not in /proc/devices is reported, node by node."""
    root.modprobe("exit 0")
    messages = [finding.message for finding in root.load(5)]
    assert messages == [
        f"the device node {root.path}/dev/{name} is missing or wrong: /proc/devices does not list "
        "its driver"
        for name in ("nvidia-uvm", "nvidia-uvm-tools")
    ]


def _processes(root: DriverRoot) -> int:
    """Count the processes whose root is this driver root."""
    wanted = root.path.stat()
    count = 0
    for process in Path("/proc").iterdir():
        try:
            count += process.name.isdecimal() and os.path.samestat(
                (process / "root").stat(), wanted
            )
        except OSError:
            continue
    return count


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_module_that_hangs_ends_with_all_it_has_started(
    root: DriverRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the limit modprobe and all its children are killed, and the step says where it was."""
    monkeypatch.setattr(kmods, "TIMEOUT", 2)
    root.modprobe("sleep 600 | sleep 600")
    [finding] = root.load()
    assert (root.record / "nvidia").exists()
    assert (
        finding.message
        == "load-kmods: modprobe nvidia: not done after 2 seconds: the driver hangs, see dmesg"
    )
    assert _processes(root) == 0


def test_a_killed_hook_leaves_no_modprobe(root: DriverRoot) -> None:
    """When the hook is killed while modprobe runs, modprobe and its children end."""
    root.modprobe("sleep 600 | sleep 600")
    hook = os.fork()
    if hook == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.mount(
                "/proc", str(root.path / "host"), None, syscalls.MS_BIND | syscalls.MS_REC
            )
            kmods.load_modules(str(root.path), (), True)
        finally:
            os._exit(0)
    try:
        # The child, modprobe, and two processes that it has started.
        assert _until(lambda: _processes(root) == 4)
    finally:
        os.kill(hook, signal.SIGKILL)
        os.waitpid(hook, 0)
    assert _until(lambda: _processes(root) == 0)


def test_an_interrupted_step_ends_its_child(root: DriverRoot) -> None:
    """A signal handler's exception reaches the caller, and no process or pid namespace is left
    behind.
    """
    root.modprobe("sleep 600")

    def interrupted() -> tuple[str, str]:
        syscalls.mount("/proc", str(root.path / "host"), None, syscalls.MS_BIND | syscalls.MS_REC)

        def handler(_number: int, _frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 1)
        with pytest.raises(KeyboardInterrupt):
            kmods.load_modules(str(root.path), (), True)
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return os.readlink("/proc/self/ns/pid"), os.readlink("/proc/self/ns/pid_for_children")

    own, childrens = run_in_mount_namespace(interrupted)
    assert own == childrens
    assert (root.record / "nvidia").exists()
    assert _processes(root) == 0
