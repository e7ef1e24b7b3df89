"""What the runtime adds to a container beside the hook, found on a live or recorded host, in mode legacy.

For graphics: the DRM nodes of the selected GPUs, links to them, and files that the hook does not mount. For a gated
component (NVIDIA_GDS and its like): its device nodes and files. A container's configuration only chooses among them: its
device ids are compared, and never become a path (SECURITY R14, R15). How it comes into config.json is ``nvgraft.wrapper.edits``'.

Source: reference behaviour 1.9, 9.5, 10.3, 10.4.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.values import Value
from nvgraft.host.gpus import parse_information
from nvgraft.host.graphics_files import CharDevice, FileFinder, FileMount
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nvgraft.request.config import Config

_GPUS = "/proc/driver/nvidia/gpus"
_INFORMATION_LIMIT = 1 << 16
#: The lines of a GPU's information file that an id is compared with.
_MINOR, _UUID, _BUS_ID = "Device Minor", "GPU UUID", "Bus Location"

_MOUNTS_ERROR = (
    "failed to create mounts discoverer: failed to construct discoverer for graphics libraries: "
)
_NODES_ERROR = "failed to construct discoverer: failed to create DRM device discoverer: failed to construct DRM device filter: failed to parse "


class Additions(Value):
    """Device nodes, files, and links (``TARGET::LINK``), each in the order in which they are added."""

    def __init__(
        self,
        nodes: Iterable[CharDevice] = (),
        mounts: Iterable[FileMount] = (),
        links: Iterable[str] = (),
    ) -> None:
        self.nodes = tuple(nodes)
        self.mounts = tuple(mounts)
        self.links = tuple(links)

    def __add__(self, other: Additions) -> Additions:
        return Additions(
            self.nodes + other.nodes, self.mounts + other.mounts, self.links + other.links
        )


def look_at_host(
    config: Config, search_path: Sequence[str], gates: Sequence[str], devices: Sequence[str] | None
) -> Additions:
    """Return what this host has for a container; its sources are written with the driver root.

    :param gates: variables of the gated components that are asked for.
    :param devices: the ids that are asked for together with graphics; None: graphics is not asked for.
    :raises Refusal: the driver root or the driver's version is not found.
    """
    from nvgraft.host.live import drm_names, file_finder

    root = config.cli_root or "/"
    try:
        finder = file_finder(config)
    except OSError as error:
        text = f"{_MOUNTS_ERROR}failed to get driver version: open {root}: {reason(error)}"
        raise Refusal("", text, "root in config.toml must name the driver root") from None
    # What was opened is closed by the exec that follows, or with this process.
    additions = find(finder, search_path, gates, devices, drm_names)
    mounts = [_rooted(mount, root, finder) for mount in additions.mounts]
    return Additions(additions.nodes, mounts, additions.links)


def _rooted(mount: FileMount, root: str, finder: FileFinder) -> FileMount:
    """Return the mount with its source on the host. Links of a driver root are followed inside of it, which nobody else will do."""
    if root == "/":
        return mount
    return FileMount(root.rstrip("/") + finder.find(mount.path)[0], mount.target)


def find(
    finder: FileFinder,
    search_path: Sequence[str],
    gates: Sequence[str],
    devices: Sequence[str] | None,
    drm_names: Callable[[str], Iterable[str]],
) -> Additions:
    """Return what there is for a container.

    :param devices: see :func:`look_at_host`.
    :param drm_names: PCI address -> names in /dev/dri.
    :raises Refusal: with devices: the driver's version is not found, or a GPU's information cannot be read.
    """
    additions = Additions()
    for gate in gates:
        additions += _gated(finder, gate)
    if devices is not None:
        additions += _graphics(finder, search_path, devices, drm_names)
    return additions


def _gated(finder: FileFinder, gate: str) -> Additions:
    patterns, paths = table.GATED[gate]
    devices = finder.char_devices(patterns)
    if not devices:
        return Additions()
    return Additions(
        sorted(devices, key=lambda device: (device.path.count("/"), device.path)),
        [FileMount(path) for path in paths if finder.find(path)[1] is not None],
    )


def _graphics(
    finder: FileFinder,
    search_path: Sequence[str],
    devices: Sequence[str],
    drm_names: Callable[[str], Iterable[str]],
) -> Additions:
    version = finder.driver_version()
    if not version:
        raise _no_version()
    mounts, links = finder.graphics_files(version)
    mounts += map(FileMount, finder.first(search_path, table.XORG_BINARY, executable=True))
    selected = {
        f"/dev/dri/{name}" for address in _selected(finder, devices) for name in drm_names(address)
    }
    nodes = [node for node in finder.char_devices(table.DRM_NODES) if node.path in selected]
    by_path = finder.drm_links({node.path for node in nodes}, "pci-*-*")
    return Additions(nodes, mounts, dict.fromkeys([*by_path, *links]))


def _selected(finder: FileFinder, devices: Sequence[str]) -> list[str]:
    """Return the PCI addresses of the GPUs that are asked for by their minor number, UUID or address, as the kernel module writes them.

    An index is compared with the minor number: that is how the reference does it, here and nowhere else.
    """
    chosen = _chosen(devices)
    addresses = []
    for name in finder.tree.listdir(_GPUS):
        path = f"{_GPUS}/{name}/information"
        if finder.find(path)[1] is None:
            continue
        try:
            information = parse_information(finder.tree.read(path, _INFORMATION_LIMIT))
        except OSError as error:
            hint = f"the nvidia kernel module tells there which GPU it is ({error.strerror})"
            raise Refusal("", f"{_NODES_ERROR}{path}: open {path}: {reason(error)}", hint) from None
        ids = {information.get(field, "") for field in (_MINOR, _UUID, _BUS_ID)} - {""}
        if ids if chosen is None else not chosen.isdisjoint(ids):
            addresses.append(information.get(_BUS_ID, ""))
    return addresses


def _chosen(devices: Sequence[str]) -> set[str] | None:
    """Return the ids that are asked for; None: all of them."""
    for device in devices:
        if device == names.ALL:
            return None
        if device in (names.NONE, names.VOID):
            return set()
    return {part for device in devices for part in device.split(",")}


def _no_version() -> Refusal:
    lines = []
    for library in table.VERSION_LIBRARIES:
        pattern = f"{library}*.*: not found"  # once for the directories, once for the loader cache
        lines += [f'failed to locate "{library}": {pattern}', pattern]
    lines[0] = f"{_MOUNTS_ERROR}failed to get driver version: {lines[0]}"
    hint = "no NVIDIA driver is installed below the root of config.toml: install it, or do not ask for graphics or display"
    return Refusal("", lines[-1], hint, first_line="\n".join(lines[:-1]))
