"""`nvgraft docker-v1` on nodes: the volume of a simulated driver, and every recorded answer of
nvidia-docker 1.0.1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import CHECKOUT, SHARED_RECORDS

pytestmark = pytest.mark.requires("root", "overlayfs", "x86_64", "ldconfig", "gcc")

NVGRAFT = [sys.executable, "-m", "nvgraft_cli.shell.main"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in ("hook", "cli", "specs")),
}

#: Records that ours cannot reproduce, and why: the records' CUDA runtime was a stand-in that told a
#: memory bandwidth; the driver of those nodes does not tell one.
BANDWIDTH = "rest/gpu/info"

#: A program that creates the volume through the plugin's own class, and prints what is in it.
CREATE = """
import json, os, pathlib
from nvgraft_cli.docker_v1.gpus import read_driver
from nvgraft_cli.docker_v1.plugin import VolumeDriver
from nvgraft_cli.docker_v1.volume import Volumes
version = read_driver().version
driver = VolumeDriver(Volumes("/var/lib/nvidia-docker/volumes"), version)
name = f"nvidia_driver_{version}"
print(json.dumps(driver.answer("Create", name)))
place = pathlib.Path(driver.answer("Path", name)["Mountpoint"])
print(json.dumps({str(p.relative_to(place)): os.readlink(p) if p.is_symlink() else "" for p in sorted(place.rglob("*"))}))
"""


def test_the_volume_has_every_file_of_the_driver() -> None:
    """Programs, libraries and the links by which programs load them, and nothing of the system."""
    done = subprocess.run(
        [*NVGRAFT, "simulate", "runfile-a10x2", "--", sys.executable, "-c", CREATE],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer, files = map(json.loads, done.stdout.splitlines())
    assert answer == {"Err": None}
    version = files["lib64/libcuda.so.1"].removeprefix("libcuda.so.")
    assert files["lib64/libcuda.so"] == f"libcuda.so.{version}"
    assert files[f"lib64/libcuda.so.{version}"] == ""
    assert files["lib64/libGLX_indirect.so.0"] == f"libGLX_nvidia.so.{version}"
    assert files["bin/nvidia-smi"] == ""
    assert not any("libc.so" in name for name in files)


@pytest.mark.requires("shared-records")
def test_the_recorded_answers(tmp_path: Path) -> None:
    """Docker's last call, and the plugin's answers, are those of nvidia-docker 1.0.1."""
    rig = [sys.executable, str(SHARED_RECORDS / "history" / "rig_nd1.py")]
    records = str(SHARED_RECORDS / "history" / "nvidia-docker-1.jsonl")
    answers = str(tmp_path / "answers.jsonl")
    program = " ".join([*NVGRAFT, "docker-v1"])
    environment = {**ENVIRONMENT}
    run = [*rig, "run", "all", records, "-o", answers, "--cli", _with_path(program)]
    subprocess.run([*run, "--plugin", _with_path(f"{program} plugin")], env=environment, check=True)
    done = subprocess.run(
        [*rig, "compare", records, answers], capture_output=True, text=True, check=False
    )
    failed = [
        line.split()[1].rstrip(":") for line in done.stdout.splitlines() if line[:1].isalpha()
    ]
    assert set(failed) <= {BANDWIDTH}, done.stdout


def _with_path(program: str) -> str:
    """Return a command line that finds the packages: the rig clears the environment."""
    return f"env PYTHONPATH={ENVIRONMENT['PYTHONPATH']} {program}"
