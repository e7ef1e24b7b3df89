"""The hook under the engines that people use: crun, podman and containerd, each starting a real
container.

Device rules are tested under runc (test_runc.py), and under podman and containerd with runc. crun
cannot set up cgroups on every machine, so under crun mounts, links and loader are tested, with
``no-cgroups = true``.
"""

import json
from typing import Any

import pytest

from containers import CGROUPS, CONFIG_TOML, LOOK, Bundle, Run

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")

CGROUPS_V2 = str(CGROUPS["v2"].values[0])
NO_CGROUPS = f"sed -i 's/^.nvidia-container-cli.$/&\\nno-cgroups = true/' {CONFIG_TOML}"
DENIED = "can't open /tmp/other: Operation not permitted"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03"


def assert_grafted(done: Run, *, devices: bool) -> None:
    """Assert that the driver is mounted, that the loader finds it, and that device rules are right.

    :param devices: false leaves out the device rules.
    """
    assert done.returncode == 0, done.stderr
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert LIBCUDA in points
    assert "/proc/driver/nvidia/gpus/0000:05:00.0" in points
    assert "libcuda.so.1 => /" in done.stdout
    if devices:
        for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"):
            assert f"can't open {node}: No such device or address" in done.stdout
        assert DENIED in done.stdout


def crun_run(bundle: Bundle) -> str:
    """Return the command that runs the bundle under crun without cgroups."""
    crun = "crun --root /run/crun-test --cgroup-manager=disabled"
    return f"{crun} run --bundle {bundle.path} {bundle.name}"


def understood_by_crun(config: dict[str, Any]) -> None:
    """Set a version that crun accepts: a distribution's crun may be older than its runc."""
    config["ociVersion"] = "1.0.2"


@pytest.mark.requires("crun", "cgroup-v2")
def test_crun_starts_a_container_with_the_driver(bundle: Bundle) -> None:
    """Under crun, which blocks all signals, mounts, links and loader are right."""
    bundle.edit(understood_by_crun)
    bundle.set_program(LOOK)
    done = bundle.on_host(" && ".join([CGROUPS_V2, NO_CGROUPS, crun_run(bundle)]))
    assert_grafted(done, devices=False)


@pytest.mark.requires("crun", "cgroup-v2")
def test_crun_does_not_start_a_refused_container(bundle: Bundle) -> None:
    """Under crun a refused container does not start, and last-error prints the cause."""
    bundle.edit(understood_by_crun)
    environment = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=9"]
    bundle.edit(lambda config: config["process"].update(env=environment))
    start = f"{CGROUPS_V2}; {crun_run(bundle)}; code=$?"
    done = bundle.on_host(f"{start}; {bundle.installed.cli} last-error {bundle.name}; exit $code")
    assert done.returncode != 0
    assert "9: unknown device" not in done.stderr, (
        "crun shows the hook's stderr now: the test of last-error is not needed any more"
    )
    assert "nvgraft: device error: 9: unknown device | this host has 2 GPU(s)" in done.stdout
    assert done.changes == []


PODMAN = (
    "podman --root /run/podman-root --runroot /run/podman-runroot --storage-driver vfs "
    "--runtime /usr/sbin/runc --cgroup-manager=cgroupfs --hooks-dir /run/hooks.d"
)
PODMAN_RUN = "run --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network none --cap-add MKNOD"
REQUEST = "-e NVIDIA_VISIBLE_DEVICES=all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def hooks_directory(bundle: Bundle) -> str:
    """Return a shell command that makes podman's hooks directory with the hook."""
    hook = {
        "version": "1.0.0",
        "hook": {
            "path": str(bundle.installed.hook),
            "args": ["nvgraft-hook", "prestart"],
            "env": ["PATH=/usr/sbin:/usr/bin"],
            "timeout": 30,
        },
        "when": {"always": True},
        "stages": ["prestart"],
    }
    return f"mkdir /run/hooks.d && echo '{json.dumps(hook)}' > /run/hooks.d/nvgraft.json"


@pytest.mark.requires("podman", "cgroup-v1")
def test_podman_starts_a_container_with_the_driver(bundle: Bundle) -> None:
    """Under podman, with the hook in its hooks directory, devices, mounts and loader are right."""
    (bundle.path / "rootfs/look").write_text(LOOK)
    run = f"{PODMAN} {PODMAN_RUN} --rm {REQUEST} --rootfs {bundle.path}/rootfs sh /look"
    assert_grafted(bundle.on_host(f"{hooks_directory(bundle)} && {run}"), devices=True)


@pytest.mark.requires("podman", "cgroup-v1")
def test_podman_starts_a_stopped_container_again(bundle: Bundle) -> None:
    """podman start of a container that has run before works."""
    (bundle.path / "rootfs/look").write_text(LOOK)
    first = f"{PODMAN} {PODMAN_RUN} --name twice {REQUEST} --rootfs {bundle.path}/rootfs sh /look"
    again = f"{PODMAN} start --attach twice"
    done = bundle.on_host(f"{hooks_directory(bundle)} && {first} > /dev/null && {again}")
    assert_grafted(done, devices=True)


@pytest.mark.requires("podman", "cgroup-v1")
def test_podman_without_a_request(bundle: Bundle) -> None:
    """podman runs the hook for every container, and one that requests no GPU is left alone."""
    look = "sh -c 'cat /proc/self/mountinfo'"
    run = f"{PODMAN} {PODMAN_RUN} --rm --rootfs {bundle.path}/rootfs {look}"
    done = bundle.on_host(f"{hooks_directory(bundle)} && {run}")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout


CONTAINERD = """
cat > /run/containerd.toml <<'TOML'
version = 2
root = "/run/containerd-test/root"
state = "/run/containerd-test/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "/run/containerd-test.sock"
TOML
containerd -c /run/containerd.toml > /run/containerd-test.log 2>&1 &
for _ in $(seq 300); do ctr -a /run/containerd-test.sock version > /dev/null 2>&1 && break; sleep 0.1; done
"""


def containerd_run(bundle: Bundle, binary: str) -> Run:
    def change(config: "dict[str, dict[str, str]]") -> None:
        # containerd makes a bundle directory of its own.
        config["root"]["path"] = str(bundle.path / "rootfs")

    bundle.edit(change)
    options = f"--rm --runc-binary {binary} --config {bundle.path}/config.json"
    run = f"ctr -a /run/containerd-test.sock run {options} {bundle.name}"
    return bundle.on_host(f"{CONTAINERD}\n{run}; code=$?; kill $!; exit $code")


@pytest.mark.requires("containerd", "cgroup-v1")
def test_containerd_with_the_hook_in_the_spec(bundle: Bundle) -> None:
    """`ctr run` of a spec with the hook gives a container devices, mounts and loader."""
    bundle.set_program(LOOK)
    assert_grafted(containerd_run(bundle, "/usr/sbin/runc"), devices=True)


@pytest.mark.requires("containerd", "cgroup-v1")
def test_containerd_gives_gpus_by_index(bundle: Bundle) -> None:
    """`ctr run --gpus 1` finds nvidia-container-cli by its name and gives a container that GPU
    alone.
    """
    (bundle.path / "rootfs/look").write_text(LOOK)
    options = f"--rm --gpus 1 --env PATH=/bin --cgroup /{bundle.name}"
    run = f"run {options} --rootfs {bundle.path}/rootfs {bundle.name} /bin/sh /look"
    named = f"PATH={bundle.installed.prefix}/bin:$PATH ctr -a /run/containerd-test.sock {run}"
    done = bundle.on_host(f"{CONTAINERD}\n{named}; code=$?; kill $!; exit $code")
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1 => /" in done.stdout
    assert "can't open /dev/nvidia1: No such device or address" in done.stdout
    assert "/dev/nvidia0" not in done.stdout


#: Name, uid and home of the user are new, because a simulated host has this machine's users too.
ROOTLESS = """
user=nvgraft-$$
useradd --create-home --home-dir /home/$user $user
uid=$(id -u $user)
grep -q ^$user: /etc/subuid || {{ echo $user:200000:65536 >> /etc/subuid; echo $user:200000:65536 >> /etc/subgid; }}
cp -a {bundle}/rootfs /home/$user/rootfs && chown -R $user /home/$user/rootfs
mkdir -p /run/user/$uid && chown $user /run/user/$uid
cat > /home/$user/podman.sh <<SH
export XDG_RUNTIME_DIR=/run/user/$uid HOME=/home/$user
cd
podman --storage-driver vfs --runtime /usr/bin/crun --cgroup-manager=cgroupfs --hooks-dir /run/hooks.d {run} --rm --cgroups=disabled \
  {request} --rootfs /home/$user/rootfs sh /look
SH
su $user -c "sh /home/$user/podman.sh"
"""


@pytest.mark.requires("podman", "crun", "cgroup-v2", "newuidmap")
@pytest.mark.parametrize("no_cgroups", [True, False])
def test_rootless_podman(bundle: Bundle, no_cgroups: bool) -> None:
    """Rootless podman works with no-cgroups = true; without it the refusal names it."""
    (bundle.path / "rootfs/look").write_text(LOOK)
    # crun hides the hook's stderr: a wrapper writes it to a file.
    wrapper = f'#!/bin/sh\\nexec {bundle.installed.hook} "$@" 2>/tmp/hook.log\\n'
    hook = f"printf '{wrapper}' > /run/hook && chmod 755 /run/hook"
    directory = hooks_directory(bundle).replace(str(bundle.installed.hook), "/run/hook")
    setting = NO_CGROUPS if no_cgroups else "true"
    run = PODMAN_RUN.replace("--cap-add MKNOD", "")
    script = ROOTLESS.format(bundle=bundle.path, run=run, request=REQUEST)
    prepare = f"{CGROUPS_V2} && {setting} && {hook} && {directory}"
    record = f"su $user -c '{bundle.installed.cli} last-error'"
    done = bundle.on_host(f"{prepare}\n{script}\ncode=$?; cat /tmp/hook.log; {record}; exit $code")
    if no_cgroups:
        assert_grafted(done, devices=False)
    else:
        assert done.returncode != 0
        assert "nvgraft: mount error: failed to add device rules: " in done.stdout
        assert "set `no-cgroups = true`" in done.stdout
        assert " exit 1 container " in done.stdout, "last-error shows the user's own record"
