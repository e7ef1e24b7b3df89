"""The planner for any image: sources of the inventory alone, and equal plans for equal inputs."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hosts
from hosts import ROOTFS, full_host
from injections import ALL, LIBS, PROFILES
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.actions import Bind, MakeDirectory, Plan, Tmpfs
from nvgraft.plan.compat import MODES
from nvgraft.plan.document import plan_document, request_document
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.request import Request
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_specs import gallery, names


def test_a_plan_documents_host_request_and_target() -> None:
    """The plan has host, request and target as documents."""
    request = Request(
        ("1", "0"),
        ("compute",),
        requirements=("cuda>=12",),
        devices_from="NVIDIA_VISIBLE_DEVICES=1,0",
        capabilities_from="default",
    )
    injection = make_plan(
        request,
        hosts.inventory(full_host(root="/drv")),
        hosts.target(),
        Settings(cgroups=True, simulated=False),
    )
    assert injection.reason == "the container asks for 1, 0"
    assert vars(injection.host) == {
        "name": "test-host",
        "root": "/drv",
        "driver_version": "535.1",
        "cuda_version": "12.2",
    }
    assert request_document(injection.request) == {
        "devices": ["1", "0"],
        "capabilities": ["compute"],
        "requirements": ["cuda>=12"],
        "mig_config": "",
        "mig_monitor": "",
        "imex_channels": [],
        "devices_from": "NVIDIA_VISIBLE_DEVICES=1,0",
        "capabilities_from": "default",
    }
    assert vars(injection.target) == {
        "rootfs": ROOTFS,
        "libs_dir": LIBS,
        "libs32_dir": "/usr/lib/i386-linux-gnu",
        "bins_dir": "/usr/bin",
        "uid": 0,
        "gid": 0,
    }


#: Root file systems that are accepted, though unusual.
ROOT_FILE_SYSTEMS = {
    "empty": "",
    "debian": f"{hosts.DEBIAN}\n/usr/bin/\n/lib -> usr/lib\n/var/run -> /run",
    "fedora": "/usr/lib/\n/usr/lib64/\n/lib64 -> usr/lib64\n/bin -> usr/bin",
    "another driver": f"""
        {hosts.DEBIAN}
        {LIBS}/libcuda.so.999.1 elf libcuda.so.1
        {LIBS}/libcuda.so.1 -> libcuda.so.999.1
        /usr/local/cuda/compat/libcuda.so.999.1 elf libcuda.so.1
        /usr/local/cuda/compat/libcuda.so.1 -> libcuda.so.999.1
    """,
    "links": "/usr/bin -> /bin\n/usr/lib64 -> /opt/l\n/etc/nvidia -> /c/evil\n/lib -> /d\n/tmp ->"
    " /usr/lib64",
}
#: Lines that an attacker might add to any of them.
HOSTILE = (
    "/usr/bin -> ../../../../usr/bin",
    "/etc/nvidia -> /proc/driver/nvidia",
    f"{PROFILES} -> /dev",
    f"{PROFILES} -> /usr",
    "/run -> /proc/1/root/run",
    "/run/nvidia-persistenced -> /usr/bin",
    "/lib/firmware -> /dev",
    "/lib/firmware/nvidia -> /etc/nvidia",
    "/usr/local/cuda/compat/libcuda.so.999/libcuda.so.1 elf libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.998 -> /etc/shadow",
    f"{LIBS}/libcuda.so.\u00b2 elf libcuda.so.1",
    f"{LIBS}/libcuda.so.1 fifo",
    "/usr/lib64 -> /opt/volume",
)
CAPABILITY_SETS = st.sets(st.sampled_from(names.CAPABILITIES))
INVENTORIES = {
    name: read_inventory(snapshot_host(read_snapshot(name)), OFFLINE_PATH)
    for name in gallery.with_hook()
}


def decide(
    host: str,
    rootfs: str,
    capabilities: str,
    devices: tuple[str, ...] = ("all",),
    *,
    simulated: bool = False,
    compat: str = "ldconfig",
) -> tuple[Plan, OfflineTarget]:
    target = hosts.target(rootfs, module=not simulated, volumes=("/opt/volume",))
    request = Request(devices, tuple(sorted(filter(None, capabilities.split(",")))))
    settings = Settings(cgroups=True, simulated=simulated, cuda_compat=compat)
    return make_plan(request, INVENTORIES[host], target, settings), target


@pytest.mark.parametrize("host", gallery.with_hook())
@pytest.mark.parametrize("rootfs", ROOT_FILE_SYSTEMS)
def test_unusual_images_are_accepted(host: str, rootfs: str) -> None:
    """Every gallery host is planned for each of these root file systems with all capabilities."""
    injection, _ = decide(host, ROOT_FILE_SYSTEMS[rootfs], ALL)
    assert injection.decision == "inject"


@settings(max_examples=150)
@given(
    host=st.sampled_from(gallery.with_hook()),
    rootfs=st.sampled_from(sorted(ROOT_FILE_SYSTEMS)),
    hostile=st.lists(st.sampled_from(HOSTILE), max_size=3),
    capabilities=CAPABILITY_SETS,
    devices=st.sampled_from([(), ("all",), ("0",)]),
    simulated=st.booleans(),
    compat=st.sampled_from(MODES),
)
def test_every_source_is_in_the_hosts_inventory(
    host: str,
    rootfs: str,
    hostile: list[str],
    capabilities: set[str],
    devices: tuple[str, ...],
    simulated: bool,
    compat: str,
) -> None:
    """For any image (SECURITY R15, R20, R28) each source is in the host's inventory, no path leaves
    the rootfs, only the driver's directory in /proc is touched, and each directory is created once,
    after its parent.
    """
    try:
        text = "\n".join([ROOT_FILE_SYSTEMS[rootfs], *hostile])
        injection, target = decide(
            host, text, ",".join(capabilities), devices, simulated=simulated, compat=compat
        )
    except Refusal:
        assert hostile
        return
    inventory = INVENTORIES[host]
    files, nodes, mig = inventory.files, inventory.devices, inventory.mig
    driver_files = (
        *files.libraries,
        *files.libraries32,
        *files.binaries,
        *files.firmware,
        *files.sockets,
        files.mps,
    )
    sources = {inventory.root.rstrip("/") + file.path for file in driver_files if file}
    sources |= {node.path for node in (*nodes.control, *mig.nodes, *nodes.imex_channels)}
    sources |= {gpu.node.path for gpu in nodes.gpus}
    proc_entries = (*mig.access_files, *(gpu.proc_directory for gpu in nodes.gpus))
    sources |= {entry.path for entry in proc_entries if entry}
    made: set[str] = set()
    for action in injection.actions:
        if isinstance(action, Bind):
            assert action.source in sources
        path = (
            action.target if isinstance(action, Bind | Tmpfs) else getattr(action, "path", "/none")
        )
        assert ".." not in path.split("/")
        assert (
            not (path + "/").startswith("/proc/")
            or (path + "/").startswith("/proc/driver/nvidia/")
            or (simulated and path == "/proc/driver")
        )
        if isinstance(action, Tmpfs):
            made = {directory for directory in made if not directory.startswith(path + "/")}
        if isinstance(action, MakeDirectory):
            assert path not in made
            made.add(path)
            parent = path.rpartition("/")[0]
            assert parent in made or not parent or target.tree.lstat(parent) is not None


@settings(max_examples=40)
@given(
    host=st.sampled_from(gallery.with_hook()),
    rootfs=st.sampled_from(sorted(ROOT_FILE_SYSTEMS)),
    capabilities=CAPABILITY_SETS,
)
def test_equal_inputs_give_byte_equal_plans(host: str, rootfs: str, capabilities: set[str]) -> None:
    """Equal inputs, read twice and with reversed order where order has no meaning, give the same
    text.
    """
    texts = set()
    for backwards in (False, True):
        document = read_snapshot(host)
        document["files"] = dict(sorted(document["files"].items(), reverse=backwards))
        lines = sorted(ROOT_FILE_SYSTEMS[rootfs].splitlines(), reverse=backwards)
        request = Request(("all",), tuple(sorted(capabilities)))
        inventory = read_inventory(snapshot_host(document), OFFLINE_PATH)
        injection = make_plan(
            request,
            inventory,
            hosts.target("\n".join(lines)),
            Settings(cgroups=True, simulated=False),
        )
        texts.add(json.dumps(plan_document(injection)))
    assert len(texts) == 1
