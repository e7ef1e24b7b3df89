"""The load-kmods step with a driver root, device nodes and a stand-in for modprobe."""

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

#: Runs in modprobe's place and records its own state from /proc; then it lists nvidia-uvm's major,
#: as loading the module does.
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
    """A driver root with a shell, a fake /proc, an empty /dev and a mount point /host for /proc."""

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
        """Write the stand-in to ``path``; it also runs ``action``, a line of shell."""
        script = STAND_IN.format(
            shell="/bin/sh", proc="/host", record="/record", devices="/proc/devices", action=action
        )
        (self.path / path).write_text(script)
        (self.path / path).chmod(0o755)

    def load(self, *channels: int, create: bool = True) -> list[Finding]:
        """Run the step in a mount namespace in which the root has the real /proc at /host."""

        def step() -> list[Finding]:
            self.mount_proc()
            return kmods.load_modules(str(self.path), channels, create)

        return run_in_mount_namespace(step)

    def mount_proc(self) -> None:
        """Mount the real /proc at /host; call it in a mount namespace of its own."""
        flags = syscalls.MS_BIND | syscalls.MS_REC
        syscalls.mount("/proc", str(self.path / "host"), None, flags)

    def nodes(self) -> dict[str, str]:
        """Return type, mode, owner and number of everything in /dev."""
        return _nodes(self.path / "dev")


def _nodes(dev: Path) -> dict[str, str]:
    nodes = {}
    for path in sorted(dev.rglob("*")):
        status = path.lstat()
        owner = f"{status.st_uid}:{status.st_gid}"
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        nodes[str(path.relative_to(dev))] = f"{stat.filemode(status.st_mode)} {owner} {number}"
    return nodes


def _recorded(file: Path) -> dict[str, str]:
    lines = [line.replace("\t", " ").partition(" ") for line in file.read_text().splitlines()]
    return {name.rstrip(":"): value.strip() for name, _, value in lines}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverRoot:
    """Make a driver root on a host with one GPU whose kernel modules are not loaded."""
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
#: CAP_SYS_MODULE and CAP_MKNOD, as /proc/PID/status shows them.
ONLY_TWO = f"{1 << 16 | 1 << 27:016x}"


def _check_record(record: Path, program: str) -> None:
    ran = sorted(record.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert [file.name for file in ran] == list(MODULES)
    for file in ran:
        seen = _recorded(file)
        assert seen["argv"] == f"{program} {file.name}"
        assert seen["env"] == "[]"
        assert seen["null"] == "/dev/null /dev/null"
        # 3 is the shell's own, to list the directory; its script is at 10 or above.
        fds = [int(Path(name).name) for name in seen["fds"].split()]
        assert sorted(fd for fd in fds if fd < 10) == [0, 1, 2, 3]
        assert [seen[name] for name in ("CapEff", "CapPrm", "CapBnd")] == [ONLY_TWO] * 3
        assert seen["CapAmb"] == "0" * 16
        assert (seen["NoNewPrivs"], seen["SigBlk"]) == ("1", "0" * 16)
        own_pids = _recorded(Path("/proc/self/status"))["NSpid"].split()
        assert len(seen["NSpid"].split()) == len(own_pids) + 1


def test_loads_the_modules_and_makes_the_nodes_in_the_driver_root(root: DriverRoot) -> None:
    """modprobe runs in the root with two capabilities, no environment and no descriptors.

    nvidia-uvm's nodes get the major that loading the module has given.
    """
    root.modprobe()
    assert root.load(5) == []
    assert root.nodes() == NODES
    _check_record(root.record, "/sbin/modprobe")


def test_loads_the_modules_on_a_host_without_a_driver_root(
    root: DriverRoot, tmp_path: Path
) -> None:
    """With the driver root /, the host's modprobe and /dev are used."""

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


def test_a_second_run_starts_no_process(
    root: DriverRoot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When modules and nodes exist, no process is started, except for a new channel."""
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
    """A missing node is made without running modprobe if the modules are loaded."""
    for module in MODULES:
        (tmp_path / "sys/module" / module.replace("-", "_")).mkdir()
    root.devices.write_text(root.devices.read_text() + "511 nvidia-uvm\n")
    assert root.load(5) == []
    assert root.nodes() == NODES


def test_a_failure_to_load_nvidia_ends_the_step(root: DriverRoot) -> None:
    """If nvidia cannot be loaded, the one finding says so with modprobe's exit code."""
    root.modprobe("exit 3")
    [finding] = root.load()
    assert (finding.id, finding.level) == ("load-kmods", "warning")
    cause = "/sbin/modprobe failed with exit code 3"
    assert finding.message == f"the kernel module nvidia was not loaded: {cause}"
    assert f"chroot {root.path} modprobe nvidia" in finding.hint
    assert root.nodes() == {}
    assert [file.name for file in root.record.iterdir()] == ["nvidia"]


def test_a_module_that_fails_costs_its_own_nodes_only(root: DriverRoot) -> None:
    """If modprobe is killed for uvm, a finding says so, and modeset is loaded nevertheless."""
    root.modprobe("[ $1 != nvidia-uvm ] || kill -SEGV $$")
    [finding] = root.load(5)
    cause = f"/sbin/modprobe was ended by signal {signal.SIGSEGV:d}"
    assert finding.message == f"the kernel module nvidia-uvm was not loaded: {cause}"
    assert root.nodes() == {name: node for name, node in NODES.items() if "uvm" not in name}


@pytest.mark.parametrize("path", ["usr/sbin/modprobe", "usr/bin/modprobe"])
def test_finds_modprobe_where_distributions_have_it(root: DriverRoot, path: str) -> None:
    """modprobe is searched in known directories, and not on PATH."""
    (root.path / path).parent.mkdir(parents=True)
    root.modprobe(path=path)
    root.modprobe(path="record/../host-modprobe")
    assert root.load(5) == []
    assert _recorded(root.record / "nvidia")["argv"] == f"/{path} nvidia"


def test_no_modprobe_and_no_root_are_findings(root: DriverRoot) -> None:
    """A missing modprobe and a missing root are findings, which do not stop the hook."""
    [finding] = root.load()
    assert finding.message.startswith(
        "the kernel module nvidia was not loaded: there is no /sbin/modprobe"
    )
    [finding] = run_in_mount_namespace(lambda: kmods.load_modules("/no/such/root", (), True))
    cause = "/no/such/root: no such file or directory"
    assert finding.message == f"kernel modules were not loaded: {cause}"


def test_existing_nodes_are_left_alone(root: DriverRoot) -> None:
    """A correct node keeps mode and owner; a wrong one stays too, and is a finding."""
    root.modprobe()
    dev = root.path / "dev"
    os.mknod(dev / "nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    os.chown(dev / "nvidiactl", 7, 8)
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 9))
    (dev / "nvidia-modeset").symlink_to("/nowhere")
    findings = root.load(5)
    assert [finding.message for finding in findings] == [
        f"the device node {dev}/{name} is missing or wrong: it is not a character device {number}"
        for name, number in (("nvidia0", "195:0"), ("nvidia-modeset", "195:254"))
    ]
    assert f"mknod -m 666 {dev}/nvidia0 c 195 0" in findings[0].hint
    assert root.nodes()["nvidiactl"] == "crw------- 7:8 195:255"
    assert root.nodes()["nvidia0"] == "crw------- 0:0 195:9"
    assert os.readlink(dev / "nvidia-modeset") == "/nowhere"


def test_a_node_of_another_owner_stays_root_s(root: DriverRoot) -> None:
    """A node for another group stays root's, with a finding: the child may not chown."""
    root.modprobe()
    (root.path / "proc/driver/nvidia/params").write_text(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
    )
    findings = root.load()
    assert len(findings) == 5
    cause = "owner 0:44 not set: operation not permitted (EPERM)"
    node = f"{root.path}/dev/nvidiactl"
    assert findings[0].message == f"the device node {node} is missing or wrong: {cause}"
    assert root.nodes()["nvidiactl"] == "crw-rw---- 0:0 195:255"


def test_a_driver_unknown_to_the_kernel_has_no_node(root: DriverRoot) -> None:
    """If /proc/devices does not list a module's major, there is a finding for each of its nodes."""
    root.modprobe("exit 0")
    messages = [finding.message for finding in root.load(5)]
    cause = "/proc/devices does not list its driver"
    assert messages == [
        f"the device node {root.path}/dev/{name} is missing or wrong: {cause}"
        for name in ("nvidia-uvm", "nvidia-uvm-tools")
    ]


def _processes(root: DriverRoot) -> int:
    """Count the processes whose root is this driver root."""
    driver_root = root.path.stat()
    count = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal():
                count += os.path.samestat((process / "root").stat(), driver_root)
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


def test_a_hanging_modprobe_is_killed_with_its_children(
    root: DriverRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time limit modprobe and its children are killed, and a finding names the module."""
    monkeypatch.setattr(kmods, "TIMEOUT", 2)
    root.modprobe("sleep 600 | sleep 600")
    [finding] = root.load()
    assert (root.record / "nvidia").exists()
    cause = "not done after 2 seconds: the driver hangs, see dmesg"
    assert finding.message == f"load-kmods: modprobe nvidia: {cause}"
    assert _processes(root) == 0


def test_a_killed_hook_leaves_no_modprobe(root: DriverRoot) -> None:
    """When the hook is killed while modprobe runs, modprobe and its children end."""
    root.modprobe("sleep 600 | sleep 600")
    hook = os.fork()
    if hook == 0:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            root.mount_proc()
            kmods.load_modules(str(root.path), (), True)
        finally:
            os._exit(0)
    try:
        # The hook's child, modprobe, and the two that modprobe has started.
        assert _until(lambda: _processes(root) == 4)
    finally:
        os.kill(hook, signal.SIGKILL)
        os.waitpid(hook, 0)
    assert _until(lambda: _processes(root) == 0)


def test_an_interrupted_step_ends_its_child(root: DriverRoot) -> None:
    """When a signal handler raises, no process and no other pid namespace is left."""
    root.modprobe("sleep 600")

    def interrupted() -> tuple[str, str]:
        root.mount_proc()

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
