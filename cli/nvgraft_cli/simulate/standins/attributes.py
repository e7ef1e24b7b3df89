"""Compute what cuDeviceGetAttribute answers, from the values of a GPU.

The numbers are those of the public enumeration CUdevice_attribute. Limits by compute capability are
from the CUDA C++ Programming Guide, technical specifications per compute capability.
"""

from collections.abc import Mapping
from typing import Any

from nvgraft_specs.models.host_gpus import Gpu

#: Compute capability -> threads and blocks of a multiprocessor, its shared memory in KiB, that of a
#: block that opts in, and single to double precision performance.
_BY_CAPABILITY = {
    (7, 0): (2048, 32, 96, 96, 2),
    (7, 5): (1024, 16, 64, 64, 32),
    (8, 0): (2048, 32, 164, 163, 2),
    (8, 6): (1536, 16, 100, 99, 32),
    (8, 9): (1536, 24, 100, 99, 64),
    (9, 0): (2048, 32, 228, 227, 2),
    (10, 0): (2048, 32, 228, 227, 2),
    (12, 0): (1536, 24, 100, 99, 64),
}
#: Answers that all GPUs since Volta share, by number.
_COMMON = {
    1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2147483647, 6: 65535, 7: 65535, 8: 49152, 9: 65536,
    10: 32, 11: 2147483647, 12: 65536, 14: 512, 15: 1, 17: 0, 18: 0, 19: 1, 20: 0,
    21: 131072, 22: 131072, 23: 65536, 24: 16384, 25: 16384, 26: 16384, 27: 32768, 28: 32768,
    29: 2048, 30: 512, 31: 1, 35: 0, 41: 1, 42: 32768, 43: 2048, 44: 1, 45: 32768, 46: 32768,
    47: 8192, 48: 8192, 49: 32768, 51: 32, 52: 32768, 53: 32768, 54: 2046, 55: 32768, 56: 131072,
    57: 65536, 58: 16384, 59: 16384, 60: 16384, 61: 32768, 62: 2048, 63: 32768, 64: 32768, 65: 2048,
    66: 32768, 67: 32768, 68: 2046, 69: 268435456, 70: 131072, 71: 65000, 72: 2097120, 73: 32768,
    74: 32768, 77: 32768, 78: 1, 79: 1, 80: 1, 82: 65536, 83: 1, 84: 0, 85: 0, 86: 0, 88: 0, 89: 1,
    90: 1, 91: 1, 92: 1, 93: 1, 94: 1, 95: 1, 96: 1, 98: 0, 99: 1, 100: 0, 101: 0, 102: 1, 103: 1,
    104: 0, 105: 0, 107: 0, 110: 0, 112: 1, 113: 1, 114: 1, 115: 1, 116: 1, 117: 1, 118: 0, 119: 1,
    120: 0, 121: 0, 122: 1, 123: 1, 124: 1, 125: 1, 126: 1, 127: 0, 128: 0, 129: 1, 130: 0, 131: -1,
    132: 0, 133: 0, 134: -1, 135: 0, 136: 0, 137: 0, 138: 0, 141: 0, 142: 0, 143: 0, 144: 1, 145: 0,
    146: 0, 147: 0,
}  # fmt: skip


def attributes(
    gpu: Gpu, values: Mapping[str, Any], sm_count: int | None = None
) -> list[tuple[int, int]]:
    """Return the number and value of each known CUDA attribute of a GPU, sorted by number.

    :param values: what the GPU answers, by key of the document.
    :param sm_count: the multiprocessors of a MIG device; None for the whole GPU.
    """
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    rows = dict(_COMMON)
    rows |= {75: major, 76: minor, 33: gpu.pci.bus, 34: gpu.pci.device, 50: gpu.pci.domain}
    rows |= _of_capability(major, minor)
    rows[32] = int(values.get("ecc") is True)
    mode = values.get("compute_mode")
    rows[20] = {"prohibited": 2, "exclusive-process": 3}.get(mode or "", 0)
    known = {
        16: sm_count or values.get("sm_count"),
        13: _times(values.get("sm_max_mhz"), 1000),
        36: _times(values.get("memory_max_mhz"), 1000),
        37: values.get("memory_bus_bits"),
        38: _times(values.get("l2_kib"), 1024),
        40: values.get("copy_engines"),
        134: values.get("numa_node"),
        139: values.get("pci_device_id") and values["pci_device_id"] << 16 | 0x10DE,
        140: values.get("pci_subsystem_id") and values["pci_subsystem_id"] << 16 | 0x10DE,
    }
    rows |= {number: value for number, value in known.items() if value is not None}
    rows |= {int(number): value for number, value in (values.get("cuda_attributes") or {}).items()}
    return sorted((number, value) for number, value in rows.items() if value < 1 << 31)


def _of_capability(major: int, minor: int) -> dict[int, int]:
    ampere, hopper = major >= 8, major in {9, 10, 11, 12}
    rows = {
        111: 1024 if ampere else 0,
        107: int(ampere),
        109: 134213632 if ampere else 0,
        120: int(hopper),
        121: 1,
        127: int(hopper),
        126: 4 if hopper else 1,
        132: int((major, minor) in {(9, 0), (10, 0)}),
    }
    limits = _BY_CAPABILITY.get((major, minor))
    if limits is not None:
        threads, blocks, shared, block, ratio = limits
        rows |= {39: threads, 106: blocks, 81: shared * 1024, 97: block * 1024, 87: ratio}
    return rows


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor
