"""The planner: what a container gets for its request, in the reference's order."""

import pytest

import hosts
from hosts import ROOTFS, binds, finding_ids, full_host, gpu, mig_host, mount_targets, plan
from injections import ALL, LIBS, PROFILES, allowed, devices, refused, written
from nvgraft.plan.actions import MakeDirectory, Symlink, Tmpfs, UpdateLoaderCache

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
