"""The load-kmods step without privileges: which nodes it makes, when it starts no child, and what
it reads from the child.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvgraft.base.finding import Finding
from nvgraft.host import kmods
from nvgraft.system import syscalls

PARAMS = "ModifyDeviceFiles: {}\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
DEVICES = (
    "Character devices:\n195 nvidia\n507 nvidia-caps-imex-channels\n509 nvidia-caps\n511"
    " nvidia-uvm\n\nBlock devices:\n511 other\n"
)


def _write(root: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def _listed(root: str, module: str, gpus: int = 0, channels: tuple[int, ...] = ()) -> list[str]:
    nodes = kmods._nodes(root, module, gpus, channels)
    return [
        f"{node.path} {node.major}:{node.minor} {node.uid}:{node.gid} {node.mode:04o}"
        for node in nodes
    ]


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a process is started."""

    def refused() -> int:
        raise AssertionError("a process is started")

    monkeypatch.setattr(syscalls, "fork_in_pid_namespace", refused)
    monkeypatch.setattr(os, "fork", refused)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /sys with the three modules and two GPUs, and with an audio function, a switch and another
    vendor's display.
    """
    devices = {
        "a": "0x10de 0x030200",
        "b": "0x10de 0x030000",
        "c": "0x10de 0x040300",
        "d": "0x10de 0x068000",
        "e": "0x1002 0x030000",
    }
    sys = tmp_path / "sys"
    for name, words in devices.items():
        vendor, kind = words.split()
        _write(
            sys,
            {
                f"bus/pci/devices/{name}/vendor": vendor + "\n",
                f"bus/pci/devices/{name}/class": kind + "\n",
            },
        )
    _write(
        sys, {f"module/{name}/refcnt": "0" for name in ("nvidia", "nvidia_uvm", "nvidia_modeset")}
    )
    monkeypatch.setattr(kmods, "_SYS", str(sys))
    monkeypatch.setattr("nvgraft.system.userns.inside", lambda: False)
    return sys


def test_counts_display_controllers_of_nvidia(loaded: Path) -> None:
    """NVIDIA's display controllers are counted, without audio functions and NVSwitches; without a
    PCI bus there are none.
    """
    assert kmods._gpu_count() == 2
    (loaded / "bus/pci/devices").rename(loaded / "gone")
    assert kmods._gpu_count() == 0


def test_nodes_follow_the_driver_parameters(tmp_path: Path) -> None:
    """Nodes have the owner and mode of the driver's parameters, the majors of /proc/devices, and
    the reference's order.
    """
    root = _write(
        tmp_path, {"proc/devices": DEVICES, "proc/driver/nvidia/params": PARAMS.format(1)}
    )
    assert _listed(root, "nvidia", 2, (0, 7)) == [
        "/dev/nvidiactl 195:255 0:44 0660",
        "/dev/nvidia0 195:0 0:44 0660",
        "/dev/nvidia1 195:1 0:44 0660",
        "/dev/nvidia-caps-imex-channels/channel0 507:0 0:44 0660",
        "/dev/nvidia-caps-imex-channels/channel7 507:7 0:44 0660",
    ]
    assert _listed(root, "nvidia-uvm") == [
        "/dev/nvidia-uvm 511:0 0:44 0660",
        "/dev/nvidia-uvm-tools 511:1 0:44 0660",
    ]
    assert _listed(root, "nvidia-modeset") == ["/dev/nvidia-modeset 195:254 0:44 0660"]


def test_nodes_without_driver_parameters(tmp_path: Path) -> None:
    """Without parameters nodes belong to root with mode 0666; a driver missing from /proc/devices
    has no major.
    """
    assert _listed(str(tmp_path), "nvidia", 1) == [
        "/dev/nvidiactl 195:255 0:0 0666",
        "/dev/nvidia0 195:0 0:0 0666",
    ]
    assert _listed(str(tmp_path), "nvidia-uvm")[0] == "/dev/nvidia-uvm None:0 0:0 0666"


def test_capability_nodes_are_those_of_existing_access_files(tmp_path: Path) -> None:
    """Each access file of a MIG capability gives its node's minor and mode; nodes that the driver
    makes itself are left out.
    """
    base = "proc/driver/nvidia/capabilities"
    root = _write(
        tmp_path,
        {
            "proc/devices": DEVICES,
            "proc/driver/nvidia/params": PARAMS.format(0),
            f"{base}/mig/config": "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            f"{base}/mig/monitor": "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
            f"{base}/gpu1/mig/gi2/access": "DeviceFileMinor: 156\n",
            f"{base}/gpu1/mig/gi2/ci0/access": "DeviceFileMinor: 157\nDeviceFileMode: 292\n",
            f"{base}/gpu1/mig/gi2/ci1/access": "",
        },
    )
    assert _listed(root, "nvidia", 1) == [
        "/dev/nvidia-caps/nvidia-cap1 509:1 0:0 0400",
        "/dev/nvidia-caps/nvidia-cap156 509:156 0:0 0444",
        "/dev/nvidia-caps/nvidia-cap157 509:157 0:0 0444",
    ]


def test_a_driver_that_manages_its_own_nodes_is_left_alone(tmp_path: Path) -> None:
    """With ModifyDeviceFiles: 0 the step makes no nodes."""
    root = _write(
        tmp_path, {"proc/devices": DEVICES, "proc/driver/nvidia/params": PARAMS.format(0)}
    )
    assert [
        _listed(root, module, 2, (0,)) for module in ("nvidia", "nvidia-uvm", "nvidia-modeset")
    ] == [[], [], []]


@pytest.mark.parametrize(
    ("path", "major", "minor", "right"),
    [("null", 1, 3, True), ("null", 1, 5, False), ("fd", 1, 3, False)],
)
def test_a_node_is_right_if_type_and_number_match(
    path: str, major: int, minor: int, right: bool
) -> None:
    """A node is right if it is a character device with its expected number; a missing one is
    wrong.
    """
    node = kmods._KernelNode(f"/dev/{path}", major, minor, 0, 0, 0o666)
    assert kmods._is_right("", node) is right
    assert not kmods._is_right("/nowhere", node)


@pytest.mark.usefixtures("no_child", "loaded")
def test_no_child_is_started_if_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With modules and nodes in place no child is started. IMEX channels are checked only if they
    are to be made.
    """
    checked_paths: list[str] = []

    def is_right(root: str, node: kmods._KernelNode) -> bool:
        checked_paths.append(root + node.path)
        return True

    monkeypatch.setattr(kmods, "_is_right", is_right)
    assert kmods.load_modules("/drv/", (3,), True) == []
    paths = [
        "nvidiactl",
        "nvidia0",
        "nvidia1",
        "nvidia-caps-imex-channels/channel3",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    ]
    assert checked_paths == [f"/drv/dev/{name}" for name in paths]
    checked_paths.clear()
    assert kmods.load_modules("/", (3,), False) == []
    assert checked_paths == [f"/dev/{name}" for name in paths if "channel" not in name]


@pytest.mark.parametrize("missing", ["module/nvidia_uvm", "/dev/nvidia1"])
def test_a_child_is_started_if_anything_is_missing(
    missing: str, loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing module or node starts the child; a child that cannot be started is a finding, not
    an error.
    """
    if missing.startswith("module"):
        (loaded / missing).rename(loaded / "gone")
    monkeypatch.setattr(kmods, "_is_right", lambda root, node: node.path != missing)

    def refused(kinds: int) -> None:
        raise syscalls.SyscallError(errno.EPERM, "unshare(NEWPID)")

    monkeypatch.setattr(syscalls, "unshare", refused)
    [finding] = kmods.load_modules("/", (), False)
    assert (finding.id, finding.level) == ("load-kmods", "warning")
    assert "unshare(NEWPID): EPERM" in finding.message
    assert "load-kmods = false" in finding.hint


@pytest.mark.usefixtures("no_child")
def test_skipped_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a user namespace, where no module can be loaded, nothing is tried and nothing is
    reported.
    """
    monkeypatch.setattr("nvgraft.system.userns.inside", lambda: True)
    monkeypatch.setattr(kmods, "_gpu_count", lambda: pytest.fail("the host is read"))
    assert kmods.load_modules("/", (0,), True) == []


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], list[Finding]]:
    """Let the step read ``text`` from a child that then ends, or hangs if not ``ends``."""

    def _listen(text: str, ends: bool) -> list[Finding]:
        monkeypatch.setattr(kmods, "TIMEOUT", 60 if ends else 0.05)
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        if ends:
            os.close(writer)
        try:
            return kmods._listen(reader)
        finally:
            os.close(reader)
            if not ends:
                os.close(writer)

    return _listen


def test_hints_of_the_child_are_findings(listen: Callable[[str, bool], list[Finding]]) -> None:
    """Each line with a hint is a finding, in order; the closing "done" adds none."""
    output = "modprobe nvidia\nfirst\tdo this\nmodprobe nvidia-uvm\nsecond\tdo that\ndone\n"
    assert listen(output, True) == [
        Finding("load-kmods", "warning", "first", "do this"),
        Finding("load-kmods", "warning", "second", "do that"),
    ]


@pytest.mark.parametrize(
    ("ends", "cause"), [(True, "ended before it was done"), (False, "not done after 0.05 seconds")]
)
@pytest.mark.parametrize(
    ("output", "doing"),
    [("", "starting"), ("a\tb\nmodprobe nvidia-uvm\npart", "modprobe nvidia-uvm")],
)
def test_a_child_that_ends_early_or_hangs_is_a_finding(
    output: str, doing: str, ends: bool, cause: str, listen: Callable[[str, bool], list[Finding]]
) -> None:
    """A child that ends early or hangs adds a finding that names its last step."""
    findings = listen(output, ends)
    assert findings[-1].message.startswith(f"load-kmods: {doing}: {cause}")
    assert [finding.message for finding in findings[:-1]] == (["a"] if output else [])
