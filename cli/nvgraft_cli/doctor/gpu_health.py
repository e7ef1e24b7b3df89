"""Ask NVML what tells that a GPU is ill, or waits: memory errors, and the state of its fabric.

As the hook does (:mod:`nvgraft.host.nvml`), a confined child asks, for a limited time.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.host.libraries import find_loaded_library
from nvgraft.host.nvml import ANSWER_LIMIT, LIMITS, TIMEOUT
from nvgraft.system import child, confinement, userns
from nvgraft_cli.case.hosts import HostSide

_SONAME = "libnvidia-ml.so.1"

#: nvmlGpuFabricInfo_t.state: the GPU waits for the fabric to be set up, or is part of it.
FABRIC_WAITS = (1, 2)
FABRIC_COMPLETED = 3


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """What NVML says of one GPU.

    :ivar index: in NVML's order.
    :ivar uncorrected: uncorrected memory errors since the driver was loaded; None without ECC.
    :ivar fabric: the state of its fabric; None for a GPU that is not part of one.
    """

    index: int
    uuid: str
    uncorrected: int | None
    fabric: int | None


def ask_health(host: HostSide) -> tuple[GpuHealth, ...] | None:
    """Return what NVML says of each GPU of this machine; None if it does not answer."""
    try:
        facts = host.facts
    except Refusal:
        return None
    config = host.config
    if config.host_snapshot:
        return None
    library = find_loaded_library(facts.tree, facts.entries, _SONAME, facts.machine, [])
    if library is None:
        return None
    root = config.cli_root or "/"
    fixed_groups = userns.groups_are_fixed()
    asked = child.start(
        lambda writer: _answer(writer, library, root, fixed_groups=fixed_groups), forks=False
    )
    try:
        answer = asked.read(time.monotonic() + TIMEOUT, ANSWER_LIMIT)
    finally:
        asked.end()
    with suppress(ValueError, TypeError):
        return tuple(GpuHealth(**row) for row in json.loads(answer or b""))
    return None


# ---- the functions below run only in the child


def _answer(writer: int, library: str, root: str, *, fixed_groups: bool) -> None:
    import ctypes

    import pynvml

    confinement.close_all_but(writer)
    confinement.limit(LIMITS)
    if root != "/":
        os.chroot(root)
    os.chdir("/")
    confinement.give_up(writer, *confinement.overflow_ids(), fixed_groups=fixed_groups)
    pynvml.nvmlLib = ctypes.CDLL(library)
    pynvml.nvmlInit()
    rows = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(gpu)
        rows.append(
            {
                "index": index,
                "uuid": uuid.decode() if isinstance(uuid, bytes) else uuid,
                "uncorrected": _uncorrected(pynvml, gpu),
                "fabric": _fabric(pynvml, gpu),
            }
        )
    data = json.dumps(rows).encode()
    while data:
        data = data[os.write(writer, data) :]


def _uncorrected(pynvml: ModuleType, gpu: Any) -> int | None:
    try:
        count: int = pynvml.nvmlDeviceGetTotalEccErrors(
            gpu, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    except pynvml.NVMLError:
        return None
    return count


def _fabric(pynvml: ModuleType, gpu: Any) -> int | None:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfo(gpu, pynvml.byref(info))
    except pynvml.NVMLError:
        return None
    return int(info.state) or None  # 0: not supported
