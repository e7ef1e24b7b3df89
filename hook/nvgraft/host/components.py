"""What a host has, as values: components of the driver, device nodes, /proc entries, and the inventory that holds them.

No rule of selection is here: what is found and what is rejected is :mod:`nvgraft.host.inventory`'s, what a container gets the
planner's.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.formats.tree import Node, Tree
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.formats.ldcache import CacheEntry


#: SONAME of what is mounted as one of the driver's libraries although no loader takes it.
NO_LIBRARY = ""


class Component(Value):
    """A file of the driver.

    ``path`` is resolved inside the driver root and relative to it; ``row`` is the catalogue row that named it, ``found``
    says how it was found, ``kind`` is file, dir or socket, ``mode`` its permission bits, ``size`` its bytes.
    """

    __slots__ = ("component_class", "found", "kind", "mode", "path", "row", "size", "soname")

    def __init__(
        self,
        component_class: str,
        row: str,
        path: str,
        found: str,
        kind: str,
        mode: int,
        size: int = 0,
        soname: str | None = None,
    ) -> None:
        self.component_class = component_class
        self.row = row
        self.path = path
        self.found = found
        self.kind = kind
        self.mode = mode
        self.size = size
        self.soname = soname

    @property
    def name(self) -> str:
        """The file's own name, by which it is chosen and under which it is mounted."""
        return self.path.rpartition("/")[2]


class DeviceNode(Value):
    """A device node that the driver serves. ``node`` is None where the host lacks it, ``rdev`` what it has to be."""

    __slots__ = ("node", "path", "rdev")

    def __init__(self, path: str, rdev: tuple[int, int], node: Node | None) -> None:
        self.path = path
        self.rdev = rdev
        self.node = node


class ProcEntry(Value):
    """A file or directory under /proc that is copied or bound; ``content`` is None for directories."""

    __slots__ = ("content", "mode", "path")

    def __init__(self, path: str, mode: int, content: str | None = None) -> None:
        self.path = path
        self.mode = mode
        self.content = content


class Libraries(Value):
    """The libraries that were selected from the loader cache, of this machine's architecture and of its 32-bit one.

    ``missing`` has (class, row) of the catalogue's rows for which there is none.
    """

    __slots__ = ("missing", "narrow", "wide")

    def __init__(
        self,
        wide: tuple[Component, ...],
        narrow: tuple[Component, ...],
        missing: tuple[tuple[str, str], ...],
    ) -> None:
        self.wide = wide
        self.narrow = narrow
        self.missing = missing


class Host:
    """Where an inventory is read from.

    :param name: a name for people; of a live host its node name.
    :param root: the driver root as an absolute path; ``tree`` is the tree below it.
    :param entries: the loader cache, in its order.
    :param refusal: why the loader cache could not be read; an inventory then raises it.
    :param majors: driver name -> major number of /proc/devices.

    ``libraries`` is what was selected before, if that still holds. Otherwise ``keep``, where there is one, is given what is
    selected, and says why it is not kept, or "". ``origin`` says for a log where all this comes from.
    """

    def __init__(
        self,
        name: str,
        root: str,
        tree: Tree,
        entries: Sequence[CacheEntry],
        report: DriverReport,
        majors: dict[str, int],
        machine: str,
        refusal: Refusal | None = None,
    ) -> None:
        self.name = name
        self.root = root
        self.tree = tree
        self.entries = entries
        self.refusal = refusal
        self.report = report
        self.majors = majors
        self.machine = machine
        self.origin = "read now"
        self.libraries: Libraries | None = None
        self.keep: Callable[[Libraries], str] | None = None


class Inventory(Value):
    """Everything a plan can draw on, in the reference's order of discovery."""

    __slots__ = (
        "binaries",
        "cap_nodes",
        "capabilities_dir",
        "caps_dir",
        "caps_major",
        "control",
        "cuda_version",
        "driver_version",
        "firmware",
        "gpus",
        "host",
        "imex",
        "libraries",
        "libraries32",
        "machine",
        "mig_access",
        "mig_minors",
        "missing",
        "mps",
        "nodes",
        "proc_dirs",
        "proc_files",
        "root",
        "sockets",
    )

    def __init__(
        self,
        host: str,
        root: str,
        machine: str,
        report: DriverReport,
        libraries: tuple[Component, ...],
        libraries32: tuple[Component, ...],
        binaries: tuple[Component, ...],
        firmware: tuple[Component, ...],
        sockets: tuple[Component, ...],
        mps: Component | None,
        control: tuple[DeviceNode, ...],
        nodes: tuple[DeviceNode, ...],
        proc_files: tuple[ProcEntry, ...],
        proc_dirs: tuple[ProcEntry | None, ...],
        caps_major: int | None,
        mig_minors: tuple[tuple[str, int], ...],
        mig_access: tuple[ProcEntry, ...],
        cap_nodes: tuple[DeviceNode, ...],
        capabilities_dir: ProcEntry | None,
        caps_dir: Node | None,
        imex: tuple[DeviceNode, ...],
        missing: tuple[tuple[str, str], ...],
    ) -> None:
        self.host = host
        self.root = root
        self.machine = machine
        self.driver_version = report.driver_version
        self.cuda_version = report.cuda_version
        self.gpus = report.gpus
        self.libraries = libraries
        self.libraries32 = libraries32
        self.binaries = binaries
        self.firmware = firmware
        self.sockets = sockets
        self.mps = mps
        self.control = control
        self.nodes = nodes
        self.proc_files = proc_files
        self.proc_dirs = proc_dirs
        self.caps_major = caps_major
        self.mig_minors = mig_minors
        self.mig_access = mig_access
        self.cap_nodes = cap_nodes
        self.capabilities_dir = capabilities_dir
        self.caps_dir = caps_dir
        self.imex = imex
        self.missing = missing


def number(text: str) -> int | None:
    """Return the value of a decimal number as the kernel prints minors and majors, None for any other text.

    str.isdecimal() alone takes the digits of other scripts, and more of them than int() does.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def device_file_minor(entry: ProcEntry) -> int | None:
    """Return the minor of the nvidia-caps node that belongs to an access file; None where the driver names none."""
    for line in (entry.content or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and (minor := number(value.strip())) is not None:
            return minor
    return None


def mig_access_path(gpu: Gpu, device: MigDevice, *, compute: bool) -> str:
    """Return the /proc file that stands for a MIG device's GPU instance, or with ``compute`` its compute instance."""
    instance = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    return f"{instance}/ci{device.compute_instance}/access" if compute else f"{instance}/access"
