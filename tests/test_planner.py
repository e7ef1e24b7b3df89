"""The planner: what a container gets for its request, in the reference's order, and which fault is
refused.
"""

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hosts
from hosts import ROOTFS, binds, finding_ids, full_host, gpu, mig_host, mount_targets, plan
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import OfflineTarget
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
from nvgraft.plan.document import action_document, plan_document, request_document
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config
from nvgraft.request.request import ImexChannels, Request, check_request
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
    """Return the host without these files."""
    for path in paths:
        del document["files"][path]
    return document


def allowed(injection: Plan) -> list[str]:
    return [
        f"{action.major}:{action.minor}"
        for action in injection.actions
        if isinstance(action, AllowDevice)
    ]


def written(injection: Plan) -> dict[str, str]:
    return {
        action.path: action.content for action in injection.actions if isinstance(action, WriteFile)
    }


def devices(injection: Plan) -> list[str]:
    return [target for target, action in binds(injection).items() if action.kind == "device"]


# ---- what goes where


def test_the_order_of_mounts_is_the_references() -> None:
    """tmpfs, profile, binaries, libraries, 32-bit libraries, firmware, sockets, MPS, control
    devices and GPUs come in this order.
    """
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


def test_gpus_come_in_the_requested_order() -> None:
    """GPUs are mounted in the order of the request: "1,0" mounts nvidia1 first."""
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
    """A capability brings the binaries and libraries of its classes and no others; firmware is
    always mounted.
    """
    mounts = binds(plan(full_host(), capabilities=capabilities, devices=""))
    files = {
        target.rpartition("/")[2] for target, action in mounts.items() if action.kind == "file"
    }
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
    """uvm nodes come with compute (also through video), modeset with display; each is mounted and
    allowed.
    """
    injection = plan(full_host(), capabilities=capabilities, devices="")
    assert devices(injection) == expected
    assert len(allowed(injection)) == len(expected)


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
    """Sockets of services come with utility, the MPS directory with compute."""
    mounts = binds(plan(full_host(), capabilities=capabilities))
    assert ("/run/nvidia-persistenced/socket" in mounts) == persistenced
    assert ("/tmp/nvidia-mps" in mounts) == mps


def test_options_are_those_of_the_reference() -> None:
    """Files, devices, sockets, IPC directories and /proc directories have the reference's mount
    options.
    """
    mounts = binds(plan(full_host()))
    assert mounts[f"{LIBS}/libcuda.so.535.1"].options == ("nodev", "nosuid", "ro")
    assert mounts["/dev/nvidia0"].options == ("noexec", "nosuid", "ro")
    assert mounts["/run/nvidia-persistenced/socket"].options == ("nodev", "noexec", "nosuid", "rw")
    assert mounts["/tmp/nvidia-mps"].options == ("nodev", "noexec", "nosuid", "rw")
    assert mounts["/proc/driver/nvidia/gpus/0000:01:00.0"].options == (
        "nodev",
        "noexec",
        "nosuid",
        "ro",
    )
    for action in mounts.values():
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
    """Sources of files and sockets have the driver root in front; devices and /proc entries do not,
    but all lie in it.
    """
    capabilities = "/dev/nvidia-caps/\n/proc/driver/nvidia/capabilities/"
    mounts = binds(plan(mig_host(capabilities, root=root), mig_config="all"))[target]
    in_root = root.rstrip("/") + target
    assert mounts.origin == origin
    assert mounts.source == (in_root if origin == "driver" else target)
    assert mounts.host_path == in_root


def test_a_bind_has_kind_mode_and_number_of_its_source() -> None:
    """A bind has its source's kind, mode, device number and size."""
    mounts = binds(plan(full_host()))
    assert (mounts["/usr/bin/nvidia-smi"].kind, mounts["/usr/bin/nvidia-smi"].mode) == (
        "file",
        0o755,
    )
    assert (
        mounts["/dev/nvidia1"].kind,
        mounts["/dev/nvidia1"].mode,
        mounts["/dev/nvidia1"].rdev,
    ) == (
        "device",
        0o644,
        (195, 1),
    )
    assert mounts["/run/nvidia-persistenced/socket"].kind == "socket"
    assert mounts["/tmp/nvidia-mps"].kind == "dir"
    assert mounts[f"{LIBS}/libcuda.so.535.1"].size == 1000


@pytest.mark.parametrize(
    ("capabilities", "reason"),
    [
        ("compute", "compute"),
        ("video", "video"),
        ("compute,video", "compute"),
        ("graphics,video", "video"),
    ],
)
def test_the_reason_names_a_requested_capability(capabilities: str, reason: str) -> None:
    """The reason of a library has the requested capability (the class's own, if requested), the row
    and how the file was found.
    """
    why = binds(plan(full_host(), capabilities=capabilities))[f"{LIBS}/libcuda.so.535.1"].why
    assert (why.capability, why.row, why.found) == (
        reason,
        "libcuda.so",
        "loader cache: libcuda.so.1 => /usr/lib/libcuda.so.535.1",
    )


def test_a_resolved_name_outside_the_catalogue_is_left_out() -> None:
    """A library is mounted under its resolved name, and left out if that name is in no class."""
    document = hosts.host(
        "/usr/lib/libcuda.so.1 -> /opt/driver-535.1\n/opt/driver-535.1 elf libcuda.so.1\n"
        + hosts.FULL,
        cache="libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1",
    )
    assert [
        action for action in binds(plan(document)).values() if action.source.startswith("/opt/")
    ] == []


def test_32_bit_libraries_need_compat32() -> None:
    """32-bit libraries need compat32 and the capability of their class."""
    place = "/usr/lib/i386-linux-gnu/libcuda.so.535.1"
    assert place in binds(plan(full_host(), capabilities="compat32,compute"))
    assert place not in binds(plan(full_host(), capabilities="compute"))
    assert place not in binds(plan(full_host(), capabilities="compat32,utility"))


def test_links_beside_the_libraries() -> None:
    """libcuda.so, libGLX_indirect.so.0 and libnvidia-opticalflow.so are planned as links in both
    directories; SONAME links are separate.
    """
    injection = plan(full_host(), capabilities=ALL)
    assert [
        (action.path, action.target) for action in injection.actions if isinstance(action, Symlink)
    ] == [
        (f"{LIBS}/libcuda.so", "libcuda.so.1"),
        (f"{LIBS}/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
        (f"{LIBS}/libGLX_indirect.so.0", "libGLX_nvidia.so.535.1"),
        ("/usr/lib/i386-linux-gnu/libcuda.so", "libcuda.so.1"),
    ]
    assert (f"{LIBS}/libcuda.so.1", "libcuda.so.535.1") in injection.links
    assert list(injection.links) == sorted(injection.links)


def test_the_loader_cache_comes_last() -> None:
    """The loader cache step is last and has both library directories, resolved, each once."""
    last = plan(full_host()).actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == (LIBS, "/usr/lib/i386-linux-gnu")
    last = plan(full_host(), "/usr/lib64 -> lib\n/usr/lib/\n/usr/lib32 -> lib").actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == ("/usr/lib",)


def test_the_loader_cache_gets_each_mounted_library() -> None:
    """The loader cache step has the path of each mounted library, its SONAME or else its name, and
    its flags.
    """
    last = plan(
        full_host("/usr/lib/libnvidia-tls.so.535.1 elf - tag=2.3.99"),
        capabilities="compute,graphics,compat32",
    ).actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    rows = {library.path: (library.soname, library.flags) for library in last.libraries}
    assert rows[f"{LIBS}/libcuda.so.535.1"] == ("libcuda.so.1", 0x0303)
    assert rows["/usr/lib/i386-linux-gnu/libcuda.so.535.1"] == ("libcuda.so.1", 0x0003)
    assert rows[f"{LIBS}/libnvidia-glcore.so.535.1"] == ("libnvidia-glcore.so.535.1", 0x0303)
    assert f"{LIBS}/libnvcuvid.so.535.1" not in rows, "not requested, so not mounted"


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
def test_an_image_with_musl_alone_gets_a_warning(rootfs: str, warned: bool) -> None:
    """An image whose only loader is musl's, which reads no cache, gets a warning that no program
    will find the driver.
    """
    assert ("musl" in finding_ids(plan(full_host(), rootfs).findings)) == warned
    assert "musl" not in finding_ids(plan(full_host(), rootfs, capabilities="").findings), (
        "no library is mounted"
    )


def test_an_unusable_32_bit_directory_is_left_out_of_the_cache() -> None:
    """If nothing is mounted in a 32-bit directory that leads out of the rootfs, it is left out of
    the loader cache step.
    """
    last = plan(full_host(), "/etc/debian_version\n/usr/lib/i386-linux-gnu -> /../..").actions[-1]
    assert isinstance(last, UpdateLoaderCache)
    assert last.directories == (LIBS,)


# ---- /proc/driver/nvidia and the profile


def test_the_first_modify_device_files_becomes_0() -> None:
    """params, version and registry are copied; only the first ModifyDeviceFiles changes."""
    assert written(plan(full_host(), devices="")) == {
        "/proc/driver/nvidia/params": "ModifyDeviceFiles: 0\nOther: ModifyDeviceFiles: 1\n",
        "/proc/driver/nvidia/version": "NVRM version: 535.1\n",
        "/proc/driver/nvidia/registry": 'Binary: ""\n',
    }


def test_without_a_kernel_module_the_mount_is_refused() -> None:
    """Without /proc/driver/nvidia the reference's error is given; a simulated host mounts a tmpfs
    of its own there.
    """
    target = hosts.target(module=False)
    refusal = refused(full_host(), target)
    assert (
        refusal.reference_line()
        == f"nvgraft: mount error: mount operation failed: {ROOTFS}/proc/driver/nvidia: no"
        " such file or directory"
    )
    simulated = plan(full_host(), simulated=True)
    assert mount_targets(simulated)[:2] == ["/proc/driver", "/proc/driver/nvidia"]
    assert [
        action.path for action in simulated.actions[:3] if isinstance(action, MakeDirectory)
    ] == ["/proc/driver/nvidia"]
    assert mount_targets(simulated)[1:] == mount_targets(plan(full_host()))


@pytest.mark.parametrize(
    ("minors", "requested", "mask"),
    [
        ((0, 1), "all", "0x3"),
        ((0, 1), "1", "0x2"),
        ((5, 63), "all", "0x8000000000000020"),
        ((2, 0), "0", "0x4"),
    ],
)
def test_the_profile_masks_the_chosen_gpus(
    minors: tuple[int, int], requested: str, mask: str
) -> None:
    """The profile has the reference's text, with one bit for the minor number of each chosen
    GPU.
    """
    extra = "".join(
        f"/dev/nvidia{minor} char"
        f" 195:{minor}\n/proc/driver/nvidia/gpus/0000:{minor + 1:02x}:00.0/\n"
        for minor in minors
    )
    document = full_host(extra, gpus=[gpu(minor) for minor in minors])
    assert written(plan(document, capabilities="graphics", devices=requested))[
        f"{PROFILES}/10-container.conf"
    ] == (
        '{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices",'
        f" {mask}]}}], "
        '"rules": [{"pattern": [], "profile": "_container_"}]}'
    )


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [("graphics", True), ("display", True), ("compute,utility,video,ngx", False)],
)
def test_the_profile_is_for_graphics_and_display(capabilities: str, has: bool) -> None:
    """The profile directory is mounted for graphics and display, and stays empty without a GPU."""
    injection = plan(full_host(), capabilities=capabilities, devices="")
    assert (PROFILES in mount_targets(injection)) == has
    assert not any(path.startswith(PROFILES) for path in written(injection))


def test_the_profile_follows_the_images_links() -> None:
    """The profile is written to the directory that the image's link /etc/nvidia leads to."""
    injection = plan(full_host(), "/etc/nvidia -> /c/evil", "graphics")
    assert "/c/evil/nvidia-application-profiles-rc.d/10-container.conf" in written(injection)
    assert [action.target for action in injection.actions if isinstance(action, Tmpfs)][
        1
    ] == "/c/evil/nvidia-application-profiles-rc.d"


@pytest.mark.parametrize("leads", ["/proc", "/proc/1", "/proc/driver/nvidia", "/"])
def test_a_profile_directory_must_not_lead_into_proc(leads: str) -> None:
    """A link of the image that leads the profile's tmpfs over /proc or the whole rootfs is
    refused.
    """
    assert (
        refused(full_host(), f"{PROFILES} -> {leads}", "graphics").text
        == f"path error: {PROFILES} resolves to {leads}"
    )


# ---- devices


def test_none_brings_files_and_control_devices() -> None:
    """Without devices a container gets the driver's files and the control devices."""
    injection = plan(full_host(), devices="")
    assert devices(injection) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert injection.reason == "the container asks for driver files without devices"


def test_no_cgroups_leaves_the_rules_out() -> None:
    """no-cgroups removes the device rules; the mounts stay."""
    with_rules, without_rules = plan(full_host()), plan(full_host(), cgroups=False)
    assert allowed(with_rules) == ["195:255", "510:0", "510:1", "195:0", "195:1"]
    assert allowed(without_rules) == []
    assert mount_targets(with_rules) == mount_targets(without_rules)


def test_no_devbind_leaves_the_mounts_of_nodes_out() -> None:
    """Without devbind no node is mounted, a missing node is no fault, and the device rules stay."""
    request = Request(("all",), ("compute", "utility"))
    host = hosts.inventory(without(full_host(), "/dev/nvidia1"))
    settings = Settings(cgroups=True, simulated=False, devbind=False)
    injection = make_plan(request, host, hosts.target(), settings)
    assert devices(injection) == []
    assert allowed(injection) == allowed(plan(full_host()))
    assert mount_targets(injection) == [
        target for target in mount_targets(plan(full_host())) if not target.startswith("/dev/")
    ]


@pytest.mark.parametrize("compat", [("ldconfig", "/usr/local/cuda/compat"), ("disabled", LIBS)])
def test_cuda_libraries_of_the_image_are_never_mounted(compat: tuple[str, str]) -> None:
    """CUDA compatibility libraries of the image come first in the loader cache for compute, if at
    all; nothing else changes (SECURITY R15).
    """
    mode, first = compat
    rootfs = hosts.DEBIAN + "\n/usr/local/cuda/compat/libcuda.so.999.1 elf libcuda.so.1"
    for capabilities, expected in (("compute", first), ("utility", LIBS)):
        request = Request(("all",), (capabilities,))
        settings = Settings(cgroups=True, simulated=False, cuda_compat=mode)
        injection = make_plan(request, hosts.inventory(full_host()), hosts.target(rootfs), settings)
        last = injection.actions[-1]
        assert isinstance(last, UpdateLoaderCache)
        assert last.directories[0] == expected
        assert injection.actions[:-1] == plan(full_host(), rootfs, capabilities).actions[:-1]


def test_settings_follow_config_toml() -> None:
    """Settings come from config.toml; an empty cuda-compat-mode is "mount", as in the reference's
    CLI.
    """
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
    """A missing device node is refused in the reference's words, with its path."""
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
    """A node with another number, or one that is not a device, is refused."""
    refusal = refused(full_host(entry))
    assert refusal.text == f"invalid device node: {entry.split(maxsplit=1)[0]}"
    assert have in refusal.hint


def test_a_gpu_that_is_not_requested_may_be_broken() -> None:
    """Files of GPUs that were not requested may be missing."""
    document = without(full_host(), "/dev/nvidia1", "/proc/driver/nvidia/gpus/0000:02:00.0")
    assert devices(plan(document, devices="0"))[-1] == "/dev/nvidia0"


def test_a_gpu_without_its_proc_directory_is_refused() -> None:
    """A GPU without its /proc directory is refused with the four-digit spelling, which the
    reference tries last.
    """
    refusal = refused(without(full_host(), "/proc/driver/nvidia/gpus/0000:02:00.0"))
    assert (
        refusal.text
        == "stat failed: /proc/driver/nvidia/gpus/0000:02:00.0: no such file or directory"
    )


def test_a_wrong_modeset_node_matters_only_for_display() -> None:
    """A wrong modeset node is refused only if the container requests display."""
    document = full_host("/dev/nvidia-modeset char 1:3")
    assert (
        refused(document, capabilities="display").text == "invalid device node: /dev/nvidia-modeset"
    )
    plan(document, capabilities="graphics")


# ---- MIG, IMEX


def test_a_mig_device_brings_its_access_files_and_nodes() -> None:
    """A MIG device brings access file and node of its GPU instance and of its compute instance,
    after the parent GPU.
    """
    injection = plan(mig_host(), devices="0:0")
    base = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    assert mount_targets(injection)[-6:] == [
        "/dev/nvidia0",
        "/proc/driver/nvidia/gpus/0000:01:00.0",
        f"{base}/access",
        "/dev/nvidia-caps/nvidia-cap12",
        f"{base}/ci0/access",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    assert allowed(injection)[-3:] == ["195:0", "236:12", "236:13"]
    assert binds(injection)[f"{base}/access"].options == ("nodev", "noexec", "nosuid", "ro")
    made = [action.path for action in injection.actions if isinstance(action, MakeDirectory)]
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
    """Without capability nodes a MIG device brings only its access files."""
    injection = plan(mig_host(majors={}), devices="MIG-aaaa")
    assert [target for target in mount_targets(injection) if "caps" in target] == []
    assert mount_targets(injection)[-1].endswith("/gi1/ci0/access")


@pytest.mark.parametrize(
    "path",
    ["/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "/dev/nvidia-caps/nvidia-cap13"],
)
def test_a_mig_device_that_the_kernel_lacks_is_refused(path: str) -> None:
    """A MIG device without its access file or node is refused."""
    assert (
        refused(without(mig_host(), path), devices="0:0").text
        == f"stat failed: {path}: no such file or directory"
    )


def test_an_access_file_without_a_minor_is_refused() -> None:
    """An access file without a minor is refused, because its node is unknown."""
    path = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
    assert (
        refused(mig_host(f"{path} = x"), devices="0:0").text
        == f"stat failed: {path}: no DeviceFileMinor in it"
    )


def test_all_brings_every_mig_device() -> None:
    """ "all" selects every GPU and every MIG device."""
    assert "/dev/nvidia-caps/nvidia-cap13" in mount_targets(plan(mig_host(), devices="all"))
    assert "/dev/nvidia-caps/nvidia-cap13" not in mount_targets(plan(mig_host(), devices="0"))


@pytest.mark.parametrize(("name", "minor"), [("config", "236:1"), ("monitor", "236:2")])
def test_mig_administration_brings_the_capabilities(name: str, minor: str) -> None:
    """mig-config and mig-monitor bring the capabilities directory, the directory of nodes, and
    rules for their own node and those of visible GPUs.
    """
    request: dict[str, Any] = {f"mig_{name}": "all"}
    injection = plan(mig_host(), devices="all", **request)
    assert mount_targets(injection)[-2:] == ["/proc/driver/nvidia/capabilities", "/dev/nvidia-caps"]
    assert allowed(injection)[-3:] == [minor, "236:12", "236:13"]
    assert "236:147" not in allowed(injection)
    assert "236:200" not in allowed(injection)
    assert binds(injection)["/dev/nvidia-caps"].options == ("noexec", "nosuid", "rw")
    assert binds(injection)["/proc/driver/nvidia/capabilities"].options == (
        "nodev",
        "noexec",
        "nosuid",
        "ro",
    )
    assert devices(injection)[-1] == "/dev/nvidia0"


def test_mig_administration_covers_visible_gpus_only() -> None:
    """MIG administration covers the visible GPUs, by their whole minor number: GPU 1 does not
    include GPU 10.
    """
    document = mig_host(gpus=[gpu(0), gpu(1, migs=["MIG-b 1/0"])])
    assert allowed(plan(document, devices="1", mig_config="all"))[-2:] == ["236:1", "236:147"]


def test_config_and_monitor_are_both_mounted() -> None:
    """With both variables mig-monitor's mounts come over those of mig-config, as recorded."""
    injection = plan(mig_host(), mig_config="all", mig_monitor="ALL")
    assert (
        mount_targets(injection)[-4:]
        == ["/proc/driver/nvidia/capabilities", "/dev/nvidia-caps"] * 2
    )
    assert allowed(injection)[-4:] == ["236:1", "236:12", "236:13", "236:2"]


def test_administration_without_nodes_or_without_mig() -> None:
    """MIG administration without capability nodes mounts the /proc directory alone; on a GPU
    without MIG it mounts nothing.
    """
    assert (
        mount_targets(plan(mig_host(majors={}), mig_config="all"))[-1]
        == "/proc/driver/nvidia/capabilities"
    )
    assert not any(
        "capabilities" in target
        for target in mount_targets(plan(mig_host(gpus=[gpu(0)]), mig_config="all"))
    )


def test_mig_administration_needs_the_kernel_modules_directories() -> None:
    """MIG administration is refused if the capabilities directory or the directory of nodes is
    missing.
    """
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


def test_mig_administration_excludes_single_mig_devices() -> None:
    """MIG administration together with single MIG devices is refused."""
    assert refused(mig_host(), devices="0:0", mig_config="all").stage == "mig-config"
    assert refused(mig_host(), devices="0:0", mig_monitor="all").stage == "mig-monitor"


IMEX = "/dev/nvidia-caps-imex-channels/channel3"


def test_imex_channels_are_mounted_and_allowed() -> None:
    """IMEX channels are mounted and allowed after all GPUs."""
    injection = plan(
        full_host(f"{IMEX} char 234:3", majors={"nvidia-caps-imex-channels": 234}),
        imex_channels=ImexChannels(("3",)),
    )
    assert mount_targets(injection)[-1] == IMEX
    assert allowed(injection)[-1] == "234:3"


def test_a_missing_imex_channel_is_refused() -> None:
    """A missing IMEX channel is refused with its path."""
    refusal = refused(
        full_host(majors={"nvidia-caps-imex-channels": 234}), imex_channels=ImexChannels(("3",))
    )
    assert refusal.text == f"stat failed: {IMEX}: no such file or directory"


# ---- refusals and their order


def test_requirements_come_before_the_container() -> None:
    """An unknown device is named before an unmet requirement, and that before a fault of the
    image.
    """
    broken = "/usr/bin -> ../../.."
    assert refused(full_host(), broken, requirements=("cuda>=99",)).stage == "requirement"
    assert refused(full_host(), broken, devices="9", requirements=("cuda>=99",)).stage == "device"
    assert refused(full_host(), broken).stage == "mount"


def test_requirements_see_the_chosen_devices() -> None:
    """brand and arch of requirements are compared with the chosen GPUs."""
    plan(full_host(), requirements=("brand=tesla,arch>=8.0,driver>=535,cuda>=12.2",))
    assert refused(full_host(), requirements=("brand=geforce",)).stage == "requirement"
    plan(full_host(), devices="", requirements=("brand=geforce",))


def test_a_request_is_checked_before_the_host() -> None:
    """IMEX channels and the number of requirements are checked without a host."""
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
            (
                "path error: /run/nvidia-persistenced/socket resolves to"
                " /proc/sys/kernel/nvidia-persistenced/socket"
            ),
        ),
    ],
)
def test_an_image_that_blocks_a_target_is_refused(rootfs: str, text: str) -> None:
    """A file, link or directory of the image in a target's place is refused in the reference's
    words.
    """
    assert refused(full_host(), rootfs).reference_line() == f"nvgraft: mount error: {text}"


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (
            "/lib/firmware",
            (
                "mount operation failed: /usr/bin/nvidia-smi/nvidia/535.1/gsp_tu10x.bin: hidden"
                " by the mount on /usr/bin/nvidia-smi"
            ),
        ),
        ("/tmp", f"file creation failed: {ROOTFS}/usr/bin/nvidia-smi: not a directory"),
    ],
)
def test_a_target_inside_an_earlier_mount_is_refused(link: str, text: str) -> None:
    """A link of the image that leads a target into an earlier mount is refused."""
    assert refused(full_host(), f"{link} -> /usr/bin/nvidia-smi").text == text


@pytest.mark.parametrize("place", ["/etc", "/usr/lib/x86_64-linux-gnu"])
def test_the_loader_cache_is_not_written_into_a_mount(place: str) -> None:
    """A link of the image that leads the host's MPS directory to where the loader cache is written
    is refused.
    """
    document = hosts.host("/tmp/nvidia-mps/\n/dev/nvidiactl char 195:255")
    text = f"mount operation failed: {place}: hidden by the mount on {place}"
    assert (
        refused(document, f"{hosts.DEBIAN}\n{place}/\n/tmp/nvidia-mps -> {place}", "compute").text
        == text
    )


def test_existing_files_are_mounted_over() -> None:
    """Existing files, such as placeholders of an earlier start, are mounted over, and nothing is
    created for them.
    """
    rootfs = f"""
        {hosts.DEBIAN}
        /usr/bin/nvidia-smi
        /usr/bin/nvidia-cuda-mps-control
        {LIBS}/libnvidia-ml.so.535.1
        {LIBS}/libcuda.so.535.1 mode=0600
    """
    injection = plan(full_host(), rootfs)
    assert not [
        action
        for action in injection.actions
        if isinstance(action, MakeDirectory) and action.path.startswith("/usr")
    ]
    assert mount_targets(injection) == mount_targets(plan(full_host()))


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
    """Firmware, sockets and MPS that need a new file on a volume are skipped with a finding;
    everything else stays.
    """
    place = hosts.target(f"{hosts.DEBIAN}\n{volume}/", volumes=(volume,))
    injection, whole = plan(full_host(), place), plan(full_host())
    assert mount_targets(injection) == [path for path in mount_targets(whole) if path != target]
    assert not any(
        path.startswith(volume)
        for action in injection.actions
        for path in [action_document(action).get("path", "")]
    )
    (finding,) = [finding for finding in injection.findings if finding.id == id]
    assert finding.level == "warning"
    assert finding.message.endswith(
        f"file creation failed: {ROOTFS}{message}: it would be made on the volume {volume}"
    )


@pytest.mark.parametrize("volume", ["/lib/firmware/nvidia", "/run/nvidia-persistenced", "/tmp"])
def test_nothing_is_created_for_a_part_that_is_left_out(volume: str) -> None:
    """For a part that is left out neither a directory on the volume nor its parents are created."""
    injection = plan(full_host(), hosts.target(volumes=(volume,)))
    assert [name for name in finding_ids(injection.findings) if name.endswith("-skipped")] != []
    made = {action.path for action in injection.actions if isinstance(action, MakeDirectory)}
    needed = {
        str(place)
        for target in mount_targets(injection)
        for place in (target, *PurePosixPath(target).parents)
    }
    assert made <= needed


def test_every_optional_part_is_tried() -> None:
    """A skipped part does not affect the others."""
    place = hosts.target(
        f"{hosts.DEBIAN}\n/lib/firmware/nvidia/535.1/gsp_tu10x.bin",
        volumes=("/lib/firmware", "/run"),
    )
    injection = plan(full_host("/lib/firmware/nvidia/535.1/gsp_ad10x.bin"), place)
    assert "/lib/firmware/nvidia/535.1/gsp_tu10x.bin" in mount_targets(injection)
    assert [name for name in finding_ids(injection.findings) if name.endswith("-skipped")] == [
        "firmware-skipped",
        "socket-skipped",
    ]


@pytest.mark.parametrize("volume", ["/usr/bin", LIBS, "/usr"])
def test_required_parts_on_a_volume_are_refused(volume: str) -> None:
    """A required file that would have to be created on a volume is refused, and the volume is
    named.
    """
    refusal = refused(
        full_host(), hosts.target(f"{hosts.DEBIAN}\n/usr/bin/\n{LIBS}/", volumes=(volume,))
    )
    assert refusal.text.endswith(f": it would be made on the volume {volume}")


# ---- findings


def test_a_library_that_is_not_elf_is_mounted_with_a_warning() -> None:
    """A library that no loader accepts is mounted, as by the reference, with a warning; it gets no
    loader cache row and no link.
    """
    document = full_host()
    path = next(
        path
        for path in document["files"]
        if "libcuda.so." in path and "elf" in document["files"][path]
    )
    del document["files"][path]["elf"]
    document["files"][path]["elf_fault"] = "it is cut short"
    injection = plan(document)
    target = next(target for target, action in binds(injection).items() if action.source == path)
    (update,) = [action for action in injection.actions if isinstance(action, UpdateLoaderCache)]
    assert target not in [library.path for library in update.libraries]
    (finding,) = [finding for finding in injection.findings if finding.id == "library-damaged"]
    assert (finding.level, finding.message) == (
        "warning",
        f"{path} is not a library that a loader accepts",
    )


def test_a_complete_host_has_one_finding() -> None:
    """A host with all required files has one finding, of level info, with the parts that its driver
    lacks.
    """
    assert finding_ids(plan(full_host()).findings) == ["not-on-host"]
    assert plan(full_host()).findings[0].level == "info"


def test_findings_are_about_requested_capabilities() -> None:
    """Missing parts of capabilities that were not requested are not mentioned."""
    (finding,) = plan(full_host(), capabilities="utility").findings
    assert (
        finding.message
        == "not on this host: libnvidia-cfg.so, libnvidia-nscq.so, nvidia-debugdump,"
        " nvidia-persistenced, nv-fabricmanager"
    )
    assert plan(full_host(), capabilities="ngx").findings == ()


def test_a_host_without_gpus_gives_a_warning() -> None:
    """A host without GPUs is a warning and not a refusal, whatever devices were requested."""
    injection = plan(full_host(gpus=[]), devices="0,nonsense")
    assert "no-gpu" in finding_ids(injection.findings)
    assert devices(injection)[-1] == "/dev/nvidia-uvm-tools"


def test_libraries_of_another_driver_version_give_a_warning() -> None:
    """If all libraries have another version than the driver, the container starts, as with the
    reference, with a finding.
    """
    injection = plan(full_host(version="550.1"))
    assert finding_ids(injection.findings) == ["no-libraries"]
    assert "550.1" in injection.findings[0].message


def test_libraries_that_the_image_hides_give_a_finding() -> None:
    """The plan has the findings of the SONAME link prediction."""
    assert "library-shadowed" in finding_ids(
        plan(full_host(), f"{hosts.DEBIAN}\n{LIBS}/libcuda.so.1").findings
    )


# ---- the whole


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
