"""Determine the level of this machine's x86-64 processor, which selects glibc-hwcaps
subdirectories.

The x86-64 psABI defines the levels; the features have the kernel's names here.
"""

_LEVELS = (
    {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
    {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
)


def read_isa_level(path: str = "/proc/cpuinfo") -> str | None:
    """Return ``x86-64-v1`` to ``x86-64-v4``; None for another machine, or if the kernel does not
    tell.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("flags\t")), None)
    except OSError:
        return None
    if line is None:
        return None
    flags = set(line.partition(":")[2].split())
    level = 1
    for needed in _LEVELS:
        if not needed <= flags:
            break
        level += 1
    return f"x86-64-v{level}"
