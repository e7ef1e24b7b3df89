"""The installed hook against every recorded case of the reference stack: real mounts, links, device rules, loader cache.

The rig builds each case's rootfs on the recorded host, starts the hook, and compares what changed with the record.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import CHECKOUT, LDCONFIG, Installed

REFERENCE = CHECKOUT / "tests" / "fixtures" / "reference"

pytestmark = pytest.mark.requires("root", "gcc", "overlayfs", "cgroup-v1", "x86_64")


@pytest.mark.parametrize("host", ["al460", "d470", "d535", "d535x32", "mig570", "run560"])
def test_the_hook_does_what_the_reference_did(host: str, installed: Installed, tmp_path: Path) -> None:
    """Every case agrees, and after a failure nothing of ours is left."""
    cases, answers = REFERENCE / "mounts" / f"{host}.jsonl", tmp_path / "answers.jsonl"
    rig = [sys.executable, str(REFERENCE / "rig.py")]
    ran = subprocess.run(
        [*rig, "run", str(REFERENCE / "hosts" / f"{host}.json"), str(cases), str(answers), "--", str(installed.hook), "prestart"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    # The records were made where ldconfig is no script.
    answers.write_text(answers.read_text().replace(f"process {LDCONFIG} ", "process /sbin/ldconfig "))
    compared = subprocess.run([*rig, "compare", str(cases), str(answers)], capture_output=True, text=True)
    count = len(cases.read_text().splitlines())
    assert compared.stdout.splitlines()[-1] == f"{count} passed, 0 failed", compared.stdout
