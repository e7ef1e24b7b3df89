"""nvgraft-runtime's additions for graphics in real containers: DRM nodes, links, files."""

import json
from pathlib import Path
from typing import Any

import pytest

from containers import CONFIG_TOML, LOOK, Bundle, Run, environment
from nvgraft_specs import gallery
from test_engines import CGROUPS_V2, NO_CGROUPS, understood_by_crun

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "cgroup-v1")

LIBDIR = "/usr/lib/x86_64-linux-gnu"
EGL = f"{LIBDIR}/libnvidia-egl-gbm.so.1.1.2"
VULKAN = "/etc/vulkan/icd.d/nvidia_icd.json"
GBM = f"{LIBDIR}/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.1"
#: Minor number of a GPU -> the names of its DRM nodes; the first GPU has the higher numbers.
DRM = {0: ("card2", "renderD129"), 1: ("card1", "renderD128")}

SHOW = f"""
stat -c 'node %n %t:%T %a %g' /dev/dri/*[0-9]
for node in /dev/dri/*[0-9]; do (: < $node) 2>&1; done
for link in /dev/dri/by-path/* {LIBDIR}/gbm/*; do echo "$link -> $(readlink $link)"; done
grep Groups: /proc/self/status
cat {VULKAN}
(echo > {VULKAN}) 2>&1
/lib64/ld-linux-x86-64.so.2 --preload libnvidia-egl-gbm.so.1 --list {LIBDIR}/libc.so.6
{LOOK}
"""


def drm_host(path: Path, host: str = "runfile-a10x2") -> str:
    """Write a host document with display devices and graphics files; return its path."""
    document: dict[str, Any] = json.loads(Path(gallery.path(host)).read_text())
    files = document["files"]
    document["cdi"] = {"kernel": "6.1.0", "drm": {}}
    for gpu in document["nvml"]["gpus"]:
        address = f"0000:{gpu['pci']['bus']:02x}:00.0"
        nodes = DRM[gpu["minor"]]
        text = (
            f"Model: \t\t X\nGPU UUID: \t {gpu['uuid']}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {gpu['minor']}\n"
        )
        files[f"/proc/driver/nvidia/gpus/{address}/information"] = {
            "type": "file",
            "mode": "0444",
            "content": text,
        }
        document["cdi"]["drm"][address] = list(nodes)
        for name in nodes:
            number = int(name.removeprefix("card").removeprefix("renderD"))
            files[f"/dev/dri/{name}"] = {
                "type": "char",
                "mode": "0660",
                "uid": 0,
                "gid": 44,
                "rdev": [226, number],
            }
            kind = "card" if name.startswith("card") else "render"
            files[f"/dev/dri/by-path/pci-{address}-{kind}"] = {
                "type": "symlink",
                "target": f"../{name}",
            }
    library = {
        "type": "file",
        "mode": "0644",
        "elf": files[f"{LIBDIR}/libcuda.so.{document['nvml']['driver_version']}"]["elf"],
    }
    files[EGL] = library | {"elf": library["elf"] | {"soname": "libnvidia-egl-gbm.so.1"}}
    files["/usr/share/vulkan/icd.d/nvidia_icd.json"] = {
        "type": "file",
        "mode": "0644",
        "content": '{"ICD": "of the host"}\n',
    }
    file = path / "drm-host.json"
    file.write_text(json.dumps(document))
    return str(file)


@pytest.fixture
def graphics(bundle: Bundle) -> Bundle:
    """Return a bundle without any hook whose container asks for graphics on the first GPU."""
    bundle.set_program(SHOW)
    bundle.edit(lambda config: config.pop("hooks"))
    bundle.edit(
        environment(
            "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
        )
    )
    return bundle


def test_a_container_gets_the_display_devices_of_its_gpu(graphics: Bundle, tmp_path: Path) -> None:
    """A container gets the DRM nodes of its GPU with numbers, mode and group, and the links to
    them.

    The device cgroup allows the nodes, graphics files are read-only, and the loader finds
    libraries.
    """
    done = graphics.on_host(graphics.lifecycle(), drm_host(tmp_path))
    assert_grafted(done)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("node ")] == [
        "node /dev/dri/card2 e2:2 660 44",
        "node /dev/dri/renderD129 e2:81 660 44",
    ]
    assert [line for line in lines if " -> " in line][:3] == [
        "/dev/dri/by-path/pci-0000:05:00.0-card -> ../card2",
        "/dev/dri/by-path/pci-0000:05:00.0-render -> ../renderD129",
        GBM,
    ]
    assert "Groups:\t44 " in done.stdout
    assert '{"ICD": "of the host"}' in done.stdout
    assert f"can't create {VULKAN}: Read-only file system" in done.stdout
    for path in (EGL, VULKAN):
        [options] = [line.split()[5] for line in lines if f" {path} " in line and " - " in line]
        assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    assert "libnvidia-egl-gbm.so.1 => /" in done.stdout


def assert_grafted(done: Run) -> None:
    """Assert that the container started with the driver, and that its cgroup allows its GPU's
    nodes.

    Opening an allowed node gives ENXIO, because there is no driver behind it.
    """
    assert done.returncode == 0, done.stderr
    for node in ("/dev/dri/card2", "/dev/dri/renderD129", "/dev/nvidia0"):
        assert f"can't open {node}: No such device or address" in done.stdout
    assert "can't open /tmp/other: Operation not permitted" in done.stdout
    assert "libcuda.so.1 => /" in done.stdout


def test_a_stopped_container_starts_again(graphics: Bundle, tmp_path: Path) -> None:
    """A second create of the same bundle works and leaves config.json unchanged."""
    first = (
        f"{{ {graphics.lifecycle()}; }} > /dev/null && cp {graphics.path}/config.json /run/first"
    )
    done = graphics.on_host(
        f"{first} && {graphics.lifecycle()} && cmp /run/first {graphics.path}/config.json",
        drm_host(tmp_path),
    )
    assert_grafted(done)
    assert GBM in done.stdout


@pytest.mark.parametrize(
    "there", ["ln -s libold.so {}", "touch {}", "ln -s ../libnvidia-allocator.so.1 {}"]
)
def test_a_link_of_the_image_is_replaced_and_a_file_is_kept(
    graphics: Bundle, tmp_path: Path, there: str
) -> None:
    """Where a link is created, a link of the image is replaced, and a file stays."""
    link = GBM.partition(" -> ")[0]
    path = f"{graphics.path}/rootfs{link}"
    prepare = f"mkdir -p {path.rpartition('/')[0]} && {there.format(path)}"
    done = graphics.on_host(f"{prepare} && {graphics.lifecycle()}", drm_host(tmp_path))
    assert_grafted(done)
    assert (GBM in done.stdout) == there.startswith("ln")


def test_an_image_whose_links_lead_out_of_it_is_refused(graphics: Bundle, tmp_path: Path) -> None:
    """The refusal names the path, and nothing is made behind the link."""
    trap = f"ln -s ../../../../../../run/trap {graphics.path}/rootfs{LIBDIR}/gbm; mkdir /run/trap"
    done = graphics.on_host(
        f"{trap}; {graphics.lifecycle()}; code=$?; find /run/trap; exit $code", drm_host(tmp_path)
    )
    assert done.returncode == 1
    assert f"path error: {LIBDIR}/gbm resolves outside of" in done.stderr
    assert "/run/trap/" not in done.stdout


def test_display_devices_and_graphics_files_with_a_driver_root(
    graphics: Bundle, tmp_path: Path
) -> None:
    """Nodes come from the host; files come from the driver root, to their usual paths."""
    done = graphics.on_host(graphics.lifecycle(), drm_host(tmp_path, "operator-driver-root"))
    assert done.returncode == 0, done.stderr
    assert '{"ICD": "of the host"}' in done.stdout
    lines = done.stdout.splitlines()
    sources = [line.split()[3] for line in lines if f" {EGL} " in line and " - " in line]
    assert sources in ([f"/run/nvidia/driver{EGL}"], [f"/nvidia/driver{EGL}"])
    assert [line.split()[1] for line in lines if line.startswith("node ")] == [
        "/dev/dri/card2",
        "/dev/dri/renderD129",
    ]


def test_a_gated_component_comes_without_gpus(graphics: Bundle, tmp_path: Path) -> None:
    """NVIDIA_GDS brings nodes and files and, as with the reference, no GPU.

    The wrapper appends NVIDIA_VISIBLE_DEVICES=void, which the hook reads.
    """
    graphics.edit(environment("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled"))
    look = "stat -c 'node %n %t:%T %a' /dev/nvidia*; (: < /dev/nvidia-fs0) 2>&1"
    graphics.set_program(f"{look}; cat /proc/self/mountinfo")
    prepare = "mknod -m 666 /dev/nvidia-fs0 c 500 0; mkdir -p /run/udev; echo {} > /etc/cufile.json"
    done = graphics.on_host(f"{prepare}; {graphics.lifecycle()}")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("node ")] == [
        "node /dev/nvidia-fs0 1f4:0 666"
    ]
    assert "can't open /dev/nvidia-fs0: No such device or address" in done.stdout
    points = [line.split()[4] for line in done.stdout.splitlines() if " - " in line]
    assert {"/run/udev", "/etc/cufile.json"} <= set(points)


@pytest.mark.requires("crun", "cgroup-v2")
def test_crun_gives_the_same_nodes_links_and_files(graphics: Bundle, tmp_path: Path) -> None:
    """Under crun, a container gets the same nodes, links and files as under runc."""
    graphics.edit(understood_by_crun)
    prepare = (
        f"sed -i '/^mode/a runtimes = [\"crun\"]' {CONFIG_TOML} && {CGROUPS_V2} && {NO_CGROUPS}"
    )
    run = graphics.lifecycle("--root /run/crun-test --cgroup-manager=disabled")
    done = graphics.on_host(f"{prepare} && {run}", drm_host(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("node ")] == [
        ["node", "/dev/dri/card2", "e2:2"],
        ["node", "/dev/dri/renderD129", "e2:81"],
    ]
    assert "/dev/dri/by-path/pci-0000:05:00.0-card -> ../card2" in lines
    assert GBM in lines
    assert '{"ICD": "of the host"}' in lines
