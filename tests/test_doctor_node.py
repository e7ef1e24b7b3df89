"""``nvgraft doctor`` on a node: its kernel, its cgroups, its engines and SELinux."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundles import put
from loaders import LOADER, X86
from nvgraft.base.errors import Refusal
from nvgraft.request.config import Config
from nvgraft.system.mountinfo import Mount
from nvgraft_cli.simulate.stubs import executable
from patients import ALL, CGROUP2, HOOK, NOT_PERMITTED, PODMAN, Document, Node, ids, without_hook

CGROUP1 = Mount(36, "/", "/sys/fs/cgroup/devices", "rw,relatime", False, "cgroup", "cgroup")
NO_CAPABILITY = "nvgraft: permission error: capability change failed: operation not permitted"


def _machine(**values: Any) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        node.machine = replace(node.machine, **values)

    return change


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
        without_hook,
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


def test_a_bundle_with_its_hook_needs_no_docker(tmp_path: Path) -> None:
    """Where config.json has the hook, a dockerd without one is not that container's problem."""
    node = Node(tmp_path)
    without_hook(node)
    assert "hook-not-installed" in ids(node.examine())
    node.setup.config["hooks"] = {"prestart": [HOOK]}
    assert "hook-not-installed" not in ids(node.examine())


@pytest.mark.parametrize("mode", ["jit-cdi", "cdi"])
def test_a_mode_with_cdi_edits_needs_no_hook(tmp_path: Path, mode: str) -> None:
    """In a mode whose runtime adds CDI edits it does not matter that Docker finds no hook."""
    node = Node(tmp_path)
    without_hook(node)
    assert "hook-not-installed" not in ids(node.examine(mode=mode))


def test_what_an_engine_lacks_is_the_hosts(tmp_path: Path) -> None:
    """A hook that Docker lacks does not make a container bad; one that podman left out does."""
    node = Node(tmp_path)
    without_hook(node)
    assert node.examine()["hook-not-installed"]["about"] == "host"
    node.setup.config = PODMAN | {"hooks": {}}
    assert node.examine()["hook-not-installed"]["about"] == "container"
