"""The planner and devices: nodes, MIG devices and IMEX channels, and which fault of one is refused."""

from typing import Any

import pytest

import hosts
from hosts import binds, full_host, gpu, mig_host, mount_targets, plan
from injections import LIBS, allowed, devices, refused, without
from nvgraft.plan.actions import MakeDirectory, UpdateLoaderCache
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config
from nvgraft.request.request import ImexChannels, Request

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
