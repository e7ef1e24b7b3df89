"""The hook in real containers of real runc, on a simulated GPU host, with either version of cgroups."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Installed
from nvgraft_cli.demo import make_bundle

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")

HOST = "runfile-a10x2"

#: What makes a mount namespace show one version of cgroups alone.
CGROUPS = {
    "v1": pytest.param("", id="cgroup-v1", marks=pytest.mark.requires("cgroup-v1")),
    "v2": pytest.param(
        "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup", id="cgroup-v2", marks=pytest.mark.requires("cgroup-v2")
    ),
}

LOOK = """
for node in /dev/nvidiactl /dev/nvidia0 /dev/nvidia1; do [ -e $node ] && (: < $node) 2>&1; done
mknod /tmp/other c 195 77; (: < /tmp/other) 2>&1
cat /proc/self/mountinfo
/lib64/ld-linux-x86-64.so.2 --preload libcuda.so.1 --list /usr/lib/x86_64-linux-gnu/libc.so.6
echo done
"""

MPS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")

Edit = Callable[[dict[str, Any]], None]


class Bundle:
    """A busybox bundle with the hook, and ways to run it on a simulated host."""

    def __init__(self, directory: Path, installed: Installed) -> None:
        self.path = directory / "bundle"
        self.path.mkdir()
        self.installed = installed
        make_bundle(str(self.path), str(installed.hook))
        self.name = f"nvgraft-test-{os.getpid()}-{abs(hash(directory)) % 10**6}"

    def edit(self, change: Edit) -> None:
        file = self.path / "config.json"
        config = json.loads(file.read_text())
        change(config)
        file.write_text(json.dumps(config))

    def run(self, script: str = LOOK, prepare: str = "", times: int = 1, host: str = HOST) -> subprocess.CompletedProcess[str]:
        """Run the container ``times`` times, with ``script`` as its program, after the shell command ``prepare`` on the host."""

        def change(config: dict[str, Any]) -> None:
            config["process"]["args"] = ["/bin/sh", "-c", script]
            config["linux"]["cgroupsPath"] = f"/{self.name}"

        self.edit(change)
        start = f"runc --root /run/runc-test run --bundle {self.path} {self.name}"
        command = " && ".join([prepare or "true", *[start] * times])
        simulate = [str(self.installed.cli), "simulate", host, "--", "sh", "-c", command]
        return subprocess.run(simulate, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def files(self) -> dict[str, str]:
        root = self.path / "rootfs"
        return {str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else "" for path in root.rglob("*")}


@pytest.fixture
def bundle(tmp_path: Path, installed: Installed) -> Bundle:
    return Bundle(tmp_path, installed)


def environment(*entries: str) -> Edit:
    def change(config: dict[str, Any]) -> None:
        config["process"]["env"] = ["PATH=/usr/bin:/bin", *entries]

    return change


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_container_gets_its_devices_and_its_driver(bundle: Bundle, prepare: str) -> None:
    """Allowed nodes pass the device cgroup (there is no driver behind them), others do not; the loader finds libcuda.so.1."""
    done = bundle.run(prepare=prepare)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"):
        assert f"can't open {node}: No such device or address" in out
    assert "can't open /tmp/other: Operation not permitted" in out
    assert "libcuda.so.1 => /" in out
    points = [line.split()[4] for line in out.splitlines() if " - " in line]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03" in points
    assert "/proc/driver/nvidia/gpus/0000:06:00.0" in points


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_only_requested_gpus_are_allowed(bundle: Bundle, prepare: str) -> None:
    """A container that asks for one GPU can open that one; a node of the other, made by itself, is denied."""
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"))
    done = bundle.run("ls /dev; (: < /dev/nvidia0) 2>&1; mknod /tmp/n1 c 195 1; (: < /tmp/n1) 2>&1", prepare)
    assert "/dev/nvidia0: No such device or address" in done.stdout
    assert "/tmp/n1: Operation not permitted" in done.stdout
    assert "nvidia1" not in done.stdout.split()


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_stopped_container_starts_again(bundle: Bundle, prepare: str) -> None:
    """The second start finds the placeholders and links of the first and works as well (podman start, docker restart)."""
    done = bundle.run("ls -l /usr/bin/nvidia-smi && echo fine", prepare, times=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2


def test_the_hook_twice_for_one_start_changes_nothing_more(bundle: Bundle) -> None:
    """A second registration in the same container is a no-op: no mount is stacked."""
    bundle.edit(lambda config: config["hooks"]["prestart"].append(config["hooks"]["prestart"][0]))
    done = bundle.run()
    assert done.returncode == 0, done.stderr
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert points.count("/usr/bin/nvidia-smi") == 1
    assert points.count("/proc/driver/nvidia") == 1


def test_a_container_that_wants_no_gpu_is_left_alone(bundle: Bundle) -> None:
    """Without NVIDIA_VISIBLE_DEVICES nothing is mounted, made or said."""
    bundle.edit(environment())
    before = bundle.files()
    done = bundle.run("ls /dev; cat /proc/self/mountinfo")
    assert done.returncode == 0
    assert "nvidia" not in done.stdout
    assert bundle.files() == before


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["NVIDIA_VISIBLE_DEVICES=7"], "nvgraft: device error: 7: unknown device | this host has 2 GPU(s)"),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99"], "requirement error: unsatisfied condition: cuda>=99"),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=bogus"], "unsupported capabilities found in 'bogus'"),
    ],
)
def test_a_refused_container_does_not_start(bundle: Bundle, entries: list[str], message: str) -> None:
    """runc shows the hook's line, the container does not start, and its files are as they were."""
    bundle.edit(environment(*entries))
    before = bundle.files()
    done = bundle.run()
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert bundle.files() == before


def test_a_failure_at_the_very_end_is_undone(bundle: Bundle) -> None:
    """With a loader cache step that fails after everything was mounted, files and links are taken back."""
    before = bundle.files()
    config = "/etc/nvidia-container-runtime/config.toml"
    done = bundle.run(prepare=f"cp $(command -v busybox) /sbin/failing && sed -i 's:@/sbin/ldconfig:@/sbin/failing:' {config}")
    assert done.returncode != 0
    assert "ldcache error: process /sbin/failing failed with error code" in done.stderr
    assert bundle.files() == before


def test_a_link_in_the_way_is_refused_and_not_followed(bundle: Bundle) -> None:
    """An image with a link where nvidia-smi goes cannot make the hook write elsewhere."""
    os.symlink("/etc/passwd", bundle.path / "rootfs/usr/bin/nvidia-smi")
    before = bundle.files()
    done = bundle.run()
    assert done.returncode != 0
    assert "rootfs/usr/bin/nvidia-smi: file exists" in done.stderr
    assert bundle.files() == before


def test_a_volume_on_the_library_directory_is_named(bundle: Bundle, tmp_path: Path) -> None:
    """Nothing is made on a volume, which belongs to others too: the refusal names it."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = {"destination": "/usr/lib/x86_64-linux-gnu", "type": "bind", "source": str(volume), "options": ["rbind", "rprivate"]}
    bundle.edit(lambda config: config["mounts"].append(mount))
    done = bundle.run()
    assert done.returncode != 0
    assert "it would be made on the volume /usr/lib/x86_64-linux-gnu" in done.stderr
    assert list(volume.iterdir()) == []


def test_an_optional_part_on_a_volume_is_left_out(bundle: Bundle, tmp_path: Path) -> None:
    """A socket that would have to be made on a volume is left out, with a warning; the container starts."""
    mount = {"destination": "/run", "type": "tmpfs", "source": "tmpfs"}
    bundle.edit(lambda config: config["mounts"].append(mount))
    done = bundle.run("ls -R /run; ls /usr/bin/nvidia-smi")
    assert done.returncode == 0, done.stderr
    assert "nvidia-persistenced" not in done.stdout.replace("/usr/bin", "")
    assert "/usr/bin/nvidia-smi" in done.stdout


def test_a_shared_volume_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """A target on a mount that the host shares would make the driver appear on the host: refused, naming the mount."""
    volume = tmp_path / "shared"
    volume.mkdir()
    for name in (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nv-fabricmanager",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
    ):
        (volume / name).touch()
    mount = {"destination": "/usr/bin", "type": "bind", "source": str(volume), "options": ["rbind", "rshared"]}
    bundle.edit(lambda config: config["mounts"].append(mount))
    bundle.edit(lambda config: config["linux"].update(rootfsPropagation="rshared"))
    done = bundle.run(prepare=f"mount --bind {volume} {volume} && mount --make-shared {volume}")
    assert done.returncode != 0
    assert "/usr/bin is shared" in done.stderr


def test_a_container_without_a_mount_namespace_is_refused(bundle: Bundle) -> None:
    """The driver is never mounted over the host's own files."""
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(bundle.path)})
    script = f'sleep 60 & printf \'%s\' \'{state}\' | sed "s/\\"pid\\": 0/\\"pid\\": $!/" | {bundle.installed.hook} prestart'
    done = subprocess.run(
        [str(bundle.installed.cli), "simulate", HOST, "--", "sh", "-c", f"cd {bundle.path}; {script}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "has no mount namespace of its own" in done.stderr
