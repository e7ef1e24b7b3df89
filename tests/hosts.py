"""Small hosts, root file systems and plans for tests, written as a few lines of text.

One entry a line; directories on the way are implied, blank lines and lines that start with ``#``
are skipped:

    /usr/bin/nvidia-smi                             file
    /usr/bin/nvidia-smi mode=0700                   with permission bits
    /etc/debian_version = 12.1                      file with that content (``\\n`` is a newline)
    /usr/lib/libcuda.so.535.1 elf libcuda.so.1      ELF file with a SONAME ("-": without one);
                                                    bits=32, tag=2.3.99 may follow
    /usr/lib/libcuda.so.1 -> libcuda.so.535.1       symbolic link
    /run/nvidia/                                    directory
    /dev/nvidia0 char 195:0                         device node
    /run/nvidia-persistenced/socket socket          socket (or fifo)
"""

from collections.abc import Iterable, Sequence
from typing import Any

from nvgraft.base.finding import Finding
from nvgraft.container.offline_target import OfflineTarget, VirtualTree
from nvgraft.formats.ldcache_entries import entry_from_listing
from nvgraft.host.components import Inventory
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, SnapshotTree, snapshot_host
from nvgraft.plan.actions import Bind, Injection, Plan, Tmpfs
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.request import Request
from nvgraft_specs.catalogue import BINARIES, LIBRARIES, CatalogueRow

Document = dict[str, Any]

ROOTFS = "/b/rootfs"
VERSION = "535.1"
_MODES = {"file": "0644", "dir": "0755", "char": "0666", "socket": "0666", "fifo": "0600"}
_FLAGS = {"64 EM_X86_64": "libc6,x86-64", "32 EM_386": "libc6", "64 EM_AARCH64": "libc6,AArch64"}


def tree(text: str) -> dict[str, Document]:
    """Return the ``files`` of a host document for the lines of ``text``."""
    files: dict[str, Document] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if not line.startswith("#"):
            path, entry = _entry(line)
            files[path] = entry
    return files


def _entry(line: str) -> tuple[str, Document]:
    path, arrow, target = line.partition(" -> ")
    if arrow:
        return path, {"type": "symlink", "target": target}
    path, equals, content = line.partition(" = ")
    if equals:
        return path, {"type": "file", "mode": "0644", "content": content.replace("\\n", "\n")}
    path, *words = line.split()
    settings = dict(word.split("=") for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    kind = "dir" if path.endswith("/") else "file" if not words or words[0] == "elf" else words[0]
    entry: Document = {"type": kind, "mode": settings.get("mode", _MODES[kind])}
    if kind == "char":
        entry["rdev"] = [int(number) for number in words[1].split(":")]
    if words[:1] == ["elf"]:
        bits = int(settings.get("bits", "64"))
        tag = [int(number) for number in settings["tag"].split(".")] if "tag" in settings else None
        machine = settings.get("machine", "EM_X86_64" if bits == 64 else "EM_386")
        soname = None if words[1] == "-" else words[1]
        elf = {"bits": bits, "machine": machine, "soname": soname, "needed": [], "abi_tag": tag}
        entry |= {"size": 1000, "elf": elf}
    return path.rstrip("/"), entry


def gpu(
    minor: int,
    uuid: str = "",
    *,
    pci: tuple[int, int, int] | None = None,
    mig: str = "unsupported",
    migs: Sequence[str] = (),
) -> Document:
    """Return one GPU of a host document.

    :param migs: MIG devices as ``UUID GPU-INSTANCE/COMPUTE-INSTANCE``; any of them enables MIG.
    """
    devices = []
    for row in migs:
        name, _, instances = row.partition(" ")
        gpu_instance, _, compute_instance = instances.partition("/")
        devices.append(
            {
                "uuid": name,
                "gpu_instance": int(gpu_instance),
                "compute_instance": int(compute_instance),
            }
        )
    domain, bus, device = pci or (0, minor + 1, 0)
    return {
        "minor": minor,
        "uuid": uuid or f"GPU-{minor:08x}-0000-0000-0000-000000000000",
        "pci": {"domain": domain, "bus": bus, "device": device},
        "brand": 2,
        "compute_capability": "8.0",
        "mig": "enabled" if devices else mig,
        "model": "Test GPU",
        "mig_devices": devices,
    }


def host(
    text: str,
    gpus: Sequence[Document] = (),
    *,
    cache: str | None = None,
    version: str = VERSION,
    root: str = "/",
    majors: dict[str, int] | None = None,
    machine: str = "x86_64",
) -> Document:
    """Return a ``nvgraft.host/1`` document.

    :param text: its files, in the language of this module.
    :param cache: the loader cache as `ldconfig -p` prints it; by default one row for each ELF
        line with a SONAME, in order.
    """
    files = tree(text)
    if cache is None:
        rows = [
            [
                entry["elf"]["soname"],
                _FLAGS[f"{entry['elf']['bits']} {entry['elf']['machine']}"],
                path,
            ]
            for path, entry in files.items()
            if entry.get("elf") and entry["elf"]["soname"]
        ]
    else:
        rows = []
        for line in filter(None, map(str.strip, cache.splitlines())):
            soname, _, rest = line.partition(" (")
            flags, _, path = rest.partition(") => ")
            assert entry_from_listing(soname, flags, path), line
            rows.append([soname, flags, path])
    return {
        "schema": "nvgraft.host/1",
        "name": "test-host",
        "machine": machine,
        "root": root,
        "ld_so_cache": rows,
        "nvml": {"driver_version": version, "cuda_version": "12.2", "gpus": list(gpus)},
        "char_majors": majors or {},
        "files": files,
    }


def row(name: str) -> CatalogueRow:
    """Return the catalogue's row of this library or program."""
    return next(row for row in (*LIBRARIES, *BINARIES) if row.name == name)


def inventory(document: Document, path: str = OFFLINE_PATH, mps_directory: str = "") -> Inventory:
    """Read the inventory of a host document."""
    return read_inventory(snapshot_host(document), path, mps_directory)


#: Files of a host on which every capability has something to mount.
FULL = """
    /usr/bin/nvidia-smi mode=0755
    /usr/bin/nvidia-cuda-mps-control mode=0755
    /usr/lib/libnvidia-ml.so.535.1 elf libnvidia-ml.so.1
    /usr/lib/libcuda.so.535.1 elf libcuda.so.1
    /usr/lib/libnvidia-ngx.so.535.1 elf libnvidia-ngx.so.1
    /usr/lib/libnvcuvid.so.535.1 elf libnvcuvid.so.1
    /usr/lib/libnvidia-opticalflow.so.535.1 elf libnvidia-opticalflow.so.1
    /usr/lib/libnvidia-glcore.so.535.1 elf libnvidia-glcore.so.535.1
    /usr/lib/libGLX_nvidia.so.535.1 elf libGLX_nvidia.so.0
    /usr/lib32/libcuda.so.535.1 elf libcuda.so.1 bits=32
    /lib/firmware/nvidia/535.1/gsp_tu10x.bin
    /run/nvidia-persistenced/socket socket
    /var/run -> /run
    /tmp/nvidia-mps/ mode=0777
    /dev/nvidiactl char 195:255
    /dev/nvidia-uvm char 510:0
    /dev/nvidia-uvm-tools char 510:1
    /dev/nvidia-modeset char 195:254
    /dev/nvidia0 char 195:0
    /dev/nvidia1 char 195:1
    /proc/driver/nvidia/params = ModifyDeviceFiles: 1\\nOther: ModifyDeviceFiles: 1\\n
    /proc/driver/nvidia/version = NVRM version: 535.1\\n
    /proc/driver/nvidia/registry = Binary: ""\\n
    /proc/driver/nvidia/gpus/0000:01:00.0/
    /proc/driver/nvidia/gpus/0000:02:00.0/
"""

#: Files that a GPU of minor 0 with one MIG device adds; the GPU itself is ``MIG_GPU``.
MIG = """
    /proc/driver/nvidia/capabilities/mig/config = DeviceFileMinor: 1\\n
    /proc/driver/nvidia/capabilities/mig/monitor = DeviceFileMinor: 2\\n
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access = DeviceFileMinor: 12\\nDeviceFileMode: 292\\n
    /proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access = DeviceFileMinor: 13\\nDeviceFileMode: 292\\n
    /proc/driver/nvidia-caps/mig-minors = config 1\\nmonitor 2\\ngpu0/gi1/access 12\\ngpu0/gi1/ci0/access 13\\ngpu1/gi1/access 147\\ngpu10/gi1/access 200\\n
    /dev/nvidia-caps/nvidia-cap1 char 236:1
    /dev/nvidia-caps/nvidia-cap2 char 236:2
    /dev/nvidia-caps/nvidia-cap12 char 236:12
    /dev/nvidia-caps/nvidia-cap13 char 236:13
"""
MIG_GPU = gpu(0, migs=["MIG-aaaa 1/0"])
MIG_MAJORS = {"nvidia-caps": 236}

DEBIAN = "/etc/debian_version = 12.1"


def target(
    text: str = DEBIAN,
    *,
    volumes: tuple[str, ...] = (),
    module: bool = True,
    machine: str = "x86_64",
    label: str = ROOTFS,
) -> OfflineTarget:
    """Return the planner's view of a root file system in the language of this module."""
    return OfflineTarget(
        VirtualTree(SnapshotTree(tree(text)), label), machine, volumes, module=module
    )


def plan(
    document: Document,
    rootfs: OfflineTarget | str = DEBIAN,
    capabilities: str = "compute,utility",
    devices: str = "all",
    *,
    cgroups: bool = True,
    simulated: bool = False,
    mps_directory: str = "",
    **request: Any,
) -> Injection:
    """Plan a container on a host document.

    ``devices`` and ``capabilities`` are comma-separated lists.
    """
    container_request = Request(
        tuple(filter(None, devices.split(","))),
        tuple(sorted(filter(None, capabilities.split(",")))),
        **request,
    )
    place = target(rootfs, module=not simulated) if isinstance(rootfs, str) else rootfs
    return make_plan(
        container_request,
        inventory(document, mps_directory=mps_directory),
        place,
        Settings(cgroups=cgroups, simulated=simulated),
    )


def full_host(extra: str = "", **changes: Any) -> Document:
    """Return a host with two GPUs on which every capability has something to mount.

    ``changes`` replace arguments of host().
    """
    return host(FULL + extra, **{"gpus": [gpu(0), gpu(1)], **changes})


def mig_host(extra: str = "", **changes: Any) -> Document:
    """Return a host whose only GPU, minor 0, has one MIG device."""
    return full_host(MIG + extra, **{"gpus": [MIG_GPU], "majors": MIG_MAJORS, **changes})


def binds(plan: Plan) -> dict[str, Bind]:
    """Return the binds of a plan by target."""
    return {action.target: action for action in plan.actions if isinstance(action, Bind)}


def mount_targets(plan: Plan) -> list[str]:
    """Return the target of every mount, in order."""
    return [action.target for action in plan.actions if isinstance(action, Bind | Tmpfs)]


def finding_ids(findings: Iterable[Finding]) -> list[str]:
    """Return the ids of findings, in order."""
    return [finding.id for finding in findings]
