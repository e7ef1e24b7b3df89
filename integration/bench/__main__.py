"""Run ``python3 -I integration/bench``. It is isolated, so the packages' directories are named
here.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

if sys.argv[1:2] in (["node"], ["edits"], ["plugin"]):
    part, prefix, request = sys.argv[1:]
    sys.path[1:1] = [
        f"{prefix}/lib/nvgraft/{room}" for room in ("hook", "cli", "plugin")
    ]  # the installed program is measured
    if part == "node":
        from bench.node import measure
    elif part == "plugin":
        sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))  # its kubelet
        from bench.plugin import measure
    else:
        from bench.edits import measure

    raise SystemExit(measure(prefix, request))

from bench.command import main  # noqa: E402 - the directory above is needed first

raise SystemExit(main())
