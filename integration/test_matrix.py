"""One container under each engine, with and without user namespace, on cgroups v1 and v2, with a
writable and a read-only root file system (SECURITY 7).

crun cannot set up cgroups on every machine and requires a single version of them, so that device
rules are not tested under it.
"""

from pathlib import Path
from typing import Any

import pytest

from containers import CGROUPS, Bundle
from test_engines import NO_CGROUPS, assert_grafted, understood_by_crun

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")

#: The host's uid of a mapped container's root.
MAPPED = 100000
V1_ALONE = "umount /sys/fs/cgroup/unified"
ENGINES = [
    pytest.param("runc --root /run/runc-test", id="runc"),
    pytest.param(
        "crun --root /run/crun-test --cgroup-manager=disabled",
        id="crun",
        marks=pytest.mark.requires("crun"),
    ),
]
#: Shows what a container's root can see without a device: opened nodes, mounts, the loader, owners.
SCRIPT = """
for node in /dev/nvidiactl /dev/nvidia0 /dev/nvidia1; do (: < $node) 2>&1; done
cat /proc/self/mountinfo
/lib64/ld-linux-x86-64.so.2 --preload libcuda.so.1 --list /usr/lib/x86_64-linux-gnu/libc.so.6
ls -ln /usr/lib/x86_64-linux-gnu/libcuda.so.1 /etc/ld.so.cache
touch /written 2>&1 && echo writable; true
"""


def in_user_namespace(config: dict[str, Any]) -> None:
    config["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        config["linux"][kind] = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
    left_out = {"/dev/mqueue", "/sys/fs/cgroup"}
    mounts = config["mounts"]
    config["mounts"] = [mount for mount in mounts if mount["destination"] not in left_out]


@pytest.mark.parametrize("writable", [True, False], ids=["rw", "ro"])
@pytest.mark.parametrize("prepare", CGROUPS.values())
@pytest.mark.parametrize("mapped", [False, True], ids=["host-ids", "user-namespace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_combination_gets_the_driver(
    bundle: Bundle, engine: str, mapped: bool, prepare: str, writable: bool
) -> None:
    """Mounts, links, loader cache, device rules and owners are right in every combination."""
    bundle.edit(understood_by_crun)
    bundle.edit(lambda config: config["root"].update(readonly=not writable))
    steps = [prepare or "true"]
    if mapped:
        bundle.edit(in_user_namespace)
        bundle.give_to(MAPPED)
        steps.append(bundle.reachable)
    if engine.startswith("crun"):
        steps += [NO_CGROUPS, *([] if prepare else [V1_ALONE])]
    bundle.set_program(SCRIPT)
    steps.append(f"{engine} run --bundle {bundle.path} {bundle.name}")
    done = bundle.on_host(" && ".join(steps))
    assert_grafted(done, devices=False)
    if engine.startswith("runc"):
        for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"):
            assert f"can't open {node}: No such device or address" in done.stdout
    owners = [
        line.split()[2:4]
        for line in done.stdout.splitlines()
        if "libcuda.so.1 -> " in line or line.endswith("/etc/ld.so.cache")
    ]
    assert owners == [["0", "0"], ["0", "0"]], done.stdout
    assert ("writable" in done.stdout.split()) == writable
    made = [line.split() for line in done.changes if line.startswith(">")]
    assert {words[4] for words in made} == {str(MAPPED if mapped else 0)}
    assert Path("/dev/null").stat().st_uid == 0, "this machine's /dev/null belongs to the container"
