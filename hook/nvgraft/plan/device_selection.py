"""Select the GPUs and MIG devices of a request: the device grammar of nvidia-container-cli
(reference behaviour 4.4).

Names from a container are only compared, over their full length, and never used as paths (SECURITY
R14).
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value, number
from nvgraft.host.gpus import Gpu, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HEX = "0123456789abcdefABCDEF"


class SelectedMig(Value):
    """A MIG device and the index of its GPU."""

    def __init__(self, gpu: int, device: MigDevice) -> None:
        self.gpu = gpu
        self.device = device


class Selection(Value):
    """The selected devices in the order in which the request first names them; ``gpus`` are
    indices.

    ``everything`` is true if the request was for all devices.
    """

    def __init__(
        self, gpus: tuple[int, ...], migs: tuple[SelectedMig, ...], everything: bool
    ) -> None:
        self.gpus = gpus
        self.migs = migs
        self.everything = everything


def select_devices(tokens: Sequence[str], gpus: Sequence[Gpu]) -> Selection:
    """Return the devices that ``tokens`` name; ``gpus`` are in NVML's index order.

    A MIG device also selects its GPU: its node and its /proc directory are needed; the capability
    nodes limit access.

    :raises Refusal: stage ``device``, "X: unknown device".
    """
    if not gpus:
        return Selection((), (), False)  # the reference does not check the list either
    chosen: dict[int, None] = {}
    migs: dict[SelectedMig, None] = {}
    everything = False
    for token in tokens:
        if not token:
            continue
        if token.lower() == "all":
            chosen.update(dict.fromkeys(range(len(gpus))))
            for index, gpu in enumerate(gpus):
                migs.update(dict.fromkeys(SelectedMig(index, mig) for mig in gpu.mig_devices))
            everything = True
            break
        index, mig = _find(token, gpus)
        chosen[index] = None
        if mig is not None:
            migs[SelectedMig(index, mig)] = None
    return Selection(tuple(chosen), tuple(migs), everything)


def _find(token: str, gpus: Sequence[Gpu]) -> tuple[int, MigDevice | None]:
    lowered = token.lower()
    address = _pci_address(token)
    for index, gpu in enumerate(gpus):
        if lowered == gpu.uuid.lower() or (address and address == gpu.bus_id.lower()):
            return index, None
    whole = _index(token)
    if whole is not None and whole < len(gpus):
        return whole, None
    for index, gpu in enumerate(gpus):
        for mig in gpu.mig_devices:
            if lowered == mig.uuid.lower():
                return index, mig
    gpu_index, mig_index = map(_index, token.partition(":")[::2])
    if gpu_index is not None and mig_index is not None and gpu_index < len(gpus):
        devices = gpus[gpu_index].mig_devices
        if mig_index < len(devices):
            return gpu_index, devices[mig_index]
    first_gpus = ", ".join(f"{index} ({gpu.uuid})" for index, gpu in enumerate(gpus[:8]))
    raise Refusal(
        "device",
        f"{token}: unknown device",
        f"this host has {len(gpus)} GPU(s): {first_gpus}; see nvidia-smi -L",
    )


def _index(text: str) -> int | None:
    """Return the value of an index, or None. As for strtoul(3), it may have leading spaces, a sign
    and leading zeros.
    """
    digits = text.lstrip(" ")
    sign = digits[:1] if digits[:1] in ("+", "-") else ""
    digits = digits[len(sign) :]
    value = number(digits.lstrip("0") or digits[:1])
    return None if value and sign == "-" else value


def _pci_address(token: str) -> str:
    """Return ``token`` as a PCI address with a domain of eight digits, or "" if it is not an
    address.
    """
    parts = token.removesuffix(".0").split(":")
    widths = (8, 2, 2)
    if len(parts) != 3 or not all(
        0 < len(part) <= width and part.strip(_HEX) == ""
        for part, width in zip(parts, widths, strict=True)
    ):
        return ""
    domain, bus, device = (int(part, 16) for part in parts)
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def check_mig_request(stage: str, value: str, selection: Selection) -> None:
    """Check the value of ``mig-config`` or ``mig-monitor`` (``stage``). An empty value
    requests nothing.

    :raises Refusal: the value is not "all", or specific MIG devices are selected.
    """
    for token in value.split(","):
        if not token:
            continue
        if token.lower() != "all":
            hint = (
                "set NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES to all, or unset them"
            )
            raise Refusal(stage, f"{token}: only 'all' devices are currently supported", hint)
        if selection.migs and not selection.everything:
            hint = (
                "a container that administers MIG must see whole GPUs: request them by index or"
                " UUID, or all"
            )
            raise Refusal(
                stage, f"all: cannot enable {stage} with specific MIG devices selected", hint
            )
