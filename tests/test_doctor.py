"""``nvgraft doctor``: each failure is found in a setup like the reported ones, and nowhere else."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from documents import read_document
from loaders import LOADER, X86, Captured
from nvgraft_cli.doctor.examination import CHECKS, POD_CHECKS
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import executable, shared_object
from nvgraft_specs.checks import FAILURES
from patients import (
    ALL,
    HOOK,
    PODMAN,
    Setup,
    closed_node,
    dynamic_ldconfig,
    healthy_host,
    ids,
    many_gpus,
    older_library,
    older_module,
    older_specification,
    run_doctor,
    setting,
    without,
    without_gpus,
    without_loader,
)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_a_healthy_setup_has_no_findings(setup: Setup, capsys: Captured) -> None:
    """A healthy setup exits with 0; checks that were not made say why and are not called ok."""
    code, results = run_doctor(setup, capsys)
    assert ids(results) == set()
    assert code == 0
    assert set(results) == set(CHECKS) - POD_CHECKS
    for result in results.values():
        assert result["status"] in {"ok", "not-checked"}
        assert bool(result["lacking"]) == (result["status"] == "not-checked")
    assert sum(result["status"] == "ok" for result in results.values()) >= 18


def _no_library(setup: Setup) -> None:
    setup.host["ld_so_cache"] = [
        row for row in setup.host["ld_so_cache"] if not row[0].startswith("libnvidia-ml")
    ]
    setup.host["files"]["/run/opengl-driver/lib/libnvidia-ml.so.535.1"] = {
        "type": "file",
        "mode": "0644",
    }


def _no_cuda(setup: Setup) -> None:
    setup.host["ld_so_cache"] = [
        row for row in setup.host["ld_so_cache"] if not row[0].startswith("libcuda.so")
    ]
    for path in [path for path in setup.host["files"] if "/libcuda.so" in path]:
        del setup.host["files"][path]


def _stale_cache(setup: Setup) -> None:
    setup.host["ld_so_cache"].append(
        ["libnvidia-none.so.1", "libc6,x86-64", "/usr/lib/x86_64-linux-gnu/libnvidia-none.so.1"]
    )


def _no_link(setup: Setup) -> None:
    setup.env.append("NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")
    setup.files["usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so.1"] = b"x"


def _compat(setup: Setup) -> None:
    compat = "usr/local/cuda/compat"
    setup.files[f"{compat}/libcuda.so.530.30"] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links = {f"{compat}/libcuda.so.1": "libcuda.so.530.30"}
    setup.env.append(f"LD_LIBRARY_PATH=/{compat}")


def _nix(setup: Setup) -> None:
    store = "nix/store/abc-glibc/lib"
    interp = f"/{store}/ld-linux-x86-64.so.2"
    array = f"/{store}/\0/{store}64/\0".encode()
    setup.files = {
        "tmp/.keep": b"",
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, interp),
        interp.lstrip("/"): shared_object(64, X86, "ld-linux-x86-64.so.2", [], None)
        + b"\0"
        + array
        + b"/nix/etc/ld.so.cache\0",
        f"{store}/libc.so.6": shared_object(64, X86, "libc.so.6", [], None),
        LOADER.lstrip("/"): b"loader",
    }


def _hook(setup: Setup) -> None:
    setup.config["hooks"] = {
        "createContainer": [
            {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
        ]
    }


#: failure -> how its setup differs from the healthy one, and words of the expected message
CASES: dict[str, tuple[Callable[[Setup], None], str]] = {
    "driver-not-loaded": (
        lambda setup: without(setup, "/dev/nvidia-uvm"),
        "CUDA will fail with error 999",
    ),
    "driver-library-mismatch": (
        older_module,
        "the loaded kernel module has version 530.9, the library 535.1 (",
    ),
    "nvml-library-missing": (_no_library, "is at /run/opengl-driver/lib/libnvidia-ml.so.535.1"),
    "cuda-library-missing": (_no_cuda, "in no other directory where drivers are usually kept"),
    "host-layout": (
        _stale_cache,
        "names /usr/lib/x86_64-linux-gnu/libnvidia-none.so.1, which does not exist",
    ),
    "nvml-slow": (many_gpus, "4 GPUs, and nvidia-persistenced is not running"),
    "ldconfig-unusable": (dynamic_ldconfig, "/opt/ldconfig is not statically linked"),
    "mode-not-legacy": (setting(toml='[nvidia-container-runtime]\nmode = "cdi"\n'), 'mode = "cdi"'),
    "cdi-stale": (older_specification, "(specification 530.30, driver 535.1)"),
    "hook-registration": (
        _hook,
        "createContainer hook /usr/bin/nvidia-container-runtime-hook: stage: ",
    ),
    "devices-not-requested": (
        setting(env=["NVIDIA_VISIBLE_DEVICES=void"]),
        "the container gets nothing: ",
    ),
    "devices-from-image": (
        setting(image=True),
        "NVIDIA_VISIBLE_DEVICES=all comes from the image, not from the orchestrator",
    ),
    "capability-not-requested": (
        setting(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute"], args=["nvidia-smi"]),
        "nvidia-smi is provided by capability 'utility'; this container requests compute",
    ),
    "repeated-ids": (
        setting(env=["NVIDIA_VISIBLE_DEVICES=1, 0,1"]),
        "NVIDIA_VISIBLE_DEVICES=1, 0,1 names 1 more than once",
    ),
    "gpus-not-recorded": (
        without_gpus,
        "this host was recorded from the files of a driver",
    ),
    "mig-privilege": (
        setting(env=[ALL, "NVIDIA_MIG_CONFIG_DEVICES=all"]),
        "cannot set MIG_CONFIG_DEVICES in non privileged container",
    ),
    "unknown-device": (
        setting(env=["NVIDIA_VISIBLE_DEVICES=7"]),
        "device error: 7: unknown device: this host has 2 GPU(s)",
    ),
    "requirement-unmet": (
        setting(env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99 brand=titan,driver>=400"]),
        (
            "alternatives tried: cuda>=99: cuda>=99 does not hold; "
            "brand=titan,driver>=400: brand=titan does not hold"
        ),
    ),
    "rootless": (
        setting(config={"linux": {"uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}]}}),
        "single id",
    ),
    "device-filter": (
        setting(config={"linux": {"cgroupsPath": "user.slice:libpod:abc"}}),
        "failed to add device rules: a rootless engine created the cgroup user.slice:libpod:abc",
    ),
    "device-rules-lost": (
        setting(config={"linux": {"cgroupsPath": "machine.slice:libpod:abc"}}),
        "'systemctl daemon-reload' will revoke them",
    ),
    "device-permissions": (
        closed_node,
        "/dev/nvidiactl is 0660 0:1005; the process runs as uid 1000 without gid 1005",
    ),
    "target-is-symlink": (
        setting(links={"usr/bin/nvidia-smi": "/etc/alternatives/nvidia-smi"}),
        "/usr/bin/nvidia-smi in the image is a symbolic link to /etc/alternatives/nvidia-smi",
    ),
    "socket-in-the-way": (setting(volumes=("/run",)), "is left out"),
    "image-has-driver": (
        lambda setup: setup.files.update(
            {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.525.105.17": b"x"}
        ),
        (
            "the image contains /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.525.105.17, "
            "but the host's driver is 535.1"
        ),
    ),
    "compat-libraries": (_compat, "expect CUDA error 803"),
    "graphics-incomplete": (
        setting(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"]),
        "the image lacks libXext.so.6",
    ),
    "loader-missing": (
        without_loader,
        f"exec /usr/bin/app: no such file or directory (the image lacks its loader {LOADER}); lib",
    ),
    "soname-links-missing": (_no_link, "libnvidia-opticalflow.so.1 will not lead to libnvidia-"),
    "library-shadowed": (
        older_library,
        "libcuda.so.1: the container's program loads /opt/old/libcuda.so.1 of the image",
    ),
    "library-path": (
        _nix,
        (
            "libcuda.so.1, libnvidia-ml.so.1: cannot open shared object file: they are mounted in "
            "/usr/lib64, and the loader searches /nix/store/abc-glibc/lib"
        ),
    ),
    "cuda-too-new": (
        lambda setup: setup.files.update({"usr/local/cuda-13.0/lib64/libcudart.so.13.0.48": b"x"}),
        (
            "the image's CUDA runtime is 13.0 (/usr/local/cuda-13.0/lib64/libcudart.so.13.0.48), "
            "and driver 535.1 has CUDA 12.2: programs that use it fail with error 35"
        ),
    ),
    "program-missing": (
        lambda setup: setup.files.__delitem__("usr/bin/app"),
        'exec: "app": executable file not found in $PATH',
    ),
    "loader-cache-mounted": (
        setting(volumes=("/etc/ld.so.cache",)),
        "ldcache error: process /sbin/ldconfig failed with error code: 1: /etc/ld.so.cache is",
    ),
    "tmp-missing": (
        lambda setup: setup.files.__delitem__("tmp/.keep"),
        "the image has no directory /tmp",
    ),
    "stderr-hidden": (
        setting(config=PODMAN | {"hooks": {"prestart": [HOOK]}}),
        "without the annotation run.oci.hooks.stderr",
    ),
    "hook-not-installed": (
        setting(config={"annotations": PODMAN["annotations"] | {"run.oci.hooks.stderr": "/run/e"}}),
        "podman wrote this config.json and put no GPU hook into it",
    ),
}

#: Failures of the host that do not keep a container from its GPUs.
HARMLESS = {
    "host-layout",
    "nvml-slow",
    "gpus-not-recorded",
    "ldconfig-unusable",
    "cdi-stale",
}


@pytest.mark.parametrize("failure", CASES)
def test_a_failure_is_found(failure: str, setup: Setup, capsys: Captured) -> None:
    """Only the check of a failure finds it, with a cause and a fix.

    The exit code is 1, unless the failure is the host's and the container gets its GPUs.
    """
    change, words = CASES[failure]
    change(setup)
    code, results = run_doctor(setup, capsys)
    assert code == (0 if failure in HARMLESS else 1)
    assert (results[failure]["about"] == "host") == (
        failure
        in HARMLESS
        | {"driver-not-loaded", "driver-library-mismatch", "mode-not-legacy"}
        | {"nvml-library-missing", "cuda-library-missing"}
    )
    findings = results[failure]["findings"]
    assert any(words in finding["message"] for finding in findings), (
        findings,
        results[failure]["lacking"],
    )
    for finding in findings:
        assert finding["cause"]
        assert finding["fix"]
        assert finding["level"] in {"error", "warning"}
    assert ids(results) == {failure}
    assert results[failure]["phrase"] == next(row.phrase for row in FAILURES if row.id == failure)


@pytest.mark.parametrize("failure", CASES)
def test_a_failure_is_not_found_without_its_change(
    failure: str, tmp_path: Path, capsys: Captured
) -> None:
    """In the healthy setup a failure's check finds nothing."""
    (tmp_path / "healthy").mkdir()
    _, results = run_doctor(Setup(tmp_path / "healthy"), capsys)
    assert results[failure]["findings"] == []


def test_a_container_cannot_steer_the_terminal(setup: Setup, capsys: Captured) -> None:
    """Words of a refusal that quote the container are escaped wherever they are shown."""
    setup.config["process"] = {"env": ["PATH=/usr/bin", ALL, "A\u202eB\x1b[31mC"]}
    assert main(["doctor", *setup.arguments()]) == 1
    out = capsys.readouterr().out
    assert "users see  invalid environment variable: A\\u202eB\\x1b[31mC" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_every_check_has_a_failure() -> None:
    """The ids of checks are those of the table of failures, which docs use as well."""
    assert set(CHECKS) <= {failure.id for failure in FAILURES}
    assert len(CHECKS) >= 25


def test_findings_can_be_left_out(setup: Setup, capsys: Captured) -> None:
    """--ignore leaves out a check and --level error all warnings; the exit code follows."""
    del setup.files["tmp/.keep"]
    words = ["doctor", *setup.arguments()]
    assert main(words) == 1
    assert main([*words, "--ignore", "tmp-missing"]) == 0
    assert main([*words, "--level", "error"]) == 0
    older_library(setup)
    words = ["doctor", *setup.arguments()]
    assert main([*words, "--level", "error"]) == 1
    assert "tmp-missing" not in capsys.readouterr().out.rpartition("library-shadowed")[2]
    assert main([*words, "--ignore", "none"]) == 2
    assert "--ignore none: there is no check of this id" in capsys.readouterr().err


def test_the_verdict_of_the_host_is_of_the_checks_that_count(capsys: Captured) -> None:
    """What --ignore or --level leaves out does not make a host bad in the last line either."""
    words = ["doctor", "--host", "debian-a100x8"]
    assert main(words) == 1
    assert "(warnings: nvml-slow)" in capsys.readouterr().out.splitlines()[-1]
    for option in (["--ignore", "nvml-slow"], ["--level", "error"]):
        assert main([*words, *option]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == "This host can serve GPU containers, as far as was checked."


def test_a_refusal_that_no_check_explains_is_a_finding(setup: Setup, capsys: Captured) -> None:
    """A refusal that no check explains is a finding, because the container would not start."""
    setup.links = {"usr/lib/x86_64-linux-gnu": "../../../../outside"}
    code, results = run_doctor(setup, capsys)
    assert code == 1
    assert any(result["findings"] for result in results.values())


def test_a_host_alone_is_checked(tmp_path: Path, capsys: Captured) -> None:
    """Without a container, checks that need one say so."""
    document = copy.deepcopy(healthy_host())
    (tmp_path / "h.json").write_text(json.dumps(document))
    assert main(["doctor", "--host", str(tmp_path / "h.json"), "--format", "json"]) == 0
    results = {result["id"]: result for result in read_document(capsys.readouterr().out)["results"]}
    assert results["driver-library-mismatch"]["status"] == "ok"
    assert results["loader-missing"]["lacking"] == "no container was given (--container)"


def test_a_driver_root_that_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    """A directory of the host that cannot be opened is the host's failure, with its fix."""
    config = tmp_path / "config.toml"
    config.write_text('[nvidia-container-cli]\nroot = "/none/driver"\n')
    assert main(["doctor", "--config", str(config), "--format", "json"]) == 1
    results = {result["id"]: result for result in read_document(capsys.readouterr().out)["results"]}
    (finding,) = results["host-layout"]["findings"]
    assert finding["message"].endswith("open failed: /none/driver: no such file or directory")
    assert finding["fix"] == "root in config.toml must name the driver root"


def test_a_config_json_alone_is_checked_as_far_as_it_goes(setup: Setup, capsys: Captured) -> None:
    """With a config.json alone, checks of the image's files are not made."""
    words = setup.arguments()
    alone = setup.place / "alone.json"
    alone.write_bytes((setup.place / "b/config.json").read_bytes())
    assert main(["doctor", *words[:2], "--bundle", str(alone), "--format", "json"]) == 0
    results = {result["id"]: result for result in read_document(capsys.readouterr().out)["results"]}
    assert results["devices-not-requested"]["status"] == "ok"
    for name in ("image-has-driver", "loader-missing", "tmp-missing", "library-path"):
        assert results[name]["lacking"] == "a config.json alone does not show the image's files"


def test_text_lists_checks_that_were_not_made(setup: Setup, capsys: Captured) -> None:
    """Checks that were not made are counted, and listed with --verbose.

    Names are made printable.
    """
    setup.env = ["NVIDIA_VISIBLE_DEVICES=9\x7f"]
    without_loader(setup)
    words = setup.arguments()
    assert main(["doctor", *words]) == 1
    out = capsys.readouterr().out
    assert "not checked (--verbose says why)" in out
    assert "\x7f" not in out
    assert main(["doctor", *words, "--verbose"]) == 1
    assert "\nnot checked: " in capsys.readouterr().out


@pytest.mark.parametrize("junk", [[], {}, [[]], [{}], "x", 7, {"a": []}, [{"size": []}]], ids=repr)
def test_members_of_any_type_are_checked(junk: Any, setup: Setup, capsys: Captured) -> None:
    """Members of config.json that the hook does not read may have any type."""
    setup.config = {
        "annotations": junk,
        "linux": {
            "uidMappings": junk,
            "devices": junk,
            "cgroupsPath": junk,
            "resources": {"devices": junk},
        },
        "process": {
            "user": {"uid": 1000, "gid": junk, "additionalGids": junk},
            "selinuxLabel": junk,
        },
    }
    code, results = run_doctor(setup, capsys)
    assert code in (0, 1)
    assert set(results) >= set(CHECKS) - POD_CHECKS
    numbers = {"allow": True, "major": junk, "minor": junk, "access": junk}
    setup.config = {
        "linux": {
            "resources": {"devices": [numbers, numbers | {"type": junk}]},
            "cgroupsPath": "s:docker:a",
        },
        "annotations": {"io.container.manager": junk},
    }
    assert "device-rules-lost" in ids(run_doctor(setup, capsys)[1])


def test_bad_input_is_exit_2(setup: Setup, capsys: Captured) -> None:
    """A missing bundle or host is one line and exit 2."""
    assert main(["doctor", "--bundle", str(setup.place / "none"), "--host", "eks-t4"]) == 2
    assert main(["doctor", "--host", str(setup.place / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
