"""Write the document that :mod:`nvgraft.host.kept_inventory` reads, after the host was read."""

from __future__ import annotations

import time

from nvgraft.formats.tree import LiveTree, identity
from nvgraft.system import keep, kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nvgraft.base.values import Value
    from nvgraft.host.components import Host, Libraries

#: Nanoseconds in which a change may go unseen: two changes within one tick of the kernel's clock
#: (at most 10 ms) have the same time stamp.
SETTLED = 50_000_000

#: Why an inventory is not kept now. A moment later it can be.
CHANGING = "files of the driver have changed just now"


def keep_inventory(
    kind: str,
    key: list[object],
    signs: dict[str, Any],
    started: int,
    host: Host,
    libraries: Libraries,
) -> str:
    """Keep the inventory as ``kind`` and return "", or return why it cannot be kept.

    It is not kept if one of its files changed shortly before this start read it: that file may
    change again and keep its time stamp.
    """
    assert isinstance(host.tree, LiveTree)
    files = {path: identity(status) for path, status in host.tree.statuses.items()}
    now = time.time_ns()
    identities = [*files.values(), *(other for _, other in signs["other files"])]
    if any(
        started - SETTLED < changed[-1] <= now
        for changed in identities
        if isinstance(changed, list)
    ):
        return CHANGING
    document = {
        "made": now // 10**9,
        "signs": signs,
        "files": files,
        "driver": [host.report.driver_version, host.report.cuda_version],
        "gpus": [
            [_fields(gpu, _GPU), [_fields(mig, _MIG_DEVICE) for mig in gpu.mig_devices]]
            for gpu in host.report.gpus
        ],
        "wide": [[library.row.name, *_fields(library, _LIBRARY)] for library in libraries.wide],
        "narrow": [[library.row.name, *_fields(library, _LIBRARY)] for library in libraries.narrow],
        "missing": [row.name for row in libraries.missing],
    }
    return "" if keep.write(kind, key, document) else f"{kept.DIRECTORY} cannot be written"


#: The order of the fields in the document, which is that of the classes' parameters.
_GPU = ("minor", "uuid", "bus_id", "brand", "arch", "mig", "model")


_MIG_DEVICE = ("uuid", "gpu_instance", "compute_instance")


_LIBRARY = ("path", "found", "mode", "size", "soname")


def _fields(value: Value, names: Iterable[str]) -> list[object]:
    return [getattr(value, name) for name in names]
