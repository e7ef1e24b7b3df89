"""Real users of NVML in containers on a simulated host: nvidia-smi of three branches, nvidia-ml-py,
nvitop and gpustat, unmodified.

The hook mounts the simulated host's nvidia-smi, which is NVIDIA's own here.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pynvml
import pytest

from containers import CONFIG_TOML, Bundle, Run, environment
from harness import CHECKOUT
from nvgraft_cli.simulate.standins import entry_points
from nvgraft_specs import gallery
from nvgraft_specs.models.host import load_host

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "gcc", "x86_64")

#: NVIDIA's drivers, unpacked by ./dev: one directory for each release of Debian.
DRIVER_PACKAGES = CHECKOUT / ".cache/drivers"
#: Release of Debian -> a host of the gallery with a driver of the same branch.
HOSTS = {
    "bullseye": "debian-a10g-index",
    "bookworm": "debian-a100x8",
    "trixie": "operator-driver-root",
}
SMI = "usr/lib/nvidia/current/nvidia-smi"


def packaged_version(release: str) -> str:
    """Return the version of a packaged driver."""
    [library] = (DRIVER_PACKAGES / release).rglob("libnvidia-ml.so.*.*")
    return library.name.removeprefix("libnvidia-ml.so.")


def host_with(release: str, host: str, directory: Path) -> str:
    """Write the document of a host of the gallery with the packaged driver's version instead of its
    own, and return its path.
    """
    text = Path(gallery.path(host)).read_text()
    version = json.loads(text)["nvml"]["driver_version"]
    path = directory / f"{host}.json"
    path.write_text(text.replace(version, packaged_version(release)))
    return str(path)


def with_nvidia_smi(release: str, host: str) -> str:
    """Return the command that puts the packaged nvidia-smi into a simulated host."""
    recorded = json.loads(Path(host).read_text())
    root = recorded["root"].rstrip("/")
    place = f"$(readlink -f {root}/usr/bin/nvidia-smi)"
    return f"cp {DRIVER_PACKAGES / release / SMI} {place}"


def smi(
    bundle: Bundle, release: str, host: str, script: str, devices: str, prepare: str = "true"
) -> Run:
    """Run a script in a container whose nvidia-smi is the packaged one, after a command on the
    host.
    """
    bundle.edit(
        environment(
            f"NVIDIA_VISIBLE_DEVICES={devices}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    )
    prepare = f"{with_nvidia_smi(release, host)} && {prepare}"
    return bundle.run(script, prepare=prepare, host=host)


#: The user as whom the hook asks NVML.
AS_ROOT = 'user = "root:root"'


def set_option(line: str) -> str:
    """Return the command that adds a line to [nvidia-container-cli] of config.toml."""
    return f"sed -i '/^.nvidia-container-cli/a {line}' {CONFIG_TOML}"


#: Each part is a view of nvidia-smi, and its exit code.
VIEWS = """
view() { echo "## $*"; nvidia-smi "$@"; echo "exit $?"; }
view
view -L
view -q
view -q -x
view topo -m
view dmon -c 1
view pmon -c 1
view --query-gpu=uuid,memory.total,power.limit --format=csv,noheader
fields=$(nvidia-smi --help-query-gpu | busybox grep -o '^"[a-z0-9_.]*"' | busybox tr -d '"')
view --query-gpu=$(echo $fields | busybox tr ' ' ',') --format=csv,noheader
view mig -lgi
"""


#: What nvidia-smi says of GPUs without MIG mode, and of GPUs that cannot have it.
NO_MIG = ("No MIG-enabled devices found.", "No MIG-supported devices found.")


def parts(output: str) -> dict[str, list[str]]:
    """Return the lines that follow each heading."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line.removeprefix("## ").partition(" --format")[0], [])
        elif line:
            lines.append(line)
    return found


@pytest.mark.requires("driver-packages")
@pytest.mark.parametrize("release", HOSTS)
def test_the_real_nvidia_smi_shows_the_containers_gpu(
    release: str, bundle: Bundle, tmp_path: Path
) -> None:
    """All views work and show the one GPU that the container has, with its values."""
    host = host_with(release, HOSTS[release], tmp_path)
    recorded = json.loads(Path(host).read_text())["nvml"]
    gpu = recorded["gpus"][1]
    version = packaged_version(release)
    done = smi(bundle, release, host, VIEWS, gpu["uuid"])
    assert done.returncode == 0, done.stderr
    views = parts(done.stdout)
    table = "\n".join(views.pop(""))
    assert f"NVIDIA-SMI {version}" in table
    assert f"Driver Version: {version}" in table
    assert f"CUDA Version: {recorded['cuda_version']}" in table
    assert "No running processes found" in table
    assert views["-L"] == [f"GPU 0: {gpu['model']} (UUID: {gpu['uuid']})", "exit 0"]
    assert not any("Unknown Error" in line for line in views["-q"])
    log = ElementTree.fromstring("\n".join(views["-q -x"][:-1]))
    assert log.findtext("attached_gpus") == "1"
    assert log.findtext("gpu/uuid") == gpu["uuid"]
    assert log.findtext("gpu/minor_number") == str(gpu["minor"])
    memory = log.findtext("gpu/fb_memory_usage/total")
    assert any(line.startswith("GPU0\t X \t") for line in views["topo -m"])
    assert [row.split()[0] for row in views["dmon -c 1"][2:-1]] == ["0"]
    assert [row.split()[:2] for row in views["pmon -c 1"][2:-1]] == [["0", "-"]]
    [values, _code] = views["--query-gpu=uuid,memory.total,power.limit"]
    assert values.split(", ")[:2] == [gpu["uuid"], memory]
    assert re.fullmatch(r"[0-9]+\.00 W", values.split(", ")[2])
    [every] = [lines for view, lines in views.items() if len(view) > 1000]
    assert "Unknown Error" not in every[0]
    assert views.pop("mig -lgi")[0] in NO_MIG
    assert {lines[-1] for lines in views.values()} == {"exit 0"}


@pytest.mark.requires("driver-packages")
@pytest.mark.parametrize("release", HOSTS)
@pytest.mark.parametrize(
    ("topology", "rows"),
    [
        ({"nvlink": "switch"}, [["X", "NV12", "NV12"], ["NV12", "X", "NV12"]]),
        ({}, [["X", "NODE", "SYS"], ["NODE", "X", "SYS"]]),
    ],
)
def test_the_topology_is_the_containers_part_of_the_hosts(
    release: str,
    topology: dict[str, object],
    rows: list[list[str]],
    bundle: Bundle,
    tmp_path: Path,
) -> None:
    """`nvidia-smi topo -m` shows the links, the levels and the CPUs of the GPUs that are there."""
    host = Path(host_with(release, "debian-a100x8", tmp_path))
    numa = [
        {"node": 0, "cpus": "0-31,64-95", "gpus": [0, 1, 2, 3]},
        {"node": 1, "cpus": "32-63,96-127", "gpus": [4, 5, 6, 7]},
    ]
    document = json.loads(host.read_text()) | {"topology": topology | {"numa": numa}}
    host.write_text(json.dumps(document))
    done = smi(bundle, release, str(host), "nvidia-smi topo -m", "2,3,4")
    assert done.returncode == 0, done.stderr
    table = [[cell.strip() for cell in line.split("\t")] for line in done.stdout.splitlines()]
    found = [row[1:] for row in table if row[0] in ("GPU0", "GPU1", "GPU2")]
    assert [row[:3] for row in found[:2]] == rows
    assert [row[3:5] for row in found] == [["0-31,64-95", "0"]] * 2 + [["32-63,96-127", "1"]]


@pytest.mark.requires("driver-packages")
@pytest.mark.parametrize("release", HOSTS)
def test_a_gpu_is_found_by_its_address(release: str, bundle: Bundle, tmp_path: Path) -> None:
    """`nvidia-smi -i` takes the PCI address that it prints, and its short forms; another address is
    no GPU.
    """
    host = host_with(release, "debian-a100x8", tmp_path)
    pci = json.loads(Path(host).read_text())["nvml"]["gpus"][2]["pci"]
    address = f"{pci['domain']:08X}:{pci['bus']:02X}:{pci['device']:02X}.0"
    forms = [address, address[4:].lower(), address[9:]]
    script = "; ".join(
        f"nvidia-smi -i {form} --query-gpu=pci.bus_id --format=csv,noheader"
        for form in (*forms, "00000000:FE:00.0")
    )
    done = smi(bundle, release, host, script, "1,2,3")
    assert done.stdout.splitlines() == [address] * 3 + ["No devices were found"], done.stderr


@pytest.mark.requires("driver-packages")
def test_a_container_without_gpus_has_none(bundle: Bundle, tmp_path: Path) -> None:
    """With the driver's files and no GPU nvidia-smi says so, in its own words."""
    host = host_with("trixie", HOSTS["trixie"], tmp_path)
    done = smi(bundle, "trixie", host, "nvidia-smi; echo $?", "none")
    assert done.stdout == "No devices were found\n6\n", done.stderr


@pytest.mark.requires("driver-packages")
@pytest.mark.parametrize("release", HOSTS)
@pytest.mark.parametrize(
    ("prepare", "words", "code"),
    [
        (
            set_option("no-cgroups = true"),
            "Failed to initialize NVML: Unknown Error",
            255,
        ),
        (
            # The hook asks NVML as root here; the container's user is another one.
            f"chmod 660 /dev/nvidiactl; {set_option(AS_ROOT)}",
            "Failed to initialize NVML: Insufficient Permissions",
            4,
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_words_that_users_know(
    release: str, prepare: str, words: str, code: int, bundle: Bundle, tmp_path: Path
) -> None:
    """A device cgroup without rules, and a node of another mode for a user, fail as they do on real
    nodes.
    """
    host = host_with(release, HOSTS[release], tmp_path)

    def as_nobody(config: dict[str, Any]) -> None:
        config["process"]["user"] = {"uid": 65534, "gid": 65534}

    if code == 4:
        bundle.edit(as_nobody)
    done = smi(bundle, release, host, "nvidia-smi; echo $?", "all", prepare)
    assert done.stdout.splitlines() == [words, str(code)], done.stderr


@pytest.mark.requires("driver-packages")
def test_a_mig_device_is_the_only_one_that_its_container_sees(
    bundle: Bundle, tmp_path: Path
) -> None:
    """With one MIG device of three nvidia-smi lists that one, and may not list the instances of
    the GPU; the host may.
    """
    host = host_with("trixie", "mig-h100", tmp_path)
    device = json.loads(Path(host).read_text())["nvml"]["gpus"][0]["mig_devices"][1]
    done = smi(bundle, "trixie", host, "nvidia-smi -L; nvidia-smi mig -lgi; echo $?", "0:1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("  MIG")]) == 1
    assert f"(UUID: {device['uuid']})" in lines[1]
    assert lines[-2:] == ["Failed to display GPU instances: Insufficient Permissions", "4"]


@pytest.mark.requires("driver-packages")
@pytest.mark.parametrize(
    ("release", "branch"), [("bullseye", 470), ("bookworm", 535), ("trixie", 550)]
)
def test_what_nvidia_smi_looks_up_is_exported(release: str, branch: int) -> None:
    """Each name of NVML in the strings of nvidia-smi is one that the stand-in of its branch exports,
    and each of these is in the strings of the real library.
    """
    names = set(entry_points.read(entry_points.NVML, branch))
    program = (DRIVER_PACKAGES / release / SMI).read_bytes()
    asked = {name.decode() for name in re.findall(rb"\0(nvml[A-Z]\w+)(?=\0)", program)}
    assert len(asked) > 200
    assert asked <= names
    [library] = (DRIVER_PACKAGES / release).rglob("libnvidia-ml.so.*.*")
    real = {name.decode() for name in re.findall(rb"\0(nvml\w+)(?=\0)", library.read_bytes())}
    assert names <= real


# ---- programs in Python

ASK = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetUUID(gpu))
"""


def add_python(bundle: Bundle) -> None:
    """Give a bundle this machine's Python, with the packages of this test."""
    python = Path(sys.executable).resolve()
    standard = Path(json.__file__).parent.parent
    packages = Path(pynvml.__file__).parent
    programs = [python, *(standard / "lib-dynload").glob("*.so")]
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    rootfs = bundle.path / "rootfs"
    for library in set(re.findall(r" => (/\S+)", listed)):
        shutil.copy(library, rootfs / "usr/lib/x86_64-linux-gnu")
    shutil.copy(python, rootfs / "usr/bin/python3")

    def change(config: dict[str, Any]) -> None:
        for directory in (standard, packages):
            (rootfs / str(directory)[1:]).mkdir(parents=True)
            mount = {"source": str(directory), "destination": str(directory), "type": "bind"}
            config["mounts"].append(mount | {"options": ["bind", "ro"]})
        config["process"]["env"] += [f"PYTHONPATH={packages}", "TERM=xterm", "COLUMNS=100"]

    bundle.edit(change)


def test_programs_in_python_see_the_containers_gpu(bundle: Bundle) -> None:
    """nvidia-ml-py, gpustat and nvitop show the one GPU of eight that the container has."""
    bundle.edit(
        environment("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    )
    add_python(bundle)
    script = "python3 -m gpustat --no-color && python3 -m nvitop -1 --no-unicode"
    done = bundle.run(f"python3 -c '{ASK}' && {script}", host="debian-a100x8")
    assert done.returncode == 0, done.stderr
    gpu = load_host(gallery.path("debian-a100x8")).nvml.gpus[1]
    lines = done.stdout.splitlines()
    assert lines[0] == f"1 {gpu.model} {gpu.uuid}"
    assert [line for line in lines if line.startswith(f"[0] {gpu.model} |")]
    assert not [line for line in lines if line.startswith("[1]")]
    assert "NVITOP" in done.stdout
    assert "00000000:0F:00.0" in done.stdout
    assert "/ 40.00GiB" in done.stdout
