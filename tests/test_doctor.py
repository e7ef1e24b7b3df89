"""``nvgraft doctor``: each failure is found in a setup like the reported ones, and nowhere else."""

import copy
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hosts
from bundles import make_bundle, put
from documents import read_document
from images import docker_save
from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import open_tree_at
from nvgraft.host.components import Host
from nvgraft.host.snapshot import snapshot_host
from nvgraft.request.config import Config
from nvgraft.system.mountinfo import Mount
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.cuda_runtimes import find_runtimes
from nvgraft_cli.doctor.examination import CHECKS, POD_CHECKS, examine
from nvgraft_cli.doctor.machine import Machine
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.doctor.verdict import verdict
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from nvgraft_specs.checks import FAILURES

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

X86 = "EM_X86_64"
LOADER = "/lib64/ld-linux-x86-64.so.2"
DIRECTORIES = b"/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0"
VERSION_TEXT = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1  Fri Mar 20 00:00:00 UTC 2026\\n"
)

ALL = "NVIDIA_VISIBLE_DEVICES=all"

#: What podman writes into config.json, and the hook as ``nvgraft register`` writes it.
PODMAN = {"annotations": {"io.container.manager": "libpod"}}
HOOK = {
    "path": "/usr/bin/nvidia-container-runtime-hook",
    "args": ["hook", "prestart"],
    "env": ["PATH=/usr/sbin:/usr/bin"],
    "timeout": 120,
}


def healthy_host() -> Document:
    """Return a host without problems."""
    return hosts.full_host(f"/proc/driver/nvidia/version = {VERSION_TEXT}\n")


def healthy_image() -> dict[str, bytes]:
    """Return an image in which everything loads."""
    return {
        "etc/debian_version": b"12\n",
        "tmp/.keep": b"",
        "usr/bin/app": executable(X86, "x", ["libc.so.6"], None, LOADER),
        LOADER.lstrip("/"): shared_object(64, X86, "ld-linux-x86-64.so.2", [], None)
        + b"\0"
        + DIRECTORIES
        + b"/etc/ld.so.cache\0",
        "lib/x86_64-linux-gnu/libc.so.6": shared_object(64, X86, "libc.so.6", [], None),
    }


class Setup:
    """A host, an image and a config.json without problems, until a case changes them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.host = healthy_host()
        self.files = healthy_image()
        self.env = [ALL]
        self.config: Document = {}
        self.args = ["app"]
        self.toml = ""
        self.links: dict[str, str] = {}
        self.volumes: tuple[str, ...] = ()
        self.cdi: Document | None = None
        self.image = False

    def arguments(self) -> list[str]:
        path = self.place / "host.json"
        path.write_text(json.dumps(self.host))
        words = ["--host", str(path)]
        if self.toml:
            (self.place / "config.toml").write_text(self.toml)
            words += ["--config", str(self.place / "config.toml")]
        if self.cdi is not None:
            (self.place / "cdi.json").write_text(json.dumps(self.cdi))
            words += ["--cdi", str(self.place / "cdi.json")]
        if self.image:
            config = {"Env": ["PATH=/usr/bin", *self.env], "Cmd": self.args}
            return [
                *words,
                "--bundle",
                docker_save(self.place / "i.tar", list(self.files.items()), config=config),
            ]
        bundle = make_bundle(self.place / "b", *self.env, files=(), mounts=self.volumes)
        for name, data in self.files.items():
            put(bundle / "rootfs" / name, data)
        for name, target in self.links.items():
            (bundle / "rootfs" / name).parent.mkdir(parents=True, exist_ok=True)
            (bundle / "rootfs" / name).symlink_to(target)
        document = json.loads((bundle / "config.json").read_text())
        document["process"] |= {"args": self.args, **self.config.pop("process", {})}
        document["process"]["env"][0] = "PATH=/usr/bin"
        (bundle / "config.json").write_text(json.dumps(document | self.config))
        return [*words, "--bundle", str(bundle)]


def doctor(setup: Setup, capsys: Captured, *words: str) -> tuple[dict[str, list[Document]], str]:
    """Return doctor's findings by their ids, and the verdict of the container."""
    main(["doctor", *setup.arguments(), *words, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    found = {result["id"]: result["findings"] for result in document["results"]}
    return {name: findings for name, findings in found.items() if findings}, document["verdict"]


def run_doctor(setup: Setup, capsys: Captured) -> tuple[int, dict[str, Document]]:
    code = main(["doctor", *setup.arguments(), "--format", "json"])
    out, err = capsys.readouterr()
    assert err == ""
    return code, {result["id"]: result for result in read_document(out)["results"]}


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


def entry(setup: Setup, path: str, **changes: Any) -> None:
    setup.host["files"][path] = setup.host["files"].get(path, {}) | changes


def without(setup: Setup, path: str) -> None:
    del setup.host["files"][path]


def _mismatch(setup: Setup) -> None:
    text = VERSION_TEXT.replace("535.1 ", "530.9 ").replace("\\n", "\n")
    entry(setup, "/proc/driver/nvidia/version", type="file", mode="0444", content=text)


def _no_library(setup: Setup) -> None:
    setup.host["ld_so_cache"] = [
        row for row in setup.host["ld_so_cache"] if not row[0].startswith("libnvidia-ml")
    ]
    setup.host["files"]["/run/opengl-driver/lib/libnvidia-ml.so.535.1"] = {
        "type": "file",
        "mode": "0644",
    }


def _stale_cache(setup: Setup) -> None:
    setup.host["ld_so_cache"].append(
        ["libnvidia-none.so.1", "libc6,x86-64", "/usr/lib/x86_64-linux-gnu/libnvidia-none.so.1"]
    )


def _many_gpus(setup: Setup) -> None:
    setup.host["nvml"]["gpus"] = [hosts.gpu(number) for number in range(4)]
    for number in range(4):
        setup.host["files"] |= hosts.tree(
            f"/dev/nvidia{number} char 195:{number}\n"
            f"/proc/driver/nvidia/gpus/0000:{number + 1:02x}:00.0/\n"
        )
    setup.host["files"] = {
        path: item for path, item in setup.host["files"].items() if "persistenced" not in path
    }


def _no_gpus(setup: Setup) -> None:
    """Make the host's document one of ``nvgraft snapshot --root`` without --gpus."""
    setup.host["without_gpus"] = True
    setup.host["nvml"]["gpus"] = []
    setup.host["files"] = {
        path: item
        for path, item in setup.host["files"].items()
        if not path.startswith(("/dev", "/proc"))
    }


def _cdi(setup: Setup) -> None:
    mount = {
        "hostPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.530.30",
        "containerPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.530.30",
    }
    setup.cdi = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}],
        "containerEdits": {"mounts": [mount]},
    }


def _no_link(setup: Setup) -> None:
    setup.env.append("NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")
    setup.files["usr/lib/x86_64-linux-gnu/libnvidia-opticalflow.so.1"] = b"x"


def _old_library(setup: Setup) -> None:
    setup.env.append("LD_LIBRARY_PATH=/opt/old")
    setup.files["opt/old/libcuda.so.1"] = shared_object(64, X86, "libcuda.so.1", [], None)


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


def _no_loader(setup: Setup) -> None:
    del setup.files[LOADER.lstrip("/")]


def _hook(setup: Setup) -> None:
    setup.config["hooks"] = {
        "createContainer": [
            {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
        ]
    }


def _closed_node(setup: Setup) -> None:
    entry(setup, "/dev/nvidiactl", mode="0660", gid=1005)
    setup.config["process"] = {"user": {"uid": 1000, "gid": 1000}}


def _dynamic_ldconfig(setup: Setup) -> None:
    facts = {
        "bits": 64,
        "machine": "EM_X86_64",
        "soname": None,
        "needed": [],
        "abi_tag": None,
        "interp": LOADER,
    }
    entry(setup, "/opt/ldconfig", type="file", mode="0755", elf=facts)
    setup.toml = (
        '[nvidia-container-cli]\nldconfig = "@/opt/ldconfig"\n[nvgraft]\nldcache = "ldconfig"\n'
    )


def _set(**values: Any) -> Callable[[Setup], None]:
    def change(setup: Setup) -> None:
        for name, value in values.items():
            setattr(setup, name, value)

    return change


#: failure -> how its setup differs from the healthy one, and words of the expected message
CASES: dict[str, tuple[Callable[[Setup], None], str]] = {
    "driver-not-loaded": (
        lambda setup: without(setup, "/dev/nvidia-uvm"),
        "CUDA will fail with error 999",
    ),
    "driver-library-mismatch": (
        _mismatch,
        "the loaded kernel module has version 530.9, the library 535.1 (",
    ),
    "nvml-library-missing": (_no_library, "is at /run/opengl-driver/lib/libnvidia-ml.so.535.1"),
    "host-layout": (
        _stale_cache,
        "names /usr/lib/x86_64-linux-gnu/libnvidia-none.so.1, which does not exist",
    ),
    "nvml-slow": (_many_gpus, "4 GPUs, and nvidia-persistenced is not running"),
    "ldconfig-unusable": (_dynamic_ldconfig, "/opt/ldconfig is not statically linked"),
    "mode-not-legacy": (_set(toml='[nvidia-container-runtime]\nmode = "cdi"\n'), 'mode = "cdi"'),
    "cdi-stale": (_cdi, "(specification 530.30, driver 535.1)"),
    "hook-registration": (
        _hook,
        "createContainer hook /usr/bin/nvidia-container-runtime-hook: stage: ",
    ),
    "devices-not-requested": (
        _set(env=["NVIDIA_VISIBLE_DEVICES=void"]),
        "the container gets nothing: ",
    ),
    "devices-from-image": (
        _set(image=True),
        "NVIDIA_VISIBLE_DEVICES=all comes from the image, not from the orchestrator",
    ),
    "capability-not-requested": (
        _set(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute"], args=["nvidia-smi"]),
        "nvidia-smi is provided by capability 'utility'; this container requests compute",
    ),
    "repeated-ids": (
        _set(env=["NVIDIA_VISIBLE_DEVICES=1, 0,1"]),
        "NVIDIA_VISIBLE_DEVICES=1, 0,1 names 1 more than once",
    ),
    "gpus-not-recorded": (
        _no_gpus,
        "this host was recorded from the files of a driver",
    ),
    "mig-privilege": (
        _set(env=[ALL, "NVIDIA_MIG_CONFIG_DEVICES=all"]),
        "cannot set MIG_CONFIG_DEVICES in non privileged container",
    ),
    "unknown-device": (
        _set(env=["NVIDIA_VISIBLE_DEVICES=7"]),
        "device error: 7: unknown device: this host has 2 GPU(s)",
    ),
    "requirement-unmet": (
        _set(env=[ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99 brand=titan,driver>=400"]),
        (
            "alternatives tried: cuda>=99: cuda>=99 does not hold; "
            "brand=titan,driver>=400: brand=titan does not hold"
        ),
    ),
    "rootless": (
        _set(config={"linux": {"uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}]}}),
        "single id",
    ),
    "device-filter": (
        _set(config={"linux": {"cgroupsPath": "user.slice:libpod:abc"}}),
        "failed to add device rules: a rootless engine created the cgroup user.slice:libpod:abc",
    ),
    "device-rules-lost": (
        _set(config={"linux": {"cgroupsPath": "machine.slice:libpod:abc"}}),
        "'systemctl daemon-reload' will revoke them",
    ),
    "device-permissions": (
        _closed_node,
        "/dev/nvidiactl is 0660 0:1005; the process runs as uid 1000 without gid 1005",
    ),
    "target-is-symlink": (
        _set(links={"usr/bin/nvidia-smi": "/etc/alternatives/nvidia-smi"}),
        "/usr/bin/nvidia-smi in the image is a symbolic link to /etc/alternatives/nvidia-smi",
    ),
    "socket-in-the-way": (_set(volumes=("/run",)), "is left out"),
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
        _set(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"]),
        "the image lacks libXext.so.6",
    ),
    "loader-missing": (
        _no_loader,
        f"exec /usr/bin/app: no such file or directory (the image lacks its loader {LOADER}); lib",
    ),
    "soname-links-missing": (_no_link, "libnvidia-opticalflow.so.1 will not lead to libnvidia-"),
    "library-shadowed": (
        _old_library,
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
        _set(volumes=("/etc/ld.so.cache",)),
        "ldcache error: process /sbin/ldconfig failed with error code: 1: /etc/ld.so.cache is",
    ),
    "tmp-missing": (
        lambda setup: setup.files.__delitem__("tmp/.keep"),
        "the image has no directory /tmp",
    ),
    "stderr-hidden": (
        _set(config=PODMAN | {"hooks": {"prestart": [HOOK]}}),
        "without the annotation run.oci.hooks.stderr",
    ),
    "hook-not-installed": (
        _set(config={"annotations": PODMAN["annotations"] | {"run.oci.hooks.stderr": "/run/e"}}),
        "podman wrote this config.json and put no GPU hook into it",
    ),
}


#: Failures of the host that do not keep a container from its GPUs.
HARMLESS = {
    "nvml-library-missing",
    "host-layout",
    "nvml-slow",
    "gpus-not-recorded",
    "ldconfig-unusable",
    "cdi-stale",
}


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
        failure in HARMLESS | {"driver-not-loaded", "driver-library-mismatch", "mode-not-legacy"}
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


CGROUP2 = Mount(41, "/", "/sys/fs/cgroup", "rw", False, "cgroup2", "cgroup2")
CGROUP1 = Mount(36, "/", "/sys/fs/cgroup/devices", "rw,relatime", False, "cgroup", "cgroup")
NO_CAPABILITY = "nvgraft: permission error: capability change failed: operation not permitted"
#: What the engine says in a user namespace, as nvidia-container-cli does
#: (NVIDIA/nvidia-docker#1688).
NOT_PERMITTED = (
    "unable to find any existing device filters attached to the cgroup: "
    "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted"
)


class Node:
    """This node with docker, podman, the hook and cgroup v2; the driver is a recorded one.

    It has no problems until a case changes it.
    """

    def __init__(self, place: Path) -> None:
        self.setup = Setup(place)
        self.root = place / "node"
        self.machine = Machine(root=str(self.root), mounts=(CGROUP2,), filter_error="")
        self.config = Config()
        self.refusal: Refusal | None = None
        self.driver: Path | None = None
        for name in ("dockerd", "nvidia-container-runtime", "nvidia-container-runtime-hook"):
            self.write(f"/usr/bin/{name}", "", 0o755)
        self.write(
            "/etc/docker/daemon.json",
            json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}),
        )
        self.write(
            "/etc/containers/oci/hooks.d/gpu.json",
            json.dumps({"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}),
        )
        self.write("/sys/fs/selinux/enforce", "1")
        self.write("/sys/fs/selinux/booleans/container_use_devices", "1 1")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def remove(self, path: str) -> None:
        Path(f"{self.root}{path}").unlink()

    def examine(self, *, bundle: bool = True, mode: str = "") -> dict[str, Document]:
        words = self.setup.arguments()
        if self.refusal is None:
            side = HostSide("node", self.config, None)
            side.facts = snapshot_host(self.setup.host)
        else:
            side = Silent("node", self.config, None)
            side.refusal = self.refusal
        with open_container(words[-1]) as container:
            case = Case(side, container, mode) if mode else None
            patient = Patient(side, container if bundle else None, [], self.machine, case=case)
            if self.refusal is not None:
                silent = snapshot_host(self.setup.host)
                patient.host_tree, patient.entries = silent.tree, list(silent.entries)
            if self.driver is not None:
                host = side.facts
                on_disk = Host(
                    name="node",
                    root="/",
                    tree=open_tree_at(str(self.driver), ""),
                    entries=host.entries,
                    report=host.report,
                    majors=host.majors,
                    machine=host.machine,
                )
                patient.case.planned_tree = PlannedTree(container.rootfs, patient.injected, on_disk)
            return {result.failure.id: result.document() for result in examine(patient)}


class Silent(HostSide):
    """A node whose NVML ends with an error."""

    refusal = Refusal("initialization", "")

    @property
    def facts(self) -> Host:
        raise self.refusal


def ids(results: dict[str, Document]) -> set[str]:
    return {name for name, result in results.items() if result["findings"]}


def _machine(**values: Any) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        node.machine = replace(node.machine, **values)

    return change


def _no_hook(node: Node) -> None:
    node.remove("/usr/bin/nvidia-container-runtime-hook")
    node.remove("/etc/docker/daemon.json")
    node.remove("/etc/containers/oci/hooks.d/gpu.json")


def _label(node: Node) -> None:
    node.write("/sys/fs/selinux/booleans/container_use_devices", "0 0")
    node.setup.config["process"] = {"selinuxLabel": "system_u:system_r:container_t:s0:c1,c2"}


def _old_libc(node: Node) -> None:
    """Make the driver need a glibc version that only its node has; both loaders are stand-ins."""
    node.driver = node.root / "driver"
    image = node.setup.files
    for name, soname, source, versions, needs in (
        (
            "new/libc.so.6",
            "libc.so.6",
            "int v(void) { return 1; }",
            "GLIBC_2.2.5 {}; GLIBC_2.34 { global: v; };",
            "",
        ),
        (
            "old/libc.so.6",
            "libc.so.6",
            "int w(void) { return 1; }",
            "GLIBC_2.2.5 { global: w; };",
            "",
        ),
        (
            "usr/lib/libcuda.so.535.1",
            "libcuda.so.1",
            "extern int v(void); int u(void) { return v(); }",
            "X {};",
            "new/libc.so.6",
        ),
    ):
        path = node.driver / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (node.driver / "map").write_text(versions)
        script = f"-Wl,--version-script={node.driver / 'map'}"
        libraries = [str(node.driver / needs)] if needs else []
        options = [
            "-x",
            "c",
            "-",
            "-x",
            "none",
            *libraries,
            "-shared",
            "-fPIC",
            "-nostdlib",
            f"-Wl,-soname,{soname}",
            script,
        ]
        subprocess.run(["gcc", "-o", str(path), *options], input=source, text=True, check=True)
    smi = executable(X86, "x", ["libc.so.6"], None, LOADER)
    put(node.driver / "usr/bin/nvidia-smi", smi)
    image["lib/x86_64-linux-gnu/libc.so.6"] = (node.driver / "old/libc.so.6").read_bytes()


#: Failures that only the node shows: failure, the change, and words of the expected message.
NODE_CASES: list[tuple[str, Callable[[Node], None], str]] = [
    (
        "cgroup-not-found",
        _machine(mounts=()),
        "failed to get device cgroup mount path: no cgroup2 filesystem in mountinfo file",
    ),
    (
        "cgroup-not-found",
        _machine(
            mounts=(Mount(41, "/../..", "/sys/fs/cgroup", "rw", False, "cgroup2", "cgroup2"),)
        ),
        "relative path in mount prefix: /../..",
    ),
    (
        "hook-not-installed",
        _no_hook,
        "docker --gpus needs nvidia-container-runtime-hook, which is not in dockerd's PATH",
    ),
    (
        "hook-not-installed",
        lambda node: node.remove("/usr/bin/nvidia-container-runtime"),
        "docker's runtime nvidia is nvidia-container-runtime, which is not in PATH",
    ),
    (
        "hook-not-installed",
        lambda node: node.write(
            "/usr/share/containers/oci/hooks.d/old.json", '{"hook": {"path": "/opt/nvidia-hook"}}'
        ),
        "/hooks.d/old.json names /opt/nvidia-hook, which cannot be executed",
    ),
    (
        "hook-not-installed",
        lambda node: node.write("/etc/docker/daemon.json", "{"),
        "/etc/docker/daemon.json cannot be read",
    ),
    (
        "device-filter",
        _machine(in_user_namespace=True, filter_error=NOT_PERMITTED),
        f"failed to add device rules: {NOT_PERMITTED}",
    ),
    (
        "device-filter",
        _machine(filter_error="unable to load the extended device filter: invalid argument"),
        "failed to add device rules: unable to load the extended device filter: invalid argument",
    ),
    (
        "device-filter",
        _machine(filter_error="", denied="a cgroup above /sys/fs/cgroup/container denies it"),
        "a cgroup above /sys/fs/cgroup/container denies it",
    ),
    (
        "device-filter",
        _machine(in_user_namespace=True, uid=1000, filter_error=None),
        "failed to add device rules: bpf(): operation not permitted",
    ),
    (
        "device-filter",
        _machine(mounts=(CGROUP1, CGROUP2), in_user_namespace=True, filter_error=None),
        "rules: /sys/fs/cgroup/devices: devices.allow: operation not permitted",
    ),
    (
        "device-filter",
        _machine(
            mounts=(
                Mount(36, "/", "/sys/fs/cgroup/devices", "ro,nosuid", False, "cgroup", "cgroup"),
            ),
            filter_error=None,
        ),
        "devices.allow: read-only file system",
    ),
    (
        "rootless",
        _machine(privilege_error=NO_CAPABILITY, filter_error=None),
        f"root lacks CAP_SYS_ADMIN here: {NO_CAPABILITY}",
    ),
    (
        "device-permissions",
        _label,
        "SELinux is enforcing, and system_u:system_r:container_t:s0:c1,c2 may not open",
    ),
    (
        "device-permissions",
        lambda node: setattr(
            node, "refusal", Refusal("initialization", "nvml error: insufficient permissions")
        ),
        "nvgraft: initialization error: nvml error: insufficient permissions",
    ),
]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


NEWER_GLIBC = pytest.param(
    "glibc-too-old",
    _old_libc,
    "version `GLIBC_2.34' not found (required by",
    marks=pytest.mark.requires("gcc", "x86_64"),
)


@pytest.mark.parametrize(("failure", "change", "words"), [*NODE_CASES, NEWER_GLIBC])
def test_a_failure_of_the_node_is_found(
    failure: str, change: Callable[[Node], None], words: str, node: Node
) -> None:
    """Only the check of a failure of the node finds it, with a cause and a fix."""
    change(node)
    results = node.examine()
    assert ids(results) == {failure}
    assert any(
        words in finding["message"] and finding["cause"] and finding["fix"]
        for finding in results[failure]["findings"]
    ), results[failure]
    assert results[failure]["status"] == "found"


def test_a_healthy_node_has_no_findings(node: Node) -> None:
    """A healthy node passes the checks that cannot be made for a snapshot."""
    results = node.examine()
    assert ids(results) == set()
    for name in ("cgroup-not-found", "hook-not-installed", "device-filter", "device-permissions"):
        assert results[name]["status"] == "ok", results[name]["lacking"]


@pytest.mark.requires("gcc", "x86_64")
def test_a_glibc_that_is_new_enough(node: Node) -> None:
    """The check passes when the image's glibc has the version that the driver needs."""
    _old_libc(node)
    assert node.driver is not None
    node.setup.files["lib/x86_64-linux-gnu/libc.so.6"] = (
        node.driver / "new/libc.so.6"
    ).read_bytes()
    results = node.examine()
    assert ids(results) == set()
    assert results["glibc-too-old"]["status"] == "ok"


def _allow(node: Node, *rules: Document) -> None:
    node.setup.config["linux"] = {"resources": {"devices": list(rules)}}


def test_a_device_filter_that_is_not_needed(node: Node) -> None:
    """The fix is no-cgroups alone where config.json allows the devices.

    Elsewhere the engine must get the devices as well.
    """
    node.machine = replace(node.machine, in_user_namespace=True, filter_error=NOT_PERMITTED)
    (finding,) = node.examine()["device-filter"]["findings"]
    assert finding["fix"].endswith(
        "and pass the devices to the engine (podman --device, docker --device)"
    )
    _allow(node, {"allow": True, "access": "rwm"})
    (finding,) = node.examine()["device-filter"]["findings"]
    assert finding["fix"].endswith("config.json allows the GPU's device numbers already")


@pytest.mark.parametrize(
    ("machine", "lacking"),
    [
        ({"uid": 1000, "filter_error": None}, "only root can find out"),
        (
            {"mounts_error": "the cgroup mounts cannot be read: permission denied"},
            "cannot be read: permission denied",
        ),
    ],
)
def test_the_device_filter_is_not_guessed(machine: Document, lacking: str, node: Node) -> None:
    """Without root the check of cgroup v2's filter is not made, and says why."""
    node.machine = replace(node.machine, **machine)
    result = node.examine()["device-filter"]
    assert (result["status"], lacking in result["lacking"]) == ("not-checked", True)


def test_without_cgroups_no_filter_is_needed(node: Node) -> None:
    """With no-cgroups, config.json must allow the devices; the last rule for each decides."""
    node.config = Config(cli_no_cgroups=True)
    node.machine = replace(
        node.machine, in_user_namespace=True, filter_error=NOT_PERMITTED, mounts=()
    )
    results = node.examine()
    assert ids(results) == {"device-rules-lost"}
    assert (
        "NVML will report Unknown Error from the start"
        in results["device-rules-lost"]["findings"][0]["message"]
    )
    assert (
        results["device-filter"]["lacking"]
        == results["cgroup-not-found"]["lacking"]
        == "no-cgroups = true: no device rule is written"
    )
    _allow(
        node,
        {"allow": False},
        {"allow": True, "type": "c", "major": 195, "access": "rw"},
        {"allow": True, "major": 510},
    )
    assert ids(node.examine()) == set()
    _allow(
        node,
        {"allow": True},
        {"allow": False, "type": "c", "major": 195, "minor": 255, "access": "w"},
    )
    assert ids(node.examine()) == {"device-rules-lost"}
    _allow(node, {"allow": True, "type": "b"})
    node.setup.config["linux"]["uidMappings"] = [{"containerID": 0, "hostID": 1000, "size": 1}]
    assert "whether the engine is rootless" in node.examine()["device-rules-lost"]["lacking"]


def test_a_container_without_gpus_needs_no_cgroup(node: Node) -> None:
    """A missing cgroup is not a finding for a container without GPUs."""
    node.setup.env = ["NVIDIA_VISIBLE_DEVICES=void"]
    node.machine = replace(node.machine, mounts=(), filter_error=None)
    results = node.examine()
    assert ids(results) == {"devices-not-requested"}
    assert "the container gets nothing" in results["device-filter"]["lacking"]


def test_a_node_is_checked_without_a_container(node: Node) -> None:
    """Failures of the node and errors of NVML are found without a container."""
    node.machine = replace(node.machine, in_user_namespace=True, filter_error=NOT_PERMITTED)
    assert ids(node.examine(bundle=False)) == {"device-filter"}
    node.machine = replace(node.machine, in_user_namespace=False, filter_error="")
    node.refusal = Refusal("initialization", "nvml error: unknown error")
    results = node.examine(bundle=False)
    assert "nvml error: unknown error" in results["driver-not-loaded"]["findings"][-1]["message"]


def test_a_refusal_hides_nothing_of_the_node(node: Node) -> None:
    """A failure of the node is found in the same run as a refusal of the container."""
    node.machine = replace(node.machine, in_user_namespace=True, filter_error=NOT_PERMITTED)
    node.setup.env = [ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99"]
    assert ids(node.examine()) == {"requirement-unmet", "device-filter"}


def test_a_container_cannot_steer_the_terminal(setup: Setup, capsys: Captured) -> None:
    """Words of a refusal that quote the container are escaped wherever they are shown."""
    setup.config["process"] = {"env": ["PATH=/usr/bin", ALL, "A\u202eB\x1b[31mC"]}
    assert main(["doctor", *setup.arguments()]) == 1
    out = capsys.readouterr().out
    assert "users see  invalid environment variable: A\\u202eB\\x1b[31mC" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_findings_of_an_incomplete_check_count(setup: Setup, capsys: Captured) -> None:
    """A device node that the user may not open is found, although SELinux is not recorded."""
    _closed_node(setup)
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


def test_a_bundle_with_its_hook_needs_no_docker(tmp_path: Path) -> None:
    """Where config.json has the hook, a dockerd without one is not that container's problem."""
    node = Node(tmp_path)
    _no_hook(node)
    assert "hook-not-installed" in ids(node.examine())
    node.setup.config["hooks"] = {"prestart": [HOOK]}
    assert "hook-not-installed" not in ids(node.examine())


@pytest.mark.parametrize("mode", ["jit-cdi", "cdi"])
def test_a_mode_with_cdi_edits_needs_no_hook(tmp_path: Path, mode: str) -> None:
    """In a mode whose runtime adds CDI edits it does not matter that Docker finds no hook."""
    node = Node(tmp_path)
    _no_hook(node)
    assert "hook-not-installed" not in ids(node.examine(mode=mode))


def test_what_an_engine_lacks_is_the_hosts(tmp_path: Path) -> None:
    """A hook that Docker lacks does not make a container bad; one that podman left out does."""
    node = Node(tmp_path)
    _no_hook(node)
    assert node.examine()["hook-not-installed"]["about"] == "host"
    node.setup.config = PODMAN | {"hooks": {}}
    assert node.examine()["hook-not-installed"]["about"] == "container"


def test_every_check_has_a_failure() -> None:
    """The ids of checks are those of the table of failures, which docs use as well."""
    assert set(CHECKS) <= {failure.id for failure in FAILURES}
    assert len(CHECKS) >= 25


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


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ("LD_PRELOAD", "remove /opt/old/libcuda.so.1 from LD_PRELOAD"),
        ("/etc/ld.so.preload", "remove /opt/old/libcuda.so.1 from /etc/ld.so.preload"),
        ("RUNPATH", "or build /usr/bin/app without the path"),
    ],
)
def test_the_way_out_names_why_the_images_library_comes_first(
    how: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """A library of the image that comes before the host's is named with its rule and the fix."""
    _old_library(setup)
    setup.env.pop()
    if how == "LD_PRELOAD":
        setup.env.append("LD_PRELOAD=/opt/old/libcuda.so.1")
    elif how == "RUNPATH":
        loading = Loading(runpath="/opt/old")
        setup.files["usr/bin/app"] = executable(X86, "x", ["libc.so.6"], None, LOADER, loading)
    else:
        setup.files["etc/ld.so.preload"] = b"/opt/old/libcuda.so.1\n"
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert how in finding["message"]
    assert fix in finding["fix"]
    assert "error 803" in finding["cause"]


@pytest.mark.parametrize(
    ("change", "cause", "fix"),
    [
        (
            _set(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute"]),
            "the program that the container starts is not mounted",
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (_set(env=[]), "of which this container gets nothing", "set NVIDIA_VISIBLE_DEVICES=all"),
        (
            lambda setup: without(setup, "/usr/bin/nvidia-smi"),
            "which this host does not have",
            "install nvidia-smi on the host",
        ),
    ],
)
def test_a_container_without_its_nvidia_smi_does_not_start(
    change: Callable[[Setup], None], cause: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """The verdict of a container whose nvidia-smi is neither mounted nor in the image is that it
    does not start, and one finding says why. With its own in the image, it starts.
    """
    setup.args = ["nvidia-smi"]
    change(setup)
    found, sentence = doctor(setup, capsys)
    words = 'exec: "nvidia-smi": executable file not found in $PATH'
    assert sentence.startswith(f"This container does not start: {words}")
    (finding,) = (one for name in found for one in found[name] if words in one["message"])
    assert cause in finding["cause"]
    assert fix in finding["fix"]
    setup.files["usr/bin/nvidia-smi"] = setup.files["usr/bin/app"]
    assert "does not start" not in doctor(setup, capsys)[1]


@pytest.mark.parametrize("args", [["/srv/bin/run"], ["../srv/run"], ["run"]])
def test_a_program_on_a_volume_is_not_missed(
    args: list[str], setup: Setup, capsys: Captured
) -> None:
    """What a volume of the container holds is not known, also where a link leads there."""
    setup.volumes = ("/srv",)
    setup.args = args
    setup.links = {"usr/bin/run": "../../srv/run"}
    setup.config["process"] = {"cwd": "/tmp"}
    assert "program-missing" not in doctor(setup, capsys)[0]


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


def test_users_see_the_words_of_what_they_load(setup: Setup, capsys: Captured) -> None:
    """What users see of a stub, of another libnvidia-ml, and of a container without compute."""
    stub = "opt/cuda/lib64/stubs/libcuda.so.1"
    setup.files[stub] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64/stubs:/opt/old")
    old = shared_object(64, X86, "libnvidia-ml.so.1", [], None)
    setup.files["opt/old/libnvidia-ml.so.1"] = old
    shadowed = doctor(setup, capsys)[0]["library-shadowed"]
    assert {finding["message"].partition(":")[0]: finding["phrase"] for finding in shadowed} == {
        "libcuda.so.1": "CUDA driver is a stub library",
        "libnvidia-ml.so.1": "Failed to initialize NVML: Driver/library version mismatch",
    }
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=utility"]
    (finding,) = doctor(setup, capsys)[0]["capability-not-requested"]
    assert finding["phrase"] == "Found no NVIDIA driver on your system"


def test_a_file_at_which_the_loader_stops_is_named(setup: Setup, capsys: Captured) -> None:
    """A linker script under the library's name stops the loader, and the library is not loaded."""
    _old_library(setup)
    setup.files["opt/old/libcuda.so.1"] = b"INPUT(/usr/lib/libcuda.so)" * 9
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"] == "/opt/old/libcuda.so.1: invalid ELF header"
    assert finding["fix"] == "remove /opt/old/libcuda.so.1 from the image"


def test_a_library_that_the_image_lacks_is_named(setup: Setup, capsys: Captured) -> None:
    """A driver's library that needs a library which no image directory has does not load."""
    (path,) = (name for name in setup.host["files"] if name.endswith("/lib/libcuda.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libm.so.6"]
    code, results = run_doctor(setup, capsys)
    assert code == 1
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"].endswith("/libcuda.so.1 needs libm.so.6, which the image lacks")
    assert finding["fix"] == "add the package that contains libm.so.6 to the image"


@pytest.mark.parametrize("variable", [[], ["LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu"]])
def test_a_32_bit_program_needs_compat32(
    variable: list[str], setup: Setup, capsys: Captured
) -> None:
    """A 32-bit image is told to ask for compat32, not to search the 64-bit directory."""
    loader = "/lib/ld-linux.so.2"
    setup.env += variable
    setup.files["usr/bin/app"] = shared_object(32, "EM_386", "app", ["libc.so.6"], None, loader)
    setup.files[loader.lstrip("/")] = (
        shared_object(32, "EM_386", "ld-linux.so.2", [], None)
        + b"\0/lib/i386-linux-gnu/\0/usr/lib/i386-linux-gnu/\0/etc/ld.so.cache\0"
    )
    setup.files["lib/i386-linux-gnu/libc.so.6"] = shared_object(32, "EM_386", "libc.so.6", [], None)
    _, results = run_doctor(setup, capsys)
    fixes = {
        finding["fix"]
        for name in ("library-path", "library-shadowed")
        for finding in results[name]["findings"]
    }
    (fix,) = fixes
    assert fix.startswith("set NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32")


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
            _no_gpus,
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
        (_old_library, "This container starts, and its programs load /opt/old/libcuda.so.1 of "),
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
            _many_gpus,
            1,
            "This host can serve GPU containers, as far as was checked (warnings: nvml-slow).",
        ),
        (
            _no_gpus,
            1,
            (
                "This host can serve GPU containers, as far as was checked without its GPUs, which "
                "are not recorded."
            ),
        ),
        (
            _cdi,
            1,
            "This host does not serve all GPU containers: a CDI specification is out of date or cannot be read.",
        ),
        (
            _mismatch,
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


def test_a_greater_version_beside_the_hosts_is_to_be_removed(
    setup: Setup, capsys: Captured
) -> None:
    """Where a directory of LD_LIBRARY_PATH is the driver's own, it is not to be removed from it."""
    libs = "usr/lib/x86_64-linux-gnu"
    setup.env.append(f"LD_LIBRARY_PATH=/{libs}")
    setup.files[f"{libs}/libcuda.so.999.1"] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links = {f"{libs}/libcuda.so.1": "libcuda.so.999.1"}
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert (
        "the link libcuda.so.1 leads to the greater version, libcuda.so.999.1"
        in (finding["message"])
    )
    assert finding["fix"] == f"remove the driver libraries in /{libs} from the image"
    assert not results["soname-links-missing"]["findings"]  # one report for one library


def test_findings_can_be_left_out(setup: Setup, capsys: Captured) -> None:
    """--ignore leaves out a check and --level error all warnings; the exit code follows."""
    del setup.files["tmp/.keep"]
    words = ["doctor", *setup.arguments()]
    assert main(words) == 1
    assert main([*words, "--ignore", "tmp-missing"]) == 0
    assert main([*words, "--level", "error"]) == 0
    _old_library(setup)
    words = ["doctor", *setup.arguments()]
    assert main([*words, "--level", "error"]) == 1
    assert "tmp-missing" not in capsys.readouterr().out.rpartition("library-shadowed")[2]
    assert main([*words, "--ignore", "none"]) == 2
    assert "--ignore none: there is no check of this id" in capsys.readouterr().err


def test_a_refusal_that_no_check_explains_is_a_finding(setup: Setup, capsys: Captured) -> None:
    """A refusal that no check explains is a finding, because the container would not start."""
    setup.links = {"usr/lib/x86_64-linux-gnu": "../../../../outside"}
    code, results = run_doctor(setup, capsys)
    assert code == 1
    assert any(result["findings"] for result in results.values())


def test_a_directory_in_the_place_of_the_loader_cache(setup: Setup, capsys: Captured) -> None:
    """The hook replaces no directory: the container does not start, and the fix names it."""
    setup.files["etc/ld.so.cache/x"] = b""
    found = _fixes(setup, capsys)
    assert found == ["the loader cache was not written: /etc/ld.so.cache: not a regular file"]


def _fixes(setup: Setup, capsys: Captured) -> list[str]:
    _, results = run_doctor(setup, capsys)
    return [finding["fix"] for result in results.values() for finding in result["findings"]]


def test_musl_is_named(setup: Setup, capsys: Captured) -> None:
    """The message names musl's loader where the image has no other."""
    _no_loader(setup)
    setup.files["lib/ld-musl-x86_64.so.1"] = b"musl"
    _, results = run_doctor(setup, capsys)
    assert (
        "musl's loader /lib/ld-musl-x86_64.so.1"
        in results["loader-missing"]["findings"][0]["message"]
    )


def test_a_host_alone_is_checked(tmp_path: Path, capsys: Captured) -> None:
    """Without a container, checks that need one say so."""
    document = copy.deepcopy(healthy_host())
    (tmp_path / "h.json").write_text(json.dumps(document))
    assert main(["doctor", "--host", str(tmp_path / "h.json"), "--format", "json"]) == 0
    results = {result["id"]: result for result in read_document(capsys.readouterr().out)["results"]}
    assert results["driver-library-mismatch"]["status"] == "ok"
    assert results["loader-missing"]["lacking"] == "no container was given (--container)"


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
    _dynamic_ldconfig(setup)
    setup.toml = '[nvidia-container-cli]\nldconfig = "@/opt/ldconfig"\n'
    main(["doctor", *setup.arguments(), "--format", "json"])
    results = {row["id"]: row for row in read_document(capsys.readouterr().out)["results"]}
    assert results["ldconfig-unusable"]["status"] == "ok"


def test_text_lists_checks_that_were_not_made(setup: Setup, capsys: Captured) -> None:
    """Checks that were not made are counted, and listed with --verbose.

    Names are made printable.
    """
    setup.env = ["NVIDIA_VISIBLE_DEVICES=9\x7f"]
    _no_loader(setup)
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


def _compat_used(setup: Setup) -> None:
    """Add the forward compatibility libraries of CUDA 13.0, which the program loads."""
    setup.env.append("LD_LIBRARY_PATH=/usr/local/cuda/compat")
    setup.files["usr/local/cuda/compat/libcuda.so.580.65.06"] = shared_object(
        64, X86, "libcuda.so.1", [], None
    )
    setup.links["usr/local/cuda/compat/libcuda.so.1"] = "libcuda.so.580.65.06"


_WHEELS = "usr/local/lib/python3.12/dist-packages"
_NVCC = "usr/local/cuda-12.8/bin/nvcc"


@pytest.mark.parametrize(
    ("files", "levels"),
    [
        (["usr/local/cuda-12.2/lib64/libcudart.so.12.2.140"], []),
        (["usr/lib/x86_64-linux-gnu/libcudart.so.11.8.89", _NVCC], []),
        (["usr/local/cuda-12.8/targets/x86_64-linux/lib/libcudart.so.12.8.90"], []),
        (["usr/local/cuda-12.8/lib64/libcudart.so.12.8.90", _NVCC], ["warning"]),
        ([f"{_WHEELS}/nvidia/cuda_runtime/lib/libcudart.so.12"], []),
        ([f"{_WHEELS}/nvidia/cu13/lib/libcudart.so.13"], ["error"]),
        ([f"{_WHEELS}/torch/lib/libcudart-d0da41ae.so.11.0"], []),
        (["opt/conda/lib/python3.11/site-packages/torch/lib/libcudart.so.13"], ["error"]),
        (["opt/app/lib/libcudart.so.14.1.7"], ["error"]),
        (
            [
                "usr/local/cuda-13.0/lib64/libcudart.so.13.0.48",
                f"{_WHEELS}/nvidia/cuda_runtime/lib/libcudart.so.12",
            ],
            ["warning"],
        ),
    ],
    ids=[
        *("equal", "older", "minor", "minor-with-nvcc", "wheel-12", "wheel-13", "bundled"),
        *("conda", "search-path", "two"),
    ],
)
def test_the_cuda_of_the_image_is_compared_with_the_drivers(
    files: list[str], levels: list[str], setup: Setup, capsys: Captured
) -> None:
    """Where another major version is needed, CUDA fails; minor-version compatibility works."""
    setup.env.append("LD_LIBRARY_PATH=/opt/app/lib")
    setup.files |= dict.fromkeys(files, b"x")
    code, results = run_doctor(setup, capsys)
    result = results["cuda-too-new"]
    assert [finding["level"] for finding in result["findings"]] == levels
    assert not result["lacking"]
    assert code == bool(levels)


@pytest.mark.parametrize(
    ("runtime", "driver", "cuda", "found"),
    [
        ("11.4.148", "450.51.06", "11.0", True),
        ("11.4.148", "450.80.02", "11.0", False),
        ("10.2.89", "418.87.00", "10.1", True),
        ("10.2.89", "440.33.01", "10.1", False),
        ("10.1.243", "560.35.03", "12.6", False),
    ],
)
def test_the_table_of_minimum_drivers_decides(
    runtime: str, driver: str, cuda: str, found: bool, setup: Setup, capsys: Captured
) -> None:
    """Before CUDA 11 every version has a minimum driver, from 11 on every major version."""
    text = json.dumps(setup.host).replace("535.1", driver).replace('"12.2"', f'"{cuda}"')
    setup.host = json.loads(text)
    setup.files[f"usr/local/cuda/lib64/libcudart.so.{runtime}"] = b"x"
    _, results = run_doctor(setup, capsys)
    assert bool(results["cuda-too-new"]["findings"]) is found
    assert not results["cuda-too-new"]["lacking"]


def test_forward_compatibility_counts_where_it_is_loaded(setup: Setup, capsys: Captured) -> None:
    """The CUDA of a compat library that the program loads decides, not that of the host."""
    setup.files["usr/local/cuda/lib64/libcudart.so.13.0.48"] = b"x"
    _compat_used(setup)
    _, results = run_doctor(setup, capsys)
    assert results["cuda-too-new"]["status"] == "ok"


def test_an_image_without_a_runtime_is_not_called_ok(setup: Setup, capsys: Captured) -> None:
    """A program may contain the runtime: where no libcudart is found, nothing is known."""
    _, results = run_doctor(setup, capsys)
    assert results["cuda-too-new"]["lacking"].startswith("no CUDA runtime (libcudart) was found")


def test_a_runtime_of_nvidias_fails_on_a_simulated_host(
    setup: Setup, capsys: Captured, tmp_path: Path
) -> None:
    """On a simulated host the last line names CUDA's errors, unless the stand-in for the runtime is
    preloaded; a cupy is a warning all the same. Elsewhere nothing is said.
    """
    setup.files["usr/local/cuda/lib64/libcudart.so.12.1.48"] = b"x"
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nsimulated-host = true\n")

    def doctor(*more: str) -> tuple[list[str], str]:
        words = ["doctor", *setup.arguments(), *more]
        main([*words, "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        (result,) = (one for one in document["results"] if one["id"] == "simulated-runtime")
        return [finding["level"] for finding in result["findings"]], document["verdict"]

    simulated = ["--config", str(config)]
    preload = ["--env", "LD_PRELOAD=/x.so:/opt/libnvgraft-cudart.so.1"]
    assert doctor()[0] == []
    levels, verdict = doctor(*simulated)
    assert levels == ["error"]
    assert "CUDA fails with error 500 (named symbol not found) or 103" in verdict
    assert doctor(*simulated, *preload)[0] == []
    setup.files["usr/lib/python3.11/site-packages/cupy/__init__.py"] = b""
    assert doctor(*simulated, *preload)[0] == ["warning"]
    assert doctor()[0] == []


def test_the_last_line_says_that_the_cuda_is_too_new(setup: Setup, capsys: Captured) -> None:
    """The last line names CUDA's error, the image's CUDA and the driver's."""
    setup.files["usr/local/cuda/lib64/libcudart.so.13.0.48"] = b"x"
    main(["doctor", *setup.arguments()])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "This container starts, and CUDA fails with error 35 (CUDA driver version is insufficient "
        "for CUDA runtime version) because the image's CUDA runtime is 13.0 "
        "(/usr/local/cuda/lib64/libcudart.so.13.0.48), and driver 535.1 has CUDA 12.2."
    )


def test_a_newer_wheel_tells_its_minor_version(setup: Setup, capsys: Captured) -> None:
    """The name of a wheel's file has the major version only; its metadata has the whole."""
    setup.files[f"{_WHEELS}/nvidia/cu14/lib/libcudart.so.14"] = b"x"
    setup.files[f"{_WHEELS}/nvidia_cuda_runtime-14.2.7.dist-info/METADATA"] = b"x"
    _, results = run_doctor(setup, capsys)
    assert "CUDA runtime is 14.2 (" in results["cuda-too-new"]["findings"][0]["message"]


def _switches(node: Node) -> None:
    for number in range(4):
        node.write(f"/proc/driver/nvidia-nvswitch/devices/0000:0{number}:00.0", "")
    node.write("/proc/1/comm", "systemd\n")
    node.machine = replace(node.machine, shows_processes=True)


def test_a_host_with_nvswitches_needs_fabric_manager(tmp_path: Path) -> None:
    """Without the process CUDA fails with 802; with it, or without NVSwitches, nothing is wrong."""
    node = Node(tmp_path)
    assert node.examine()["fabric-manager"]["status"] == "ok"
    _switches(node)
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
    _switches(node)
    change(node)
    result = node.examine()["fabric-manager"]
    assert result["status"] == "not-checked"
    assert not result["findings"]


def test_the_last_line_says_that_fabric_manager_is_missing(tmp_path: Path) -> None:
    """A failure of the host is in the last line where it makes CUDA fail in the container."""
    node = Node(tmp_path)
    _switches(node)
    words = node.setup.arguments()
    side = HostSide("node", node.config, None)
    side.facts = snapshot_host(node.setup.host)
    with open_container(words[-1]) as container:
        patient = Patient(side, container, [], node.machine)
        assert verdict(patient, examine(patient)) == (
            "This container starts, and CUDA fails with error 802 (system not yet initialized) "
            "because the host has 4 NVSwitches, and no process nv-fabricmanager."
        )


def test_the_python_of_the_program_is_searched(setup: Setup, capsys: Captured) -> None:
    """A virtual environment outside of PATH is found by the program that the container starts."""
    setup.files["srv/env/bin/python"] = setup.files["usr/bin/app"]
    setup.files["srv/env/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"] = b"x"
    setup.args = ["/srv/env/bin/python", "serve.py"]
    _, results = run_doctor(setup, capsys)
    assert "CUDA runtime is 13.x (/srv/env/" in results["cuda-too-new"]["findings"][0]["message"]


def test_only_so_many_directories_are_searched_for_cuda(setup: Setup, capsys: Captured) -> None:
    """An image with very many Pythons costs no more time: the first 32 are looked at."""
    for number in range(100, 140):
        packages = f"usr/local/lib/python3.{number}/site-packages"
        setup.files[f"{packages}/nvidia/cu13/lib/libcudart.so.13"] = b"x"
    words = setup.arguments()
    with open_container(words[-1]) as container:
        side = HostSide("node", Config(), None)
        side.facts = snapshot_host(setup.host)
        assert len(find_runtimes(Patient(side, container, []))) == 32
