"""Choose the devices of a host that a container's ids name, as the reference's generator does.

An id is an index (``0``, ``0:1``), a UUID, ``all`` or ``none``.

Source: reference behaviour 10.3 and the rules of mode jit-cdi.
"""

from __future__ import annotations

from nvgraft.base.errors import NO_SUCH_DEVICE, Refusal
from nvgraft.base.jsontext import dumps
from nvgraft.cdi.discovery import Contents, FoundDevice
from nvgraft.cdi.nearest import no_such_device
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.cdi.discovery import Discovery
    from nvgraft.host.gpus import Gpu

#: In the environment of a container that has the driver's files and no device.
EMPTY_DEVICE = "NVCT_EMPTY_DEVICE="

_NOT_FOUND = "Not Found"
_INVALID = "Invalid Argument"
_HEX = frozenset("0123456789abcdefABCDEF")


def select(discovery: Discovery, gpus: Sequence[Gpu], ids: Sequence[str]) -> list[FoundDevice]:
    """Return the devices with these ids, in the order of the ids.

    :raises Refusal: an id names no device.
    """
    chosen = []
    for device in ids:
        if device == names.NONE:
            return [FoundDevice(0, None, names.NONE, Contents(env=[EMPTY_DEVICE]))]
        if device == names.ALL:
            return discovery.devices()
        chosen.append(_indices(gpus, device))
    return [
        discovery.gpu(index) if mig_index is None else discovery.mig_device(index, mig_index)
        for index, mig_index in chosen
    ]


def _indices(gpus: Sequence[Gpu], device: str) -> tuple[int, int | None]:
    """Return the indices of a GPU, or of a GPU and one of its MIG devices."""
    if _is_uuid(device):
        found = _by_uuid(gpus, device)
        if found is None:
            raise _unknown(gpus, device, f"failed to get device handle from UUID: {_NOT_FOUND}")
        return found
    first, colon, second = device.partition(":")
    index = _number(first)
    mig_index = _number(second) if colon else None
    if index is None or (colon and mig_index is None):
        raise _unknown(gpus, device, f"identifier is not a valid UUID or index: {dumps(device)}")
    if index >= len(gpus):
        what = "parent device handle" if colon else "device handle from index"
        raise _unknown(gpus, device, f"failed to get {what}: {_INVALID}")
    if mig_index is not None and mig_index >= len(gpus[index].mig_devices):
        raise _unknown(gpus, device, f"failed to get MIG handle by index: {_NOT_FOUND}")
    return index, mig_index


def _by_uuid(gpus: Sequence[Gpu], uuid: str) -> tuple[int, int | None] | None:
    for index, gpu in enumerate(gpus):
        if gpu.uuid == uuid:
            return index, None
        for mig_index, device in enumerate(gpu.mig_devices):
            old_name = f"MIG-{gpu.uuid}/{device.gpu_instance}/{device.compute_instance}"
            if uuid in (device.uuid, old_name):
                return index, mig_index
    return None


def _is_uuid(device: str) -> bool:
    """Tell whether ``device`` has the form of a UUID of NVML. ``MIG-GPU-UUID/GI/CI`` is an old
    one.
    """
    if device.startswith("MIG-GPU-"):
        parts = device.removeprefix("MIG-").split("/")
        return (
            len(parts) == 3
            and _is_uuid(parts[0])
            and all(_number(part) is not None for part in parts[1:])
        )
    prefix, dash, digits = device.partition("-")
    groups = digits.split("-")
    return (
        dash == "-"
        and prefix in ("GPU", "MIG")
        and [len(group) for group in groups] in ([8, 4, 4, 4, 12], [32])
        and _HEX.issuperset("".join(groups))
    )


def _number(text: str) -> int | None:
    """Return a decimal number, or None. A number of any length is one, and zeros may precede it."""
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text.lstrip("0")) <= 9 else 1 << 32


def _unknown(gpus: Sequence[Gpu], device: str, text: str) -> Refusal:
    known = []
    for index, gpu in enumerate(gpus):
        known += [str(index), gpu.uuid]
        for mig_index, mig in enumerate(gpu.mig_devices):
            known += [f"{index}:{mig_index}", mig.uuid]
    return Refusal("", text, no_such_device(device, known), kind=NO_SUCH_DEVICE)
