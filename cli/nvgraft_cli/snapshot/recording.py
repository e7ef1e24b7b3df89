"""Record a host as a ``nvgraft.host/1`` document: run discovery, and note all that it reads.

A plan from the document therefore sees what a plan on the host sees. Recorded are names, types,
owners, modes, sizes and ELF facts, and the content of the driver's text files under /proc; no
environment, no processes, no files of users. The UUIDs of GPUs are recorded, because containers
ask for them; serial numbers and the host's name are recorded only if they are asked for.
"""

import contextlib
import posixpath
import re
from collections.abc import Sequence
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.cdi import platform
from nvgraft.cdi.discovery import CdiFacts, Discovered, discover
from nvgraft.cdi.tegra import TegraDiscovery, read_csv_files
from nvgraft.cdi.wsl import discover_wsl
from nvgraft.formats.elf import ElfFacts, NoFacts
from nvgraft.formats.ldcache_entries import listing_flags
from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport, MigDevice
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.inventory import read_inventory
from nvgraft.request.config import Config
from nvgraft_cli.case.dynamic import BadElf, read_dynamic
from nvgraft_specs.models import simulated
from nvgraft_specs.models.host import SCHEMA
from nvgraft_specs.models.host_gpus import Gpu

_PROC_LIMIT = 1 << 18

#: The name of a host that is recorded without its own.
ANONYMOUS = "host"

#: A line of the driver's texts with a serial number: its label, and the number.
_SERIAL = re.compile(r"^([^:\n]*\bserial\b[^:\n]*:[ \t]*)\S.*$", re.IGNORECASE | re.MULTILINE)

#: Directories of the driver that are recorded with all that is in them.
_DRIVER_DIRECTORIES = (
    "/dev/nvidia-caps",
    "/dev/nvidia-caps-imex-channels",
    "/proc/driver/nvidia",
    "/proc/driver/nvidia-caps",
)

#: Paths that commands other than ``plan`` read; they are recorded if they exist.
_LOOKED_AT = (
    "/bin",
    "/etc/debian_version",
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/run",
    "/sbin",
    "/sbin/ldconfig",
    "/sbin/ldconfig.real",
    "/usr/lib64",
    "/var/run",
)


#: What a Tegra board has in the place of NVML's answers.
_CSV_FILES = Config().runtime_csv_mount_spec_path

#: Where the content of text files is recorded.
_TEXTS = ("/proc/", f"{_CSV_FILES}/", "/sys/devices/soc0/")


class RecordingTree(Tree):
    """A tree that notes what is read from it, as the ``files`` of a document."""

    def __init__(self, below: Tree, host_name: str = "") -> None:
        self._below = below
        self._host_name = host_name
        self.label = below.label
        self.files: dict[str, dict[str, Any]] = {}

    def lstat(self, path: str) -> Node | None:
        node = self._below.lstat(path)
        if node is not None:
            self._record(path, node)
        return node

    def listdir(self, path: str) -> list[str]:
        return self._below.listdir(path)

    def read(self, path: str, limit: int) -> bytes:
        data = self._below.read(path, limit)
        self.lstat(path)
        if path.startswith(_TEXTS) and path in self.files:
            text = data.decode("utf-8", "surrogateescape")
            self.files[path]["content"] = self._anonymous(text)
        return data

    def _anonymous(self, text: str) -> str:
        """Return a text without serial numbers, and with another name for the host."""
        if not self._host_name:
            return text
        text = _SERIAL.sub(r"\1-", text)
        return re.sub(rf"(?<![\w.-]){re.escape(self._host_name)}(?![\w-])", ANONYMOUS, text)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        # The document has one set of facts, so read all of them.
        self.lstat(path)
        try:
            facts = self._below.elf(path, sections=True)
        except NoFacts as fault:
            if path in self.files:
                self.files[path]["elf_fault"] = str(fault)
            raise
        if path in self.files:
            self.files[path]["elf"] = {
                "bits": facts.bits,
                "machine": facts.machine,
                "soname": facts.soname,
                "needed": list(facts.needed),
                "abi_tag": list(facts.abi_tag) if facts.abi_tag else None,
                "interp": facts.interp,
                **self._loading(path),
            }
        return facts

    def _loading(self, path: str) -> dict[str, Any]:
        """Return further facts that a loader reads; none if it would reject the file."""
        try:
            return read_dynamic(self._below, path).record()
        except (BadElf, OSError):
            return {}

    def _record(self, path: str, node: Node) -> None:
        if path in self.files:
            return
        entry: dict[str, Any] = {"type": node.type, "uid": node.uid, "gid": node.gid}
        if node.type == "symlink":
            entry["target"] = node.target
        else:
            entry["mode"] = f"{node.mode:04o}"
        if node.type == "file":
            entry["size"] = node.size
        if node.rdev is not None:
            entry["rdev"] = list(node.rdev)
        self.files[path] = entry
        parent = posixpath.dirname(path)
        if parent not in {"/", ""}:
            self.lstat(parent)

    def look(self, path: str) -> None:
        """Record ``path`` and the targets of its links, if it exists."""
        try:
            self.find(path)
        except (PathError, OSError):
            return  # unreachable: answers that need it will say "not recorded"

    def look_below(self, path: str) -> None:
        """Record a directory recursively, and the content of small text files of /proc."""
        node = self.lstat(path)
        if node is None:
            return
        if node.type == "file" and path.startswith("/proc/"):
            try:
                self.read(path, _PROC_LIMIT)
            except OSError:
                return  # the file is recorded without its content
        if node.type == "dir":
            for name in self.listdir(path):
                self.look_below(f"{path}/{name}")


def record(
    host: Host,
    search_path: str,
    mps_directory: str,
    facts: CdiFacts | None = None,
    isa_level: str | None = None,
    host_name: str = "",
) -> dict[str, Any]:
    """Return the document of ``host``. Equal hosts give equal documents.

    :param search_path: where binaries are searched. Plans from documents use the default path.
    :param facts: facts that only a CDI specification needs; None if not known.
    :param isa_level: the level of an x86-64 processor; None if other or not known.
    :param host_name: replace this name, and leave out serial numbers, in the text files; "" keeps
        the texts as they are.
    :raises nvgraft.base.errors.Refusal: discovery refuses the host.
    """
    tree = RecordingTree(host.tree, host_name)
    watched = Host(
        name=host.name,
        root=host.root,
        tree=tree,
        entries=host.entries,
        report=host.report,
        majors=host.majors,
        machine=host.machine,
        refusal=host.refusal,
    )
    files = read_inventory(watched, search_path, mps_directory).files
    for entry in host.entries:
        tree.look(entry.path)
    for component in (*files.binaries, *files.libraries, *files.libraries32):
        try:
            tree.elf(component.path, sections=True)
        except (ValueError, OSError):
            continue  # a script is a binary too
    for path in _LOOKED_AT:
        tree.look(path)
    for name in tree.listdir("/dev"):
        if name.startswith("nvidia"):
            tree.look(f"/dev/{name}")
    for path in _DRIVER_DIRECTORIES:
        tree.look_below(path)
    # Without the driver's libraries there is no CDI specification, but there are plans.
    with contextlib.suppress(Refusal):
        _read_libraries(watched, discover(watched, search_path, facts))
    with contextlib.suppress(Refusal):
        _look_at_platform(watched)
    document = {
        "schema": SCHEMA,
        "name": host.name,
        "machine": host.machine,
        "root": host.root,
        "ld_so_cache": [[entry.soname, listing_flags(entry), entry.path] for entry in host.entries],
        "nvml": _nvml(host.report),
        "char_majors": {
            name: host.majors[name] for name in sorted(host.majors) if name.startswith("nvidia")
        },
        "files": {path: tree.files[path] for path in sorted(tree.files)},
    }
    if isa_level is not None:
        document["isa_level"] = isa_level
    if facts is not None:
        document["cdi"] = {
            "kernel": facts.kernel,
            "drm": {address: list(facts.drm[address]) for address in sorted(facts.drm)},
        }
    return document


def _look_at_platform(host: Host) -> None:
    """Look at what CDI specifications of WSL2 hosts and Tegra boards have.

    :raises nvgraft.base.errors.Refusal: the host has no such specification.
    """
    finder = FileFinder(host.tree, host.machine, lambda: host.entries)
    kind = platform.platform(finder, lambda: [gpu.model for gpu in host.report.gpus])
    if kind == platform.WSL:
        _read_libraries(host, discover_wsl(finder, host.root))
    elif kind == platform.TEGRA:
        lines = read_csv_files(host.tree, _CSV_FILES, every=True)
        board = TegraDiscovery(lines, finder, host.root, host.tree)
        _read_libraries(host, board.discover())


def _read_libraries(host: Host, found: Discovered) -> None:
    """Read the libraries of a specification, whose SONAMEs become links in containers."""
    for mount in found.common.mounts:
        if ".so" in posixpath.basename(mount.target):
            path = mount.source.removeprefix(host.root.rstrip("/"))
            with contextlib.suppress(ValueError, OSError, PathError):
                host.tree.elf(host.tree.resolve(path), sections=True)


def _nvml(report: DriverReport) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = []
    for gpu in report.gpus:
        domain, bus, rest = gpu.bus_id.split(":")
        gpus.append(
            {
                "minor": gpu.minor,
                "uuid": gpu.uuid,
                "pci": {
                    "domain": int(domain, 16),
                    "bus": int(bus, 16),
                    "device": int(rest.partition(".")[0], 16),
                },
                "brand": gpu.brand,
                "compute_capability": gpu.arch,
                "mig": gpu.mig,
                "model": gpu.model,
                "mig_devices": [
                    {
                        "uuid": mig.uuid,
                        "gpu_instance": mig.gpu_instance,
                        "compute_instance": mig.compute_instance,
                    }
                    for mig in gpu.mig_devices
                ],
            }
        )
        _add_profiles(gpus[-1], gpu.mig_devices)
    return {
        "driver_version": report.driver_version,
        "cuda_version": report.cuda_version,
        "gpus": gpus,
    }


def _add_profiles(gpu: dict[str, Any], mig_devices: Sequence[MigDevice]) -> None:
    """Add the profiles of MIG devices that a document may have: those of a known product."""
    for entry, mig in zip(gpu["mig_devices"], mig_devices, strict=True):
        if mig.profile:
            entry["profile"] = mig.profile
            try:
                simulated.check([Gpu.model_validate(gpu)], None, "")
            except ValueError:
                del entry["profile"]
