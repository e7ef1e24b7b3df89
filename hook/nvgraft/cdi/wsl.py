"""The device of WSL2: /dev/dxg, DXCore and the files of the Windows driver's store.

There is one device for all GPUs, because all of them share /dev/dxg. A request for ``none`` gets
the files without it. DXCore knows which store is in use, but asking it means to run its code with
the rights of this process. Instead the store is the one that has the driver's libcuda; if an
earlier driver has left its store too, the last in the order of names counts.

Source: reference behaviour 13.1.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import Contents, Discovered, FoundDevice, cache_step
from nvgraft.cdi.edits import CdiMount, links_step
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.host.graphics_files import FileFinder

_NODE = "/dev/dxg"
_STORES = "/usr/lib/wsl/drivers"
_LIBRARIES = "/usr/lib/wsl/lib"
_DXCORE = "libdxcore.so"
_CUDA = "libcuda.so.1.1"
_SMI = "nvidia-smi"
_REQUIRED = (
    _CUDA,
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
    "nvcubins.bin",
    _SMI,
)
_FURTHER = ("*.so*", "*.bin", "*.dll")


def discover_wsl(finder: FileFinder, root: str) -> Discovered:
    """Return the device of a WSL2 host, and what it needs.

    :raises Refusal: no driver store has NVIDIA's libcuda.
    """
    store = _driver_store(finder)
    dxcore = list(finder.matching([_LIBRARIES], _DXCORE))
    required = [path for name in _REQUIRED for path in finder.matching([store], name)]
    further = [path for pattern in _FURTHER for path in finder.matching([store], pattern)]
    mounted = dict.fromkeys([*dxcore, *required, *further])
    smi = [path for path in required if paths.basename(path) == _SMI]
    common = Contents(
        env=[f"{names.VISIBLE_DEVICES}={names.VOID}"],
        mounts=[CdiMount(root.rstrip("/") + path, path, table.OPTIONS) for path in mounted],
        steps=[
            *links_step(f"{path}::/usr/bin/{_SMI}" for path in smi),
            *cache_step([*required, *dxcore]),
        ],
    )
    return Discovered(
        common, [FoundDevice(0, None, "", Contents(nodes=finder.char_devices([_NODE])))]
    )


def _driver_store(finder: FileFinder) -> str:
    """Return the directory with the driver's libcuda."""
    stores = [
        f"{_STORES}/{name}"
        for name in finder.names(_STORES)
        if finder.find(f"{_STORES}/{name}/{_CUDA}")[1] is not None
    ]
    if not stores:
        raise Refusal(
            "",
            f"failed to find NVIDIA driver store path: failed to locate {_CUDA} at WSL driver store"
            " paths",
            f"no directory of {_STORES} has it: install NVIDIA's driver for Windows, or run"
            " `wsl --shutdown` after an update",
        )
    return stores[-1]
