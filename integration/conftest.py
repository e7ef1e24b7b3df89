"""Fixtures of the integration tests: a real installation, and private mount namespaces."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attacked import Case, Outcome, attack
from containers import Bundle
from harness import CHECKOUT, Installed, T, run_in_mount_namespace


@pytest.fixture(scope="session")
def installed(demand: Callable[[str], None]) -> Iterator[Installed]:
    """Install for real, owned by root and on the root file system: a simulated host has its own
    /tmp and /run.
    """
    demand("root")
    prefix = Path(tempfile.mkdtemp(prefix="nvgraft-test.", dir="/opt"))
    prefix.chmod(0o755)
    try:
        done = subprocess.run(
            [CHECKOUT / "dev", "install", f"PREFIX={prefix}", "--names"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        yield Installed(
            prefix, prefix / "bin/nvgraft-hook", prefix / "bin/nvgraft", prefix / "lib/nvgraft/hook"
        )
    finally:
        shutil.rmtree(prefix)


@pytest.fixture
def in_mount_namespace(demand: Callable[[str], None]) -> Callable[[Callable[[], T]], T]:
    """Return :func:`harness.run_in_mount_namespace`, for a test that is root."""
    demand("root")
    return run_in_mount_namespace


@pytest.fixture
def bundle(tmp_path: Path, installed: Installed) -> Bundle:
    """Return a busybox bundle with the installed hook."""
    return Bundle(tmp_path, installed)


@pytest.fixture
def attacked(installed: Installed) -> Callable[[Case], Outcome]:
    """Return a function that runs the installed hook on the container of a
    :class:`attacked.Case`.
    """
    return lambda case: attack(installed, case)
