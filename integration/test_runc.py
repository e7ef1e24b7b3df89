"""The hook in containers of the real runc, on a simulated GPU host, with cgroups v1 and v2."""

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
    """The device cgroup allows the GPUs' nodes and no others, and the loader finds libcuda.so.1.

    Opening an allowed node gives ENXIO, because there is no driver behind it.
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
    """A container can open the GPU it requested, and not the other by a node it makes."""
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"))
    done = bundle.run(
        "ls /dev; (: < /dev/nvidia0) 2>&1; mknod /tmp/n1 c 195 1; (: < /tmp/n1) 2>&1", prepare
    )
    assert "/dev/nvidia0: No such device or address" in done.stdout
    assert "/tmp/n1: Operation not permitted" in done.stdout
    assert "nvidia1" not in done.stdout.split()


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_stopped_container_starts_again(bundle: Bundle, prepare: str) -> None:
    """A second start finds the first one's placeholders and links, and works."""
    done = bundle.run("ls -l /usr/bin/nvidia-smi && echo fine", prepare, times=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2


def test_a_driver_root_below_dev(bundle: Bundle, tmp_path: Path) -> None:
    """Files, device nodes and /proc entries come from a driver root below /dev, each mounted once.

    The hook is registered twice: its second run finds everything done.
    """
    host = tmp_path / "host.json"
    document = json.loads(Path(gallery.path("operator-driver-root")).read_text())
    host.write_text(json.dumps(document | {"root": "/dev/shm/driver"}))
    bundle.edit(lambda config: config["hooks"]["prestart"].append(config["hooks"]["prestart"][0]))
    look = f"nvidia-smi; stat -c '%n %t:%T' /dev/nvidia0; {LOOK}"
    done = bundle.run(look, host=str(host))
    assert done.returncode == 0, done.stderr
    assert "NVIDIA L4 " in done.stdout
    assert "/dev/nvidia0 c3:0" in done.stdout
    mounts = [line.split() for line in done.stdout.splitlines() if " - " in line]
    sources = {fields[4]: fields[3] for fields in mounts}
    assert len(sources) == len(mounts), "something is mounted twice"
    assert sources["/usr/bin/nvidia-smi"].endswith("/driver/usr/bin/nvidia-smi")
    assert sources["/dev/nvidia0"].endswith("/nvidia0")
    assert [target for target in sources if target.startswith("/proc/driver/nvidia/gpus/")]


def test_a_hook_that_is_registered_twice_mounts_once(bundle: Bundle) -> None:
    """The second run of the hook in one start does nothing: no target is mounted twice."""
    bundle.edit(lambda config: config["hooks"]["prestart"].append(config["hooks"]["prestart"][0]))
    done = bundle.run()
    assert done.returncode == 0, done.stderr
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert points.count("/usr/bin/nvidia-smi") == 1
    assert points.count("/proc/driver/nvidia") == 1


def test_a_container_that_wants_no_gpu_is_left_alone(bundle: Bundle) -> None:
    """Without NVIDIA_VISIBLE_DEVICES the hook mounts, makes and prints nothing."""
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
    """runc prints the hook's refusal, the container does not start, and its files are unchanged."""
    bundle.edit(environment(*entries))
    done = bundle.run()
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.changes == []


def test_a_failing_loader_cache_step_is_undone(bundle: Bundle) -> None:
    """When the loader cache step fails, after every mount, the made files and links are removed."""
    failing = (
        "cp $(command -v busybox) /sbin/failing && sed -i"
        f" 's:@/sbin/ldconfig:@/sbin/failing:' {CONFIG_TOML}"
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
    """Two starts in a row let the loader find the driver's and the image's libraries by the cache.

    They are in directories that this loader does not search by itself.
    """
    rootfs = bundle.path / "rootfs"
    # Without this file the driver's libraries go to /usr/lib64.
    (rootfs / "etc/debian_version").unlink()
    shutil.copytree(rootfs / LIBRARIES[1:], rootfs / "opt/lib", symlinks=True)
    shutil.copy(rootfs / "opt/lib/libc.so.6", rootfs / "opt/lib/libown.so.1")
    own_library = shared_object(64, "EM_X86_64", "libown.so.1", [], None)
    (rootfs / "opt/lib/libown.so.1").write_bytes(own_library)
    (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n")
    ldconfig = [LDCONFIG, "-r", str(rootfs), "-C", "/etc/ld.so.cache"]
    if image != "bare":
        compat = ["-c", "compat"] if image == "old format" else []
        subprocess.run([*ldconfig, *compat], check=True)
    if image == "stale":
        (rootfs / "opt/lib/libown.so.1").rename(rootfs / "opt/lib/libown.so.1.2")
        (rootfs / "opt/lib/libown.so.1.2").write_bytes(own_library)
        os.utime(rootfs / "etc/ld.so.cache", (1, 1))
    elif image == "damaged":
        (rootfs / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + b"\xff" * 100)
    preload = "--preload libcuda.so.1:libnvidia-ml.so.1:libown.so.1"
    look = f"/lib64/ld-linux-x86-64.so.2 {preload} --list /opt/lib/libc.so.6"
    done = bundle.run(f"{look}; echo fine", prepare=set_ldcache(mode), times=2)
    assert done.returncode == 0, done.stderr
    places = {
        "libcuda.so.1": "/usr/lib64",
        "libnvidia-ml.so.1": "/usr/lib64",
        "libown.so.1": "/opt/lib",
    }
    if (image, mode) == ("stale", "ldconfig"):
        # The confined ldconfig makes no links in directories of the image (decision 0011).
        del places["libown.so.1"]
    for name, directory in places.items():
        assert done.stdout.count(f"{name} => {directory}/{name} (0x") == 2, done.stdout
    assert "ldconfig" not in done.stderr


def test_a_link_in_the_way_is_refused_and_not_followed(bundle: Bundle) -> None:
    """A symbolic link of the image at the place of nvidia-smi is refused, and not followed."""
    os.symlink("/etc/passwd", bundle.path / "rootfs/usr/bin/nvidia-smi")
    done = bundle.run()
    assert done.returncode != 0
    assert "rootfs/usr/bin/nvidia-smi: file exists" in done.stderr
    assert done.changes == []


def test_a_volume_on_the_library_directory_is_named(bundle: Bundle, tmp_path: Path) -> None:
    """A target that would be made on a volume, which others may own, is refused."""
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
    """A socket whose target would be made on a volume is left out, and the container starts."""
    mount = {"destination": "/run", "type": "tmpfs", "source": "tmpfs"}
    bundle.edit(lambda config: config["mounts"].append(mount))
    done = bundle.run("ls -R /run; ls /usr/bin/nvidia-smi")
    assert done.returncode == 0, done.stderr
    assert "nvidia-persistenced" not in done.stdout.replace("/usr/bin", "")
    assert "/usr/bin/nvidia-smi" in done.stdout


def test_a_shared_volume_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """A target on a mount shared with the host, where the driver would appear too, is refused."""
    volume = tmp_path / "shared"
    volume.mkdir()
    programs = "nvidia-smi nvidia-debugdump nvidia-persistenced nv-fabricmanager"
    for name in f"{programs} nvidia-cuda-mps-control nvidia-cuda-mps-server".split():
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
    """A process in the host's mount namespace is refused, so that no host file is covered."""
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(bundle.path)})
    with_pid = f'printf \'%s\' \'{state}\' | sed "s/\\"pid\\": 0/\\"pid\\": $!/"'
    hook = f"{bundle.installed.hook} prestart"
    done = bundle.on_host(f"cd {bundle.path}; sleep 60 & {with_pid} | {hook}")
    assert done.returncode == 1
    assert "has no mount namespace of its own" in done.stderr


@pytest.mark.parametrize("prepare", CGROUPS.values())
def test_a_container_in_a_user_namespace(bundle: Bundle, prepare: str) -> None:
    """Everything works in a user namespace, whose root owns what the hook makes."""

    def change(config: dict[str, Any]) -> None:
        config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        # sysfs stays: the user namespace owns the network namespace, which mounting it requires.
        left_out = {"/dev/mqueue", "/sys/fs/cgroup"}
        mounts = config["mounts"]
        config["mounts"] = [mount for mount in mounts if mount["destination"] not in left_out]

    bundle.edit(change)
    bundle.give_to(100000)
    owners_line = "ls -ln /usr/lib/x86_64-linux-gnu/libcuda.so.1 /etc/ld.so.cache"
    opens_line = "for n in /dev/nvidia0 /dev/nvidiactl; do (: < $n) 2>&1; done"
    look = f"{owners_line}; {opens_line}; {LOADER_LINE}"
    done = bundle.run(look, f"{bundle.reachable} && {prepare or 'true'}")
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
        "the hook made a file that the container's root does not own"
    )


def test_cuda_compatibility_libraries_of_the_image_come_first(bundle: Bundle) -> None:
    """The loader finds the image's newer libcuda in cuda/compat; nothing is mounted there."""
    compat = bundle.path / "rootfs/usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    newer_library = shared_object(64, "EM_X86_64", "libcuda.so.1", [], None)
    (compat / "libcuda.so.999.1").write_bytes(newer_library)
    (compat.parent.parent / "cuda").symlink_to("cuda-13.0")
    done = bundle.run(f"cat /proc/self/mountinfo; {LOADER_LINE}")
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /usr/local/cuda-13.0/compat/libcuda.so.1" in done.stdout
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert [point for point in points if "compat" in point] == []


def test_six_containers_on_one_rootfs_start_at_the_same_moment(bundle: Bundle) -> None:
    """Six hooks that run at the same moment on one rootfs all work, and no lock file is left."""
    bundle.set_program(f"ls /usr/bin/nvidia-smi && {LOADER_LINE}")
    barrier = (
        "#!/bin/sh\ntouch /run/at.$$\nuntil [ $(ls /run/at.* | wc -l) = 6 ]; do :; done\n"
        f"exec {bundle.installed.hook} prestart\n"
    )

    def change(config: dict[str, Any]) -> None:
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
        "the last line names a lock file that is left"
    )


@pytest.mark.requires("cgroup-v2")
def test_a_denying_cgroup_above_is_a_warning(bundle: Bundle) -> None:
    """Where a cgroup above the container's denies the GPU, the container starts, and a warning that
    is kept says why nothing works.
    """
    # if major == 195: deny
    program = (
        "<BBhi",
        0x61,
        0x14,
        4,
        0,
        0xB7,
        0,
        0,
        1,
        0x55,
        4,
        1,
        195,
        0xB7,
        0,
        0,
        0,
        0x95,
        0,
        0,
        0,
    )
    parent = f"/sys/fs/cgroup/{bundle.name}-parent"
    attach = (
        f"import os, struct, sys; sys.path.append({str(bundle.installed.library)!r})\n"
        "from nvgraft.apply import bpf\n"
        "from nvgraft.system import syscalls\n"
        f"code = struct.pack('<' + 'BBhi' * 5, *{program[1:]!r})\n"
        f"fd = os.open({parent!r}, os.O_RDONLY)\n"
        "syscalls.bpf(8, bpf._attributes('=IIII', fd, bpf.load(code), 6, 2))\n"
    )
    bundle.set_program("(: < /dev/nvidiactl) 2>&1; echo started")

    def change(config: dict[str, Any]) -> None:
        config["linux"]["cgroupsPath"] = f"/{bundle.name}-parent/container"

    bundle.edit(change)
    script = bundle.path / "attach.py"
    script.write_text(attach)
    run = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name}"
    said = f"{bundle.installed.cli} last-error"
    commands = f"{CGROUPS['v2'].values[0]} && mkdir {parent} && /usr/bin/python3 {script} && {run}; {said}; rmdir {parent}"
    done = bundle.on_host(commands)
    assert "started\n" in done.stdout, done.stdout + done.stderr
    assert "Operation not permitted" in done.stdout
    warning = f"warning: a cgroup above {parent}/container denies the device 195:255"
    assert warning in done.stdout
