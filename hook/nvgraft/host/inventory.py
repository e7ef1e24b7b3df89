"""Read the inventory of a host: the driver's components, its devices and its GPUs.

A live host and a host snapshot are both a :class:`Host` (a tree, loader cache entries, the driver's
report), and the same rules select from both: here, and for libraries in
:mod:`nvgraft.host.libraries`. The rules do not depend on a container's request.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.values import number
from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft.host.components import (
    Component,
    DeviceNode,
    Devices,
    DriverFiles,
    Firmware,
    GpuDevice,
    Host,
    Inventory,
    MigCapabilities,
    ProcEntry,
    Socket,
    device_file_minor,
    in_rows,
    mig_access_path,
)
from nvgraft.host.gpus import Gpu
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nvgraft_specs.catalogue import CatalogueRow

_PROC = "/proc/driver/nvidia"
#: Bytes of a text file of /proc. The largest one, mig-minors, has about 5 KiB.
_TEXT_LIMIT = 1 << 18


def read_inventory(
    host: Host,
    path: str | None,
    mps_directory: str = "",
    omit: Collection[str] = (),
    channels: Collection[int] | None = None,
) -> Inventory:
    """Read everything that a plan may need from ``host``.

    :param path: the search path for binaries, directories separated by ``:``; None (there is none)
        is refused.
    :param mps_directory: CUDA_MPS_PIPE_DIRECTORY; empty for the default.
    :param omit: components to leave out, by the names of the reference CLI's options:
        "persistenced", "fabricmanager", "gsp-firmware".
    :param channels: the requested IMEX channels; None for all channels of the host (there may be
        thousands).
    :raises Refusal: stage ``detection``, as the reference: an unreadable loader cache, a stale
        entry in it, a library that is not an ELF file; stage ``device`` for more than 64 GPUs.
    """
    report = host.report
    if host.refusal is not None:
        raise host.refusal
    if len(report.gpus) > catalogue.MAX_GPUS:
        raise Refusal(
            "device",
            "too many devices",
            f"NVML reports {len(report.gpus)} GPUs; at most {catalogue.MAX_GPUS} are supported",
        )
    tree = host.tree
    libraries = host.libraries
    if libraries is None:
        from nvgraft.host.libraries import select_libraries

        libraries = select_libraries(host)
        if host.keep is not None:
            host.keep(libraries)
    binaries, missing_binaries = _binaries(tree, path)
    try:
        services = [
            socket for service, socket in catalogue.SERVICE_SOCKETS.items() if service not in omit
        ]
        sockets, mps = _sockets(tree, services, mps_directory or catalogue.MPS_DIRECTORY)
        firmware = () if "gsp-firmware" in omit else _firmware(tree, report.driver_version)
    except PathError as error:
        raise Refusal("detection", error.text) from error
    return Inventory(
        host_name=host.name,
        root=host.root,
        machine=host.machine,
        report=report,
        files=DriverFiles(
            libraries=libraries.wide,
            libraries32=libraries.narrow,
            binaries=binaries,
            firmware=firmware,
            sockets=sockets,
            mps=mps,
            missing=(*libraries.missing, *missing_binaries),
        ),
        devices=Devices(
            control=_control(tree),
            gpus=tuple([_gpu_device(tree, gpu) for gpu in report.gpus]),
            imex_channels=_imex(tree, host.majors.get("nvidia-caps-imex-channels"), channels),
        ),
        mig=_mig_capabilities(tree, report.gpus, host.majors.get("nvidia-caps")),
        proc_files=_proc_files(tree, [f"{_PROC}/{name}" for name in catalogue.PROC_FILES]),
    )


def path_missing() -> Refusal:
    """Return the refusal for a process that has no search path."""
    return Refusal(
        "detection",
        "environment variable PATH not found",
        "set PATH, in which the hook looks up the driver's programs, or remove path from"
        " config.toml",
    )


def _binaries(
    tree: Tree, path: str | None
) -> tuple[tuple[Component, ...], tuple[CatalogueRow, ...]]:
    """Find each binary in the first directory of ``path`` that has a file of its name (reference
    behaviour 5.4).
    """
    if path is None:
        raise path_missing()
    chosen: dict[CatalogueRow, Component] = {}
    for directory in path.split(":"):
        try:
            place, node = tree.find(directory or ".")
        except PathError:
            continue
        if node is None:
            continue
        for row in catalogue.BINARIES:
            try:
                # Most directories have none of them: that is told without following links.
                if row in chosen or tree.lstat(f"{place.rstrip('/')}/{row.name}") is None:
                    continue
                program = f"{directory or '.'}/{row.name}"
                resolved, node = tree.find(program)
            except (OSError, PathError):
                # an entry of a search path may be a directory that this user may not enter
                continue
            if node is not None:
                found = f"PATH: {program}" + (f" -> {resolved}" if resolved != program else "")
                chosen[row] = Component(row, resolved, found, node.mode, node.size)
    return in_rows(catalogue.BINARIES, chosen)


def _firmware(tree: Tree, version: str) -> tuple[Firmware, ...]:
    """Return the GSP firmware images of the running driver (reference behaviour 5.5)."""
    target = f"/lib/firmware/nvidia/{version}"
    directory = tree.resolve(target)
    images = []
    for name in tree.listdir(directory):
        if name.startswith("gsp") and name.endswith(".bin"):
            path, node = tree.find(f"{directory}/{name}")
            if node is not None:
                found = f"firmware of driver {version}"
                images.append(Firmware(path, f"{target}/{name}", found, node.mode, node.size))
    return tuple(images)


def _sockets(
    tree: Tree, services: Iterable[str], mps_directory: str
) -> tuple[tuple[Socket, ...], Socket | None]:
    """Return the existing sockets of host services, and the MPS directory or None (reference
    behaviour 5.6).
    """
    sockets = []
    for service in services:
        path, node = _probe(tree, service)
        if node is not None:
            # A resolved path that is not a suffix of a well-known one counts as a path of MPS
            # (reference behaviour 6.5 A9).
            well_known = any(socket.endswith(path) for socket in catalogue.SERVICE_SOCKETS.values())
            component_class = "utility" if well_known else "compute"
            found = f"socket: {service}"
            sockets.append(Socket(component_class, service, path, found, _kind(node), node.mode))
    path, node = _probe(tree, mps_directory)
    if node is None:
        return tuple(sockets), None
    found = f"MPS pipe directory: {mps_directory}"
    return tuple(sockets), Socket("compute", mps_directory, path, found, _kind(node), node.mode)


def _probe(tree: Tree, path: str) -> tuple[str, Node | None]:
    """Find ``path`` as ``tree.find()`` does, but count a path that this user may not read as
    missing (reference behaviour 5.6).
    """
    try:
        return tree.find(path)
    except PathError as error:
        if isinstance(error.__cause__, PermissionError):
            return path, None
        raise


def _kind(node: Node) -> str:
    return node.type if node.type in {"dir", "socket"} else "file"


def _control(tree: Tree) -> tuple[DeviceNode, ...]:
    """Return nvidiactl and the other control nodes that exist, in the reference's order (reference
    behaviour 5.7).
    """
    major = catalogue.NVIDIA_MAJOR
    nodes = [
        DeviceNode("/dev/nvidiactl", (major, catalogue.CONTROL_MINOR), tree.lstat("/dev/nvidiactl"))
    ]
    for path in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        node = tree.lstat(path)
        if node is not None and node.rdev is not None:
            nodes.append(DeviceNode(path, node.rdev, node))
    modeset = tree.lstat("/dev/nvidia-modeset")
    if modeset is not None:
        nodes.append(DeviceNode("/dev/nvidia-modeset", (major, catalogue.MODESET_MINOR), modeset))
    return tuple(nodes)


def _gpu_device(tree: Tree, gpu: Gpu) -> GpuDevice:
    path = f"/dev/nvidia{gpu.minor}"
    node = DeviceNode(path, (catalogue.NVIDIA_MAJOR, gpu.minor), tree.lstat(path))
    return GpuDevice(gpu, node, _gpu_proc_directory(tree, gpu))


def _gpu_proc_directory(tree: Tree, gpu: Gpu) -> ProcEntry | None:
    """Return the GPU's directory. Its name has a PCI domain of four digits in most drivers, of
    eight in some.
    """
    for address in (gpu.bus_id, gpu.bus_id[4:]):
        path = f"{_PROC}/gpus/{address}"
        node = tree.lstat(path)
        if node is not None:
            return ProcEntry(path, node.mode)
    return None


def _proc_file(tree: Tree, path: str) -> ProcEntry | None:
    node = tree.lstat(path)
    if node is None or node.type != "file":
        return None
    try:
        return ProcEntry(
            path, node.mode, tree.read(path, _TEXT_LIMIT).decode("utf-8", "surrogateescape")
        )
    except OSError as error:
        raise Refusal("mount", f"file read error: {path}: {reason(error)}") from error


def _proc_files(tree: Tree, paths: Iterable[str]) -> tuple[ProcEntry, ...]:
    """Return the files of ``paths`` that exist."""
    return tuple([entry for path in paths if (entry := _proc_file(tree, path)) is not None])


def _mig_capabilities(tree: Tree, gpus: Collection[Gpu], major: int | None) -> MigCapabilities:
    minors: tuple[tuple[str, int], ...] = ()
    access_files: tuple[ProcEntry, ...] = ()
    if any(gpu.mig != "unsupported" for gpu in gpus):
        minors = read_mig_minors(tree)
        access_files = _mig_access_files(tree, gpus)
    directory = tree.lstat(f"{_PROC}/capabilities")
    return MigCapabilities(
        major=major,
        minors=minors,
        access_files=access_files,
        nodes=() if major is None else _cap_nodes(tree, access_files, major),
        proc_directory=ProcEntry(f"{_PROC}/capabilities", directory.mode)
        if directory is not None and directory.type == "dir"
        else None,
        dev_directory=tree.lstat("/dev/nvidia-caps"),
    )


def read_mig_minors(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Return the rows (capability, minor number below the nvidia-caps major) of mig-minors."""
    entry = _proc_file(tree, "/proc/driver/nvidia-caps/mig-minors")
    rows = []
    for line in (entry.content or "").splitlines() if entry is not None else ():
        name, _, text = line.partition(" ")
        if (minor := number(text.strip())) is not None:
            rows.append((name, minor))
    return tuple(rows)


def _mig_access_files(tree: Tree, gpus: Iterable[Gpu]) -> tuple[ProcEntry, ...]:
    """Return the existing access files of all MIG devices and of the "config" and "monitor"
    capabilities.
    """
    paths = [f"{_PROC}/capabilities/mig/{name}" for name in ("config", "monitor")]
    paths += [
        mig_access_path(gpu, device, compute=compute)
        for gpu in gpus
        for device in gpu.mig_devices
        for compute in (False, True)
    ]
    return _proc_files(tree, dict.fromkeys(paths))


def _cap_nodes(tree: Tree, access_files: Iterable[ProcEntry], major: int) -> tuple[DeviceNode, ...]:
    minors = dict.fromkeys(
        minor for entry in access_files if (minor := device_file_minor(entry)) is not None
    )
    paths = ((f"/dev/nvidia-caps/nvidia-cap{minor}", minor) for minor in minors)
    return tuple(DeviceNode(path, (major, minor), tree.lstat(path)) for path, minor in paths)


def _imex(tree: Tree, major: int | None, channels: Iterable[int] | None) -> tuple[DeviceNode, ...]:
    if major is None:
        return ()
    directory = "/dev/nvidia-caps-imex-channels"
    if channels is None:
        numbers = [
            name.removeprefix("channel")
            for name in tree.listdir(directory)
            if name.startswith("channel")
        ]
        channels = [int(number) for number in numbers if number.isdecimal()]
    nodes = [
        (channel, tree.lstat(f"{directory}/channel{channel}"))
        for channel in dict.fromkeys(channels)
    ]
    return tuple(
        DeviceNode(f"{directory}/channel{channel}", (major, channel), node)
        for channel, node in nodes
        if node is not None
    )


def parse_majors(text: str) -> dict[str, int]:
    """Parse the character devices of /proc/devices: driver name -> major number. The first line of
    a name counts.
    """
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        first, _, name = line.strip().partition(" ")
        if (major := number(first)) is not None and name:
            majors.setdefault(name, major)
    return majors
