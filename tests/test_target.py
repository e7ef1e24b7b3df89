"""Where files go in a container, and how a plan sees an engine's own mounts."""

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import VirtualTree
from nvgraft.container.target import Target
from nvgraft.formats.tree import Node
from nvgraft.host.snapshot import SnapshotTree


def directories(rootfs: str, machine: str = "x86_64") -> tuple[str, str]:
    target = hosts.target(rootfs, machine=machine)
    return target.libs_dir, target.libs32_dir


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("x86_64", ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu")),
        ("aarch64", ("/usr/lib/aarch64-linux-gnu", "/var/empty")),
        ("ppc64le", ("/usr/lib/powerpc64le-linux-gnu", "/var/empty")),
    ],
)
def test_debian_keeps_libraries_in_multiarch_directories(
    machine: str, expected: tuple[str, str]
) -> None:
    """An image with /etc/debian_version, whatever is in it, has multiarch directories."""
    assert directories("/etc/debian_version = ", machine) == expected
    assert directories("/etc -> /e\n/e/debian_version", machine) == expected


@pytest.mark.parametrize(
    ("rootfs", "libs32"),
    [
        ("", "/usr/lib32"),  # an empty rootfs
        ("/usr/lib64/", "/usr/lib32"),  # without /usr/lib
        ("/usr/lib/\n/usr/lib64/", "/usr/lib"),  # Fedora and similar
        ("/usr/lib/\n/usr/lib64/\n/usr/lib32/", "/usr/lib32"),
        ("/usr/lib/\n/usr/lib64 -> lib", "/usr/lib32"),  # Arch: one directory for both
        ("/usr/lib -> lib64\n/usr/lib64/", "/usr/lib32"),
        (
            "/etc/debian_version -> /gone\n/usr/lib/\n/usr/lib64/",
            "/usr/lib",
        ),  # a dangling link does not count
    ],
)
def test_other_images_keep_64_bit_libraries_in_usr_lib64(rootfs: str, libs32: str) -> None:
    """64-bit libraries go to /usr/lib64; 32-bit ones to /usr/lib if it is another directory and
    /usr/lib32 is missing, else to /usr/lib32.
    """
    assert directories(rootfs) == ("/usr/lib64", libs32)


@pytest.mark.parametrize("rootfs", ["/etc -> ../..", "/etc -> etc", "/usr/lib -> /../.."])
def test_an_image_with_links_out_of_the_rootfs_is_refused(rootfs: str) -> None:
    """Links out of the rootfs or in a circle that the probed directories have are refused as the
    container's fault.
    """
    with pytest.raises(Refusal) as caught:
        hosts.target(rootfs)
    assert caught.value.stage == "container"


def test_an_offline_target_has_the_runtimes_rootfs_and_belongs_to_root() -> None:
    """An offline target has the rootfs as the runtime names it, and belongs to root."""
    target = hosts.target(label="/run/bundles/web/rootfs")
    assert (target.rootfs, target.uid, target.gid, target.machine) == (
        "/run/bundles/web/rootfs",
        0,
        0,
        "x86_64",
    )


def test_proc_sys_and_dev_are_the_engines() -> None:
    """Files of the image in /proc, /sys and /dev are not visible, because the engine mounts over
    them.
    """
    text = "/dev/nvidia0 -> /dev/sda\n/proc -> /etc\n/sys/class = x\n/etc/x = y\n/devices/x"
    tree = VirtualTree(SnapshotTree(hosts.tree(text)), "/r")
    assert tree.lstat("/dev/nvidia0") is None
    assert tree.lstat("/sys/class") is None
    assert (
        tree.lstat("/proc")
        == tree.lstat("/proc/driver/nvidia")
        == tree.lstat("/dev/shm")
        == Node("dir", 0o755)
    )
    assert (tree.listdir("/dev"), tree.listdir("/devices"), tree.read("/etc/x", 9)) == (
        [],
        ["x"],
        b"y",
    )
    assert tree.resolve("/proc/driver/nvidia") == "/proc/driver/nvidia"


def test_the_proc_directory_comes_with_the_kernel_module() -> None:
    """/proc/driver/nvidia exists with the kernel module; a simulated host has none."""
    assert hosts.target(module=True).proc_driver() == Node("dir", 0o555)
    assert hosts.target(module=False).proc_driver() is None


@pytest.mark.parametrize(
    ("path", "volume"),
    [
        ("/usr/lib/x", None),
        ("/data", "/data"),
        ("/data/x/y", "/data"),
        ("/database/x", None),
        ("/data/inner/x", "/data/inner"),
        ("/run/x/y", "/run/x"),
        ("/dev/nvidia0", None),
        ("/dev/shm/x", "/dev/shm"),
        ("/proc/sys/x", "/proc"),
        ("/sys/x", "/sys"),
        ("/process/x", "/process"),
        ("/system/x", None),
    ],
)
def test_the_volume_of_a_path_is_the_innermost_one(path: str, volume: str | None) -> None:
    """The volume of a path is the innermost one, by whole names and through the image's links.
    procfs and sysfs are volumes, the engine's /dev is not.
    """
    target = hosts.target(
        "/var/run -> /run",
        volumes=(
            "/data",
            "/data/inner",
            "/var/run/x",
            "/dev",
            "/dev/shm",
            "/proc",
            "/sys",
            "/process",
        ),
    )
    assert target.volume(path) == volume


def test_a_container_without_volumes_has_the_kernels() -> None:
    """/proc and /sys are volumes even if config.json does not name them."""
    assert hosts.target().volume("/proc/sys") == "/proc"
    assert hosts.target().volume("/usr") is None


def test_a_volume_behind_a_loop_keeps_its_name() -> None:
    """A volume behind a loop of links keeps its name: the engine will refuse it, not the plan."""
    assert hosts.target("/l -> l", volumes=("/l/v",)).volume("/l/v/x") == "/l/v"


def test_the_base_class_leaves_volumes_and_proc_open() -> None:
    """The base class leaves volumes and /proc to its subclasses."""
    target = Target(SnapshotTree({}), "x86_64")
    with pytest.raises(NotImplementedError):
        target.volume("/")
    with pytest.raises(NotImplementedError):
        target.proc_driver()
