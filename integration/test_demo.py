"""``./dev demo`` as a new user runs it."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import console
from harness import CHECKOUT

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64")


def traces() -> set[str]:
    """Return the directories, mounts and cgroups that the demonstration could leave behind."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    patterns = ["opt/nvgraft.*", "tmp/nvgraft-demo.*", "dev/nvidia*"]
    patterns += ["sys/fs/cgroup/nvgraft-demo*", "sys/fs/cgroup/*/nvgraft-demo*"]
    files = {str(path) for pattern in patterns for path in Path("/").glob(pattern)}
    return files | {path for path in mounts if "nv" in path}


def without_addresses(lines: list[str]) -> list[str]:
    """Return lines of a loader's output without the addresses, which differ in each run."""
    return [re.sub(r"0x[0-9a-f]+", "0x", line) for line in lines]


def test_the_demo_shows_a_configured_container_and_leaves_nothing() -> None:
    """The demo's container agrees with its plan, its output with the README; nothing is left."""
    before = traces()
    command = [str(CHECKOUT / "dev"), "demo"]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("demo: OK")
    links = ("libcuda.so.1 -> ", "libcuda.so.1 => ")
    for text in ("/dev/nvidia1", "nvidiactl", *links, "+ /usr/bin/nvidia-smi"):
        assert text in done.stdout
    assert traces() == before
    (picture,) = console.commands(CHECKOUT / "README.md")
    assert picture.words == ["./dev", "demo"]
    assert console.agrees(
        without_addresses(picture.output), without_addresses(done.stdout.splitlines())
    ), "the README shows other lines than the demo prints"


def test_the_demo_says_that_it_needs_root() -> None:
    """Run by another user, the demo says in one line that it needs root."""
    with tempfile.TemporaryDirectory() as readable:
        os.chmod(readable, 0o755)
        script = shutil.copy(CHECKOUT / "dev", readable)
        done = subprocess.run(
            [script, "demo"],
            capture_output=True,
            text=True,
            user=65534,
            extra_groups=[],
            env={"PATH": os.environ["PATH"]},
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "dev: needs root: namespaces, mounts and containers are made"
    ]
