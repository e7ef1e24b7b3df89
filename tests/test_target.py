"""Where things go in a container, and what an engine's own mounts look like to a plan."""

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.container.target import Target, VirtualTree
from nvgraft.formats.tree import Node
from nvgraft.host.snapshot import SnapshotTree


def directories(rootfs: str, machine: str = "x86_64") -> tuple[str, str]:
    found = hosts.target(rootfs, machine=machine)
    return found.libs_dir, found.libs32_dir


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
    """/etc/debian_version, whatever is in it, makes an image Debian-like."""
    assert directories("/etc/debian_version = ", machine) == expected
    assert directories("/etc -> /e\n/e/debian_version", machine) == expected


@pytest.mark.parametrize(
    ("rootfs", "libs32"),
    [
        ("", "/usr/lib32"),  # nothing at all
        ("/usr/lib64/", "/usr/lib32"),  # no /usr/lib either
        ("/usr/lib/\n/usr/lib64/", "/usr/lib"),  # Fedora's kin
        ("/usr/lib/\n/usr/lib64/\n/usr/lib32/", "/usr/lib32"),
        ("/usr/lib/\n/usr/lib64 -> lib", "/usr/lib32"),  # Arch: one directory for both
        ("/usr/lib -> lib64\n/usr/lib64/", "/usr/lib32"),
        (
            "/etc/debian_version -> /gone\n/usr/lib/\n/usr/lib64/",
            "/usr/lib",
        ),  # a link to nothing is no Debian
    ],
)
def test_others_keep_64_bit_libraries_in_usr_lib64(rootfs: str, libs32: str) -> None:
    """32-bit ones go to /usr/lib32, or to /usr/lib where that is another place than /usr/lib64."""
    assert directories(rootfs) == ("/usr/lib64", libs32)


@pytest.mark.parametrize("rootfs", ["/etc -> ../..", "/etc -> etc", "/usr/lib -> /../.."])
def test_an_image_that_leads_astray_is_refused(rootfs: str) -> None:
    """Links out of the rootfs or in a circle, met while the layout is probed, are the container's fault."""
    with pytest.raises(Refusal) as caught:
        hosts.target(rootfs)
    assert caught.value.stage == "container"


def test_the_label_is_the_rootfs() -> None:
    """Messages name the rootfs as the runtime does; offline everything belongs to root."""
    found = hosts.target(label="/run/bundles/web/rootfs")
    assert (found.rootfs, found.uid, found.gid, found.machine) == (
        "/run/bundles/web/rootfs",
        0,
        0,
        "x86_64",
    )


def test_proc_sys_and_dev_are_the_engines() -> None:
    """What an image has there is never seen: the engine mounts over it."""
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


def test_the_kernel_module_makes_the_proc_directory() -> None:
    """A simulated host has none."""
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
def test_what_lies_on_a_volume(path: str, volume: str | None) -> None:
    """The innermost volume counts, whole names only, through the image's links; the engine's own /dev is none, procfs and sysfs are."""
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
    """Whether config.json names them or not."""
    assert hosts.target().volume("/proc/sys") == "/proc"
    assert hosts.target().volume("/usr") is None


def test_a_volume_behind_a_loop_keeps_its_name() -> None:
    """The engine will refuse it; the plan does not fail over it."""
    assert hosts.target("/l -> l", volumes=("/l/v",)).volume("/l/v/x") == "/l/v"


def test_the_base_class_decides_nothing() -> None:
    """Volumes and /proc depend on where the rootfs is."""
    target = Target(SnapshotTree({}), "x86_64")
    with pytest.raises(NotImplementedError):
        target.volume("/")
    with pytest.raises(NotImplementedError):
        target.proc_driver()
