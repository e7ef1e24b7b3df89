"""What a host has: the driver's components, its devices and its GPUs.

One reader for a live host and for a host snapshot: both are a :class:`Host` (a tree, loader cache entries, the driver's
report), and every rule of selection is applied here to either. What a container asks for plays no part.
"""

import posixpath

from nvgraft.components import Component, DeviceNode, Host, Inventory, Libraries, ProcEntry, device_file_minor, mig_access_path
from nvgraft.errors import Refusal
from nvgraft.files import reason
from nvgraft.ldcache import ARCHITECTURES, CacheEntry
from nvgraft.nvml import Gpu
from nvgraft.tree import Node, PathError, Tree
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

#: Small text files of /proc are read whole; the largest, mig-minors, has about 5 KiB.
_TEXT_LIMIT = 1 << 18

#: Loader cache entries whose SONAME starts otherwise are no driver component: the cache reader may skip them.
LIBRARY_PREFIXES = tuple(row.encode() for _, rows in catalogue.LIBRARIES for row, _ in rows)


def read_inventory(host: Host, path: str, mps_directory: str = "", omit: "Collection[str]" = ()) -> Inventory:
    """Read everything that a plan may need from ``host``.

    :param path: the search path for binaries, ``:`` between directories.
    :param mps_directory: CUDA_MPS_PIPE_DIRECTORY; empty for the default.
    :param omit: what is not looked for, by the names of the reference CLI's options: "persistenced", "fabricmanager",
        "gsp-firmware".
    :raises Refusal: stage ``detection``, as the reference: an unreadable loader cache, a stale entry in it, a library that is
        no ELF file; stage ``device`` for more than 64 GPUs.
    """
    report = host.report
    if host.refusal is not None:
        raise host.refusal
    if len(report.gpus) > catalogue.MAX_GPUS:
        raise Refusal("device", "too many devices", f"NVML reports {len(report.gpus)} GPUs, the device mask has {catalogue.MAX_GPUS} bits")
    tree = host.tree
    libraries = host.libraries
    if libraries is None:
        libraries = select_libraries(host)
        if host.keep is not None:
            host.keep(libraries)
    binaries, missing_binaries = _binaries(tree, path)
    try:
        services = [path for path in catalogue.SERVICE_SOCKETS if not any(f"/nvidia-{service}/" in path for service in omit)]
        sockets, mps = _sockets(tree, services, mps_directory or catalogue.MPS_DIRECTORY)
        firmware = () if "gsp-firmware" in omit else _firmware(tree, report.driver_version)
    except PathError as error:
        raise Refusal("detection", error.text) from error
    proc = "/proc/driver/nvidia"
    mig_minors: tuple[tuple[str, int], ...] = ()
    mig_access: tuple[ProcEntry, ...] = ()
    if any(gpu.mig != "unsupported" for gpu in report.gpus):
        mig_minors = _mig_minors(tree)
        mig_access = _mig_access(tree, report.gpus)
    caps_major = host.majors.get("nvidia-caps")
    caps = tree.lstat(f"{proc}/capabilities")
    imex_major = host.majors.get("nvidia-caps-imex-channels")
    return Inventory(
        host.name,
        host.root,
        host.machine,
        report,
        libraries.wide,
        libraries.narrow,
        binaries,
        firmware,
        sockets,
        mps,
        _control(tree),
        tuple(_gpu_node(tree, gpu) for gpu in report.gpus),
        tuple(entry for name in catalogue.PROC_FILES if (entry := _proc_file(tree, f"{proc}/{name}")) is not None),
        tuple(_gpu_proc_dir(tree, gpu) for gpu in report.gpus),
        caps_major,
        mig_minors,
        mig_access,
        () if caps_major is None else _cap_nodes(tree, mig_access, caps_major),
        ProcEntry(f"{proc}/capabilities", caps.mode) if caps is not None and caps.type == "dir" else None,
        tree.lstat("/dev/nvidia-caps"),
        () if imex_major is None else _imex(tree, imex_major),
        (*libraries.missing, *missing_binaries),
    )


def select_libraries(host: Host) -> Libraries:
    """Select the driver's libraries of both architectures.

    :raises Refusal: stage ``detection``, for a stale entry of the loader cache and for what is no ELF file.
    """
    wide, narrow = ARCHITECTURES.get(host.machine, ARCHITECTURES["x86_64"])
    libraries, missing = _libraries(host, wide)
    return Libraries(libraries, _libraries(host, narrow)[0] if narrow is not None else (), missing)


def _libraries(host: Host, architecture: int) -> tuple[tuple[Component, ...], tuple[tuple[str, str], ...]]:
    """Select the libraries of one architecture: the last accepted candidate of a row wins (reference behaviour 5.2, 5.3)."""
    rows = [(name, row) for name, rows in catalogue.LIBRARIES for row, _since in rows]
    chosen: dict[str, Component] = {}
    for entry in host.entries:
        if entry.architecture != architecture:
            continue
        for component_class, row in rows:
            if not entry.soname.startswith(row):
                continue
            try:
                path = host.tree.resolve(entry.path)
            except PathError as error:
                raise Refusal("detection", error.text) from error
            if row in chosen and chosen[row].path == path:
                continue  # the same file under another name: it may fit a later row
            component = _select(host, component_class, row, entry, path)
            if component is not None:
                chosen[row] = component
            break
    missing = tuple((component_class, row) for component_class, row in rows if row not in chosen)
    return tuple(chosen[row] for _, row in rows if row in chosen), missing


def _select(host: Host, component_class: str, row: str, entry: CacheEntry, path: str) -> Component | None:
    """Return the component at ``path``, or None when the selector rejects it."""
    shown = host.root.rstrip("/") + path
    tls = posixpath.basename(path).startswith(catalogue.TLS_LIBRARY)
    try:
        facts = host.tree.elf(path, sections=tls)
    except OSError as error:
        raise Refusal(
            "detection",
            f"open failed: {shown}: {reason(error)}",
            f"the loader cache names {entry.path} for {entry.soname}, which cannot be read: run ldconfig on the host",
        ) from error
    except ValueError as error:
        raise Refusal("detection", f"elf file read error: {shown}", f"{error}: reinstall the driver, then run ldconfig") from error
    if tls and facts.abi_tag is None:
        raise Refusal("detection", f"elf section 0x7 missing: {shown}", "it carries no .note.ABI-tag: reinstall the driver")
    if tls and facts.abi_tag != catalogue.TLS_ABI_TAG:
        return None
    if not path.endswith(host.report.driver_version):
        return None
    node = host.tree.lstat(path)
    links = f" -> {path}" if path != entry.path else ""
    found = f"loader cache: {entry.soname} => {entry.path}{links}"
    return Component(component_class, row, path, found, "file", node.mode if node else 0o644, node.size if node else 0, facts.soname)


def _binaries(tree: Tree, path: str) -> tuple[tuple[Component, ...], tuple[tuple[str, str], ...]]:
    """Find each binary in the first directory of ``path`` that has it; existence is all that counts (reference behaviour 5.4)."""
    rows = [(name, row) for name, rows in catalogue.BINARIES for row, _since in rows]
    chosen: dict[str, Component] = {}
    for directory in path.split(":"):
        for component_class, row in rows:
            if row in chosen:
                continue
            wanted = f"{directory or '.'}/{row}"
            try:
                resolved, node = tree.find(wanted)
            except PathError:
                continue  # a search path may name what is no directory, or one that this user may not enter
            if node is not None:
                found = f"PATH: {wanted}" + (f" -> {resolved}" if resolved != wanted else "")
                chosen[row] = Component(component_class, row, resolved, found, "file", node.mode, node.size)
    missing = tuple((component_class, row) for component_class, row in rows if row not in chosen)
    return tuple(chosen[row] for _, row in rows if row in chosen), missing


def _firmware(tree: Tree, version: str) -> tuple[Component, ...]:
    """Return the GSP firmware images of the running driver; ``row`` is the path that the container shall see (5.5)."""
    wanted = f"/lib/firmware/nvidia/{version}"
    directory = tree.resolve(wanted)
    images = []
    for name in tree.listdir(directory):
        if name.startswith("gsp") and name.endswith(".bin"):
            path, node = tree.find(f"{directory}/{name}")
            if node is not None:
                images.append(
                    Component("firmware", f"{wanted}/{name}", path, f"firmware of driver {version}", "file", node.mode, node.size)
                )
    return tuple(images)


def _sockets(tree: Tree, services: "Iterable[str]", mps_directory: str) -> tuple[tuple[Component, ...], Component | None]:
    """Return the sockets of host services, and the MPS directory, as far as they exist (5.6)."""
    sockets = []
    for wanted in services:
        path, node = _probe(tree, wanted)
        if node is not None:
            # A resolved path that is no suffix of the well-known one counts as MPS' own (reference behaviour 6.5 A9).
            component_class = "utility" if any(known.endswith(path) for known in catalogue.SERVICE_SOCKETS) else "compute"
            sockets.append(Component(component_class, wanted, path, f"socket: {wanted}", _kind(node), node.mode))
    path, node = _probe(tree, mps_directory)
    if node is None:
        return tuple(sockets), None
    return tuple(sockets), Component("compute", mps_directory, path, f"MPS pipe directory: {mps_directory}", _kind(node), node.mode)


def _probe(tree: Tree, wanted: str) -> tuple[str, Node | None]:
    """Return what ``find`` does; what this user may not see counts as missing (5.6)."""
    try:
        return tree.find(wanted)
    except PathError as error:
        if isinstance(error.__cause__, PermissionError):
            return wanted, None
        raise


def _kind(node: Node) -> str:
    return node.type if node.type in {"dir", "socket"} else "file"


def _control(tree: Tree) -> tuple[DeviceNode, ...]:
    """Return the control nodes in the reference's order; nvidiactl always, the others where they exist (5.7)."""
    major = catalogue.NVIDIA_MAJOR
    nodes = [DeviceNode("/dev/nvidiactl", (major, catalogue.CONTROL_MINOR), tree.lstat("/dev/nvidiactl"))]
    for path in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        node = tree.lstat(path)
        if node is not None and node.rdev is not None:
            nodes.append(DeviceNode(path, node.rdev, node))
    modeset = tree.lstat("/dev/nvidia-modeset")
    if modeset is not None:
        nodes.append(DeviceNode("/dev/nvidia-modeset", (major, catalogue.MODESET_MINOR), modeset))
    return tuple(nodes)


def _gpu_node(tree: Tree, gpu: Gpu) -> DeviceNode:
    path = f"/dev/nvidia{gpu.minor}"
    return DeviceNode(path, (catalogue.NVIDIA_MAJOR, gpu.minor), tree.lstat(path))


def _gpu_proc_dir(tree: Tree, gpu: Gpu) -> ProcEntry | None:
    """Return the GPU's directory, whose name has a PCI domain of eight digits in some drivers and of four in most."""
    for address in (gpu.bus_id, gpu.bus_id[4:]):
        path = f"/proc/driver/nvidia/gpus/{address}"
        node = tree.lstat(path)
        if node is not None:
            return ProcEntry(path, node.mode)
    return None


def _proc_file(tree: Tree, path: str) -> ProcEntry | None:
    node = tree.lstat(path)
    if node is None or node.type != "file":
        return None
    try:
        return ProcEntry(path, node.mode, tree.read(path, _TEXT_LIMIT).decode("utf-8", "surrogateescape"))
    except OSError as error:
        raise Refusal("mount", f"file read error: {path}: {reason(error)}") from error


def _mig_minors(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Return the rows of mig-minors: which capability has which minor of the nvidia-caps major."""
    entry = _proc_file(tree, "/proc/driver/nvidia-caps/mig-minors")
    rows = []
    for line in (entry.content or "").splitlines() if entry is not None else ():
        name, _, minor = line.partition(" ")
        if minor.strip().isdecimal():
            rows.append((name, int(minor)))
    return tuple(rows)


def _mig_access(tree: Tree, gpus: "Iterable[Gpu]") -> tuple[ProcEntry, ...]:
    """Return the access files of every MIG device, and those of the "config" and "monitor" capabilities, that exist."""
    paths = [f"/proc/driver/nvidia/capabilities/mig/{name}" for name in ("config", "monitor")]
    paths += [mig_access_path(gpu, device, compute=compute) for gpu in gpus for device in gpu.mig_devices for compute in (False, True)]
    return tuple(entry for path in dict.fromkeys(paths) if (entry := _proc_file(tree, path)) is not None)


def _cap_nodes(tree: Tree, access: "Iterable[ProcEntry]", major: int) -> tuple[DeviceNode, ...]:
    minors = dict.fromkeys(minor for entry in access if (minor := device_file_minor(entry)) is not None)
    paths = ((f"/dev/nvidia-caps/nvidia-cap{minor}", minor) for minor in minors)
    return tuple(DeviceNode(path, (major, minor), tree.lstat(path)) for path, minor in paths)


def _imex(tree: Tree, major: int) -> tuple[DeviceNode, ...]:
    directory = "/dev/nvidia-caps-imex-channels"
    nodes = []
    for name in tree.listdir(directory):
        number = name.removeprefix("channel")
        if name.startswith("channel") and number.isdecimal():
            path = f"{directory}/{name}"
            nodes.append(DeviceNode(path, (major, int(number)), tree.lstat(path)))
    return tuple(nodes)


def parse_majors(text: str) -> dict[str, int]:
    """Return driver name -> major from the character part of /proc/devices; the first line of a name counts."""
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name:
            majors.setdefault(name, int(number))
    return majors


def find_loaded_library(host_tree: Tree, entries: "Iterable[CacheEntry]", soname: str, machine: str, search: "Sequence[str]") -> str | None:
    """Return the path from which dlopen would load ``soname`` inside the driver root: ``search`` (LD_LIBRARY_PATH) first,
    then the loader cache, then the default directories; None when it would fail."""
    wide = ARCHITECTURES.get(machine, ARCHITECTURES["x86_64"])[0]
    multiarch = f"{machine}-linux-gnu"
    candidates = [f"{directory}/{soname}" for directory in search if directory]
    candidates += [entry.path for entry in entries if entry.soname == soname and entry.architecture == wide]
    candidates += [
        f"{directory}/{soname}" for directory in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    ]
    for path in candidates:
        try:
            if host_tree.find(path)[1] is not None:
                return path
        except PathError:
            continue
    return None
