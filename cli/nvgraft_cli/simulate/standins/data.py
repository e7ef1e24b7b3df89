"""Write the simulated driver of a host document as C: the objects that ``driver.h`` declares.

Documents come from strangers. Every number is checked by the document's model, and every text
becomes a string literal in which only letters, digits and a few marks stand for themselves.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvgraft_cli.simulate.standins import attributes
from nvgraft_specs.models import simulated
from nvgraft_specs.models.gpu_profile import MigProfile, Script
from nvgraft_specs.models.host import Host, RegularFile
from nvgraft_specs.models.host_gpus import GPU_LIMIT, Gpu, MigDevice, NumaNode

#: The libraries that answer, by SONAME.
NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
#: Where WSL2 has its driver.
_WSL = "/usr/lib/wsl/"

#: MIG devices of one GPU: the hardware has seven compute slices.
MIG_LIMIT = 7

_UNKNOWN = "SIM_UNKNOWN"
#: The definition of sim_failures. A compiler puts a volatile object into a section that can be
#: written, and a page of it that has been written does not show changes of the file.
_FAILURES = r"""
__asm__(".pushsection .rodata.nvgraft,\"a\"\n.balign 16\nnvgraft_sim_failures:\n"
        ".ascii \"nvgraft-failures\"\n.zero 2608\n.popsection");
_Static_assert(sizeof(struct sim_failures) == 16 + 2608, "struct sim_failures");
extern const volatile struct sim_failures sim_failures
  __asm__("nvgraft_sim_failures") __attribute__((visibility("hidden")));
"""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._:/-+")
_NVIDIA = 0x10DE
_ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
_COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive-process": 3}
#: nvmlGpuTopologyLevel_t, by the word of `nvidia-smi topo -m`.
_LEVELS = {"X": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
#: Generation -> nvmlNvlinkVersion_t.
_NVLINK_VERSIONS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7}
#: NVML_COMPUTE_INSTANCE_PROFILE_* -> compute slices.
_COMPUTE_PROFILES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}

#: Structures whose addresses are handles of NVML: no two things may share one.
_HANDLES = {"struct sim_gpu", "struct sim_gpu_instance", "struct sim_mig_device"}

#: Key of a document -> number field of struct sim_gpu; the unit is the same.
_SAME = {
    key: key
    for key in re.findall(
        r"\w+",
        """
        sm_count cores memory_mib memory_reserved_mib memory_bus_bits bar1_mib
        graphics_max_mhz sm_max_mhz memory_max_mhz video_max_mhz slowdown_c shutdown_c
        temperature_max_c performance_state numa_node
        """,
    )
} | {
    "fans": "fan_count",
    "pcie_gen": "pcie_max_gen",
    "pcie_width": "pcie_max_width",
    "pcie_current_gen": "pcie_gen",
    "pcie_current_width": "pcie_width",
}
_WATTS = {f"power_{name}_w": f"power_{name}_mw" for name in ("default", "limit", "min", "max")}
#: Key of a document -> struct sim_series of struct sim_gpu.
_SERIES = {"power_w": "power_mw"} | {
    key: key
    for key in re.findall(
        r"\w+",
        """
        memory_used_mib graphics_mhz sm_mhz memory_mhz video_mhz temperature_c
        memory_temperature_c fan_percent gpu_percent memory_percent encoder_percent
        decoder_percent
        """,
    )
}
#: Number fields of struct sim_gpu; those that nothing sets are unknown.
_GPU_NUMBERS = (
    *_SAME.values(),
    *_WATTS.values(),
    *re.findall(
        r"\w+",
        """
        pci_device_id pci_subsystem_id architecture ecc_mode ecc_pending ecc_corrected
        ecc_uncorrected ecc_corrected_total ecc_uncorrected_total persistence_mode compute_mode
        display_active display_attached mig_mode mig_pending
        """,
    ),
)
_MIG_SAME = ("sm_count", "memory_mib", "copy_engines", "decoders", "encoders", "jpegs", "ofas")
_MIG_NUMBERS = (
    *_MIG_SAME,
    *re.findall(
        r"\w+", "start size gi_slices ci_slices memory_reserved_mib gi_capability ci_capability"
    ),
)


def c_source(host: Host) -> str:
    """Return the definitions of ``simulated`` and ``sim_failures`` for a host.

    :raises ValueError: the host has more GPUs or MIG devices than the stand-ins can hold.
    """
    gpus = host.nvml.gpus
    if len(gpus) > GPU_LIMIT:
        raise ValueError(f"{len(gpus)} GPUs: a simulated host has at most {GPU_LIMIT}")
    writer = _Writer()
    rows = [_gpu(writer, host, index) for index in range(len(gpus))]
    array = writer.array("struct sim_gpu", "gpus", rows)
    major, minor = (int(part) for part in host.nvml.cuda_version.split("."))
    driver = {
        "host": text(host.name),
        "version": text(host.nvml.driver_version),
        "branch": branch(host.nvml.driver_version),
        "cuda": major * 1000 + minor * 10,
        "has_fabric": int(has_fabric(host)),
        "has_dxg": int("/dev/dxg" in host.files),
        "gpus": array,
        "gpu_count": len(gpus),
    }
    return "\n".join(
        [
            '#include "driver.h"',
            *writer.lines,
            f"static const struct sim_driver simulated = {_struct(driver)};",
            _FAILURES,
            "",
        ]
    )


def has_fabric(host: Host) -> bool:
    """Return whether the GPUs of a host are connected by NVSwitches, which need a manager."""
    return (host.topology is not None and host.topology.nvlink == "switch") or any(
        path.startswith("/dev/nvidia-nvswitch") for path in host.files
    )


def library_of(path: str, host: Host) -> str:
    """Return the SONAME of the stand-in that stands at a path of the host: its driver's NVML, its
    libcuda, or "".
    """
    entry = host.files[path]
    if not isinstance(entry, RegularFile) or entry.elf is None or entry.elf.bits != 64:
        return ""
    for soname in (NVML, CUDA):
        versioned = f"{soname.removesuffix('.1')}.{host.nvml.driver_version}"
        # The names of WSL2's files have no driver version.
        in_wsl = path.startswith(_WSL) and entry.elf.soname == soname
        if in_wsl or posixpath.basename(path) == versioned:
            return soname
    return ""


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


def _gpu(writer: "_Writer", host: Host, index: int) -> str:
    gpu = host.nvml.gpus[index]
    if len(gpu.mig_devices) > MIG_LIMIT:
        raise ValueError(
            f"GPU {gpu.uuid} has {len(gpu.mig_devices)} MIG devices: at most {MIG_LIMIT} are"
            " possible"
        )
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    mode = {"unsupported": _UNKNOWN, "disabled": 0, "enabled": 1}[gpu.mig]
    numa = _numa(host, index)
    values = simulated.values_of(gpu) | ({"numa_node": numa.node} if numa else {})
    profile = simulated.profile_of(gpu)
    rows = profile.mig.profiles if profile and profile.mig else []
    links = _nvlinks(host, index, values)
    known = attributes.attributes(gpu, values)
    fields: dict[str, object] = dict.fromkeys(_GPU_NUMBERS, _UNKNOWN)
    fields |= _answers(writer, values)
    fields |= {
        "minor": gpu.minor,
        "uuid": text(gpu.uuid),
        "name": text(gpu.model),
        "pci": _pci(gpu.pci.domain, gpu.pci.bus, gpu.pci.device),
        "brand": gpu.brand,
        "compute_major": major,
        "compute_minor": minor,
        "cpus": text(numa.cpus if numa else None),
        "nvlinks": writer.array("struct sim_nvlink", "nvlinks", links),
        "nvlink_count": len(links),
        "topology": writer.array("int", "topology", _levels(host, index)),
        "mig_mode": mode,
        "mig_pending": mode,
        "gi_profiles": writer.array(
            "struct sim_gi_profile", "gi_profiles", [_gi_profile(writer, row) for row in rows]
        ),
        "gi_profile_count": len(rows),
        "attributes": writer.array("struct sim_attribute", "attributes", _rows(known)),
        "attribute_count": len(known),
    }
    return _struct(fields | _compute_profiles(writer, rows) | _instances(writer, host, gpu, values))


def _answers(writer: "_Writer", values: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields that come from the values of a GPU.

    A GPU of a known product is idle: what the document does not state is zero, or its default.
    """
    known = dict(values)
    if known:
        known = {
            "performance_state": 0,
            "persistence_mode": True,
            "compute_mode": "default",
            "display_active": False,
            "gpu_percent": 0,
            "memory_percent": 0,
            "encoder_percent": 0,
            "decoder_percent": 0,
            "memory_used_mib": 0,
            "pcie_current_gen": known.get("pcie_gen"),
            "pcie_current_width": known.get("pcie_width"),
            "power_default_w": known.get("power_limit_w"),
        } | known
    fields: dict[str, object] = {
        field: known[key] for key, field in _SAME.items() if known.get(key) is not None
    }
    fields |= {
        field: round(known[key] * 1000)
        for key, field in _WATTS.items()
        if known.get(key) is not None
    }
    for key, field in _SERIES.items():
        fields[field] = _series(writer, known.get(key), 1000 if key == "power_w" else 1)
    fields |= {key: text(known.get(key)) for key in ("serial", "board_part_number", "vbios")}
    fields |= {
        key: f"{known[key] << 16 | _NVIDIA:#x}"
        for key in ("pci_device_id", "pci_subsystem_id")
        if known.get(key) is not None
    }
    if known.get("architecture"):
        fields["architecture"] = _ARCHITECTURES[known["architecture"]]
    if known.get("compute_mode"):
        fields["compute_mode"] = _COMPUTE_MODES[known["compute_mode"]]
    for key in ("persistence_mode", "display_active"):
        if known.get(key) is not None:
            fields[key] = int(known[key])
    if known:
        fields["display_attached"] = fields["display_active"]
    if known.get("ecc") is not None:
        fields["ecc_mode"] = fields["ecc_pending"] = int(known["ecc"])
        for key in ("ecc_corrected", "ecc_uncorrected"):
            fields[key] = fields[f"{key}_total"] = known.get(key) or 0
    return fields


def _series(writer: "_Writer", value: "Script | float | None", factor: int) -> str:
    """Return a struct sim_series."""
    if value is None:
        return "{0}"
    step, numbers = (
        (value.every_s, value.values) if isinstance(value, Script) else (1, [float(value)])
    )
    array = writer.array("int64_t", "values", [round(number * factor) for number in numbers])
    return f"{{{array}, {len(numbers)}, {step}}}"


def _numa(host: Host, index: int) -> NumaNode | None:
    nodes = (host.topology.numa if host.topology else None) or ()
    return next((node for node in nodes if index in node.gpus), None)


def _levels(host: Host, index: int) -> list[int]:
    """Return the topology level of one GPU to each; empty if it is not known. A host of which no
    NUMA node is known counts as one of a single node.
    """
    topology, every = host.topology, range(len(host.nvml.gpus))
    if topology is not None and topology.levels is not None:
        return [_LEVELS[level] for level in topology.levels[index]]
    own = _numa(host, index)
    if own is None and topology is not None and topology.numa:
        return []
    near = every if own is None else own.gpus
    return [0 if other == index else _LEVELS["NODE" if other in near else "SYS"] for other in every]


def _nvlinks(host: Host, index: int, values: Mapping[str, Any]) -> list[str]:
    """Return the active NVLinks of a GPU."""
    topology = host.topology
    count = values.get("nvlinks")
    if topology is None or topology.nvlink is None or not count:
        return []
    ends: list[tuple[str, int, str]] = []
    if topology.nvlink == "switch":
        # The addresses of NVSwitches are not recorded.
        ends = [("SIM_LINK_SWITCH", -1, "{0}")] * count
    else:
        for bridge in topology.nvlink:
            if index in bridge.gpus:
                other = bridge.gpus[bridge.gpus[0] == index]
                pci = host.nvml.gpus[other].pci
                far = ("SIM_LINK_GPU", other, _pci(pci.domain, pci.bus, pci.device))
                ends += [far] * bridge.links
    version = _NVLINK_VERSIONS.get(values.get("nvlink_version") or 0, _UNKNOWN)
    speed = values.get("nvlink_mb_s")
    return [
        _struct(
            {
                "link": link,
                "end": end,
                "gpu": gpu,
                "remote": remote,
                "version": version,
                "speed_mb_s": _UNKNOWN if speed is None else speed,
            }
        )
        for link, (end, gpu, remote) in enumerate(ends[:count])
    ]


def _gi_profile(writer: "_Writer", row: MigProfile) -> str:
    fields = {key: getattr(row, key) for key in _MIG_SAME}
    return _struct(
        {
            **fields,
            "number": row.number,
            "id": row.id,
            "name": text(row.name),
            "slices": row.slices,
            "instances": row.instances,
            "placement_size": row.size,
            "starts": writer.array("unsigned", "starts", row.starts),
            "start_count": len(row.starts),
        }
    )


def _compute_rows(rows: Sequence[MigProfile]) -> list[tuple[MigProfile, int, int]]:
    """Return each compute instance profile: the GPU instance's, its number, and its slices."""
    return [
        (row, number, slices)
        for row in rows
        for number, slices in _COMPUTE_PROFILES.items()
        if slices <= row.slices and (row.slices, slices) != (4, 3)
    ]


def _compute_profiles(writer: "_Writer", rows: Sequence[MigProfile]) -> dict[str, object]:
    structs = [
        _struct(
            {
                "gi_number": row.number,
                "number": number,
                "id": number,
                "name": text(row.name if slices == row.slices else f"{slices}c.{row.name}"),
                "slices": slices,
                "instances": row.slices // slices,
                "sm_count": simulated.multiprocessors(rows, row, slices),
            }
        )
        for row, number, slices in _compute_rows(rows)
    ]
    return {
        "ci_profiles": writer.array("struct sim_ci_profile", "ci_profiles", structs),
        "ci_profile_count": len(structs),
    }


def _instances(
    writer: "_Writer", host: Host, gpu: Gpu, values: Mapping[str, Any]
) -> dict[str, object]:
    """Return the GPU instances and the MIG devices of a GPU."""
    profile = simulated.profile_of(gpu)
    rows = profile.mig.profiles if profile and profile.mig else []
    instances = [
        _struct(
            {
                "id": number,
                "profile": rows.index(row) if row else -1,
                "start": _UNKNOWN if start is None else start,
                "size": row.size if row else _UNKNOWN,
            }
        )
        for number, row, start in simulated.placed(gpu)
    ]
    taken: dict[int, int] = {}
    devices = []
    for device in gpu.mig_devices:
        first = taken.get(device.gpu_instance, 0)
        taken[device.gpu_instance] = first + simulated.device_of(gpu, device)[1]
        devices.append(_mig_device(writer, host, gpu, device, values, first))
    return {
        "gpu_instances": writer.array("struct sim_gpu_instance", "gpu_instances", instances),
        "gpu_instance_count": len(instances),
        "mig_devices": writer.array("struct sim_mig_device", "mig_devices", devices),
        "mig_device_count": len(devices),
    }


def _mig_device(
    writer: "_Writer",
    host: Host,
    gpu: Gpu,
    device: MigDevice,
    values: Mapping[str, Any],
    first_slice: int,
) -> str:
    directory = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{device.gpu_instance}"
    fields: dict[str, object] = dict.fromkeys(_MIG_NUMBERS, _UNKNOWN)
    row, slices = simulated.device_of(gpu, device)
    profile = simulated.profile_of(gpu)
    rows = profile.mig.profiles if profile and profile.mig else []
    multiprocessors = simulated.multiprocessors(rows, row, slices) if row else None
    known = attributes.attributes(gpu, values, multiprocessors)
    if row is not None:
        number = next(key for key, count in _COMPUTE_PROFILES.items() if count == slices)
        fields |= {key: getattr(row, key) for key in _MIG_SAME}
        fields |= {
            "sm_count": multiprocessors,
            "start": first_slice,
            "size": slices,
            "gi_slices": row.slices,
            "ci_slices": slices,
            "memory_reserved_mib": 0,
        }
        ci_profile = _compute_rows(rows).index((row, number, slices))
    else:
        ci_profile = -1
    fields |= {
        "uuid": text(device.uuid),
        "name": text(f"{gpu.model} MIG {device.profile}" if row else f"{gpu.model} MIG"),
        "profile_name": text(device.profile),
        "gpu_instance": device.gpu_instance,
        "compute_instance": device.compute_instance,
        "gi_profile": rows.index(row) if row else -1,
        "ci_profile": ci_profile,
        "gi_capability": _capability(host, f"{directory}/access"),
        "ci_capability": _capability(host, f"{directory}/ci{device.compute_instance}/access"),
        "attributes": writer.array("struct sim_attribute", "attributes", _rows(known)),
        "attribute_count": len(known),
    }
    return _struct(fields)


def _rows(pairs: Iterable[tuple[int, int]]) -> list[str]:
    return [f"{{{number}, {value}}}" for number, value in pairs]


def _pci(domain: int, bus: int, device: int) -> str:
    return _struct({"domain": domain, "bus": bus, "device": device})


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
        self._names: dict[tuple[str, str], str] = {}

    def array(self, kind: str, name: str, rows: Sequence[object] | Iterable[object]) -> str:
        """Define an array, and return its name; NULL without rows.

        Equal arrays are one, since the GPUs of a host mostly have the same answers.
        """
        body = ",\n  ".join(str(row) for row in rows)
        if not body:
            return "NULL"
        unique = f"{name}_{len(self.lines)}"
        known = unique if kind in _HANDLES else self._names.setdefault((kind, body), unique)
        if known == unique:
            self.lines.append(f"static const {kind} {unique}[] = {{\n  {body}}};")
        return known
