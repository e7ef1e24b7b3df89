"""``nvgraft doctor`` on a node: memory errors and Xids of GPUs, and the fabric of boards without
NVSwitch nodes.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from nvgraft_cli.doctor.gpu_health import GpuHealth
from nvgraft_cli.doctor.machine import read_xids
from patients import Node, ids


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def gpu(index: int, uncorrected: int | None = 0, fabric: int | None = None) -> GpuHealth:
    """Return what NVML says of a GPU."""
    return GpuHealth(index, f"GPU-{index}", uncorrected, fabric)


def test_uncorrected_memory_errors_are_reported(node: Node) -> None:
    """A GPU that has counted some is named; one without ECC, or without errors, is in order."""
    node.machine = replace(node.machine, health=(gpu(0), gpu(1, None)))
    assert node.examine()["gpu-errors"]["status"] == "ok"
    node.machine = replace(node.machine, health=(gpu(0), gpu(1, 2)))
    results = node.examine()
    assert ids(results) == {"gpu-errors"}
    (finding,) = results["gpu-errors"]["findings"]
    assert finding["level"] == "error"
    assert finding["message"].startswith("GPU 1 (GPU-1) has counted 2 uncorrected memory errors")


def test_what_nvml_was_not_asked_is_not_called_ok(node: Node) -> None:
    """Without NVML's answer memory errors are not checked."""
    assert node.examine()["gpu-errors"]["status"] == "not-checked"


def test_an_xid_is_reported_in_the_drivers_words(node: Node) -> None:
    """An Xid is a warning, since the log does not tell whether the GPU was reset since."""
    line = "NVRM: Xid (PCI:0000:43:00): 48, pid=7, name=app"
    node.machine = replace(node.machine, health=(gpu(0),), xids=(line,))
    (finding,) = node.examine()["gpu-errors"]["findings"]
    assert (finding["level"], finding["message"]) == ("warning", line)
    assert finding["phrase"] == "NVRM: Xid (PCI:0000:43:00): 48"


def test_the_last_xid_of_each_gpu_and_number_is_read(tmp_path: Path) -> None:
    """Other lines of the kernel's log, and repeated errors, are left out; no log is no error."""
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1,0,-;usb 1-1: new device\n"
        "3,2,0,-;NVRM: Xid (PCI:0000:43:00): 13, pid=1\n"
        "3,3,0,-;NVRM: Xid (PCI:0000:43:00): 13, pid=2\n"
        "3,4,0,-;NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.\n"
    )
    assert read_xids(str(log)) == (
        "NVRM: Xid (PCI:0000:43:00): 13, pid=2",
        "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
    )
    assert read_xids(str(tmp_path / "none")) == ()


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((3, 3), "ok"),
        ((3, 2), "found"),
        ((1, 1), "found"),
        ((None, None), "not-checked"),
        (None, "not-checked"),
    ],
)
def test_the_fabric_of_boards_with_nvlink_5(
    states: tuple[int | None, ...] | None, status: str, node: Node
) -> None:
    """The NVSwitches of a B200 have no nodes: NVML's state of the fabric decides."""
    for row in node.setup.host["nvml"]["gpus"]:
        row["model"] = "NVIDIA B200"
    health = None if states is None else tuple(gpu(0, 0, state) for state in states)
    node.machine = replace(node.machine, health=health)
    result = node.examine()["fabric-manager"]
    assert result["status"] == status
    if status == "found":
        assert "CUDA fails with error 802" in result["findings"][0]["message"]
