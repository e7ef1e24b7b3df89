"""Engines: the driver under each engine, by kind of user, cgroup and root file system."""

import os
import re
import subprocess
import sys
from pathlib import Path

from safety.figures import Figure

_TESTS = "integration/test_matrix.py"


def figures(_size: str, _seed: int) -> list[Figure]:
    """Start every combination of integration/test_matrix.py once; there is one size."""
    checkout = Path(__file__).parent.parent.parent
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        _TESTS,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": "hook:cli:specs",
        "CI": "true",
    }  # CI: an engine that is missing is a failure
    done = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, timeout=600, env=environment
    )
    counts = {
        kind: int(count)
        for count, kind in re.findall(r"(\d+) (passed|failed|error)", done.stdout.splitlines()[-1])
    }
    started, all_ = counts.get("passed", 0), sum(counts.values())
    return [
        Figure(
            "{runc, crun} x {host's ids, user namespace} x {cgroup v1, v2} x {rw, ro}",
            f"{started} of {all_}",
            "all",
            started == all_ > 0,
        )
    ]
