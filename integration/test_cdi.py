"""podman accepts a CDI specification: a container on a simulated host, without a hook of
nvgraft.
"""

import json

import pytest

from containers import LOADER_LINE, Bundle, Run, environment
from test_engines import PODMAN_RUN

pytestmark = pytest.mark.requires(
    "root", "runc", "podman", "busybox", "overlayfs", "cgroup-v1", "x86_64"
)

PODMAN = (
    "podman --root /run/podman-root --runroot /run/podman-runroot --storage-driver vfs --runtime "
    "/usr/sbin/runc "
    "--cgroup-manager=cgroupfs --hooks-dir /run/none"
)

#: In place of NVIDIA's program: it makes the links that it is told to make, and records how it was
#: started.
CDI_HOOK = r"""
mkdir -p /run/none /etc/cdi
cat > /usr/bin/nvidia-cdi-hook <<'SH'
#!/bin/sh
echo "$*" >> /run/cdi-hook.log
bundle=$(sed 's/.*"bundle":"\([^"]*\)".*/\1/')
root=$(sed 's/.*"root":{"path":"\([^"]*\)".*/\1/' "$bundle/config.json")
[ "$1" = create-symlinks ] || exit 0
while [ $# -gt 2 ]; do
  shift 2
  link="$root${1##*::}"
  mkdir -p "${link%/*}" && ln -sf "${1%%::*}" "$link"
done
SH
chmod 755 /usr/bin/nvidia-cdi-hook
"""

INSIDE = f"""
ls /dev/nvidia*
nvidia-smi -L
(: < /dev/nvidia0) 2>&1; (: < /dev/nvidia1) 2>&1
{LOADER_LINE}
cat /proc/self/mountinfo
echo variable=$NVIDIA_VISIBLE_DEVICES
"""


def run_with(bundle: Bundle, write: str, device: str) -> Run:
    """Run a container with ``device``, after the shell command ``write`` has written the
    specification.
    """
    (bundle.path / "rootfs/look").write_text(INSIDE)
    run = f"{PODMAN} {PODMAN_RUN} --rm --device {device} --rootfs {bundle.path}/rootfs sh /look"
    return bundle.on_host(
        f"{CDI_HOOK}\n{write} && {run}; code=$?; cat /run/cdi-hook.log; exit $code"
    )


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_podman_takes_the_specification_of_a_host(bundle: Bundle, form: str) -> None:
    """One GPU of two, by its name, brings its node and no other, the driver's files, working
    programs, and the hook program's links.
    """
    done = run_with(
        bundle,
        f"{bundle.installed.cli} cdi generate --output /etc/cdi/nvidia.{form}",
        "nvidia.com/gpu=0",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(lines)
    assert "/dev/nvidia1" not in lines
    assert "can't open /dev/nvidia0: No such device or address" in done.stdout
    assert "libcuda.so.1 => /" in done.stdout
    assert any(line.split()[4:5] == ["/usr/bin/nvidia-smi"] for line in lines)
    assert "variable=void" in lines
    assert any(
        line.startswith("update-ldcache --folder /usr/lib/x86_64-linux-gnu") for line in lines
    )


def test_podman_takes_the_specification_of_a_plan(bundle: Bundle) -> None:
    """The plan's contents are in the container, at the same places with the same options: both
    GPUs, and the hook program's links.
    """
    bundle.edit(
        environment("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    )
    plan = f"{bundle.installed.cli} plan --bundle {bundle.path}"
    done = run_with(
        bundle,
        f"{plan} --format json > /run/cdi-hook.log && {plan} --format cdi > /etc/cdi/plan.json",
        "nvgraft/plan=container",
    )
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
