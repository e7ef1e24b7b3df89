"""The device plugin on simulated nodes, with a kubelet of the rig's, against the recorded answers
of NVIDIA's device plugin 0.20.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import CHECKOUT, SHARED_RECORDS

pytestmark = pytest.mark.requires("root", "gcc", "ldconfig", "overlayfs", "shared-records")

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("hook", "cli", "specs", "plugin")),
}
KUBERNETES = SHARED_RECORDS / "kubernetes"


@pytest.mark.parametrize(
    ("host", "prefix"),
    [
        ("a10x2", "health/enable"),
        ("a10x2", "life/"),
        ("a10x2", "specs/"),
        ("a100x8-migmix", "m"),
    ],
)
def test_the_recorded_answers(host: str, prefix: str, tmp_path: Path) -> None:
    """Registration, lists, allocations, CDI specifications, health and restarts are as recorded, or
    better where the record has a fault.
    """
    rig = [sys.executable, str(KUBERNETES / "rig_dp.py")]
    lines = (KUBERNETES / "device-plugin.jsonl").read_text().splitlines(keepends=True)
    records, answers = tmp_path / "records.jsonl", tmp_path / "answers.jsonl"
    wanted = [
        line
        for line in lines
        if f'"host":"{host}"' in line and line.startswith(f'{{"id":"{prefix}')
    ]
    assert wanted
    records.write_text("".join(wanted))
    program = f"{sys.executable} -m nvgraft_device_plugin.main"
    run = [*rig, "run", host, str(records), "-o", str(answers), "--program", program]
    subprocess.run(run, env=ENVIRONMENT, check=True)
    done = subprocess.run(
        [*rig, "compare", str(records), str(answers), "--better"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("host", ["h100-580", "debian-compat32"])
def test_labels_of_a_simulated_node(host: str) -> None:
    """Labels made from NVML's answers are those made from the node's document."""
    labels = [sys.executable, "-m", "nvgraft_device_plugin.main", "labels", "--no-timestamp"]
    recorded = subprocess.run([*labels, "--host", host], env=ENVIRONMENT, capture_output=True)
    simulate = [sys.executable, "-m", "nvgraft_cli.shell.main", "simulate", host, "--"]
    asked = [*simulate, *labels, "--machine-type-file=/dev/null/none"]
    live = subprocess.run(asked, env=ENVIRONMENT, capture_output=True, check=True)
    assert recorded.stdout.startswith(b"nvidia.com/cuda.driver-version.full=")
    assert live.stdout == recorded.stdout
