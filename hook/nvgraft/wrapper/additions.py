"""Find what the runtime wrapper adds to a container besides the hook in mode legacy, on a live or
recorded host.

For graphics these are the DRM nodes of the selected GPUs, links to them, and files that the hook
does not mount. For a gated component (such as NVIDIA_GDS) they are its device nodes and files. The
container only chooses among them: its device ids are compared, and never become a path (SECURITY
R14, R15). ``nvgraft.wrapper.edits`` writes them into config.json.

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
#: The labels of a GPU's information file whose values are compared with an id.
_MINOR, _UUID, _BUS_ID = "Device Minor", "GPU UUID", "Bus Location"

_MOUNTS_ERROR = (
    "failed to create mounts discoverer: failed to construct discoverer for graphics libraries: "
)
_NODES_ERROR = (
    "failed to construct discoverer: failed to create DRM device discoverer: failed to"
    " construct DRM device filter: failed to parse "
)


class Additions(Value):
    """Device nodes, files, and links (``TARGET::LINK``), each in the order in which they are
    added.
    """

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
    """Return this host's additions for a container; the driver root is part of their sources.

    :param gates: the variables of the requested gated components.
    :param devices: the requested device ids if graphics is requested, else None.
    :raises Refusal: the driver root or the driver's version is not found.
    """
    from nvgraft.host.live import drm_names, file_finder

    root = config.cli_root or "/"
    try:
        finder = file_finder(config)
    except OSError as error:
        text = f"{_MOUNTS_ERROR}failed to get driver version: open {root}: {reason(error)}"
        raise Refusal("", text, "set root in config.toml to the driver root") from None
    # The finder's descriptors are closed by the exec that follows, or at the end of this process.
    return below_root(find(finder, search_path, gates, devices, drm_names), root, finder)


def below_root(additions: Additions, root: str, finder: FileFinder) -> Additions:
    """Return the additions with the sources of their mounts below the driver root ``root``."""
    mounts = [_rooted(mount, root, finder) for mount in additions.mounts]
    return Additions(additions.nodes, mounts, additions.links)


def _rooted(mount: FileMount, root: str, finder: FileFinder) -> FileMount:
    """Return the mount with its source on the host. Links are resolved inside the driver root: the
    runtime would not do that.
    """
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
    """Return the additions for a container.

    :param devices: see :func:`look_at_host`.
    :param drm_names: PCI address -> names in /dev/dri.
    :raises Refusal: graphics is requested, and the driver's version is not found or a GPU's
        information cannot be read.
    """
    additions = Additions()
    for gate in gates:
        nodes, files = finder.gated(gate)
        additions += Additions(nodes, map(FileMount, files))
    if devices is not None:
        additions += _graphics(finder, search_path, devices, drm_names)
    return additions


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
    """Return the PCI addresses, as the kernel module writes them, of the GPUs whose minor number,
    UUID or address is requested.

    An index is compared with the minor number. The reference does so here and nowhere else.
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
            hint = (
                "the nvidia kernel module must describe the GPU in this file"
                f" ({error.strerror}): load the module again, or reboot"
            )
            raise Refusal("", f"{_NODES_ERROR}{path}: open {path}: {reason(error)}", hint) from None
        ids = {information.get(field, "") for field in (_MINOR, _UUID, _BUS_ID)} - {""}
        selected = bool(ids) if chosen is None else not chosen.isdisjoint(ids)
        if selected:
            addresses.append(information.get(_BUS_ID, ""))
    return addresses


def _chosen(devices: Sequence[str]) -> set[str] | None:
    """Return the requested ids, or None for all GPUs."""
    for device in devices:
        if device == names.ALL:
            return None
        if device in (names.NONE, names.VOID):
            return set()
    return {part for device in devices for part in device.split(",")}


def _no_version() -> Refusal:
    lines = []
    for library in table.VERSION_LIBRARIES:
        # One text for the directories, and one for the loader cache.
        pattern = f"{library}*.*: not found"
        lines += [f'failed to locate "{library}": {pattern}', pattern]
    lines[0] = f"{_MOUNTS_ERROR}failed to get driver version: {lines[0]}"
    hint = (
        "no NVIDIA driver is installed below the root of config.toml: install it, or do not"
        " request graphics or display"
    )
    return Refusal("", lines[-1], hint, first_line="\n".join(lines[:-1]))
