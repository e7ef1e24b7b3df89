"""gVisor: the real runsc, which runs nvidia-container-cli for its gofer (docs/decisions/0055).

A simulated host has no driver, so a device that the sandbox opens ends in ENXIO.
"""

import shutil

import pytest

from containers import LOADER_LINE, Bundle, Run
from harness import RUNSC, RUNSC_OPTIONS
from test_engines import LIBCUDA

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "runsc")

#: The sandbox's /proc and /dev are its own, so the driver is seen by its files.
LOOK = f"""
ls -l {LIBCUDA} /usr/bin/nvidia-smi
for node in /dev/nvidiactl /dev/nvidia0 /dev/nvidia1; do (: < $node) 2>&1; done
{LOADER_LINE}
"""
NO_DRIVER = "can't open /dev/nvidia0: No such device or address"


def runsc(bundle: Bundle, before: str = "true", options: str = "", times: int = 1) -> Run:
    """Run the bundle under runsc on a simulated host, whose mounts must be the same afterwards.

    :param before: a shell command that is run before.
    :param options: further options of runsc.
    """
    bundle.set_program(LOOK)
    flags = f"--root /run/runsc {RUNSC_OPTIONS} {options}"
    run = f"{RUNSC} {flags} run --bundle {bundle.path} {bundle.name} < /dev/null || exit 1; "
    return bundle.on_host(
        f"{before} && cat /proc/self/mountinfo > /run/mounts && "
        f"export PATH={bundle.installed.prefix}/bin:$PATH && {run * times} "
        "diff /run/mounts /proc/self/mountinfo"
    )


def name_the_hook(bundle: Bundle, name: str) -> None:
    """Let config.json name the hook by one of its installed names."""

    def change(config: "dict[str, dict[str, list[dict[str, object]]]]") -> None:
        config["hooks"]["prestart"][0]["path"] = f"{bundle.installed.prefix}/bin/{name}"

    bundle.edit(change)


def assert_driver_in_sandbox(done: Run, times: int = 1) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("/usr/bin/nvidia-smi\n") == times
    assert done.stdout.count("libcuda.so.1 => /") == times
    assert done.stdout.count(NO_DRIVER) == times
    [size] = {line.split()[4] for line in done.stdout.splitlines() if line.endswith(LIBCUDA)}
    assert int(size) > 0


def test_nvproxy_gives_the_driver(bundle: Bundle) -> None:
    """`runsc --nvproxy` gives a plain directory the driver, and does so again for a second run."""
    name_the_hook(bundle, "nvidia-container-runtime-hook")
    assert_driver_in_sandbox(runsc(bundle, times=2), times=2)


def test_nvproxy_on_a_host_with_shared_mounts(bundle: Bundle) -> None:
    """Nothing is mounted on the host, as on most hosts with shared mounts, whose gofer has no user
    namespace; containerd's LD_LIBRARY_PATH, which its shims have, does not matter.
    """
    name_the_hook(bundle, "nvidia-container-runtime-hook")
    shared = "mount --make-rshared / && export LD_LIBRARY_PATH=/opt/containerd/lib:"
    assert_driver_in_sandbox(runsc(bundle, shared, "--directfs=false"))


def test_nvproxy_without_root(bundle: Bundle) -> None:
    """A user without privileges gets the driver from a rootless runsc in a user namespace."""
    name_the_hook(bundle, "nvidia-container-runtime-hook")
    shutil.copy(RUNSC, bundle.path / "runsc")  # which everybody can reach
    bundle.set_program(LOOK)
    bundle.give_to(1000)
    user = "setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user --map-root-user --mount"
    run = f"{bundle.path}/runsc --root /tmp/runsc --rootless {RUNSC_OPTIONS} run"
    done = bundle.on_host(
        f"{bundle.reachable} && export PATH={bundle.installed.prefix}/bin:$PATH && "
        f"{user} {run} --bundle {bundle.path} {bundle.name} < /dev/null"
    )
    assert_driver_in_sandbox(done)


def test_the_hook_itself_says_why_it_cannot_serve_a_sandbox(bundle: Bundle) -> None:
    """As a plain prestart hook it refuses, and names the sandbox and what to do."""
    name_the_hook(bundle, "nvgraft-hook")
    done = runsc(bundle)
    assert done.returncode == 1
    assert "/rootfs: no such file or directory | " in done.stderr
    assert "it is a sandbox (gVisor, Kata Containers), which a prestart hook" in done.stderr
    assert "run runsc --nvproxy and name the hook nvidia-container-runtime-hook" in done.stderr
    assert [line for line in done.changes if "nvidia" in line] == []
