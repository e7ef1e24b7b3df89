"""What a host has, as values: components of the driver, device nodes, /proc entries, and the
inventory of them.

:mod:`nvgraft.host.inventory` has the rules that select them, and the planner decides what a
    container gets.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value, number
from nvgraft.formats.tree import Node, Tree
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nvgraft.formats.ldcache_entries import CacheEntry
    from nvgraft_specs.catalogue import CatalogueRow


#: The SONAME of a file that is mounted as one of the driver's libraries although no loader accepts
#: it.
NO_LIBRARY = ""


class Component(Value):
    """A library or a program of the driver, which is mounted under its own name.

    ``row`` is the catalogue row that names it. ``path`` is resolved inside the driver root and
    relative to it. ``found`` says how it was found. ``mode`` has its permission bits, ``size`` is
    in bytes. ``soname`` is None if it has no SONAME.
    """

    def __init__(
        self,
        row: CatalogueRow,
        path: str,
        found: str,
        mode: int,
        size: int = 0,
        soname: str | None = None,
    ) -> None:
        self.row = row
        self.path = path
        self.found = found
        self.mode = mode
        self.size = size
        self.soname = soname

    @property
    def name(self) -> str:
        """The file's name, by which it is selected and under which it is mounted."""
        return self.path.rpartition("/")[2]


class Firmware(Value):
    """A GSP firmware image: ``path`` is resolved inside the driver root, ``target`` is its path in
    the container.
    """

    def __init__(self, path: str, target: str, found: str, mode: int, size: int) -> None:
        self.path = path
        self.target = target
        self.found = found
        self.mode = mode
        self.size = size


class Socket(Value):
    """A socket of a host service, or the MPS daemon's directory.

    ``well_known`` is the path at which the service listens, ``path`` the same resolved inside the
    driver root. It is mounted if ``component_class`` is switched on. ``kind`` is socket, dir or
    file.
    """

    def __init__(
        self, component_class: str, well_known: str, path: str, found: str, kind: str, mode: int
    ) -> None:
        self.component_class = component_class
        self.well_known = well_known
        self.path = path
        self.found = found
        self.kind = kind
        self.mode = mode


class DeviceNode(Value):
    """A device node that the driver serves. ``node`` is None if the host lacks it, ``rdev`` is the
    right number.
    """

    def __init__(self, path: str, rdev: tuple[int, int], node: Node | None) -> None:
        self.path = path
        self.rdev = rdev
        self.node = node


class ProcEntry(Value):
    """A file or directory under /proc that is copied or bound; ``content`` is None for
    directories.
    """

    def __init__(self, path: str, mode: int, content: str | None = None) -> None:
        self.path = path
        self.mode = mode
        self.content = content


class Libraries(Value):
    """The libraries that were selected from the host's loader cache.

    ``wide`` are native libraries, ``narrow`` are compat32 libraries, ``missing`` are the
    catalogue's rows without a library.
    """

    def __init__(
        self,
        *,
        wide: tuple[Component, ...],
        narrow: tuple[Component, ...],
        missing: tuple[CatalogueRow, ...],
    ) -> None:
        self.wide = wide
        self.narrow = narrow
        self.missing = missing


class Host:
    """The source that an inventory is read from.

    :param name: a name for people; the node name of a live host.
    :param root: the driver root as an absolute path; ``tree`` is the tree below it.
    :param entries: the entries of the host's loader cache, in their order.
    :param refusal: why the loader cache could not be read;
        :func:`~nvgraft.host.inventory.read_inventory` raises it.
    :param majors: driver name -> major number of /proc/devices.

    ``libraries`` are those of the kept inventory, if it is still valid. Otherwise ``keep`` (if it
    is set) is called with the selected libraries; it keeps them and returns "", or the reason why
    it does not. ``origin`` is for logs: where the values come from.
    """

    def __init__(
        self,
        *,
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


class DriverFiles(Value):
    """The driver's files and its services' sockets, in the order in which the reference finds them.

    ``missing`` are the catalogue's rows for which this host has neither a library nor a program.
    """

    def __init__(
        self,
        *,
        libraries: tuple[Component, ...],
        libraries32: tuple[Component, ...],
        binaries: tuple[Component, ...],
        firmware: tuple[Firmware, ...],
        sockets: tuple[Socket, ...],
        mps: Socket | None,
        missing: tuple[CatalogueRow, ...],
    ) -> None:
        self.libraries = libraries
        self.libraries32 = libraries32
        self.binaries = binaries
        self.firmware = firmware
        self.sockets = sockets
        self.mps = mps
        self.missing = missing


class GpuDevice(Value):
    """A GPU, its device node, and its directory below /proc/driver/nvidia/gpus (None: the kernel
    module has none).
    """

    def __init__(self, gpu: Gpu, node: DeviceNode, proc_directory: ProcEntry | None) -> None:
        self.gpu = gpu
        self.node = node
        self.proc_directory = proc_directory


class Devices(Value):
    """The driver's nodes under /dev: control nodes, GPUs in NVML's index order, and IMEX
    channels.
    """

    def __init__(
        self,
        *,
        control: tuple[DeviceNode, ...],
        gpus: tuple[GpuDevice, ...],
        imex_channels: tuple[DeviceNode, ...],
    ) -> None:
        self.control = control
        self.gpus = gpus
        self.imex_channels = imex_channels


class MigCapabilities(Value):
    """The files and nodes that grant access to MIG devices and to the administration of MIG.

    ``major`` is the nvidia-caps major number (None: the driver grants MIG access by files in /proc
    alone). ``minors`` are the rows (capability, minor) of mig-minors. ``access_files`` are the
    capabilities' files under /proc, ``nodes`` the device nodes that belong to them.
    ``proc_directory`` is /proc/driver/nvidia/capabilities, ``dev_directory`` is /dev/nvidia-caps.
    """

    def __init__(
        self,
        *,
        major: int | None,
        minors: tuple[tuple[str, int], ...],
        access_files: tuple[ProcEntry, ...],
        nodes: tuple[DeviceNode, ...],
        proc_directory: ProcEntry | None,
        dev_directory: Node | None,
    ) -> None:
        self.major = major
        self.minors = minors
        self.access_files = access_files
        self.nodes = nodes
        self.proc_directory = proc_directory
        self.dev_directory = dev_directory


class Inventory(Value):
    """Everything of a host that a plan can use.

    :param host_name: a name for people; the node name of a live host.
    :param root: the driver root as an absolute path.
    :param machine: the kernel's name of the architecture.
    :param proc_files: the text files of /proc/driver/nvidia that are copied into a container.
    """

    def __init__(
        self,
        *,
        host_name: str,
        root: str,
        machine: str,
        report: DriverReport,
        files: DriverFiles,
        devices: Devices,
        mig: MigCapabilities,
        proc_files: tuple[ProcEntry, ...],
    ) -> None:
        self.host_name = host_name
        self.root = root
        self.machine = machine
        self.report = report
        self.files = files
        self.devices = devices
        self.mig = mig
        self.proc_files = proc_files


def in_rows(
    table: Sequence[CatalogueRow], chosen: Mapping[CatalogueRow, Component]
) -> tuple[tuple[Component, ...], tuple[CatalogueRow, ...]]:
    """Return the chosen components in the order of the table's rows, and the rows without a
    component.
    """
    components = tuple([chosen[row] for row in table if row in chosen])
    return components, tuple([row for row in table if row not in chosen])


def device_file_minor(entry: ProcEntry) -> int | None:
    """Return the minor of the nvidia-caps node that belongs to an access file, or None if the file
    names none.
    """
    for line in (entry.content or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and (minor := number(value.strip())) is not None:
            return minor
    return None


def mig_access_path(gpu: Gpu, device: MigDevice, *, compute: bool) -> str:
    """Return the /proc file for access to a MIG device's GPU instance, or with ``compute`` to its
    compute instance.
    """
    instance = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    return f"{instance}/ci{device.compute_instance}/access" if compute else f"{instance}/access"
