"""``nvgraft doctor`` and what a container asks for, who may open what it gets, and driver files of
its image.
"""

from pathlib import Path

import pytest

from documents import read_document
from loaders import X86, Captured
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import shared_object
from patients import ALL, Document, Setup, closed_node, doctor, entry, ids, run_doctor


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_files_that_the_runtime_mounts_are_not_missing(setup: Setup, capsys: Captured) -> None:
    """Files that nvgraft-runtime has written into config.json count as present."""
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=graphics,display"]
    places = ("/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    setup.config["mounts"] = [
        {"destination": path, "source": path, "options": ["ro", "rbind"]} for path in places
    ]
    [finding] = run_doctor(setup, capsys)[1]["graphics-incomplete"]["findings"]
    assert finding["message"].endswith("the image lacks libXext.so.6 (which libGLX_nvidia needs)")


def test_only_a_hundred_failed_alternatives_are_listed(setup: Setup, capsys: Captured) -> None:
    """At most a hundred failed alternatives of a requirement are listed; met ones are not."""
    setup.env = [
        ALL,
        "NVIDIA_REQUIRE_A=driver>99999 cuda>=1",
        "NVIDIA_REQUIRE_B=" + " ".join(f"cuda>={number}" for number in range(100, 400)),
        "NVIDIA_REQUIRE_C=cuda>=500",
    ]
    [finding] = run_doctor(setup, capsys)[1]["requirement-unmet"]["findings"]
    assert finding["message"].count("does not hold") == 100
    assert "driver>99999" not in finding["message"]


def test_findings_of_an_incomplete_check_count(setup: Setup, capsys: Captured) -> None:
    """A device node that the user may not open is found, although SELinux is not recorded."""
    closed_node(setup)
    setup.config["process"]["selinuxLabel"] = "system_u:system_r:container_t:s0"
    _, results = run_doctor(setup, capsys)
    assert results["device-permissions"]["status"] == "found"
    assert "SELinux" in results["device-permissions"]["lacking"]


def test_a_driver_without_a_gpu_is_a_warning(setup: Setup, capsys: Captured) -> None:
    """The value none, which asks for driver files without a device, is a warning."""
    setup.env = ["NVIDIA_VISIBLE_DEVICES=none"]
    _, results = run_doctor(setup, capsys)
    assert ids(results) == {"devices-not-requested"}
    (finding,) = results["devices-not-requested"]["findings"]
    assert finding["level"] == "warning"
    assert (
        finding["message"]
        == "NVIDIA_VISIBLE_DEVICES=none: the driver's files are mounted, but no GPU"
    )


def test_a_variable_of_the_orchestrator_is_not_the_images(setup: Setup, capsys: Captured) -> None:
    """A variable given with --env counts as the orchestrator's, even if the image sets the same."""
    setup.image = True
    words = setup.arguments()
    assert main(["doctor", *words, "--env", ALL]) == 0
    assert main(["doctor", *words, "--env", "A=B"]) == 1
    assert "devices-from-image" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({"env": ["PATH=/usr/bin"]}, []),
        ({}, ["warning"]),
        ({"env": ["PATH=/usr/bin"], "timeout": 5}, ["warning"]),
        ({"env": ["LD_PRELOAD=/x.so"]}, ["error"]),
    ],
    ids=["docker's", "nvidia-container-runtime's", "with a timeout", "CVE-2025-23266"],
)
def test_a_hook_that_the_original_stack_registers(
    changes: Document, levels: list[str], setup: Setup, capsys: Captured
) -> None:
    """Members that an original hook lacks are not errors, because docker cannot set them."""
    hook = {
        "path": "/usr/bin/nvidia-container-runtime-hook",
        "args": ["/usr/bin/nvidia-container-runtime-hook", "prestart"],
    }
    setup.config["hooks"] = {"prestart": [hook | changes]}
    _, results = run_doctor(setup, capsys)
    assert [finding["level"] for finding in results["hook-registration"]["findings"]] == levels


def test_placeholders_in_an_image_are_found(setup: Setup, capsys: Captured) -> None:
    """Zero-byte driver files show that the image was built under the nvidia runtime."""
    setup.files |= {
        f"usr/lib/x86_64-linux-gnu/{name}.so.418.56": b"" for name in ("libcuda", "libnvidia-ml")
    }
    _, results = run_doctor(setup, capsys)
    assert any(
        "2 zero-byte driver files in the image" in finding["message"]
        for finding in results["image-has-driver"]["findings"]
    )


@pytest.mark.parametrize("version", ["418.56", "525.105.17"])
def test_what_is_left_of_an_older_driver_is_no_error(
    version: str, setup: Setup, capsys: Captured
) -> None:
    """Older driver files in the image, empty ones too, are a warning that says why they do no
    harm: the host's library is loaded.
    """
    data = b"" if version == "418.56" else shared_object(64, X86, "libcuda.so.1", [], None)
    setup.files[f"usr/local/lib/libcuda.so.{version}"] = data
    _, results = run_doctor(setup, capsys)
    assert ids(results) == {"image-has-driver"}
    (finding,) = results["image-has-driver"]["findings"]
    assert finding["level"] == "warning"
    assert "harmless" in finding["cause"]


def test_a_closed_node_has_the_words_of_what_opens_it(setup: Setup, capsys: Captured) -> None:
    """A closed /dev/nvidia-uvm is CUDA's error 999, a closed GPU NVML's; one that CUDA does not
    need is a warning.
    """
    setup.config["process"] = {"user": {"uid": 65534, "gid": 65534}}
    entry(setup, "/dev/nvidia-uvm-tools", mode="0600")
    found, sentence = doctor(setup, capsys)
    assert [finding["level"] for finding in found["device-permissions"]] == ["warning"]
    assert "CUDA finds 2 GPUs" in sentence
    for path, words, ending in (
        ("/dev/nvidia-uvm", "CUDA unknown error", "CUDA fails with error 999 (unknown error)"),
        ("/dev/nvidia0", "Insufficient Permissions", "CUDA finds no GPU"),
    ):
        entry(setup, path, mode="0600")
        setup.config["process"] = {"user": {"uid": 65534, "gid": 65534}}
        found, sentence = doctor(setup, capsys)
        (finding,) = found["device-permissions"]
        assert words in finding["phrase"]
        assert f"{ending} because the container's user may not open {path}." in sentence


@pytest.mark.parametrize(
    ("value", "repeated"),
    [("0,1", False), ("0,,1,", False), ("all,all", False), ("none,none", False), ("0,0", True)],
)
def test_only_a_repeated_id_counts(
    value: str, repeated: bool, setup: Setup, capsys: Captured
) -> None:
    """Empty parts and repeated words are harmless everywhere; a repeated id gives no GPU in the
    CDI modes of NVIDIA's runtime.
    """
    setup.env = [f"NVIDIA_VISIBLE_DEVICES={value}"]
    _, results = run_doctor(setup, capsys)
    assert bool(results["repeated-ids"]["findings"]) is repeated
    if repeated:
        assert results["repeated-ids"]["findings"][0]["fix"] == "set NVIDIA_VISIBLE_DEVICES=0"


@pytest.mark.parametrize(
    ("place", "identifier", "fix"),
    [
        ("usr/lib", "refused", "use another image: this path leads through a file"),
        ("usr/bin", "target-is-symlink", "the image has a file in the place of this directory"),
    ],
)
def test_a_file_in_the_place_of_a_directory(
    place: str, identifier: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """A file where the image needs a directory is the image's fault, and the fix names it."""
    files = {path: data for path, data in setup.files.items() if not path.startswith(f"{place}/")}
    setup.files = {**files, place: b"x"}
    _, results = run_doctor(setup, capsys)
    (finding,) = results[identifier]["findings"]
    assert finding["fix"].startswith(fix)
    assert "host-layout" not in ids(results)


def test_all_fixes_name_one_value_of_the_capabilities(setup: Setup, capsys: Captured) -> None:
    """No fix takes back what another one adds: each names all that programs lack."""
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=graphics"]
    findings = doctor(setup, capsys)[0]
    fixes = {finding["fix"] for finding in findings["capability-not-requested"]}
    assert fixes == {"set NVIDIA_DRIVER_CAPABILITIES=graphics,utility,compute"}
    *_, display = findings["graphics-incomplete"]
    assert display["fix"].endswith("add display to NVIDIA_DRIVER_CAPABILITIES")


def test_a_missing_channel_is_not_a_missing_driver(setup: Setup, capsys: Captured) -> None:
    """An IMEX channel that the host does not have is what this container asks for: the host is not
    said to lack its driver, and CDI edits not to be those of another one.
    """
    setup.env.append("NVIDIA_IMEX_CHANNELS=0")
    for words in ((), ("--mode", "jit-cdi")):
        main(["doctor", *setup.arguments(), *words, "--format", "json"])
        document = read_document(capsys.readouterr().out)
        found = {result["id"]: result for result in document["results"] if result["findings"]}
        assert list(found) == ["unknown-device"]
        (finding,) = found["unknown-device"]["findings"]
        assert "another driver" not in finding["cause"]
        assert "This host can serve GPU containers" in document["verdicts"]["host"]
