"""The decision: what a container gets for what it asks, in the reference's order, and for which fault it is refused."""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hosts
from hosts import ROOTFS, binds, finding_ids, full_host, gpu, mig_host, mount_targets, plan
from nvgraft.base.errors import Refusal
from nvgraft.container.target import OfflineTarget
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.actions import (
    AllowDevice,
    Bind,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft.plan.compat import MODES
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config
from nvgraft.request.request import ImexChannels, Origin, Request, check_request
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_specs import gallery, names

LIBS = "/usr/lib/x86_64-linux-gnu"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
ALL = ",".join(names.CAPABILITIES)


def refused(*args: object, **request: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        plan(*args, **request)  # type: ignore[arg-type]
    return caught.value


def without(document: hosts.Document, *paths: str) -> hosts.Document:
    """Return the host without some of its files."""
    for path in paths:
        del document["files"][path]
    return document


def allowed(found: Plan) -> list[str]:
    return [
        f"{action.major}:{action.minor}"
        for action in found.actions
        if isinstance(action, AllowDevice)
    ]


def written(found: Plan) -> dict[str, str]:
    return {
        action.path: action.content for action in found.actions if isinstance(action, WriteFile)
    }


def devices(found: Plan) -> list[str]:
    return [target for target, action in binds(found).items() if action.kind == "device"]


# ---- what goes where


def test_the_order_of_mounts_is_the_references() -> None:
    """tmpfs, profile, binaries, libraries, 32-bit ones, firmware, sockets, MPS, control devices, then GPU by GPU."""
    assert mount_targets(plan(full_host(), capabilities="compat32,compute,display,utility")) == [
        "/proc/driver/nvidia",
        PROFILES,
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-control",
        f"{LIBS}/libnvidia-ml.so.535.1",
        f"{LIBS}/libcuda.so.535.1",
        f"{LIBS}/libnvidia-glcore.so.535.1",
        f"{LIBS}/libGLX_nvidia.so.535.1",
        "/usr/lib/i386-linux-gnu/libcuda.so.535.1",
        "/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
        "/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia0",
        "/proc/driver/nvidia/gpus/0000:01:00.0",
        "/dev/nvidia1",
        "/proc/driver/nvidia/gpus/0000:02:00.0",
    ]


def test_gpus_come_in_the_order_asked() -> None:
    """ "1,0" mounts nvidia1 before nvidia0."""
    assert devices(plan(full_host(), devices="1,0"))[-2:] == ["/dev/nvidia1", "/dev/nvidia0"]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ("utility", {"nvidia-smi", "libnvidia-ml.so.535.1"}),
        ("compute", {"nvidia-cuda-mps-control", "libcuda.so.535.1"}),
        ("video", {"libcuda.so.535.1", "libnvcuvid.so.535.1", "libnvidia-opticalflow.so.535.1"}),
        ("graphics", {"libnvidia-glcore.so.535.1", "libGLX_nvidia.so.535.1"}),
        ("display", {"libnvidia-glcore.so.535.1", "libGLX_nvidia.so.535.1"}),
        ("ngx", {"libnvidia-ngx.so.535.1"}),
        ("compat32", set()),
        ("", set()),
    ],
)
def test_each_capability_brings_its_files(capabilities: str, expected: set[str]) -> None:
    """Binaries and libraries of its classes and no others; firmware comes always."""
    found = binds(plan(full_host(), capabilities=capabilities, devices=""))
    files = {target.rpartition("/")[2] for target, action in found.items() if action.kind == "file"}
    assert files == expected | {"gsp_tu10x.bin"}


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ("utility", ["/dev/nvidiactl"]),
        ("graphics", ["/dev/nvidiactl"]),
        ("compute", ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]),
        ("video", ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]),
        ("display", ["/dev/nvidiactl", "/dev/nvidia-modeset"]),
        (
            "compute,display",
            ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"],
        ),
    ],
)
def test_control_devices_follow_the_capabilities(capabilities: str, expected: list[str]) -> None:
    """uvm nodes are for compute (which video brings), modeset for display; each is mounted and allowed."""
    found = plan(full_host(), capabilities=capabilities, devices="")
    assert devices(found) == expected
    assert len(allowed(found)) == len(expected)


@pytest.mark.parametrize(
    ("capabilities", "persistenced", "mps"),
    [
        ("utility", True, False),
        ("compute", False, True),
        ("video", False, True),
        ("graphics", False, False),
    ],
)
def test_sockets_follow_the_capabilities(capabilities: str, persistenced: bool, mps: bool) -> None:
    """Services' sockets are utility's, the MPS directory is compute's."""
    found = binds(plan(full_host(), capabilities=capabilities))
    assert ("/run/nvidia-persistenced/socket" in found) == persistenced
    assert ("/tmp/nvidia-mps" in found) == mps


def test_options_are_those_of_the_reference() -> None:
    """By kind: files, devices, sockets and IPC directories, /proc directories."""
    found = binds(plan(full_host()))
    assert found[f"{LIBS}/libcuda.so.535.1"].options == ("nodev", "nosuid", "ro")
    assert found["/dev/nvidia0"].options == ("noexec", "nosuid", "ro")
    assert found["/run/nvidia-persistenced/socket"].options == ("nodev", "noexec", "nosuid", "rw")
    assert found["/tmp/nvidia-mps"].options == ("nodev", "noexec", "nosuid", "rw")
    assert found["/proc/driver/nvidia/gpus/0000:01:00.0"].options == (
        "nodev",
        "noexec",
        "nosuid",
        "ro",
    )
    for action in found.values():
        assert list(action.options) == sorted(action.options)


@pytest.mark.parametrize("root", ["/run/nvidia/driver/", "/dev/shm/x", "/process"])
@pytest.mark.parametrize(
    ("target", "origin"),
    [
        ("/usr/bin/nvidia-smi", "driver"),
        ("/run/nvidia-persistenced/socket", "driver"),
        ("/tmp/nvidia-mps", "driver"),
        ("/lib/firmware/nvidia/535.1/gsp_tu10x.bin", "driver"),
        ("/dev/nvidia0", "dev"),
        ("/dev/nvidia-caps", "dev"),
        ("/proc/driver/nvidia/gpus/0000:01:00.0", "proc"),
        ("/proc/driver/nvidia/capabilities", "proc"),
    ],
)
def test_sources_carry_the_driver_root(target: str, origin: str, root: str) -> None:
    """Files and sockets do, wherever it is; devices and /proc entries are written without it. All of them lie in it."""
    capabilities = "/dev/nvidia-caps/\n/proc/driver/nvidia/capabilities/"
    found = binds(plan(mig_host(capabilities, root=root), mig_config="all"))[target]
    in_root = root.rstrip("/") + target
    assert found.origin == origin
    assert found.source == (in_root if origin == "driver" else target)
    assert found.host_path == in_root


def test_kinds_modes_and_numbers_are_the_sources() -> None:
    """What the executor will find and what it makes a placeholder with."""
    found = binds(plan(full_host()))
    assert (found["/usr/bin/nvidia-smi"].kind, found["/usr/bin/nvidia-smi"].mode) == ("file", 0o755)
    assert (found["/dev/nvidia1"].kind, found["/dev/nvidia1"].mode, found["/dev/nvidia1"].rdev) == (
        "device",
        0o644,
        (195, 1),
    )
    assert found["/run/nvidia-persistenced/socket"].kind == "socket"
    assert found["/tmp/nvidia-mps"].kind == "dir"
    assert found[f"{LIBS}/libcuda.so.535.1"].size == 1000


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ("compute", "compute"),
        ("video", "video"),
        ("compute,video", "compute"),
        ("graphics,video", "video"),
    ],
)
def test_the_reason_names_the_capability_that_asked(capabilities: str, reason: str) -> None:
    """Of several, the one of the class's own name; with the row and how the file was found."""
    why = binds(plan(full_host(), capabilities=capabilities))[f"{LIBS}/libcuda.so.535.1"].why
    assert (why.capability, why.row, why.found) == (
        reason,
        "libcuda.so",
        "loader cache: libcuda.so.1 => /usr/lib/libcuda.so.535.1",
    )


def test_a_target_has_the_resolved_name() -> None:
    """Chosen by the SONAME, mounted under the file's own name; a file whose own name fits no class is left out."""
    document = hosts.host(
        "/usr/lib/libcuda.so.1 -> /opt/driver-535.1\n/opt/driver-535.1 elf libcuda.so.1\n"
        + hosts.FULL,
        cache="libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1",
    )
    assert [
        action for action in binds(plan(document)).values() if action.source.startswith("/opt/")
    ] == []


def test_32_bit_libraries_need_compat32() -> None:
    """And a class that switches them on."""
    place = "/usr/lib/i386-linux-gnu/libcuda.so.535.1"
    assert place in binds(plan(full_host(), capabilities="compat32,compute"))
    assert place not in binds(plan(full_host(), capabilities="compute"))
    assert place not in binds(plan(full_host(), capabilities="compat32,utility"))


def test_links_beside_the_libraries() -> None:
    """libcuda.so, libGLX_indirect.so.0 and libnvidia-opticalflow.so, in both directories; SONAME links are the loader cache step's."""
    found = plan(full_host(), capabilities=ALL)
    assert [
        (action.path, action.target) for action in found.actions if isinstance(action, Symlink)
    ] == [
        (f"{LIBS}/libcuda.so", "libcuda.so.1"),
        (f"{LIBS}/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
        (f"{LIBS}/libGLX_indirect.so.0", "libGLX_nvidia.so.535.1"),
        ("/usr/lib/i386-linux-gnu/libcuda.so", "libcuda.so.1"),
    ]
    assert (f"{LIBS}/libcuda.so.1", "libcuda.so.535.1") in found.links
    assert list(found.links) == sorted(found.links)


def test_the_loader_cache_comes_last() -> None:
    """With both library directories as the container has them, each once."""
    last = plan(full_host()).actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == (LIBS, "/usr/lib/i386-linux-gnu")
    last = plan(full_host(), "/usr/lib64 -> lib\n/usr/lib/\n/usr/lib32 -> lib").actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == ("/usr/lib",)


def test_the_loader_is_told_of_each_mounted_library() -> None:
    """Path, SONAME (or the file's name) and the flags of its architecture; the directories' links are followed."""
    last = plan(
        full_host("/usr/lib/libnvidia-tls.so.535.1 elf - tag=2.3.99"),
        capabilities="compute,graphics,compat32",
    ).actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    rows = {library.path: (library.soname, library.flags) for library in last.libraries}
    assert rows[f"{LIBS}/libcuda.so.535.1"] == ("libcuda.so.1", 0x0303)
    assert rows["/usr/lib/i386-linux-gnu/libcuda.so.535.1"] == ("libcuda.so.1", 0x0003)
    assert rows[f"{LIBS}/libnvidia-glcore.so.535.1"] == ("libnvidia-glcore.so.535.1", 0x0303)
    assert f"{LIBS}/libnvcuvid.so.535.1" not in rows, "not asked for, not mounted"


@pytest.mark.parametrize(
    ("rootfs", "warned"),
    [
        ("/lib/ld-musl-x86_64.so.1", True),
        ("/lib/ld-musl-x86_64.so.1 -> libc.musl-x86_64.so.1\n/lib/libc.musl-x86_64.so.1", True),
        ("/lib/ld-musl-x86_64.so.1\n/lib64/ld-linux-x86-64.so.2", False),
        ("/etc/debian_version", False),
        ("/lib/ld-musl-x86_64.so.1 -> /../../x", False),
    ],
)
def test_an_image_with_musl_alone_is_warned_of(rootfs: str, warned: bool) -> None:
    """Its loader reads no cache: the driver is there and no program finds it, as with the reference."""
    assert ("musl" in finding_ids(plan(full_host(), rootfs).findings)) == warned
    assert "musl" not in finding_ids(plan(full_host(), rootfs, capabilities="").findings), (
        "no library, nothing to find"
    )


def test_a_32_bit_directory_that_leads_astray_is_left_out_of_the_cache() -> None:
    """Nothing is mounted there, so it is nobody's fault."""
    last = plan(full_host(), "/etc/debian_version\n/usr/lib/i386-linux-gnu -> /../..").actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == (LIBS,)


# ---- the driver's own files


def test_only_the_first_modify_device_files_is_switched_off() -> None:
    """params, version and registry are copied; everything else in them stays byte for byte."""
    assert written(plan(full_host(), devices="")) == {
        "/proc/driver/nvidia/params": "ModifyDeviceFiles: 0\nOther: ModifyDeviceFiles: 1\n",
        "/proc/driver/nvidia/version": "NVRM version: 535.1\n",
        "/proc/driver/nvidia/registry": 'Binary: ""\n',
    }


def test_without_a_kernel_module_there_is_nothing_to_mount_on() -> None:
    """The reference's error; a simulated host brings a tmpfs of its own instead."""
    target = hosts.target(module=False)
    refusal = refused(full_host(), target)
    assert (
        refusal.reference_line()
        == f"nvgraft: mount error: mount operation failed: {ROOTFS}/proc/driver/nvidia: no such file or directory"
    )
    simulated = plan(full_host(), simulated=True)
    assert mount_targets(simulated)[:2] == ["/proc/driver", "/proc/driver/nvidia"]
    assert [
        action.path for action in simulated.actions[:3] if isinstance(action, MakeDirectory)
    ] == ["/proc/driver/nvidia"]
    assert mount_targets(simulated)[1:] == mount_targets(plan(full_host()))


@pytest.mark.parametrize(
    ("minors", "asked", "mask"),
    [
        ((0, 1), "all", "0x3"),
        ((0, 1), "1", "0x2"),
        ((5, 63), "all", "0x8000000000000020"),
        ((2, 0), "0", "0x4"),
    ],
)
def test_the_profile_masks_the_chosen_gpus(minors: tuple[int, int], asked: str, mask: str) -> None:
    """One bit for each chosen GPU's minor number, in lower-case hexadecimal; exactly the reference's text, without a newline."""
    extra = "".join(
        f"/dev/nvidia{minor} char 195:{minor}\n/proc/driver/nvidia/gpus/0000:{minor + 1:02x}:00.0/\n"
        for minor in minors
    )
    document = full_host(extra, gpus=[gpu(minor) for minor in minors])
    assert written(plan(document, capabilities="graphics", devices=asked))[
        f"{PROFILES}/10-container.conf"
    ] == (
        f'{{ "profiles": [{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask}]}}], '
        '"rules": [{"pattern": [], "profile": "_container_"}]}'
    )


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [("graphics", True), ("display", True), ("compute,utility,video,ngx", False)],
)
def test_the_profile_is_for_graphics_and_display(capabilities: str, has: bool) -> None:
    """Without a GPU the directory stays empty."""
    found = plan(full_host(), capabilities=capabilities, devices="")
    assert (PROFILES in mount_targets(found)) == has
    assert not any(path.startswith(PROFILES) for path in written(found))


def test_the_profile_follows_the_images_links() -> None:
    """Into the directory that /etc/nvidia leads to."""
    found = plan(full_host(), "/etc/nvidia -> /c/evil", "graphics")
    assert "/c/evil/nvidia-application-profiles-rc.d/10-container.conf" in written(found)
    assert [action.target for action in found.actions if isinstance(action, Tmpfs)][
        1
    ] == "/c/evil/nvidia-application-profiles-rc.d"


@pytest.mark.parametrize("leads", ["/proc", "/proc/1", "/proc/driver/nvidia", "/"])
def test_a_profile_directory_must_not_lead_into_proc(leads: str) -> None:
    """A tmpfs over /proc or the whole rootfs, chosen by a link of the image, is refused."""
    assert (
        refused(full_host(), f"{PROFILES} -> {leads}", "graphics").text
        == f"path error: {PROFILES} resolves to {leads}"
    )


# ---- devices


def test_none_brings_files_without_gpus() -> None:
    """No devices: driver files and control devices only."""
    found = plan(full_host(), devices="")
    assert devices(found) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert found.reason == "the container asks for driver files without devices"


def test_no_cgroups_leaves_the_rules_out() -> None:
    """The mounts stay."""
    with_rules, without_rules = plan(full_host()), plan(full_host(), cgroups=False)
    assert allowed(with_rules) == ["195:255", "510:0", "510:1", "195:0", "195:1"]
    assert allowed(without_rules) == []
    assert mount_targets(with_rules) == mount_targets(without_rules)


def test_no_devbind_leaves_the_nodes_out() -> None:
    """The rules stay, and a node that is missing does not matter."""
    asked = Request(("all",), ("compute", "utility"))
    how = Settings(cgroups=True, simulated=False, devbind=False)
    found = make_plan(
        asked, hosts.inventory(without(full_host(), "/dev/nvidia1")), hosts.target(), how
    )
    assert devices(found) == []
    assert allowed(found) == allowed(plan(full_host()))
    assert mount_targets(found) == [
        target for target in mount_targets(plan(full_host())) if not target.startswith("/dev/")
    ]


@pytest.mark.parametrize("compat", [("ldconfig", "/usr/local/cuda/compat"), ("disabled", LIBS)])
def test_cuda_libraries_of_the_image_are_never_mounted(compat: tuple[str, str]) -> None:
    """They come first in the loader cache at most, and only for compute; the plan is otherwise the same (SECURITY R15)."""
    mode, first = compat
    rootfs = hosts.DEBIAN + "\n/usr/local/cuda/compat/libcuda.so.999.1 elf libcuda.so.1"
    for capabilities, expected in (("compute", first), ("utility", LIBS)):
        asked = Request(("all",), (capabilities,))
        how = Settings(cgroups=True, simulated=False, cuda_compat=mode)
        found = make_plan(asked, hosts.inventory(full_host()), hosts.target(rootfs), how)
        last = found.actions[-1]
        assert isinstance(last, UpdateLoaderCache)
        assert last.directories[0] == expected
        assert found.actions[:-1] == plan(full_host(), rootfs, capabilities).actions[:-1]


def test_the_settings_of_the_hook_are_config_tomls() -> None:
    """no-cgroups, the simulated host, and the mode for CUDA libraries, which the reference's CLI takes as mount where none is passed."""
    usual = Settings.from_config(Config())
    assert (usual.cgroups, usual.simulated, usual.cuda_compat, usual.devbind) == (
        True,
        False,
        "ldconfig",
        True,
    )
    changed = Settings.from_config(
        Config(
            cli_no_cgroups=True,
            simulated_host=True,
            runtime_cuda_compat_mode="",
            features_allow_cuda_compat_libs_from_container=True,
        )
    )
    assert (changed.cgroups, changed.simulated, changed.cuda_compat) == (False, True, "mount")
    assert Settings.from_config(Config(runtime_cuda_compat_mode="hook")).cuda_compat == "disabled"


@pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/nvidia1"])
def test_a_missing_node_is_refused(path: str) -> None:
    """What the container needs must be there, and the reference's text names it."""
    assert (
        refused(without(full_host(), path)).reference_line()
        == f"nvgraft: mount error: stat failed: {path}: no such file or directory"
    )


@pytest.mark.parametrize(
    ("entry", "have"),
    [
        ("/dev/nvidia0 char 195:7", "195:7"),
        ("/dev/nvidia0", "file"),
        ("/dev/nvidia0 -> /dev/nvidia1", "symlink"),
        ("/dev/nvidiactl char 1:3", "1:3"),
    ],
)
def test_a_wrong_node_is_refused(entry: str, have: str) -> None:
    """Another number or no device at all."""
    refusal = refused(full_host(entry))
    assert refusal.text == f"invalid device node: {entry.split(maxsplit=1)[0]}"
    assert have in refusal.hint


def test_a_gpu_that_is_not_asked_for_may_be_broken() -> None:
    """Only chosen devices are looked at."""
    document = without(full_host(), "/dev/nvidia1", "/proc/driver/nvidia/gpus/0000:02:00.0")
    assert devices(plan(document, devices="0"))[-1] == "/dev/nvidia0"


def test_a_gpu_without_its_proc_directory_is_refused() -> None:
    """The four-digit spelling is named, as the reference tries it last."""
    refusal = refused(without(full_host(), "/proc/driver/nvidia/gpus/0000:02:00.0"))
    assert (
        refusal.text
        == "stat failed: /proc/driver/nvidia/gpus/0000:02:00.0: no such file or directory"
    )


def test_a_wrong_modeset_node_matters_only_for_display() -> None:
    """And is then refused."""
    document = full_host("/dev/nvidia-modeset char 1:3")
    assert (
        refused(document, capabilities="display").text == "invalid device node: /dev/nvidia-modeset"
    )
    plan(document, capabilities="graphics")


# ---- MIG, IMEX


def test_a_mig_device_brings_its_access_files_and_nodes() -> None:
    """GPU instance, its node, compute instance, its node; after the parent GPU."""
    found = plan(mig_host(), devices="0:0")
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    assert mount_targets(found)[-6:] == [
        "/dev/nvidia0",
        "/proc/driver/nvidia/gpus/0000:01:00.0",
        f"{base}/access",
        "/dev/nvidia-caps/nvidia-cap12",
        f"{base}/ci0/access",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    assert allowed(found)[-3:] == ["195:0", "236:12", "236:13"]
    assert binds(found)[f"{base}/access"].options == ("nodev", "noexec", "nosuid", "ro")
    made = [action.path for action in found.actions if isinstance(action, MakeDirectory)]
    below = made[made.index("/proc/driver/nvidia/gpus/0000:01:00.0") + 1 :]
    assert below == [
        base.removesuffix("/gpu0/mig/gi1"),
        base.removesuffix("/mig/gi1"),
        base.removesuffix("/gi1"),
        base,
        "/dev/nvidia-caps",
        f"{base}/ci0",
    ]


def test_mig_access_in_proc_alone() -> None:
    """A driver without capability nodes: the access files only."""
    found = plan(mig_host(majors={}), devices="MIG-aaaa")
    assert [target for target in mount_targets(found) if "caps" in target] == []
    assert mount_targets(found)[-1].endswith("/gi1/ci0/access")


@pytest.mark.parametrize(
    "path",
    ["/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "/dev/nvidia-caps/nvidia-cap13"],
)
def test_a_mig_device_that_the_kernel_lacks_is_refused(path: str) -> None:
    """Its access file or its node is missing."""
    assert (
        refused(without(mig_host(), path), devices="0:0").text
        == f"stat failed: {path}: no such file or directory"
    )


def test_an_access_file_without_a_minor_is_refused() -> None:
    """Nothing says which node belongs to it."""
    path = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
    assert (
        refused(mig_host(f"{path} = x"), devices="0:0").text
        == f"stat failed: {path}: no DeviceFileMinor in it"
    )


def test_all_brings_every_mig_device() -> None:
    """ "all" selects GPUs and MIG devices."""
    assert "/dev/nvidia-caps/nvidia-cap13" in mount_targets(plan(mig_host(), devices="all"))
    assert "/dev/nvidia-caps/nvidia-cap13" not in mount_targets(plan(mig_host(), devices="0"))


@pytest.mark.parametrize(("name", "minor"), [("config", "236:1"), ("monitor", "236:2")])
def test_the_administration_of_mig(name: str, minor: str) -> None:
    """The whole capabilities directory, the directory of nodes, the capability's own node and every minor of the visible GPUs."""
    asked: dict[str, Any] = {f"mig_{name}": "all"}
    found = plan(mig_host(), devices="all", **asked)
    assert mount_targets(found)[-2:] == ["/proc/driver/nvidia/capabilities", "/dev/nvidia-caps"]
    assert allowed(found)[-3:] == [minor, "236:12", "236:13"]
    assert "236:147" not in allowed(found)
    assert "236:200" not in allowed(found)
    assert binds(found)["/dev/nvidia-caps"].options == ("noexec", "nosuid", "rw")
    assert binds(found)["/proc/driver/nvidia/capabilities"].options == (
        "nodev",
        "noexec",
        "nosuid",
        "ro",
    )
    assert devices(found)[-1] == "/dev/nvidia0"


def test_administration_is_of_the_visible_gpus() -> None:
    """By their whole minor number: GPU 10's capabilities are none of GPU 1's."""
    document = mig_host(gpus=[gpu(0), gpu(1, migs=["MIG-b 1/0"])])
    assert allowed(plan(document, devices="1", mig_config="all"))[-2:] == ["236:1", "236:147"]


def test_config_and_monitor_are_both_mounted() -> None:
    """The second over the first, as recorded."""
    found = plan(mig_host(), mig_config="all", mig_monitor="ALL")
    assert mount_targets(found)[-4:] == ["/proc/driver/nvidia/capabilities", "/dev/nvidia-caps"] * 2
    assert allowed(found)[-4:] == ["236:1", "236:12", "236:13", "236:2"]


def test_administration_without_nodes_or_without_mig() -> None:
    """A driver without capability nodes binds the /proc directory alone; a GPU without MIG gets nothing."""
    assert (
        mount_targets(plan(mig_host(majors={}), mig_config="all"))[-1]
        == "/proc/driver/nvidia/capabilities"
    )
    assert not any(
        "capabilities" in target
        for target in mount_targets(plan(mig_host(gpus=[gpu(0)]), mig_config="all"))
    )


def test_administration_needs_what_the_kernel_module_makes() -> None:
    """Without the capabilities directory, or the directory of nodes, it is refused."""
    plain = full_host(gpus=[gpu(0, mig="disabled")], majors=hosts.MIG_MAJORS)
    assert (
        refused(plain, mig_config="all").text
        == "stat failed: /proc/driver/nvidia/capabilities: no such file or directory"
    )
    nodes = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, 12, 13)]
    assert (
        refused(without(mig_host(), *nodes), mig_config="all").text
        == "stat failed: /dev/nvidia-caps: no such file or directory"
    )


def test_administration_excludes_single_mig_devices() -> None:
    """Checked before anything is mounted."""
    assert refused(mig_host(), devices="0:0", mig_config="all").stage == "mig-config"
    assert refused(mig_host(), devices="0:0", mig_monitor="all").stage == "mig-monitor"


IMEX = "/dev/nvidia-caps-imex-channels/channel3"


def test_imex_channels_are_devices() -> None:
    """Mounted and allowed after everything of the GPUs."""
    found = plan(
        full_host(f"{IMEX} char 234:3", majors={"nvidia-caps-imex-channels": 234}),
        imex_channels=ImexChannels(("3",)),
    )
    assert mount_targets(found)[-1] == IMEX
    assert allowed(found)[-1] == "234:3"


def test_a_missing_imex_channel_is_refused() -> None:
    """By the path where it was looked for."""
    refusal = refused(
        full_host(majors={"nvidia-caps-imex-channels": 234}), imex_channels=ImexChannels(("3",))
    )
    assert refusal.text == f"stat failed: {IMEX}: no such file or directory"


# ---- refusals and their order


def test_requirements_come_before_the_container() -> None:
    """A driver that is too old is named before what is wrong with the image; a device before both."""
    broken = "/usr/bin -> ../../.."
    assert refused(full_host(), broken, requirements=("cuda>=99",)).stage == "requirement"
    assert refused(full_host(), broken, devices="9", requirements=("cuda>=99",)).stage == "device"
    assert refused(full_host(), broken).stage == "mount"


def test_requirements_see_the_chosen_devices() -> None:
    """brand and arch are those of the GPUs that the container gets."""
    plan(full_host(), requirements=("brand=tesla,arch>=8.0,driver>=535,cuda>=12.2",))
    assert refused(full_host(), requirements=("brand=geforce",)).stage == "requirement"
    plan(full_host(), devices="", requirements=("brand=geforce",))


def test_a_request_is_checked_before_the_host() -> None:
    """IMEX channels and the number of requirements need no host."""
    check_request(
        Request(("all",), (), requirements=("",) * 32, imex_channels=ImexChannels(("1",)))
    )
    with pytest.raises(Refusal, match=r"^too many requirements$"):
        check_request(Request(("all",), (), requirements=("",) * 33))
    with pytest.raises(Refusal, match=r"^unsupported IMEX channel value: x$"):
        check_request(Request(("all",), (), imex_channels=ImexChannels(("x",))))


@pytest.mark.parametrize(
    ("rootfs", "text"),
    [
        (
            "/usr/bin/nvidia-smi -> /x",
            f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: file exists",
        ),
        (
            "/usr/bin/nvidia-smi/",
            f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: is a directory",
        ),
        (
            "/usr/lib64/libcuda.so.535.1/",
            f"file creation failed: {ROOTFS}/usr/lib64/libcuda.so.535.1: is a directory",
        ),
        ("/usr/lib64", f"file creation failed: {ROOTFS}/usr/lib64: not a directory"),
        ("/usr/bin -> /../..", f"path error: /usr/bin resolves outside of {ROOTFS}"),
        (
            "/run -> /proc/sys/kernel",
            "path error: /run/nvidia-persistenced/socket resolves to /proc/sys/kernel/nvidia-persistenced/socket",
        ),
    ],
)
def test_what_an_image_puts_in_the_way(rootfs: str, text: str) -> None:
    """Refused in the reference's words."""
    assert refused(full_host(), rootfs).reference_line() == f"nvgraft: mount error: {text}"


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            "/lib/firmware",
            "mount operation failed: /usr/bin/nvidia-smi/nvidia/535.1/gsp_tu10x.bin: hidden by the mount on /usr/bin/nvidia-smi",
        ),
        ("/tmp", f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: not a directory"),
    ],
)
def test_a_target_inside_an_earlier_mount_is_refused(link: str, text: str) -> None:
    """A link of the image that leads into what the plan mounts itself."""
    assert refused(full_host(), f"{link} -> /usr/bin/nvidia-smi").text == text


@pytest.mark.parametrize("place", ["/etc", "/usr/lib/x86_64-linux-gnu"])
def test_the_loader_cache_is_not_written_into_a_mount(place: str) -> None:
    """An image that leads the MPS directory, which is the host's, to where the loader cache step writes."""
    document = hosts.host("/tmp/nvidia-mps/\n/dev/nvidiactl char 195:255")
    text = f"mount operation failed: {place}: hidden by the mount on {place}"
    assert (
        refused(document, f"{hosts.DEBIAN}\n{place}/\n/tmp/nvidia-mps -> {place}", "compute").text
        == text
    )


def test_what_is_there_already_is_mounted_over() -> None:
    """Placeholders of an earlier start, and a library of the image's own: nothing is made for them."""
    rootfs = f"""
        {hosts.DEBIAN}
        /usr/bin/nvidia-smi
        /usr/bin/nvidia-cuda-mps-control
        {LIBS}/libnvidia-ml.so.535.1
        {LIBS}/libcuda.so.535.1 mode=0600
    """
    found = plan(full_host(), rootfs)
    assert not [
        action
        for action in found.actions
        if isinstance(action, MakeDirectory) and action.path.startswith("/usr")
    ]
    assert mount_targets(found) == mount_targets(plan(full_host()))


# ---- volumes


@pytest.mark.parametrize(
    ("volume", "id", "target", "message"),
    [
        (
            "/lib/firmware",
            "firmware-skipped",
            "/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
            "/lib/firmware/nvidia",
        ),
        ("/run", "socket-skipped", "/run/nvidia-persistenced/socket", "/run/nvidia-persistenced"),
        ("/tmp", "mps-skipped", "/tmp/nvidia-mps", "/tmp/nvidia-mps"),
    ],
)
def test_optional_parts_on_a_volume_are_left_out(
    volume: str, id: str, target: str, message: str
) -> None:
    """Firmware, sockets and MPS are skipped with a finding that names the volume; everything else stays."""
    place = hosts.target(f"{hosts.DEBIAN}\n{volume}/", volumes=(volume,))
    found, whole = plan(full_host(), place), plan(full_host())
    assert mount_targets(found) == [path for path in mount_targets(whole) if path != target]
    assert not any(
        path.startswith(volume)
        for action in found.actions
        for path in [action.document().get("path", "")]
    )
    (finding,) = [finding for finding in found.findings if finding.id == id]
    assert finding.level == "warning"
    assert finding.message.endswith(
        f"file creation failed: {ROOTFS}{message}: it would be made on the volume {volume}"
    )


@pytest.mark.parametrize(
    "volume", ["/lib/firmware/nvidia", "/run/nvidia-persistenced", "/tmp/nvidia-mps"]
)
def test_nothing_is_made_for_a_part_that_is_left_out(volume: str) -> None:
    """Neither the parents of a volume that the image does not have, nor a directory on it."""
    found = plan(full_host(), hosts.target(volumes=(volume,)))
    assert [name for name in finding_ids(found.findings) if name.endswith("-skipped")] != []
    made = {action.path for action in found.actions if isinstance(action, MakeDirectory)}
    needed = {
        str(place)
        for target in mount_targets(found)
        for place in (target, *PurePosixPath(target).parents)
    }
    assert made <= needed


def test_every_optional_part_is_tried() -> None:
    """One that is skipped does not take the next one with it."""
    place = hosts.target(
        f"{hosts.DEBIAN}\n/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
        volumes=("/lib/firmware", "/run"),
    )
    found = plan(full_host("/lib/firmware/nvidia/535.1/gsp_ad10x.bin"), place)
    assert "/lib/firmware/nvidia/535.1/gsp_tu10x.bin" in mount_targets(found)
    assert [name for name in finding_ids(found.findings) if name.endswith("-skipped")] == [
        "firmware-skipped",
        "socket-skipped",
    ]


@pytest.mark.parametrize("volume", ["/usr/bin", LIBS, "/usr"])
def test_required_parts_on_a_volume_are_refused(volume: str) -> None:
    """The volume is named."""
    refusal = refused(
        full_host(), hosts.target(f"{hosts.DEBIAN}\n/usr/bin/\n{LIBS}/", volumes=(volume,))
    )
    assert refusal.text.endswith(f": it would be made on the volume {volume}")


# ---- findings


def test_a_library_that_no_loader_takes_is_mounted_and_named() -> None:
    """As the reference mounts it; neither the loader cache nor a link leads to it."""
    document = full_host()
    path = next(
        path
        for path in document["files"]
        if "libcuda.so." in path and "elf" in document["files"][path]
    )
    del document["files"][path]["elf"]
    document["files"][path]["elf_fault"] = "it is cut short"
    found = plan(document)
    target = next(target for target, action in binds(found).items() if action.source == path)
    (update,) = [action for action in found.actions if isinstance(action, UpdateLoaderCache)]
    assert target not in [library.path for library in update.libraries]
    (finding,) = [finding for finding in found.findings if finding.id == "library-damaged"]
    assert (finding.level, finding.message) == (
        "warning",
        f"{path} is not a library that a loader accepts",
    )


def test_a_whole_host_has_little_to_remark() -> None:
    """What this driver lacks is one line of information."""
    assert finding_ids(plan(full_host()).findings) == ["not-on-host"]
    assert plan(full_host()).findings[0].level == "info"


def test_remarks_are_about_what_was_asked() -> None:
    """Missing parts of other capabilities are not mentioned."""
    (finding,) = plan(full_host(), capabilities="utility").findings
    assert (
        finding.message
        == "not on this host: libnvidia-cfg.so, libnvidia-nscq.so, nvidia-debugdump, nvidia-persistenced, nv-fabricmanager"
    )
    assert plan(full_host(), capabilities="ngx").findings == ()


def test_a_host_without_gpus_is_not_an_error() -> None:
    """Zero GPUs are no error, whatever was asked for, but a warning."""
    found = plan(full_host(gpus=[]), devices="0,nonsense")
    assert "no-gpu" in finding_ids(found.findings)
    assert devices(found)[-1] == "/dev/nvidia-uvm-tools"


def test_libraries_of_another_driver_version() -> None:
    """No library fits: the container starts as with the reference, and a finding says why it will not work."""
    found = plan(full_host(version="550.1"))
    assert finding_ids(found.findings) == ["no-libraries"]
    assert "550.1" in found.findings[0].message


def test_libraries_that_the_image_hides() -> None:
    """Findings of the link prediction are part of the plan."""
    assert "library-shadowed" in finding_ids(
        plan(full_host(), f"{hosts.DEBIAN}\n{LIBS}/libcuda.so.1").findings
    )


# ---- the whole


def test_the_plan_says_what_it_is_for() -> None:
    """Host, request and target, as documents."""
    asked = Request(
        ("1", "0"),
        ("compute",),
        requirements=("cuda>=12",),
        origin=Origin("NVIDIA_VISIBLE_DEVICES=1,0", "default"),
    )
    found = make_plan(
        asked,
        hosts.inventory(full_host(root="/drv")),
        hosts.target(),
        Settings(cgroups=True, simulated=False),
    )
    assert found.reason == "the container asks for 1, 0"
    assert found.host.document() == {
        "name": "test-host",
        "root": "/drv",
        "driver_version": "535.1",
        "cuda_version": "12.2",
    }
    assert found.request.document() == {
        "devices": ["1", "0"],
        "capabilities": ["compute"],
        "requirements": ["cuda>=12"],
        "mig_config": "",
        "mig_monitor": "",
        "imex_channels": [],
        "devices_from": "NVIDIA_VISIBLE_DEVICES=1,0",
        "capabilities_from": "default",
    }
    assert found.target.document() == {
        "rootfs": ROOTFS,
        "libs_dir": LIBS,
        "libs32_dir": "/usr/lib/i386-linux-gnu",
        "bins_dir": "/usr/bin",
        "uid": 0,
        "gid": 0,
    }


#: Root file systems that are fine, however odd.
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
    "links": "/usr/bin -> /bin\n/usr/lib64 -> /opt/l\n/etc/nvidia -> /c/evil\n/lib -> /d\n/tmp -> /usr/lib64",
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
    for name in gallery.names()
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
    how = Settings(cgroups=True, simulated=simulated, cuda_compat=compat)
    return make_plan(request, INVENTORIES[host], target, how), target


@pytest.mark.parametrize("host", gallery.names())
@pytest.mark.parametrize("rootfs", ROOT_FILE_SYSTEMS)
def test_odd_images_are_no_fault(host: str, rootfs: str) -> None:
    """Every gallery host serves every one of them with all capabilities."""
    found, _ = decide(host, ROOT_FILE_SYSTEMS[rootfs], ALL)
    assert found.decision == "inject"


@settings(max_examples=150)
@given(
    host=st.sampled_from(gallery.names()),
    rootfs=st.sampled_from(sorted(ROOT_FILE_SYSTEMS)),
    hostile=st.lists(st.sampled_from(HOSTILE), max_size=3),
    capabilities=CAPABILITY_SETS,
    devices=st.sampled_from([(), ("all",), ("0",)]),
    simulated=st.booleans(),
    compat=st.sampled_from(MODES),
)
def test_every_source_is_the_hosts(
    host: str,
    rootfs: str,
    hostile: list[str],
    capabilities: set[str],
    devices: tuple[str, ...],
    simulated: bool,
    compat: str,
) -> None:
    """Whatever the image holds (SECURITY R15, R20, R28): each source is in the host's inventory, no path leaves the rootfs, nothing
    but the driver's directory is touched in /proc, and each directory is made once, after its parent."""
    try:
        text = "\n".join([ROOT_FILE_SYSTEMS[rootfs], *hostile])
        found, target = decide(
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
    for action in found.actions:
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
            made = {known for known in made if not known.startswith(path + "/")}
        if isinstance(action, MakeDirectory):
            assert path not in made
            made.add(path)
            parent = path.rpartition("/")[0]
            assert parent in made or not parent or target.tree.lstat(parent) is not None


@settings(max_examples=40)
@given(
    host=st.sampled_from(gallery.names()),
    rootfs=st.sampled_from(sorted(ROOT_FILE_SYSTEMS)),
    capabilities=CAPABILITY_SETS,
)
def test_equal_inputs_give_byte_equal_plans(host: str, rootfs: str, capabilities: set[str]) -> None:
    """From inputs that are read twice, with everything that has no order of its own the other way round: the same text."""
    texts = set()
    for backwards in (False, True):
        document = read_snapshot(host)
        document["files"] = dict(sorted(document["files"].items(), reverse=backwards))
        lines = sorted(ROOT_FILE_SYSTEMS[rootfs].splitlines(), reverse=backwards)
        request = Request(("all",), tuple(sorted(capabilities)))
        inventory = read_inventory(snapshot_host(document), OFFLINE_PATH)
        found = make_plan(
            request,
            inventory,
            hosts.target("\n".join(lines)),
            Settings(cgroups=True, simulated=False),
        )
        texts.add(json.dumps(found.document()))
    assert len(texts) == 1
