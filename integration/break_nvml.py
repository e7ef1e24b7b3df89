"""Break the stand-in NVML of a simulated host: ``break_nvml.py init CODE`` or ``hang SECONDS``.

The stand-in reads its failures from its own file (``struct sim_failures`` in driver.h), so that the
file is changed in place.
"""

import shlex
import struct
import sys

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
_MAGIC = b"nvgraft-failures"
#: Offsets behind the magic.
_FIELDS = {"init": 0, "hang": 8}


def command(field: str, value: int) -> str:
    """Return the shell command that breaks NVML on a simulated host."""
    return shlex.join([sys.executable, __file__, field, str(value)])


def main(field: str, value: str) -> None:
    with open(LIBRARY, "r+b") as file:
        file.seek(file.read().index(_MAGIC) + len(_MAGIC) + _FIELDS[field])
        file.write(struct.pack("<I", int(value)))


if __name__ == "__main__":
    main(*sys.argv[1:])
