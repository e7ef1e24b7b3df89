"""Read which functions a driver's library exports in a branch.

The lists are data in the directory of the stand-in. Each names what was read: the dynamic symbols
of a package, or a public header.
"""

import re
from pathlib import Path

from nvgraft_cli.simulate.standins import build

NVML = build.SOURCES / "nvml/entry_points.txt"

_BRANCH = re.compile(r"\[([0-9]+)\]")


def read(path: Path, branch: int) -> list[str]:
    """Return the names that a library exports in a branch, sorted.

    A branch without a list of its own has the names of the next older one; before the first one,
    the names of the first.
    """
    names: set[str] = set()
    for line in path.read_text(encoding="ascii").splitlines():
        heading = _BRANCH.match(line)
        if heading:
            if names and int(heading.group(1)) > branch:
                break
        elif line.startswith("-"):
            names.discard(line[1:])
        elif not line.startswith("#"):
            names.add(line)
    return sorted(names)
