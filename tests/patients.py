"""Hosts, images, containers and nodes without problems for the tests of ``nvgraft doctor``, and
changes that give them some.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hosts
from bundles import make_bundle, put
from documents import read_document
from images import docker_save
from loaders import DEBIAN, LOADER, X86, Captured, library, loader
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
from nvgraft_cli.doctor.examination import examine
from nvgraft_cli.doctor.machine import Machine
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import executable, shared_object

Document = dict[str, Any]

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
        LOADER.lstrip("/"): loader(DEBIAN),
        "lib/x86_64-linux-gnu/libc.so.6": library("libc.so.6"),
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


def entry(setup: Setup, path: str, **changes: Any) -> None:
    setup.host["files"][path] = setup.host["files"].get(path, {}) | changes


def without(setup: Setup, path: str) -> None:
    del setup.host["files"][path]


def older_module(setup: Setup) -> None:
    text = VERSION_TEXT.replace("535.1 ", "530.9 ").replace("\\n", "\n")
    entry(setup, "/proc/driver/nvidia/version", type="file", mode="0444", content=text)


def many_gpus(setup: Setup) -> None:
    setup.host["nvml"]["gpus"] = [hosts.gpu(number) for number in range(4)]
    for number in range(4):
        setup.host["files"] |= hosts.tree(
            f"/dev/nvidia{number} char 195:{number}\n"
            f"/proc/driver/nvidia/gpus/0000:{number + 1:02x}:00.0/\n"
        )
    setup.host["files"] = {
        path: item for path, item in setup.host["files"].items() if "persistenced" not in path
    }


def without_gpus(setup: Setup) -> None:
    """Make the host's document one of ``nvgraft snapshot --root`` without --gpus."""
    setup.host["without_gpus"] = True
    setup.host["nvml"]["gpus"] = []
    setup.host["files"] = {
        path: item
        for path, item in setup.host["files"].items()
        if not path.startswith(("/dev", "/proc"))
    }


def older_specification(setup: Setup) -> None:
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


def older_library(setup: Setup) -> None:
    setup.env.append("LD_LIBRARY_PATH=/opt/old")
    setup.files["opt/old/libcuda.so.1"] = shared_object(64, X86, "libcuda.so.1", [], None)


def without_loader(setup: Setup) -> None:
    del setup.files[LOADER.lstrip("/")]


def closed_node(setup: Setup) -> None:
    entry(setup, "/dev/nvidiactl", mode="0660", gid=1005)
    setup.config["process"] = {"user": {"uid": 1000, "gid": 1000}}


def dynamic_ldconfig(setup: Setup) -> None:
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


def setting(**values: Any) -> Callable[[Setup], None]:
    def change(setup: Setup) -> None:
        for name, value in values.items():
            setattr(setup, name, value)

    return change


CGROUP2 = Mount(41, "/", "/sys/fs/cgroup", "rw", False, "cgroup2", "cgroup2")
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


def without_hook(node: Node) -> None:
    node.remove("/usr/bin/nvidia-container-runtime-hook")
    node.remove("/etc/docker/daemon.json")
    node.remove("/etc/containers/oci/hooks.d/gpu.json")


def with_nvswitches(node: Node) -> None:
    for number in range(4):
        node.write(f"/proc/driver/nvidia-nvswitch/devices/0000:0{number}:00.0", "")
    node.write("/proc/1/comm", "systemd\n")
    node.machine = replace(node.machine, shows_processes=True)
