"""The sentence with which ``nvgraft doctor`` ends, of a container and of a host."""

from collections.abc import Callable
from pathlib import Path

import pytest

from documents import read_document
from loaders import LOADER, Captured
from nvgraft.host.snapshot import snapshot_host
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.doctor.examination import examine
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.doctor.verdict import container_verdict
from nvgraft_cli.shell.main import main
from patients import (
    Node,
    Setup,
    many_gpus,
    older_library,
    older_module,
    older_specification,
    with_nvswitches,
    without,
    without_gpus,
)


def _without_library(setup: Setup, stem: str) -> None:
    """Take a library from the driver of the host."""
    rows = setup.host["ld_so_cache"]
    setup.host["ld_so_cache"] = [row for row in rows if not row[0].startswith(stem)]
    for path in [path for path in setup.host["files"] if f"/{stem}" in path]:
        del setup.host["files"][path]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda _setup: None,
            "This container starts, and CUDA finds 2 GPUs (driver 535.1).",
        ),
        (
            lambda setup: setup.env.append("NVIDIA_REQUIRE_CUDA=cuda>=99"),
            "This container does not start: unsatisfied condition: cuda>=99",
        ),
        (
            lambda setup: setup.env.append("NVIDIA_DRIVER_CAPABILITIES=utility"),
            "This container starts, and CUDA finds no driver: NVIDIA_DRIVER_CAPABILITIES lacks",
        ),
        (
            lambda setup: setup.env.append("NVIDIA_VISIBLE_DEVICES=none"),
            "This container starts, with the driver's files and without a GPU.",
        ),
        (
            without_gpus,
            (
                "This container starts, and CUDA loads (driver 535.1); which GPUs it finds is not "
                "known."
            ),
        ),
        (
            lambda setup: without(setup, "/dev/nvidia-uvm"),
            (
                "This container starts, and CUDA fails with error 999 because the host has no "
                "/dev/nvidia-uvm."
            ),
        ),
        (older_library, "This container starts, and its programs load /opt/old/libcuda.so.1 of "),
        (
            lambda setup: setup.files.pop(LOADER.lstrip("/")),
            "This container does not start: exec /usr/bin/app: no such file or directory (the ima",
        ),
    ],
    ids=[
        *("works", "refused", "no-compute", "no-device", "not-recorded", "no-uvm", "shadowed"),
        "no-loader",
    ],
)
def test_the_last_line_says_whether_cuda_finds_its_gpus(
    change: Callable[[Setup], object], sentence: str, setup: Setup, capsys: Captured
) -> None:
    """The last line of the text, and the verdict of the document, is one sentence to act on."""
    change(setup)
    words = ["doctor", *setup.arguments()]
    main(words)
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith(sentence)
    main([*words, "--format", "json"])
    document = read_document(capsys.readouterr().out)
    assert document["verdict"] == document["verdicts"]["container"] == out.splitlines()[-1]
    assert document["verdicts"]["host"] == out.splitlines()[-2]


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        (
            lambda _setup: None,
            0,
            "This host can serve GPU containers, as far as was checked.",
        ),
        (
            many_gpus,
            1,
            "This host can serve GPU containers, as far as was checked (warnings: nvml-slow).",
        ),
        (
            without_gpus,
            1,
            (
                "This host can serve GPU containers, as far as was checked without its GPUs, which "
                "are not recorded."
            ),
        ),
        (
            older_specification,
            1,
            "This host does not serve all GPU containers: a CDI specification is out of date or cannot be read.",
        ),
        (
            older_module,
            1,
            (
                "Containers start on this host, and CUDA fails with error 803, and NVML with 18, "
                "because the loaded kernel module has version 530.9"
            ),
        ),
    ],
    ids=["works", "warning", "not-recorded", "cdi", "mismatch"],
)
def test_the_host_has_a_verdict_of_its_own(
    change: Callable[[Setup], object], code: int, sentence: str, setup: Setup, capsys: Captured
) -> None:
    """Without a container the last line is about the host, and all problems count for the exit
    code; with one the host's verdict is the same and the line before the last.
    """
    change(setup)
    words = setup.arguments()
    assert main(["doctor", *words[: words.index("--bundle")]]) == code
    alone = capsys.readouterr().out.splitlines()[-1]
    assert alone.startswith(sentence)
    main(["doctor", *words])
    assert capsys.readouterr().out.splitlines()[-2] == alone


def test_the_last_line_says_that_the_cuda_is_too_new(setup: Setup, capsys: Captured) -> None:
    """The last line names CUDA's error, the image's CUDA and the driver's."""
    setup.files["usr/local/cuda/lib64/libcudart.so.13.0.48"] = b"x"
    main(["doctor", *setup.arguments()])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "This container starts, and CUDA fails with error 35 (CUDA driver version is insufficient "
        "for CUDA runtime version) because the image's CUDA runtime is 13.0 "
        "(/usr/local/cuda/lib64/libcudart.so.13.0.48), and driver 535.1 has CUDA 12.2."
    )


def test_the_last_line_says_that_fabric_manager_is_missing(tmp_path: Path) -> None:
    """A failure of the host is in the last line where it makes CUDA fail in the container."""
    node = Node(tmp_path)
    with_nvswitches(node)
    words = node.setup.arguments()
    side = HostSide("node", node.config, None)
    side.facts = snapshot_host(node.setup.host)
    with open_container(words[-1]) as container:
        patient = Patient(side, container, [], node.machine)
        assert container_verdict(patient, examine(patient)).sentence == (
            "This container starts, and CUDA fails with error 802 (system not yet initialized) "
            "because the host has 4 NVSwitches, and no process nv-fabricmanager."
        )


@pytest.mark.parametrize(
    ("stem", "capabilities", "code", "end"),
    [
        (
            "libnvidia-ml.so",
            "compute,utility",
            1,
            (
                "and CUDA finds 2 GPUs (driver 535.1); to be mended: nvidia-smi and other programs that"
                " use NVML fail because the host has no libnvidia-ml.so.1."
            ),
        ),
        (
            "libnvidia-ml.so",
            "utility",
            1,
            (
                "NVIDIA_DRIVER_CAPABILITIES lacks compute; to be mended: nvidia-smi and other programs"
                " that use NVML fail because the host has no libnvidia-ml.so.1."
            ),
        ),
        ("libnvidia-ml.so", "compute", 0, "and CUDA finds 2 GPUs (driver 535.1)."),
        (
            "libcuda.so",
            "compute,utility",
            1,
            (
                "and CUDA does not load: libcuda.so.1: cannot open shared object file: No such file or"
                " directory."
            ),
        ),
        ("libcuda.so", "utility", 0, "NVIDIA_DRIVER_CAPABILITIES lacks compute."),
    ],
)
def test_a_driver_without_a_main_library(
    stem: str, capabilities: str, code: int, end: str, setup: Setup, capsys: Captured
) -> None:
    """The host's verdict names the library; the container's says which of its programs fail, and
    the exit code follows it. Without a container the exit code is 1.
    """
    _without_library(setup, stem)
    setup.env.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    words = setup.arguments()
    assert main(["doctor", *words]) == code
    *_, of_host, last = capsys.readouterr().out.splitlines()
    assert last.endswith(end)
    assert of_host == (
        f"This host does not serve all GPU containers: the host's loader does not find {stem}.1."
    )
    assert main(["doctor", *words[: words.index("--bundle")]]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == of_host
    main(["explain", *words])
    story, *_ = capsys.readouterr().out.splitlines()
    assert story.endswith(f"; but {stem}.1 does not load") is (code == 1)


def test_the_directory_of_a_library_is_where_it_is_mounted(setup: Setup, capsys: Captured) -> None:
    """With CDI edits the driver's files keep their directory: the fix names it, also without
    libcuda.so.1.
    """
    setup.host = read_snapshot("debian-a100x8")
    _without_library(setup, "libcuda.so")
    nix = Path(__file__).parent.parent / "docs/examples/nix"
    words = [*setup.arguments()[:2], "--container", str(nix), "--mode", "jit-cdi"]
    main(["doctor", *words, "--env", "NVIDIA_VISIBLE_DEVICES=all"])
    fixes = [line for line in capsys.readouterr().out.splitlines() if "LD_LIBRARY_PATH=" in line]
    place = "/usr/lib/x86_64-linux-gnu/nvidia/current"
    assert [line.split()[2] for line in fixes] == [f"LD_LIBRARY_PATH={place}"]
