"""``nvgraft doctor`` on the node itself, in situations that users have reported."""

import json
import os
import subprocess
from typing import Any

import pytest

from cgroups import FILTER, attach, hierarchy
from harness import Installed

pytestmark = pytest.mark.requires("root", "cgroup-v1", "cgroup-v2")

#: Unmounts the file systems of these types and runs a command; needs a mount namespace of its own.
_WITHOUT = """\
for kind in {kinds}; do
    while read -r _ _ _ _ place _ rest; do
        case "$rest" in *"- $kind "*) umount "$place" || exit 90;; esac
    done < /proc/self/mountinfo
done
exec "$@"
"""


def doctor(installed: Installed, *wrapper: str, without: str = "") -> dict[str, dict[str, Any]]:
    """Return the doctor's results by their failures.

    :param wrapper: a command that starts the doctor.
    :param without: types of file systems that are not mounted.
    """
    namespace = ["unshare", "--mount", "--propagation", "private"]
    shell = ["sh", "-c", _WITHOUT.format(kinds=without), "sh"]
    cli = [str(installed.cli), "doctor", "--format", "json"]
    command = [*namespace, *shell, *wrapper, *cli]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return {result["id"]: result for result in json.loads(done.stdout)["results"]}


def test_a_healthy_node(installed: Installed) -> None:
    """With cgroups v1 and v2, the kernel lists and takes device programs."""
    for without in ("", "cgroup"):
        results = doctor(installed, without=without)
        assert results["device-filter"]["status"] == "ok"
        assert results["cgroup-not-found"]["status"] == "ok"


def test_a_nested_hook_may_not_change_device_programs(installed: Installed) -> None:
    """NVIDIA/nvidia-docker#1688: in a user namespace the finding has the reference's words."""
    results = doctor(installed, "unshare", "--user", "--map-root-user", without="cgroup")
    (finding,) = results["device-filter"]["findings"]
    assert finding["message"] == (
        "failed to add device rules: unable to find any existing device filters attached to the "
        "cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted"
    )
    assert "user namespace" in finding["cause"]


def test_a_nested_hook_may_not_write_device_rules(installed: Installed) -> None:
    """With cgroups v1, writing devices.allow is not permitted in a user namespace."""
    results = doctor(installed, "unshare", "--user", "--map-root-user")
    (finding,) = results["device-filter"]["findings"]
    assert finding["message"].endswith(": devices.allow: operation not permitted")


def test_a_hook_without_cgroups(installed: Installed) -> None:
    """NVIDIA/nvidia-docker#1447: a node without a mounted cgroup hierarchy is a finding."""
    results = doctor(installed, without="cgroup cgroup2")
    assert results["cgroup-not-found"]["status"] == "found"
    assert results["device-filter"]["status"] == "not-checked"


def test_a_hook_without_cap_sys_admin(installed: Installed) -> None:
    """Without CAP_SYS_ADMIN the hook would be refused, and device programs are not checked."""
    wrapper = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    results = doctor(installed, *wrapper, without="cgroup")
    message = results["rootless"]["findings"][0]["message"]
    assert "capability change failed: operation not permitted" in message
    assert results["device-filter"]["status"] == "not-checked"


def test_only_root_can_check_device_programs(installed: Installed) -> None:
    """For another user the check is not made, and the result says that it needs root."""
    wrapper = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    result = doctor(installed, *wrapper, without="cgroup")["device-filter"]
    assert result["status"] == "not-checked"
    assert "only root can find out" in result["lacking"]


#: Runs a command in the cgroup $0, as in a container whose cgroup it is.
_INSIDE = """\
echo $$ > "$0/cgroup.procs" && exec unshare --cgroup --mount sh -c '
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' sh "$@"
"""


def test_a_container_without_the_gpu(installed: Installed) -> None:
    """In a container whose own device programs deny the GPU, a warning says that no container in it
    gets more.
    """
    path = hierarchy(2) / f"nvgraft-doctor-{os.getpid()}"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    try:
        attach(fd, FILTER)
        results = doctor(installed, "sh", "-c", _INSIDE, str(path))
        (finding,) = results["device-filter"]["findings"]
        assert finding["level"] == "warning"
        assert finding["message"].startswith("a cgroup above /sys/fs/cgroup/container denies the")
    finally:
        os.close(fd)
        path.rmdir()


def test_a_kept_inventory_changes_no_answer(installed: Installed) -> None:
    """A live host is judged the same before and after its inventory is kept."""
    cli = str(installed.cli)
    steps = f"{cli} doctor --format json; {cli} inventory refresh >&2; {cli} doctor --format json"
    done = subprocess.run(
        [cli, "simulate", "debian-a100x8", "--", "sh", "-c", steps],
        capture_output=True,
        text=True,
        timeout=120,
    )
    cold, warm = done.stdout.replace("}\n{", "}\0{").split("\0")
    assert json.loads(cold) == json.loads(warm)
    results = {result["id"]: result for result in json.loads(warm)["results"]}
    for name in ("nvml-library-missing", "driver-library-mismatch", "host-layout"):
        assert results[name]["status"] == "ok"
