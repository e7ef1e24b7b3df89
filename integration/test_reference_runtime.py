"""The installed runtime against every recorded run of the reference, in all its modes.

The rig makes the recorded nodes, starts the runtime with each case's config.json, and compares what
it has become, the arguments of the low-level runtime and the error with the record.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import SHARED_RECORDS, Installed

pytestmark = pytest.mark.requires(
    "shared-records", "root", "gcc", "ldconfig", "overlayfs", "x86_64"
)

RIG = SHARED_RECORDS / "cdi/rig_runtime.py"
RECORDS = SHARED_RECORDS / "cdi/runtime-modes.jsonl"

#: Cases whose better answer has variables that no specification of the case names.
IMPOSSIBLE = ("cdi/env/0,0",)


def test_every_mode_does_what_the_reference_did(installed: Installed, tmp_path: Path) -> None:
    """With a hook for each step, config.json becomes what the reference made of it, or better where
    the reference is wrong; a refused container leaves it unchanged.
    """
    rows = [row for row in RECORDS.read_text().splitlines() if not impossible(json.loads(row))]
    cases, answers = tmp_path / "cases.jsonl", tmp_path / "answers.jsonl"
    cases.write_text("\n".join(rows) + "\n")
    program = f"{installed.prefix}/bin/nvgraft-runtime"
    rig("run", "all", str(cases), "-o", str(answers), "--program", program)
    told = rig("compare", str(cases), str(answers), "--better")
    assert told.splitlines()[-1] == f"{len(rows)} passed, 0 failed of {len(rows)}", told


def impossible(row: dict[str, object]) -> bool:
    return row["id"] in IMPOSSIBLE


def rig(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(RIG), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"NVGRAFT_CDI_HOOKS": "each"},
    )
    assert words[0] == "compare" or done.returncode == 0, done.stderr
    return done.stdout
