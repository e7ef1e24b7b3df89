"""The kind of a host: whether NVML, the CSV files of a Tegra board, or WSL2 tells what a device
needs.

Source: reference behaviour 9.3.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvgraft.formats.tree import Tree
    from nvgraft.host.graphics_files import FileFinder

NVML, TEGRA, WSL = "nvml", "tegra", "wsl"

_RELEASE = "/etc/nv_tegra_release"
_FAMILY = "/sys/devices/soc0/family"
NVML_LIBRARY = "libnvidia-ml.so.1"
_DXCORE = ("/usr/lib/wsl/lib/libdxcore.so", "/dev/dxg")
#: Parts of the names of integrated GPUs.
_INTEGRATED = ("(nvgpu)", "NVIDIA Thor")


def is_integrated(model: str) -> bool:
    """Tell whether NVML's name of a GPU is that of an integrated one."""
    return any(part in model for part in _INTEGRATED)


def platform(finder: FileFinder, models: Callable[[], Iterable[str]]) -> str:
    """Return the kind of a host.

    It is WSL2 if the host has DXCore, Tegra if it has the board's files and no NVML, or an
    integrated GPU.

    :param models: returns NVML's names of the GPUs. It may raise a :class:`Refusal`.
    """
    if any(finder.find(path)[1] is not None for path in _DXCORE):
        return WSL
    has_nvml = bool(finder.libraries(NVML_LIBRARY))
    if not has_nvml:
        return TEGRA if has_tegra_files(finder.tree) else NVML
    try:
        return TEGRA if any(map(is_integrated, models())) else NVML
    except Refusal:
        return NVML


def has_tegra_files(tree: Tree) -> bool:
    """Tell whether a host is a Tegra board."""
    try:
        node = tree.lstat(tree.resolve(_RELEASE))
        if node is not None and node.type != "dir":
            return True
        family = tree.read(tree.resolve(_FAMILY), 1 << 12)
    except (OSError, ValueError, Refusal):
        return False
    return family[:5].lower() == b"tegra"
