"""What nvgraft-runtime adds for graphics in real containers: DRM nodes, their links, and files."""

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
#: Minor number of a GPU -> the names of its DRM nodes: the first GPU has the later ones.
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
    """Write the document of a host with display devices and graphics files; return its path."""
    document: dict[str, Any] = json.loads(Path(gallery.path(host)).read_text())
    files = document["files"]
    document["cdi"] = {"kernel": "6.1.0", "drm": {}}
    for gpu in document["nvml"]["gpus"]:
        address = f"0000:{gpu['pci']['bus']:02x}:00.0"
        nodes = DRM[gpu["minor"]]
        text = (
            f"Model: \t\t X\nGPU UUID: \t {gpu['uuid']}\nBus Location: \t {address}\nDevice "
            f"Minor: \t {gpu['minor']}\n"
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
    """A bundle without a hook that requests graphics on the first GPU."""
    bundle.set_program(SHOW)
    bundle.edit(lambda config: config.pop("hooks"))
    bundle.edit(
        environment(
            "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
        )
    )
    return bundle


def test_a_container_gets_the_display_devices_of_its_gpu(graphics: Bundle, tmp_path: Path) -> None:
    """The nodes have their numbers, mode and group, and can be opened; links exist; files are
    read-only and in the loader cache.
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
    """Check that the container started, that its GPU's DRM nodes open (without a driver), and that
    the hook worked.
    """
    assert done.returncode == 0, done.stderr
    for node in ("/dev/dri/card2", "/dev/dri/renderD129", "/dev/nvidia0"):
        assert f"can't open {node}: No such device or address" in done.stdout
    assert "can't open /tmp/other: Operation not permitted" in done.stdout
    assert "libcuda.so.1 => /" in done.stdout


def test_a_stopped_container_starts_again(graphics: Bundle, tmp_path: Path) -> None:
    """A second create keeps what the first one left in config.json and in the root file system, and
    adds nothing.
    """
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
def test_what_the_image_has_in_place_of_a_link(
    graphics: Bundle, tmp_path: Path, there: str
) -> None:
    """Another link is replaced, and a file of the image stays."""
    link = GBM.partition(" -> ")[0]
    path = f"{graphics.path}/rootfs{link}"
    prepare = f"mkdir -p {path.rpartition('/')[0]} && {there.format(path)}"
    done = graphics.on_host(f"{prepare} && {graphics.lifecycle()}", drm_host(tmp_path))
    assert_grafted(done)
    assert (GBM in done.stdout) == there.startswith("ln")


def test_an_image_whose_links_lead_out_of_it(graphics: Bundle, tmp_path: Path) -> None:
    """The container is not created, the line names the path, and nothing is made anywhere."""
    trap = f"ln -s ../../../../../../run/trap {graphics.path}/rootfs{LIBDIR}/gbm; mkdir /run/trap"
    done = graphics.on_host(
        f"{trap}; {graphics.lifecycle()}; code=$?; find /run/trap; exit $code", drm_host(tmp_path)
    )
    assert done.returncode == 1
    assert f"path error: {LIBDIR}/gbm resolves outside of" in done.stderr
    assert "/run/trap/" not in done.stdout


def test_a_driver_root(graphics: Bundle, tmp_path: Path) -> None:
    """With a driver root, the nodes are this host's, and files go from that root to their own
    places.
    """
    done = graphics.on_host(graphics.lifecycle(), drm_host(tmp_path, "operator-driver-root"))
    assert done.returncode == 0, done.stderr
    assert '{"ICD": "of the host"}' in done.stdout
    sources = [
        line.split()[3] for line in done.stdout.splitlines() if f" {EGL} " in line and " - " in line
    ]
    assert sources == [f"/run/nvidia/driver{EGL}"] or sources == [f"/nvidia/driver{EGL}"]
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("node ")] == [
        "/dev/dri/card2",
        "/dev/dri/renderD129",
    ]


def test_a_gated_component(graphics: Bundle, tmp_path: Path) -> None:
    """Its nodes and files are there; as with the original there is no GPU, because the hook reads
    the appended void.
    """
    graphics.edit(environment("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled"))
    graphics.set_program(
        "stat -c 'node %n %t:%T %a' /dev/nvidia*; (: < /dev/nvidia-fs0) 2>&1; cat "
        "/proc/self/mountinfo"
    )
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
def test_crun(graphics: Bundle, tmp_path: Path) -> None:
    """Under crun nodes, links and files are the same."""
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
