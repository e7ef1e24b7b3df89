"""``nvgraft doctor`` foretells what CUDA finds: CUDA_VISIBLE_DEVICES, GPUs in MIG mode, images of
another architecture, and simulated hosts without a driver that answers.
"""

import json
from pathlib import Path

import pytest

import hosts
from loaders import Captured
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import executable
from patients import ALL, Setup, doctor, healthy_image

ERROR_100 = "CUDA fails with error 100 (no CUDA-capable device is detected) because "
STARTS = "This container starts, and "


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


VALUES = {
    "": f"{ERROR_100}CUDA_VISIBLE_DEVICES is empty, which names no device.",
    "-1": f"{ERROR_100}CUDA_VISIBLE_DEVICES=-1 names no device: -1 is not a number from 0.",
    "2": f"{ERROR_100}CUDA_VISIBLE_DEVICES=2 names no device: there is no GPU 2 in the container, "
    "which has GPUs 0 to 1.",
    "0,0": f"{ERROR_100}CUDA_VISIBLE_DEVICES=0,0 names 0 twice, which leaves no device.",
    "GPU-7": f"{ERROR_100}CUDA_VISIBLE_DEVICES=GPU-7 names no device: GPU-7 is of no device in the "
    "container.",
    "GPU-0000000": f"{ERROR_100}CUDA_VISIBLE_DEVICES=GPU-0000000 names no device: GPU-0000000 "
    "belongs to several devices.",
    "MIG-1": f"{ERROR_100}CUDA_VISIBLE_DEVICES=MIG-1 names no device: MIG-1 is of no device in the "
    "container.",
}


@pytest.mark.parametrize("value", VALUES)
def test_a_variable_that_names_no_device_is_an_error(
    value: str, setup: Setup, capsys: Captured
) -> None:
    """The last line has CUDA's error, the variable, and why it names none."""
    setup.env.append(f"CUDA_VISIBLE_DEVICES={value}")
    found, verdict = doctor(setup, capsys)
    assert verdict == STARTS + VALUES[value]
    assert [finding["level"] for finding in found.pop("cuda-visible-devices")] == ["error"]
    assert not found


@pytest.mark.parametrize(
    ("value", "levels", "finds"),
    [
        ("1", [], "1 of 2 GPUs (CUDA_VISIBLE_DEVICES=1, driver 535.1)"),
        ("1,0", [], "2 GPUs (CUDA_VISIBLE_DEVICES=1,0, driver 535.1)"),
        ("0,-1,1", ["warning"], "1 of 2 GPUs (CUDA_VISIBLE_DEVICES=0,-1,1, driver 535.1)"),
        ("GPU-00000001", [], "1 of 2 GPUs (CUDA_VISIBLE_DEVICES=GPU-00000001, driver 535.1)"),
    ],
)
def test_a_variable_that_names_fewer_devices_is_counted(
    value: str, levels: list[str], finds: str, setup: Setup, capsys: Captured
) -> None:
    """Fewer GPUs are no problem, unless the list ends before its end."""
    setup.env.append(f"CUDA_VISIBLE_DEVICES={value}")
    found, verdict = doctor(setup, capsys)
    assert verdict == f"{STARTS}CUDA finds {finds}."
    assert [item["level"] for item in found.get("cuda-visible-devices", [])] == levels


def test_a_variable_that_a_starter_sets_counts(setup: Setup, capsys: Captured) -> None:
    """The variables are those of the program, with what env or a script changes."""
    setup.files["usr/bin/env"] = healthy_image()["usr/bin/app"]
    setup.args = ["env", "CUDA_VISIBLE_DEVICES=", "app"]
    assert "CUDA_VISIBLE_DEVICES is empty" in doctor(setup, capsys)[1]


def test_a_wrong_variable_of_a_container_without_gpus_is_not_reported(
    setup: Setup, capsys: Captured
) -> None:
    """A container that gets no GPU has no GPU that the variable could hide."""
    setup.env = ["NVIDIA_VISIBLE_DEVICES=none", "CUDA_VISIBLE_DEVICES=3"]
    assert set(doctor(setup, capsys)[0]) == {"devices-not-requested"}


def mig_setup(setup: Setup, devices: str) -> None:
    """Change the host to one with a GPU in MIG mode, which has two MIG devices, and another GPU."""
    setup.host = hosts.mig_host(
        """
        /proc/driver/nvidia/capabilities/gpu0/mig/gi2/access = DeviceFileMinor: 21\\n
        /proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access = DeviceFileMinor: 22\\n
        /dev/nvidia-caps/nvidia-cap21 char 236:21
        /dev/nvidia-caps/nvidia-cap22 char 236:22
        """,
        gpus=[hosts.gpu(0, migs=["MIG-aaaa 1/0", "MIG-bbbb 2/0"]), hosts.gpu(1)],
    )
    setup.env = [f"NVIDIA_VISIBLE_DEVICES={devices}"]


MIG = {
    "0": (
        "error",
        "/dev/nvidia0 is in MIG mode, and the container has no MIG device of it: CUDA fails",
        f"{ERROR_100}/dev/nvidia0 is in MIG mode, and the container has no MIG device of it.",
    ),
    "0,1": (
        "warning",
        "/dev/nvidia0 is in MIG mode, and the container has no MIG device of it: CUDA does not",
        "CUDA finds 1 of 2 GPUs (driver 535.1).",
    ),
    "0:1": (None, "", "CUDA finds one MIG device (driver 535.1)."),
    "0:0,0:1": (
        "warning",
        "the container has 2 MIG devices, and CUDA finds one device in each process: MIG-aaaa",
        "CUDA finds one MIG device (driver 535.1).",
    ),
    "all": (
        "warning",
        (
            "the container has 2 MIG devices and 1 whole GPU, and CUDA finds one device in each "
            "process: MIG-aaaa"
        ),
        "CUDA finds one MIG device (driver 535.1).",
    ),
    "1": (None, "", "CUDA finds 1 GPU (driver 535.1)."),
}


@pytest.mark.parametrize("devices", MIG)
def test_gpus_in_mig_mode_are_counted_as_cuda_does(
    devices: str, setup: Setup, capsys: Captured
) -> None:
    """A GPU in MIG mode without a MIG device is not found, and of several MIG devices only one."""
    mig_setup(setup, devices)
    level, message, sentence = MIG[devices]
    found, verdict = doctor(setup, capsys)
    assert verdict == STARTS + sentence
    findings = found.get("mig-devices", [])
    assert [item["level"] for item in findings] == ([level] if level else [])
    assert all(item["message"].startswith(message) for item in findings)
    if devices == "0":
        assert "NVIDIA_VISIBLE_DEVICES=MIG-aaaa" in findings[0]["fix"]


def test_a_gpu_without_mig_devices_has_another_fix(setup: Setup, capsys: Captured) -> None:
    """Where MIG mode is on and nothing is cut, MIG devices are to be made."""
    setup.host["nvml"]["gpus"] = [hosts.gpu(0, mig="enabled")]
    found, verdict = doctor(setup, capsys)
    assert ERROR_100 in verdict
    assert "nvidia-smi mig -cgi PROFILE -C" in found["mig-devices"][0]["fix"]


def test_one_mig_device_may_be_chosen(setup: Setup, capsys: Captured) -> None:
    """CUDA_VISIBLE_DEVICES with one MIG device's UUID, in either form, leaves nothing to warn of."""
    for value in ("MIG-bbbb", "MIG-GPU-00000000/2/0"):
        mig_setup(setup, "all")
        setup.env.append(f"CUDA_VISIBLE_DEVICES={value}")
        found, verdict = doctor(setup, capsys)
        assert not found
        assert verdict == (
            f"{STARTS}CUDA finds one MIG device (CUDA_VISIBLE_DEVICES={value}, driver 535.1)."
        )


ARM_LOADER = "/lib/ld-linux-aarch64.so.1"
FOREIGN = {
    "dynamic": executable("EM_AARCH64", "x", ["libc.so.6"], None, ARM_LOADER),
    "static": executable("EM_AARCH64", "x"),
}
WORDS = "/usr/bin/app: exec format error (a program for aarch64; the host is x86_64)"


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_image_of_another_architecture_does_not_start(
    kind: str, setup: Setup, capsys: Captured
) -> None:
    """The kernel's words are the only problem of the container: nothing of the image runs, so that
    no library is judged. prove and why say the same.
    """
    setup.files["usr/bin/app"] = FOREIGN[kind]
    found, verdict = doctor(setup, capsys)
    assert verdict == f"This container does not start: {WORDS}."
    (finding,) = found.pop("image-architecture")
    assert (finding["level"], finding["message"]) == ("error", WORDS)
    assert "--platform linux/amd64" in finding["fix"]
    assert not found
    words = setup.arguments()
    for what in ("libcuda.so.1", "/usr/bin/app"):
        assert main(["prove", what, *words]) == 1
        assert f"first failure: {WORDS}" in capsys.readouterr().out
    main(["why", "libcuda.so.1", *words])
    assert "exec format error" in capsys.readouterr().out


def test_an_x86_image_on_an_arm_host(setup: Setup, capsys: Captured) -> None:
    """It is the same the other way round, also for a container that gets no GPU."""
    text = json.dumps(setup.host).replace("EM_X86_64", "EM_AARCH64")
    setup.host = json.loads(text.replace("libc6,x86-64", "libc6,AArch64"))
    setup.host["machine"] = "aarch64"
    for setup.env in ([ALL], []):
        found, verdict = doctor(setup, capsys)
        words = "/usr/bin/app: exec format error (a program for x86_64; the host is aarch64)"
        assert verdict == f"This container does not start: {words}."
        assert "--platform linux/arm64" in found["image-architecture"][0]["fix"]


def test_32_bit_programs_run(setup: Setup, capsys: Captured) -> None:
    """An x86_64 kernel runs programs of i386 as well."""
    content = bytearray(setup.files["usr/bin/app"])
    content[18:20] = (3).to_bytes(2, "little")  # e_machine
    setup.files["usr/bin/app"] = bytes(content)
    assert "image-architecture" not in doctor(setup, capsys)[0]


def test_a_simulated_host_without_functions_has_no_driver(
    setup: Setup, capsys: Captured, tmp_path: Path
) -> None:
    """Where the hook of a simulated host reads a document, the libraries do not answer."""
    config = tmp_path / "simulated.toml"
    config.write_text('[nvgraft]\nsimulated-host = true\nhost-snapshot = "/h.json"\n')
    setup.files["usr/local/cuda/lib64/libcudart.so.12.1.48"] = b"x"
    found, verdict = doctor(setup, capsys, "--config", str(config))
    assert set(found) == {"simulated-driver"}
    assert verdict.startswith(f"{STARTS}CUDA finds no driver because libcuda.so.1 and libnvidia-ml")
