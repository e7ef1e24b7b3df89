"""``nvgraft doctor`` asks the node's own kernel what it lets a hook do, in the places that trouble
users.
"""

import json
import subprocess
from typing import Any

import pytest

from harness import Installed

pytestmark = pytest.mark.requires("root", "cgroup-v1", "cgroup-v2")

#: Mounts in a mount namespace of its own, some of which are removed, by type.
_WITHOUT = """\
for kind in {kinds}; do
    while read -r _ _ _ _ place _ rest; do
        case "$rest" in *"- $kind "*) umount "$place" || exit 90;; esac
    done < /proc/self/mountinfo
done
exec "$@"
"""


def doctor(installed: Installed, *wrapper: str, without: str = "") -> dict[str, dict[str, Any]]:
    """Return the doctor's results by failure. ``wrapper`` starts it, without mounts of these types
    of cgroups.
    """
    shell = ["sh", "-c", _WITHOUT.format(kinds=without), "sh"]
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        *shell,
        *wrapper,
        str(installed.cli),
        "doctor",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return {result["id"]: result for result in json.loads(done.stdout)["results"]}


def test_a_node_that_is_well(installed: Installed) -> None:
    """On either version the kernel lists device programs, and accepts one and shows it
    unchanged.
    """
    for without in ("", "cgroup"):
        results = doctor(installed, without=without)
        assert [results[name]["status"] for name in ("device-filter", "cgroup-not-found")] == [
            "ok",
            "ok",
        ]


def test_a_nested_hook_may_not_change_device_programs(installed: Installed) -> None:
    """NVIDIA/nvidia-docker#1688: in a user namespace the kernel refuses, in the words that users
    search for.
    """
    results = doctor(installed, "unshare", "--user", "--map-root-user", without="cgroup")
    (finding,) = results["device-filter"]["findings"]
    assert finding["message"] == (
        "failed to add device rules: unable to find any existing device filters attached to the "
        "cgroup: "
        "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted"
    )
    assert "user namespace" in finding["cause"]


def test_a_nested_hook_may_not_write_device_rules(installed: Installed) -> None:
    """The kernel refuses device rules of cgroup v1, too."""
    (finding,) = doctor(installed, "unshare", "--user", "--map-root-user")["device-filter"][
        "findings"
    ]
    assert finding["message"].endswith(": devices.allow: operation not permitted")


def test_a_hook_without_cgroups(installed: Installed) -> None:
    """NVIDIA/nvidia-docker#1447: the hook would run where no cgroup file system is mounted."""
    results = doctor(installed, without="cgroup cgroup2")
    assert results["cgroup-not-found"]["status"] == "found"
    assert results["device-filter"]["status"] == "not-checked"


def test_a_hook_without_the_one_capability(installed: Installed) -> None:
    """In a container without privileges the hook would not begin; then device programs are not
    mentioned.
    """
    results = doctor(
        installed, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", without="cgroup"
    )
    assert (
        "capability change failed: operation not permitted"
        in results["rootless"]["findings"][0]["message"]
    )
    assert results["device-filter"]["status"] == "not-checked"


def test_the_kernel_is_asked_by_root_alone(installed: Installed) -> None:
    """Another user is told that only root can ask."""
    results = doctor(
        installed, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", without="cgroup"
    )
    assert (
        results["device-filter"]["status"],
        "only root can find out" in results["device-filter"]["lacking"],
    ) == ("not-checked", True)
