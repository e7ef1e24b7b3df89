"""Broken hosts and containers are refused with the original's words, cause and fix, and leave
nothing behind.
"""

import json

import pytest

import break_nvml
from containers import CONFIG_TOML, HOST, Bundle, Run, set_ldcache
from nvgraft_specs import gallery

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "gcc", "x86_64")

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
#: Let the hook read the GPUs from the document instead of NVML.
FROM_SNAPSHOT = (
    f"install -m 644 {gallery.path(HOST)} /etc/host.json;"
    f" sed -i '/^simulated-host/a host-snapshot = \"/etc/host.json\"' {CONFIG_TOML}"
)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            break_nvml.command("nvml-init=18"),
            (
                "initialization error: nvml error: driver/library version mismatch | the"
                " driver was "
                "upgraded"
            ),
        ),
        (
            break_nvml.command("nvml-init=9"),
            "initialization error: nvml error: driver not loaded | ",
        ),
        (
            f"rm {LIBRARIES}/libnvidia-ml.so*",
            (
                "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared "
                "object file: no such file or directory | "
            ),
        ),
        (
            f"echo no library > {LIBRARIES}/libnvidia-ml.so.560.35.03",
            "initialization error: load library failed: /",
        ),
        (
            "echo foreign > /etc/ld.so.cache",
            (
                "detection error: unsupported file format: /etc/ld.so.cache | it does not"
                " start like "
                "a loader cache"
            ),
        ),
        (
            "rm /etc/ld.so.cache",
            (
                "detection error: open failed: /etc/ld.so.cache: no such file or directory | run "
                "ldconfig"
            ),
        ),
        (
            f"rm {LIBRARIES}/libcuda.so.560.35.03",
            (
                f"detection error: open failed: {LIBRARIES}/libcuda.so.560.35.03: no such file or "
                "directory | the loader cache names"
            ),
        ),
        (
            f": > {LIBRARIES}/libcuda.so.560.35.03",
            f"detection error: elf file read error: {LIBRARIES}/libcuda.so.560.35.03 | ",
        ),
        (
            f"chmod o+w {LIBRARIES}/libcuda.so.560.35.03",
            f"mount error: unexpected source file mode 100757 for {LIBRARIES}/libcuda.so.560.35.03",
        ),
        (
            # NVML does not see a GPU without its node; the snapshot has it.
            f"{FROM_SNAPSHOT}; rm /dev/nvidia1",
            (
                "mount error: stat failed: /dev/nvidia1: no such file or directory | the"
                " host lacks "
                "the node"
            ),
        ),
        (
            "rm /dev/nvidia1 && mknod -m 666 /dev/nvidia1 c 1 3",
            "mount error: invalid device node: /dev/nvidia1 | it is 1:3 and should be 195:1",
        ),
        (
            "rm -r /proc/driver/nvidia/gpus/0000:06:00.0",
            "mount error: stat failed: /proc/driver/nvidia/gpus/0000:06:00.0: no such file",
        ),
        (
            f"{set_ldcache('ldconfig')}; sed -i 's:@/sbin/ldconfig:@/nonexistent:' {CONFIG_TOML}",
            "ldcache error: ",
        ),
        (
            f"{set_ldcache('ldconfig')}; sed -i 's:@/sbin/ldconfig:@/usr/bin/ldd:' {CONFIG_TOML}",
            "ldcache error: process /usr/bin/ldd failed",
        ),
        (
            "sed -i '/simulated-host/d' /etc/nvidia-container-runtime/config.toml",
            "mount error: mount operation failed: ",
        ),
    ],
)
def test_a_broken_host_is_named_and_nothing_is_left(
    bundle: Bundle, prepare: str, message: str
) -> None:
    """runc reports the hook's one line; the container does not start and its files are
    untouched.
    """
    done = bundle.run(prepare=prepare)
    assert done.returncode != 0
    assert f"nvgraft: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.changes == []


def run_hook(bundle: Bundle, script: str) -> Run:
    """Run a shell script on a simulated host, in the bundle.

    In it ``hook PID`` runs the hook for that process, and ``started`` waits until the last process
    in the background runs sleep.
    """
    state = json.dumps(
        {"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle.path), "pid": 1234321}
    ).replace("1234321", "'$1'")
    function = f"hook() {{ printf %s '{state}' | {bundle.installed.hook} prestart; }}"
    started = "started() { until grep -qx sleep /proc/$!/comm; do sleep 0.01; done; }"
    return bundle.on_host(f"cd {bundle.path}; {function}; {started}; {script}")


#: A process like a container's first one: its own mount namespace, in which the rootfs is a mount
#: point.
CONTAINER = (
    "unshare -m --propagation private sh -c 'mount --bind rootfs rootfs; exec sleep 30' & started; "
)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("sh -c 'exit 0' & pid=$!; wait; hook $pid", "container error: stat failed: /proc/"),
        ("hook 0", "container error: invalid process id: 0 | "),
        ("hook 1", "container error: invalid process id: 1 | "),
        ("hook -5", "container error: invalid process id: -5 | "),
        ("hook $$", "container error: "),
        ("unshare -m sleep 30 & started; hook $!", "input error: invalid rootfs directory | "),
        (CONTAINER + "mv rootfs gone; hook $!", "container error: open failed: "),
        (
            CONTAINER + 'sed -i \'s:"path"\\: "rootfs":"path"\\: "/":\' config.json; hook $!',
            "input error: invalid rootfs directory | ",
        ),
    ],
)
def test_a_process_that_is_no_container_is_refused(
    bundle: Bundle, script: str, message: str
) -> None:
    """A dead, foreign or missing process, and a wrong rootfs, are refused before anything is
    changed.
    """
    done = run_hook(bundle, script)
    assert done.returncode == 1, done.stderr
    assert f"nvgraft: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    if not any(word in script for word in ("mv rootfs", "sed -i")):
        assert done.changes == []


def test_too_few_descriptors_are_refused_before_anything_is_attached(bundle: Bundle) -> None:
    """With a hard limit below the plan's need, the hook names the number it needs, and changes
    nothing.
    """
    done = run_hook(
        bundle,
        f"{CONTAINER.replace('exec', 'mount -t proc proc rootfs/proc; exec')} pid=$!; ulimit -n "
        "100; hook $pid",
    )
    assert done.returncode == 1
    assert "nvgraft: initialization error: open file limit is 100 | this plan needs " in done.stderr
    assert done.changes == []


@pytest.mark.parametrize(
    "mount",
    [
        "true",
        "mount -t tmpfs tmpfs rootfs/proc",
        "mkdir -p x/driver/nvidia && mount --bind x rootfs/proc",
    ],
)
def test_a_proc_that_is_no_procfs_is_refused(bundle: Bundle, mount: str) -> None:
    """/proc of the container must be procfs: a volume there, even one with the directory, is
    refused.
    """
    done = run_hook(bundle, f"{CONTAINER.replace('exec', f'{mount}; exec')} hook $!")
    assert done.returncode == 1
    assert "/rootfs/proc/driver/nvidia: no such file or directory | " in done.stderr
    assert "not procfs" in done.stderr


def test_the_script_above_can_succeed(bundle: Bundle) -> None:
    """The same stand-in for a container is configured when nothing is wrong, so the refusals have
    no other cause.
    """
    done = run_hook(
        bundle,
        CONTAINER
        + "mount -t proc proc rootfs/proc; kill $!; "
        + CONTAINER.replace("exec", "mount -t proc proc rootfs/proc; exec")
        + "hook $!",
    )
    assert done.returncode == 0, done.stderr


def test_a_simulated_host_is_said_at_each_start(bundle: Bundle) -> None:
    """A node that simulates a GPU host says so on stderr at each start; without a compiler its GPUs
    come from the snapshot.
    """
    state = json.dumps(
        {"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle.path), "pid": 1234321}
    ).replace("1234321", "'$!'")
    container = CONTAINER.replace("exec", "mount -t proc proc rootfs/proc; exec")
    script = f"cd {bundle.path}; {container} printf %s '{state}' | {bundle.installed.hook} prestart"
    done = bundle.on_host(script, options=("--no-nvml",))
    assert done.returncode == 0, done.stderr
    assert (
        "warning: simulated-host is set in config.toml: this is not a real GPU node, GPUs from "
        in done.stderr
    )
