"""Write the simulated driver of a host document as C: the objects that ``driver.h`` declares.

Documents come from strangers. Every number is checked by the document's model, and every text
becomes a string literal in which only letters, digits and a few marks stand for themselves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from nvgraft_specs.models.host import Gpu, Host, MigDevice, RegularFile

#: SIM_GPU_LIMIT of driver.h.
GPU_LIMIT = 64
#: MIG devices of one GPU: the hardware has seven compute slices.
MIG_LIMIT = 7

_UNKNOWN = "SIM_UNKNOWN"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._:/-+")
#: Number fields of struct sim_gpu that have no value unless the document has one.
_GPU_NUMBERS = re.findall(
    r"\w+",
    """
    pci_device_id pci_subsystem_id architecture sm_count cores memory_mib memory_reserved_mib
    bar1_mib memory_bus_bits graphics_max_mhz sm_max_mhz memory_max_mhz video_max_mhz
    power_default_mw power_limit_mw power_min_mw power_max_mw slowdown_c shutdown_c
    temperature_max_c performance_state ecc_mode ecc_pending ecc_corrected ecc_uncorrected
    ecc_corrected_total ecc_uncorrected_total pcie_max_gen pcie_max_width pcie_gen pcie_width
    numa_node mig_mode mig_pending fan_count persistence_mode compute_mode display_active
    display_attached
""",
)
_MIG_NUMBERS = re.findall(
    r"\w+",
    """
    start size gi_slices ci_slices memory_mib memory_reserved_mib sm_count copy_engines decoders
    encoders jpegs ofas gi_capability ci_capability
""",
)


def c_source(host: Host) -> str:
    """Return the definitions of ``simulated`` and ``sim_failures`` for a host.

    :raises ValueError: the host has more GPUs or MIG devices than the stand-ins can hold.
    """
    gpus = host.nvml.gpus
    if len(gpus) > GPU_LIMIT:
        raise ValueError(f"{len(gpus)} GPUs: a simulated host has at most {GPU_LIMIT}")
    writer = _Writer()
    rows = [_gpu(writer, host, gpu) for gpu in gpus]
    array = writer.array("struct sim_gpu", "gpus", rows)
    major, minor = (int(part) for part in host.nvml.cuda_version.split("."))
    driver = {
        "host": text(host.name),
        "version": text(host.nvml.driver_version),
        "branch": branch(host.nvml.driver_version),
        "cuda": major * 1000 + minor * 10,
        "has_fabric": 0,
        "gpus": array,
        "gpu_count": len(gpus),
    }
    return "\n".join(
        [
            '#include "driver.h"',
            *writer.lines,
            f"static const struct sim_driver simulated = {_struct(driver)};",
            (
                "__attribute__((used)) static const volatile struct sim_failures sim_failures ="
                ' {"nvgraft-failures"};'
            ),
            "",
        ]
    )


def branch(version: str) -> int:
    """Return the branch of a driver version, 570 of 570.172.08; 0 for a version of another form."""
    found = re.match(r"[0-9]{1,6}(?=\.|$)", version)
    return int(found.group()) if found else 0


def text(value: str | None) -> str:
    """Return a C string literal, or NULL for None."""
    if value is None:
        return "NULL"
    # Octal escapes have three digits at most, so that a digit behind one is not part of it.
    return '"' + "".join(_character(byte) for byte in value.encode("utf-8", "replace")) + '"'


def _character(byte: int) -> str:
    return chr(byte) if byte in _PLAIN else f"\\{byte:03o}"


def _gpu(writer: "_Writer", host: Host, gpu: Gpu) -> str:
    if len(gpu.mig_devices) > MIG_LIMIT:
        raise ValueError(
            f"GPU {gpu.uuid} has {len(gpu.mig_devices)} MIG devices: at most {MIG_LIMIT} are"
            " possible"
        )
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    mode = {"unsupported": _UNKNOWN, "disabled": 0, "enabled": 1}[gpu.mig]
    instances = sorted({device.gpu_instance for device in gpu.mig_devices})
    fields: dict[str, object] = dict.fromkeys(_GPU_NUMBERS, _UNKNOWN)
    fields |= {
        "minor": gpu.minor,
        "uuid": text(gpu.uuid),
        "name": text(gpu.model),
        "pci": _struct({"domain": gpu.pci.domain, "bus": gpu.pci.bus, "device": gpu.pci.device}),
        "brand": gpu.brand,
        "compute_major": major,
        "compute_minor": minor,
        "mig_mode": mode,
        "mig_pending": mode,
        "gpu_instances": writer.array(
            "struct sim_gpu_instance",
            "gpu_instances",
            [
                _struct({"id": number, "profile": -1, "start": _UNKNOWN, "size": _UNKNOWN})
                for number in instances
            ],
        ),
        "gpu_instance_count": len(instances),
        "mig_devices": writer.array(
            "struct sim_mig_device",
            "mig_devices",
            [_mig_device(host, gpu, device) for device in gpu.mig_devices],
        ),
        "mig_device_count": len(gpu.mig_devices),
    }
    return _struct(fields)


def _mig_device(host: Host, gpu: Gpu, device: MigDevice) -> str:
    directory = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    fields: dict[str, object] = dict.fromkeys(_MIG_NUMBERS, _UNKNOWN)
    fields |= {
        "uuid": text(device.uuid),
        "name": text(f"{gpu.model} MIG"),
        "gpu_instance": device.gpu_instance,
        "compute_instance": device.compute_instance,
        "gi_profile": -1,
        "ci_profile": -1,
        "gi_capability": _capability(host, f"{directory}/access"),
        "ci_capability": _capability(host, f"{directory}/ci{device.compute_instance}/access"),
    }
    return _struct(fields)


def _capability(host: Host, path: str) -> int | str:
    """Return the minor number of a capability's node, as its file in /proc names it."""
    entry = host.files.get(path)
    content = entry.content if isinstance(entry, RegularFile) else None
    found = re.search(r"^DeviceFileMinor: ([0-9]{1,7})$", content or "", re.MULTILINE)
    return int(found.group(1)) if found else _UNKNOWN


def _struct(fields: Mapping[str, object]) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


class _Writer:
    """Collects the arrays to which the pointers of structures lead."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def array(self, kind: str, name: str, rows: Sequence[object] | Iterable[object]) -> str:
        """Define an array, and return its name; NULL without rows."""
        values = [str(row) for row in rows]
        if not values:
            return "NULL"
        unique = f"{name}_{len(self.lines)}"
        body = ",\n  ".join(values)
        self.lines.append(f"static const {kind} {unique}[] = {{\n  {body}}};")
        return unique
