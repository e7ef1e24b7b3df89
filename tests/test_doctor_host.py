"""``nvgraft doctor`` and the host alone: device nodes of GPUs, ldconfig and the fabric manager."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from documents import read_document
from loaders import Captured
from nvgraft_cli.shell.main import main
from patients import Node, Setup, dynamic_ldconfig, entry, ids, run_doctor, with_nvswitches


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_a_gpu_without_a_node_is_found(setup: Setup, capsys: Captured) -> None:
    """A GPU that the loaded driver knows and that has no device node is named, with the fix."""
    entry(
        setup,
        "/proc/driver/nvidia/gpus/0000:0b:00.0/information",
        type="file",
        mode="0444",
        content="Model: \t\t NVIDIA A10\nDevice Minor: \t 7\n",
    )
    _code, results = run_doctor(setup, capsys)
    (finding,) = results["driver-not-loaded"]["findings"]
    assert finding["message"] == (
        "/dev/nvidia7 is missing: no program can use the GPU 0000:0b:00.0"
    )
    assert finding["fix"] == "run nvidia-modprobe -c 7 on the host"


def test_an_ldconfig_that_is_not_run_is_looked_up(setup: Setup, capsys: Captured) -> None:
    """Where the hook runs no ldconfig, only a program that config.toml alone names is looked up."""
    for program, lacking in (
        ("/sbin/ldconfig", "the hook writes the loader cache itself"),
        ("/opt/ldconfig", "the snapshot does not record /opt/ldconfig"),
    ):
        setup.toml = f'[nvidia-container-cli]\nldconfig = "@{program}"\n'
        main(["doctor", *setup.arguments(), "--format", "json"])
        results = {row["id"]: row for row in read_document(capsys.readouterr().out)["results"]}
        assert lacking in results["ldconfig-unusable"]["lacking"]
    dynamic_ldconfig(setup)
    setup.toml = '[nvidia-container-cli]\nldconfig = "@/opt/ldconfig"\n'
    main(["doctor", *setup.arguments(), "--format", "json"])
    results = {row["id"]: row for row in read_document(capsys.readouterr().out)["results"]}
    assert results["ldconfig-unusable"]["status"] == "ok"


def test_a_host_with_nvswitches_needs_fabric_manager(tmp_path: Path) -> None:
    """Without the process CUDA fails with 802; with it, or without NVSwitches, nothing is wrong."""
    node = Node(tmp_path)
    assert node.examine()["fabric-manager"]["status"] == "ok"
    with_nvswitches(node)
    results = node.examine()
    assert ids(results) == {"fabric-manager"}
    (finding,) = results["fabric-manager"]["findings"]
    assert finding["level"] == "error"
    assert finding["message"].startswith(
        "the host has 4 NVSwitches, and no process nv-fabricmanager: CUDA fails with error 802"
    )
    node.write("/proc/77/comm", "nv-fabricmanage\n")
    assert node.examine()["fabric-manager"]["status"] == "ok"


def test_device_nodes_tell_of_nvswitches_too(tmp_path: Path) -> None:
    """Where /proc does not list the NVSwitches, their device nodes do; the control node is none."""
    node = Node(tmp_path)
    node.write("/proc/1/comm", "systemd\n")
    node.machine = replace(node.machine, shows_processes=True)
    node.write("/dev/nvidia-nvswitchctl", "")
    assert node.examine()["fabric-manager"]["status"] == "ok"
    node.write("/dev/nvidia-nvswitch0", "")
    (finding,) = node.examine()["fabric-manager"]["findings"]
    assert finding["message"].startswith("the host has 1 NVSwitch, and")


def _in_a_container(node: Node) -> None:
    node.machine = replace(node.machine, shows_processes=False)


def _hidden(node: Node) -> None:
    node.remove("/proc/1/comm")
    (node.root / "proc/1").rmdir()


def _blackwell(node: Node) -> None:
    for number in range(4):
        node.remove(f"/proc/driver/nvidia-nvswitch/devices/0000:0{number}:00.0")
    for gpu in node.setup.host["nvml"]["gpus"]:
        gpu["model"] = "NVIDIA B200"


@pytest.mark.parametrize("change", [_in_a_container, _hidden, _blackwell])
def test_fabric_manager_is_not_judged_unseen(
    change: Callable[[Node], None], tmp_path: Path
) -> None:
    """Where its process or the NVSwitches may be hidden, the check is not made, and says so."""
    node = Node(tmp_path)
    with_nvswitches(node)
    change(node)
    result = node.examine()["fabric-manager"]
    assert result["status"] == "not-checked"
    assert not result["findings"]
