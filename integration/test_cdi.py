"""Engines take CDI specifications: containers on a simulated host, with nvgraft's hook program and
no program of NVIDIA's toolkit.

podman is this machine's. containerd 1.7 and Docker 26 are those of Debian 13, unpacked by ./dev,
since the engines of Debian 12 do not know CDI.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from containers import (
    CONTAINERD_TOML,
    ENGINES,
    HOST,
    IMAGE,
    LOADER_LINE,
    Bundle,
    Run,
    environment,
    image_of,
)
from nvgraft_specs import gallery
from test_docker import docker
from test_engines import PODMAN_RUN

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "cgroup-v1", "x86_64")

PODMAN = (
    "podman --root /run/podman-root --runroot /run/podman-runroot --storage-driver vfs --runtime "
    "/usr/sbin/runc "
    "--cgroup-manager=cgroupfs --hooks-dir /run/none"
)

INSIDE = f"""
ls /dev/nvidia*
nvidia-smi -L
(: < /dev/nvidia0) 2>&1; (: < /dev/nvidia1) 2>&1
{LOADER_LINE}
cat /proc/self/mountinfo
echo variable=$NVIDIA_VISIBLE_DEVICES
"""

#: Ends unless the host is without NVIDIA's toolkit.
NO_TOOLKIT = "! command -v nvidia-cdi-hook nvidia-ctk nvidia-container-runtime || exit 90"


def by_podman(bundle: Bundle, write: str, device: str) -> Run:
    """Run a container with ``device`` by podman, after the shell command ``write``."""
    run = f"{PODMAN} {PODMAN_RUN} --rm --device {device} --rootfs {bundle.path}/rootfs sh /inside"
    return bundle.on_host(f"{NO_TOOLKIT}; mkdir /run/none && {write} && {run}")


def by_docker(bundle: Bundle, write: str, device: str) -> Run:
    """Run a container with ``device`` by Docker 26, after the shell command ``write``."""
    config = bundle.path / "daemon.json"
    config.write_text('{"features": {"cdi": true}}')
    run = f"{write} && docker $run --rm --device {device} image sh /inside"
    return docker(bundle, run, f"--config-file {config}", path=f"{ENGINES}/bin:{ENGINES}/sbin:")


#: Imports the image and runs cri.py, beside a containerd of the test's own.
CONTAINERD = """
export PATH={engines}/bin:/usr/sbin:/usr/bin:/sbin:/bin
containerd -c {toml} > /run/containerd-test.log 2>&1 &
for _ in $(seq 300); do ctr -a /run/containerd-test.sock version > /dev/null 2>&1 && break; sleep 0.1; done
mkdir /run/cri-log
ctr -a /run/containerd-test.sock -n k8s.io images import --snapshotter native {archive} > /dev/null &&
{python} {client} /run/containerd-test.sock {image} /{name} /run/cri-log {device} sh /inside
code=$?
[ $code = 0 ] || tail -n 20 /run/containerd-test.log >&2
kill $!
wait $!
exit $code
"""


def by_containerd(bundle: Bundle, write: str, device: str) -> Run:
    """Run a container with ``device`` by the CRI of containerd 1.7, as kubelet does, after the
    shell command ``write``.
    """
    archive = bundle.path / "image.tar"
    archive.write_bytes(image_of(bundle.path / "rootfs"))
    toml = bundle.path / "containerd.toml"
    toml.write_text(CONTAINERD_TOML)
    script = CONTAINERD.format(
        engines=ENGINES,
        image=IMAGE,
        archive=archive,
        toml=toml,
        python=sys.executable,
        client=Path(__file__).with_name("cri.py"),
        name=bundle.name,
        device=device,
    )
    try:
        return bundle.on_host(f"{write} || exit 91\n{script}")
    finally:
        # The parent cgroup of the sandbox, in each hierarchy: cgroups are those of this machine.
        cgroups = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", f"*/{bundle.name}*"]
        subprocess.run(["find", *cgroups, "-exec", "rmdir", "{}", "+"], check=True)


Engine = Callable[[Bundle, str, str], Run]


@pytest.mark.parametrize(
    ("engine", "form"),
    [
        pytest.param(by_podman, "yaml", id="podman", marks=pytest.mark.requires("podman")),
        pytest.param(by_podman, "json", id="podman-json", marks=pytest.mark.requires("podman")),
        pytest.param(by_docker, "yaml", id="docker", marks=pytest.mark.requires("cdi-engines")),
        pytest.param(
            by_containerd, "yaml", id="containerd", marks=pytest.mark.requires("cdi-engines")
        ),
    ],
)
def test_an_engine_takes_the_specification_of_a_host(
    engine: Engine, form: str, bundle: Bundle
) -> None:
    """One GPU of two, by its name, brings its node and no other, the driver's files and working
    programs: nvidia-smi finds that GPU, and the loader finds libcuda by its name.
    """
    (bundle.path / "rootfs/inside").write_text(INSIDE)
    write = f"{bundle.installed.cli} cdi generate --hooks nvgraft --output /etc/cdi/nvidia.{form}"
    check = f"{bundle.installed.cli} cdi validate >&2"
    done = engine(bundle, f"mkdir -p /etc/cdi && {write} && {check}", "nvidia.com/gpu=0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(lines)
    assert "/dev/nvidia1" not in lines
    assert "can't open /dev/nvidia0: No such device or address" in done.stdout
    assert "libcuda.so.1 => /usr/lib/x86_64-linux-gnu/libcuda.so.1" in done.stdout
    assert any(line.split()[4:5] == ["/usr/bin/nvidia-smi"] for line in lines)
    gpu = json.loads(Path(gallery.path(HOST)).read_text())["nvml"]["gpus"][0]
    assert [line for line in lines if line.startswith("GPU ")] == [
        f"GPU 0: {gpu['model']} (UUID: {gpu['uuid']})"
    ]
    assert "variable=void" in lines


@pytest.mark.requires("podman")
def test_podman_takes_the_specification_of_a_plan(bundle: Bundle) -> None:
    """The plan's contents are in the container, at the same places with the same options: both
    GPUs, and the hook program's links.
    """
    (bundle.path / "rootfs/inside").write_text(INSIDE)
    bundle.edit(
        environment("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    )
    plan = f"{bundle.installed.cli} plan --bundle {bundle.path}"
    program = f"--nvidia-cdi-hook-path {bundle.installed.prefix}/bin/nvgraft-cdi-hook"
    write = f"mkdir -p /etc/cdi && {plan} --format cdi {program} > /etc/cdi/plan.json"
    done = by_podman(bundle, f"{plan} --format json && {write}", "nvgraft/plan=container")
    assert done.returncode == 0, done.stderr
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"} <= set(done.stdout.splitlines())
    assert "libcuda.so.1 => /" in done.stdout
    assert (
        "not in the CDI specification: /proc/driver/nvidia/gpus/0000:05:00.0: engines refuse "
        "mounts below /proc" in done.stderr
    )
    rows = [line.split() for line in done.stdout.splitlines() if " - " in line]
    options = {row[4]: set(row[5].split(",")) for row in rows}
    actions = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index('{\n  "schema"') :])[0][
        "actions"
    ]
    expected = {
        action["target"]: set(action["options"])
        for action in actions
        if action.get("kind") in {"file", "dir", "socket"}
    }
    expected = {path: words for path, words in expected.items() if not path.startswith("/proc/")}
    assert len(expected) > 10
    assert {path: options.get(path, set()) & words for path, words in expected.items()} == expected


@pytest.mark.requires("podman")
def test_podman_takes_the_specification_of_edits(bundle: Bundle) -> None:
    """A plan of CDI edits loses nothing in its specification: the container has the one GPU, the
    variables and the links.
    """
    (bundle.path / "rootfs/inside").write_text(f"{INSIDE}\nenv")
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=1"))
    plan = f"{bundle.installed.cli} plan --bundle {bundle.path} --mode jit-cdi --format cdi"
    write = f"mkdir -p /etc/cdi && {plan} > /etc/cdi/plan.json"
    done = by_podman(bundle, write, "nvgraft/plan=container")
    assert done.returncode == 0, done.stderr
    assert "not in the CDI specification" not in done.stderr
    lines = done.stdout.splitlines()
    assert {"/dev/nvidia1", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu"} <= set(lines)
    assert "/dev/nvidia0" not in lines
    assert sum(line.startswith("GPU ") for line in lines) == 1
    assert "libcuda.so.1 => /" in done.stdout


#: Changes the host while its specification is kept up to date, and prints the specifications.
REFRESHED = """
await() {{ for i in $(seq 100); do [ "$(grep -c '"event": "written"' /run/log)" = $1 ] && return; sleep 0.1; done; cat /run/log; exit 9; }}
: > /run/log  # before the first look at it
{cli} --log-format json cdi refresh --watch --check 0.2 --hooks nvgraft /run/cdi/nvidia.json 2> /run/log & refresher=$!
await 1
cat /run/cdi/nvidia.json
echo ==
mv /dev/nvidia1 /dev/away
await 2
cat /run/cdi/nvidia.json
echo ==
mv /dev/away /dev/nvidia1
mkdir -p /proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0
await 3
rm /run/cdi/nvidia.json
await 4
cat /run/cdi/nvidia.json
kill -TERM $refresher; wait $refresher || exit 7
stat -c %a /run/cdi/nvidia.json >&2
ls /run/cdi >&2
"""


def test_the_specification_follows_the_host(bundle: Bundle) -> None:
    """`cdi refresh --watch` writes the specification at its start, after changes that the kernel
    sends no event for, and when somebody has removed it, and ends with SIGTERM.
    """
    done = bundle.on_host(REFRESHED.format(cli=bundle.installed.cli))
    assert done.returncode == 0, done.stdout + done.stderr
    before, without, after = map(json.loads, done.stdout.split("==\n"))
    assert [device["name"] for device in before["devices"] if len(device["name"]) < 4] == [
        "0",
        "1",
        "all",
    ]
    assert [device["name"] for device in without["devices"] if len(device["name"]) < 4] == [
        "0",
        "all",
    ]
    assert after == before
    assert done.stderr.split() == ["644", "nvidia.json"]
