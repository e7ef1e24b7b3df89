"""The hook in real containers of real runc, on a simulated GPU host, with either version of
cgroups.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from containers import CGROUPS, CONFIG_TOML, LOADER_LINE, LOOK, Bundle, environment, set_ldcache
from harness import LDCONFIG
from nvgraft_cli.simulate.demo import LIBRARIES
from nvgraft_cli.simulate.stubs import shared_object
from nvgraft_specs import gallery

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_container_gets_its_devices_and_its_driver(bundle: Bundle, prepare: str) -> None:
    """Allowed nodes open (without a driver behind them), others do not; the loader finds
    libcuda.so.1.
    """
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
    """A container that requests one GPU can open it; a node of the other GPU, made by itself, is
    denied.
    """
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"))
    done = bundle.run(
        "ls /dev; (: < /dev/nvidia0) 2>&1; mknod /tmp/n1 c 195 1; (: < /tmp/n1) 2>&1", prepare
    )
    assert "/dev/nvidia0: No such device or address" in done.stdout
    assert "/tmp/n1: Operation not permitted" in done.stdout
    assert "nvidia1" not in done.stdout.split()


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_stopped_container_starts_again(bundle: Bundle, prepare: str) -> None:
    """A second start finds the first one's placeholders and links, and works (podman start, docker
    restart).
    """
    done = bundle.run("ls -l /usr/bin/nvidia-smi && echo fine", prepare, times=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2


def test_a_driver_root_below_dev(bundle: Bundle, tmp_path: Path) -> None:
    """Files come from the driver root, device nodes from /dev and kernel views from /proc; a second
    run recognises them.
    """
    host = tmp_path / "host.json"
    document = json.loads(Path(gallery.path("operator-driver-root")).read_text())
    host.write_text(json.dumps(document | {"root": "/dev/shm/driver"}))
    bundle.edit(lambda config: config["hooks"]["prestart"].append(config["hooks"]["prestart"][0]))
    look = f"nvidia-smi; stat -c '%n %t:%T' /dev/nvidia0; {LOOK}"
    done = bundle.run(look, host=str(host))
    assert done.returncode == 0, done.stderr
    assert "nvgraft simulated nvidia-smi" in done.stdout
    assert "/dev/nvidia0 c3:0" in done.stdout
    mounts = [line.split() for line in done.stdout.splitlines() if " - " in line]
    sources = {fields[4]: fields[3] for fields in mounts}
    assert len(sources) == len(mounts), "something is mounted twice"
    assert sources["/usr/bin/nvidia-smi"].endswith("/driver/usr/bin/nvidia-smi")
    assert sources["/dev/nvidia0"].endswith("/nvidia0")
    assert [target for target in sources if target.startswith("/proc/driver/nvidia/gpus/")]


def test_the_hook_twice_for_one_start_changes_nothing_more(bundle: Bundle) -> None:
    """A second registration in the same container is a no-op: no mount is stacked."""
    bundle.edit(lambda config: config["hooks"]["prestart"].append(config["hooks"]["prestart"][0]))
    done = bundle.run()
    assert done.returncode == 0, done.stderr
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert points.count("/usr/bin/nvidia-smi") == 1
    assert points.count("/proc/driver/nvidia") == 1


def test_a_container_that_wants_no_gpu_is_left_alone(bundle: Bundle) -> None:
    """Without NVIDIA_VISIBLE_DEVICES nothing is mounted, made or printed."""
    bundle.edit(environment())
    done = bundle.run("ls /dev; cat /proc/self/mountinfo")
    assert done.returncode == 0
    assert "nvidia" not in done.stdout
    assert done.changes == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["NVIDIA_VISIBLE_DEVICES=7"],
            "nvgraft: device error: 7: unknown device | this host has 2 GPU(s)",
        ),
        (
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99"],
            "requirement error: unsatisfied condition: cuda>=99",
        ),
        (
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=bogus"],
            "unsupported capabilities found in 'bogus'",
        ),
    ],
)
def test_a_refused_container_does_not_start(
    bundle: Bundle, entries: list[str], message: str
) -> None:
    """runc shows the hook's line, the container does not start, and its files are as they were."""
    bundle.edit(environment(*entries))
    done = bundle.run()
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.changes == []


def test_a_failure_at_the_very_end_is_undone(bundle: Bundle) -> None:
    """When the loader cache step fails after all mounts, files and links are taken back."""
    failing = (
        "cp $(command -v busybox) /sbin/failing && sed -i 's:@/sbin/ldconfig:@/sbin/failing:' "
        f"{CONFIG_TOML}"
    )
    done = bundle.run(prepare=f"{failing} && {set_ldcache('ldconfig')}")
    assert done.returncode != 0
    assert "ldcache error: process /sbin/failing failed with error code" in done.stderr
    assert done.changes == []


@pytest.mark.parametrize("mode", ["native", "ldconfig"])
@pytest.mark.parametrize("image", ["bare", "fresh", "old format", "stale", "damaged"])
def test_the_loader_finds_the_driver_by_its_cache_alone(
    bundle: Bundle, image: str, mode: str
) -> None:
    """The loader finds both libraries in a directory that it does not search by itself, and the
    image's own, in two starts.
    """
    rootfs = bundle.path / "rootfs"
    (rootfs / "etc/debian_version").unlink()  # then libraries go to /usr/lib64
    shutil.copytree(rootfs / LIBRARIES[1:], rootfs / "opt/lib", symlinks=True)
    shutil.copy(rootfs / "opt/lib/libc.so.6", rootfs / "opt/lib/libown.so.1")
    (rootfs / "opt/lib/libown.so.1").write_bytes(
        shared_object(64, "EM_X86_64", "libown.so.1", [], None)
    )
    (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n")
    ldconfig = [LDCONFIG, "-r", str(rootfs), "-C", "/etc/ld.so.cache"]
    if image != "bare":
        subprocess.run(
            [*ldconfig, *(["-c", "compat"] if image == "old format" else [])], check=True
        )
    if image == "stale":
        (rootfs / "opt/lib/libown.so.1").rename(rootfs / "opt/lib/libown.so.1.2")
        (rootfs / "opt/lib/libown.so.1.2").write_bytes(
            shared_object(64, "EM_X86_64", "libown.so.1", [], None)
        )
        os.utime(rootfs / "etc/ld.so.cache", (1, 1))
    elif image == "damaged":
        (rootfs / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + b"\xff" * 100)
    look = " ".join(
        [
            "/lib64/ld-linux-x86-64.so.2",
            "--preload",
            "libcuda.so.1:libnvidia-ml.so.1:libown.so.1",
            "--list",
            "/opt/lib/libc.so.6",
        ]
    )
    done = bundle.run(f"{look}; echo fine", prepare=set_ldcache(mode), times=2)
    assert done.returncode == 0, done.stderr
    places = {
        "libcuda.so.1": "/usr/lib64",
        "libnvidia-ml.so.1": "/usr/lib64",
        "libown.so.1": "/opt/lib",
    }
    if (image, mode) == ("stale", "ldconfig"):
        del places[
            "libown.so.1"
        ]  # the confined ldconfig makes no links in directories of the image (decision 0011)
    for name, directory in places.items():
        assert done.stdout.count(f"{name} => {directory}/{name} (0x") == 2, done.stdout
    assert "ldconfig" not in done.stderr


def test_a_link_in_the_way_is_refused_and_not_followed(bundle: Bundle) -> None:
    """An image with a link in nvidia-smi's place cannot make the hook write elsewhere."""
    os.symlink("/etc/passwd", bundle.path / "rootfs/usr/bin/nvidia-smi")
    done = bundle.run()
    assert done.returncode != 0
    assert "rootfs/usr/bin/nvidia-smi: file exists" in done.stderr
    assert done.changes == []


def test_a_volume_on_the_library_directory_is_named(bundle: Bundle, tmp_path: Path) -> None:
    """Nothing is made on a volume, because others use it too; the refusal names it."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = {
        "destination": "/usr/lib/x86_64-linux-gnu",
        "type": "bind",
        "source": str(volume),
        "options": ["rbind", "rprivate"],
    }
    bundle.edit(lambda config: config["mounts"].append(mount))
    done = bundle.run()
    assert done.returncode != 0
    assert "it would be made on the volume /usr/lib/x86_64-linux-gnu" in done.stderr
    assert done.changes == []


def test_an_optional_part_on_a_volume_is_left_out(bundle: Bundle, tmp_path: Path) -> None:
    """A socket that would be made on a volume is left out with a warning, and the container
    starts.
    """
    mount = {"destination": "/run", "type": "tmpfs", "source": "tmpfs"}
    bundle.edit(lambda config: config["mounts"].append(mount))
    done = bundle.run("ls -R /run; ls /usr/bin/nvidia-smi")
    assert done.returncode == 0, done.stderr
    assert "nvidia-persistenced" not in done.stdout.replace("/usr/bin", "")
    assert "/usr/bin/nvidia-smi" in done.stdout


def test_a_shared_volume_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """A target on a mount that the host shares would show the driver on the host; the refusal names
    the mount.
    """
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
    mount = {
        "destination": "/usr/bin",
        "type": "bind",
        "source": str(volume),
        "options": ["rbind", "rshared"],
    }
    bundle.edit(lambda config: config["mounts"].append(mount))
    bundle.edit(lambda config: config["linux"].update(rootfsPropagation="rshared"))
    done = bundle.run(prepare=f"mount --bind {volume} {volume} && mount --make-shared {volume}")
    assert done.returncode != 0
    assert "/usr/bin is shared" in done.stderr


def test_a_container_without_a_mount_namespace_is_refused(bundle: Bundle) -> None:
    """The driver is never mounted over the host's own files."""
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(bundle.path)})
    script = (
        f'sleep 60 & printf \'%s\' \'{state}\' | sed "s/\\"pid\\": 0/\\"pid\\": $!/" | '
        f"{bundle.installed.hook} prestart"
    )
    done = bundle.on_host(f"cd {bundle.path}; {script}")
    assert done.returncode == 1
    assert "has no mount namespace of its own" in done.stderr


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_container_in_a_user_namespace(bundle: Bundle, prepare: str) -> None:
    """Mounts, device rules and loader work for a mapped root, and everything made belongs to the
    container's root.
    """

    def change(config: dict[str, Any]) -> None:
        config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        # sysfs may be mounted only with a network namespace that the user namespace owns.
        config["mounts"] = [
            mount
            for mount in config["mounts"]
            if mount["destination"] not in {"/dev/mqueue", "/sys/fs/cgroup"}
        ]

    bundle.edit(change)
    bundle.give_to(100000)
    look = (
        "ls -ln /usr/lib/x86_64-linux-gnu/libcuda.so.1 /etc/ld.so.cache; for n in /dev/nvidia0 "
        "/dev/nvidiactl; do (: < $n) 2>&1; done"
    )
    done = bundle.run(f"{look}; {LOADER_LINE}", f"{bundle.reachable} && {prepare or 'true'}")
    assert done.returncode == 0, done.stderr
    assert "can't open /dev/nvidia0: No such device or address" in done.stdout
    assert "libcuda.so.1 => /" in done.stdout
    owners = [
        line.split()
        for line in done.stdout.splitlines()
        if "libcuda.so.1 -> " in line or line.endswith("/etc/ld.so.cache")
    ]
    assert [words[2:4] for words in owners] == [["0", "0"], ["0", "0"]], done.stdout
    made = [line.split() for line in done.changes if line.startswith(">")]
    assert any(words[1].endswith("/usr/bin/nvidia-smi") for words in made)
    assert [words for words in made if words[4] != "100000"] == [], (
        "everything belongs to the root of the container"
    )


def test_cuda_compatibility_libraries_of_the_image_come_first(bundle: Bundle) -> None:
    """The loader gives an image with a newer libcuda in /usr/local/cuda/compat that one, and no
    mount has its source there.
    """
    compat = bundle.path / "rootfs/usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.999.1").write_bytes(
        shared_object(64, "EM_X86_64", "libcuda.so.1", [], None)
    )
    (compat.parent.parent / "cuda").symlink_to("cuda-13.0")
    done = bundle.run(f"cat /proc/self/mountinfo; {LOADER_LINE}")
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /usr/local/cuda-13.0/compat/libcuda.so.1" in done.stdout
    assert [
        line for line in done.stdout.splitlines() if " - " in line and "compat" in line.split()[4]
    ] == []


def test_containers_that_share_a_root_file_system_do_not_trip_over_each_other(
    bundle: Bundle,
) -> None:
    """Six simultaneous hooks on six containers with one rootfs all work, and no lock is left."""
    bundle.set_program(f"ls /usr/bin/nvidia-smi && {LOADER_LINE}")
    barrier = (
        "#!/bin/sh\ntouch /run/at.$$\nuntil [ $(ls /run/at.* | wc -l) = 6 ]; do :; done\nexec "
        f"{bundle.installed.hook} prestart\n"
    )

    def change(config: dict[str, Any]) -> None:
        # Each is a container of its own, on the same directory.
        config["root"]["path"] = str(bundle.path / "rootfs")
        config["hooks"]["prestart"][0]["path"] = "/run/hook"
        config["linux"]["cgroupsPath"] = "/NAME"

    bundle.edit(change)
    script = f"""
printf '{barrier}' > /run/hook; chmod 755 /run/hook
for n in 1 2 3 4 5 6; do
  mkdir /run/b$n; sed "s:/NAME:/{bundle.name}-$n:" {bundle.path}/config.json > /run/b$n/config.json
  runc --root /run/runc-test run --bundle /run/b$n {bundle.name}-$n > /run/out$n 2>&1 & pids="$pids $!"
done
for pid in $pids; do wait $pid || failed=yes; done
cat /run/out*; ls /run/nvgraft/lock; [ -z "$failed" ]
"""
    done = bundle.on_host(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("libcuda.so.1 => /") == 6
    assert done.stdout.rstrip().splitlines()[-1].startswith("\t"), (
        "the last line is the loader's, and no lock's name"
    )
