"""Additions: host files and nodes for graphics and gated components, by the ids a container asks
for.
"""

from typing import Any

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.host.graphics_files import FileFinder, matches
from nvgraft.host.snapshot import snapshot_host
from nvgraft.wrapper.additions import Additions, find
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

LIBDIR = "/usr/lib/x86_64-linux-gnu"
GPU0, GPU1 = "GPU-aaaa", "GPU-bbbb"
#: Two GPUs whose DRM nodes are numbered in the opposite order. DISPLAYS adds another vendor's
#: device.
DRM = {
    "0000:05:00.0": ["card2", "renderD129"],
    "0000:06:00.0": ["card1", "controlD64", "renderD128"],
}
CARDS0 = ["/dev/dri/card2", "/dev/dri/renderD129"]
CARDS1 = ["/dev/dri/card1", "/dev/dri/renderD128"]
LINKS0 = [
    "../card2::/dev/dri/by-path/pci-0000:05:00.0-card",
    "../renderD129::/dev/dri/by-path/pci-0000:05:00.0-render",
]
LINKS1 = [
    "../card1::/dev/dri/by-path/pci-0000:06:00.0-card",
    "../renderD128::/dev/dri/by-path/pci-0000:06:00.0-render",
]
DRIVER = f"""
{LIBDIR}/libcuda.so.535.1 elf libcuda.so.1
{LIBDIR}/libcuda.so.1 -> libcuda.so.535.1
"""
DISPLAYS = f"""
/proc/driver/nvidia/gpus/0000:05:00.0/information = Model: X\\nGPU UUID: {GPU0}\\nBus Location: 0000:05:00.0\\nDevice Minor: 0\\n
/proc/driver/nvidia/gpus/0000:06:00.0/information = Model: X\\nGPU UUID: {GPU1}\\nBus Location: 0000:06:00.0\\nDevice Minor: 1\\n
/proc/driver/nvidia/gpus/0000:07:00.0/
/dev/dri/card0 char 226:0
/dev/dri/card1 char 226:1 mode=0660
/dev/dri/card2 char 226:2
/dev/dri/renderD128 char 226:128
/dev/dri/renderD129 char 226:129
/dev/dri/by-path/pci-0000:00:02.0-card -> ../card0
/dev/dri/by-path/pci-0000:05:00.0-card -> ../card2
/dev/dri/by-path/pci-0000:05:00.0-render -> ../renderD129
/dev/dri/by-path/pci-0000:06:00.0-card -> ../card1
/dev/dri/by-path/pci-0000:06:00.0-render -> ../renderD128
"""
SEARCH_PATH = ("/usr/local/bin", "/usr/bin")


def look(
    lines: str,
    *devices: str,
    graphics: bool = True,
    gates: tuple[str, ...] = (),
    drm: dict[str, list[str]] | None = None,
    **changes: Any,
) -> Additions:
    """Return the additions that a recorded host with these files has."""
    host = snapshot_host(hosts.host(lines, **changes))
    finder = FileFinder(host.tree, host.machine, lambda: host.entries)
    return find(
        finder,
        SEARCH_PATH,
        gates,
        devices if graphics else None,
        lambda address: (DRM if drm is None else drm).get(address, ()),
    )


def nodes(additions: Additions) -> list[str]:
    return [node.path for node in additions.nodes]


def mounts(additions: Additions) -> dict[str, str]:
    return {mount.path: mount.target for mount in additions.mounts}


@pytest.mark.parametrize(
    ("devices", "paths", "links"),
    [
        (["0"], CARDS0, LINKS0),
        (["1"], CARDS1, LINKS1),
        ([GPU1], CARDS1, LINKS1),
        (["0000:05:00.0"], CARDS0, LINKS0),
        (["1", "0"], [*CARDS1[:1], *CARDS0[:1], *CARDS1[1:], *CARDS0[1:]], [*LINKS0, *LINKS1]),
        (["0,1"], [*CARDS1[:1], *CARDS0[:1], *CARDS1[1:], *CARDS0[1:]], [*LINKS0, *LINKS1]),
        (["all"], [*CARDS1[:1], *CARDS0[:1], *CARDS1[1:], *CARDS0[1:]], [*LINKS0, *LINKS1]),
        (["2", "gpu-aaaa", "05:00.0", "MIG-1", "0:0"], [], []),
        ([], [], []),
        (["none"], [], []),
    ],
)
def test_the_display_devices_of_a_request(
    devices: list[str], paths: list[str], links: list[str]
) -> None:
    """An id is a minor number, a UUID or an address exactly as the kernel module writes it.

    Cards stand before render nodes.
    """
    additions = look(DRIVER + DISPLAYS, *devices)
    assert nodes(additions) == paths
    assert list(additions.links) == links
    assert [node.rdev for node in additions.nodes] == [
        (226, int(path.removeprefix("/dev/dri/").strip("cardenD"))) for path in paths
    ]


@pytest.mark.parametrize(
    ("lines", "drm"),
    [
        (DRIVER, {}),
        (DRIVER + DISPLAYS, {}),
        (DRIVER + DISPLAYS.partition("/dev/dri")[0], None),
        (DRIVER + "/dev/dri" + DISPLAYS.partition("/dev/dri")[2], None),
    ],
    ids=["no display devices", "no DRM driver", "no nodes", "no kernel module"],
)
def test_hosts_without_display_devices(lines: str, drm: dict[str, list[str]] | None) -> None:
    """A host without display devices adds nothing, and is no reason to fail.

    Containers that ask for graphics start on compute nodes.
    """
    additions = look(lines, "all", drm=drm)
    assert (additions.nodes, additions.links) == ((), ())


def test_a_node_that_is_not_a_device() -> None:
    """A file with the name of a DRM node is not passed on, and neither is a link to it."""
    lines = DISPLAYS.replace("/dev/dri/card2 char 226:2", "/dev/dri/card2")
    additions = look(DRIVER + lines, "0")
    assert nodes(additions) == CARDS0[1:]
    assert list(additions.links) == LINKS0[1:]


XORG = "/usr/lib/xorg/modules"
ICD = "vulkan/icd.d/nvidia_icd"
EGL = "glvnd/egl_vendor.d/10_nvidia.json"


@pytest.mark.parametrize(
    ("lines", "targets", "links"),
    [
        (
            f"{LIBDIR}/libnvidia-egl-gbm.so.1.1.2 elf libnvidia-egl-gbm.so.1",
            {f"{LIBDIR}/libnvidia-egl-gbm.so.1.1.2": ""},
            [],
        ),
        (f"{LIBDIR}/libnvidia-egl-gbm.so.1 -> nowhere", {}, []),
        (
            "/opt/libnvidia-egl-xcb.so.1.0.1 elf libnvidia-egl-xcb.so.1",
            {"/opt/libnvidia-egl-xcb.so.1.0.1": ""},
            [],
        ),
        (
            f"{LIBDIR}/libnvidia-vulkan-producer.so.535.1 elf -",
            {f"{LIBDIR}/libnvidia-vulkan-producer.so.535.1": ""},
            [f"libnvidia-vulkan-producer.so.535.1::{LIBDIR}/libnvidia-vulkan-producer.so"],
        ),
        (
            f"{XORG}/drivers/nvidia_drv.so\n{XORG}/extensions/libglxserver_nvidia.so.535.1",
            {
                f"{XORG}/drivers/nvidia_drv.so": "",
                f"{XORG}/extensions/libglxserver_nvidia.so.535.1": "",
            },
            [f"libglxserver_nvidia.so.535.1::{XORG}/extensions/libglxserver_nvidia.so"],
        ),
        # The wrapper only adds the link; mounting the allocator is up to the hook.
        (
            f"{LIBDIR}/libnvidia-allocator.so.535.1 elf libnvidia-allocator.so.1",
            {},
            [f"../libnvidia-allocator.so.1::{LIBDIR}/gbm/nvidia-drm_gbm.so"],
        ),
        (
            "/usr/bin/nvidia-xconfig mode=0755\n/usr/local/bin/nvidia-xconfig mode=0644",
            {"/usr/bin/nvidia-xconfig": ""},
            [],
        ),
        (
            "/usr/local/share/vulkan/icd.d/nvidia_icd.json",
            {"/usr/local/share/vulkan/icd.d/nvidia_icd.json": "/etc/vulkan/icd.d/nvidia_icd.json"},
            [],
        ),
        (
            "/vulkan/icd.d/nvidia_layers.json",
            {"/vulkan/icd.d/nvidia_layers.json": "/etc/vulkan/icd.d/nvidia_layers.json"},
            [],
        ),
        (
            f"/usr/share/{ICD}.x86_64.json\n/usr/share/{ICD}.aarch64.json",
            {f"/usr/share/{ICD}.x86_64.json": f"/etc/{ICD}.x86_64.json"},
            [],
        ),
        (
            f"/etc/{EGL}\n/usr/share/{EGL}",
            {f"/etc/{EGL}": f"/usr/share/{EGL}"},
            [],
        ),
        ("/usr/bin/nvidia-smi mode=0755\n/usr/lib/firmware/x", {}, []),
    ],
)
def test_which_files_are_mounted_and_where(
    lines: str, targets: dict[str, str], links: list[str]
) -> None:
    """The wrapper mounts the graphics files that the hook does not mount.

    Libraries and modules keep their path; configuration goes where programs look for it.
    """
    additions = look(DRIVER + lines, "none")
    assert mounts(additions) == {path: target or path for path, target in targets.items()}
    assert list(additions.links) == links


def test_the_version_comes_from_the_librarys_name() -> None:
    """The driver's version is in the name of libcuda, links followed, or else of libnvidia-ml.

    Files of another version belong to another driver.
    """
    lines = f"""
{LIBDIR}/libnvidia-ml.so.535.1 elf libnvidia-ml.so.1
{LIBDIR}/libnvidia-vulkan-producer.so.535.2 elf -
{LIBDIR}/libcuda.so.1 -> nowhere
"""
    assert look(lines, "all") == Additions()
    assert mounts(look(lines.replace("535.1", "535.2"), "all")) != {}
    debian = f"""
{LIBDIR}/libcuda.so.470.9.1 -> nvidia/current/libcuda.so.535.2
{LIBDIR}/nvidia/current/libcuda.so.535.2 elf libcuda.so.1
"""
    assert mounts(look(lines + debian, "all")) != {}


def test_without_a_version_graphics_are_refused() -> None:
    """Without a driver version the refusal has the reference's lines, whole, and our hint."""
    with pytest.raises(Refusal) as error:
        look("/usr/lib64/libcuda.so.1", "all")
    first, *others = error.value.line().split("\n")
    assert first == (
        "failed to create mounts discoverer: failed to construct discoverer for graphics libraries:"
        ' failed to get driver version: failed to locate "libcuda.so.": libcuda.so.*.*: not found'
    )
    assert others[0] == "libcuda.so.*.*: not found"
    assert others[1] == 'failed to locate "libnvidia-ml.so.": libnvidia-ml.so.*.*: not found'
    assert others[2].startswith("libnvidia-ml.so.*.*: not found | no NVIDIA driver is installed")


def test_gpu_information_that_a_snapshot_lacks_is_a_refusal() -> None:
    """A GPU whose information is not recorded is a refusal that says so.

    It may be the GPU that the request means, and nothing is made up.
    """
    document = hosts.host(DRIVER + DISPLAYS)
    del document["files"]["/proc/driver/nvidia/gpus/0000:05:00.0/information"]["content"]
    host = snapshot_host(document)
    with pytest.raises(Refusal, match="failed to parse /proc/driver") as error:
        find(
            FileFinder(host.tree, host.machine, lambda: host.entries),
            SEARCH_PATH,
            (),
            ("0",),
            lambda _: (),
        )
    assert "not recorded in the host snapshot" in error.value.hint


GATED = """
/dev/nvidia-fs1 char 500:1
/dev/nvidia-fs0 char 500:0
/run/udev/
/etc/cufile.json
/dev/infiniband/rdma_cm char 10:60
/dev/infiniband/uverbs1 char 231:193
/dev/infiniband/umad0 char 231:0
/dev/gdrdrv char 240:0
/dev/nvidia-nvswitchctl char 234:255
/dev/nvidia-nvswitch0 char 234:0
/dev/nvidia0 char 195:0
"""


@pytest.mark.parametrize(
    ("gate", "paths", "files"),
    [
        ("NVIDIA_GDS", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"], ["/run/udev", "/etc/cufile.json"]),
        ("NVIDIA_MOFED", ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"], []),
        ("NVIDIA_GDRCOPY", ["/dev/gdrdrv"], []),
        ("NVIDIA_NVSWITCH", ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"], []),
    ],
)
def test_gated_components(gate: str, paths: list[str], files: list[str]) -> None:
    """A gate adds its nodes, sorted and each once, and its files.

    A host without these nodes adds nothing, and no driver is needed.
    """
    additions = look(GATED, graphics=False, gates=(gate,))
    assert (nodes(additions), list(mounts(additions))) == (paths, files)
    assert look("/run/udev/\n/etc/cufile.json", graphics=False, gates=(gate,)) == Additions()


def test_every_gate_has_its_devices() -> None:
    """The variables that open a gate are the keys of the table of gated devices."""
    assert tuple(table.GATED) == names.GATED_DEVICES


def test_gates_come_before_graphics() -> None:
    """Gated devices come before graphics devices, as the reference orders them."""
    additions = look(DRIVER + DISPLAYS + GATED, "0", gates=("NVIDIA_GDS", "NVIDIA_GDRCOPY"))
    assert nodes(additions) == ["/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/gdrdrv", *CARDS0]


@pytest.mark.parametrize(
    ("name", "pattern", "matched"),
    [
        ("libcuda.so.535.1", "libcuda.so.*.*", True),
        ("libcuda.so.535", "libcuda.so.*.*", False),
        ("libcuda.so.1", "libcuda.so.1", True),
        ("libcuda.so.1", "libcuda.so.2", False),
        ("card0", "card*", True),
        ("card", "card*", True),
        ("xcard0", "card*", False),
        ("pci-x", "pci-*-*", False),
        ("pci--", "pci-*-*", True),
        ("aba", "ab*ba", False),
        ("a[b]", "a[b]", True),
    ],
)
def test_patterns(name: str, pattern: str, matched: bool) -> None:
    """In a pattern only ``*`` has a meaning, and no character is matched twice."""
    assert matches(name, pattern) == matched
