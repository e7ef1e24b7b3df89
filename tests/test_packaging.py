"""What pip installs: the wheel, and what works without packages that need a compiler."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
#: Runs nvgraft in a process that has no python-prctl.
WITHOUT_PRCTL = """
import sys
sys.modules["_prctl"] = sys.modules["prctl"] = None
from nvgraft_cli.shell.main import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return the wheel that pip builds of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    build = f"from hatchling.build import build_wheel; build_wheel({str(directory)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=CHECKOUT, check=True)
    (path,) = directory.iterdir()
    return zipfile.ZipFile(path)


@pytest.mark.parametrize("package", ["nvgraft", "nvgraft_cli", "nvgraft_specs"])
def test_the_packages_are_typed(wheel: zipfile.ZipFile, package: str) -> None:
    """Type checkers use the annotations of a package that has a py.typed (PEP 561)."""
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_wheel_has_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    """Schemas, gallery, page and sources of the simulated driver, which a build may leave out, are
    in the wheel.
    """
    packed = set(wheel.namelist())
    for root in ("hook", "cli", "specs"):
        for path in (CHECKOUT / root).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(path.relative_to(CHECKOUT / root)) in packed


def test_pip_needs_no_compiler() -> None:
    """python-prctl, which gcc builds, is required only by the extras "node" and "test"."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert not [name for name in project["dependencies"] if "prctl" in name]
    assert [name for name in extras["node"] if "prctl" in name]
    assert "nvgraft[node]" in extras["test"]


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=CHECKOUT,
        timeout=60,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--bundle", "docs/examples/one-gpu", "--host", "eks-t4"],
        ["why", "libcuda.so.1", "--bundle", "docs/examples/one-gpu", "--host", "eks-t4"],
        ["simulate", "--list"],
    ],
)
def test_planning_needs_no_prctl(words: list[str]) -> None:
    """plan, why and simulate --list work without python-prctl, as pip installs them without a
    compiler.
    """
    done = run(WITHOUT_PRCTL, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_confinement_says_that_capabilities_are_kept() -> None:
    """Without python-prctl --debug says that no capability is dropped, and the rest of the
    confinement is applied.
    """
    words = ["plan", "--bundle", "docs/examples/one-gpu", "--host", "eks-t4"]
    done = run(WITHOUT_PRCTL, "--debug", *words)
    assert done.returncode == 0
    assert "capabilities: python-prctl is not installed" in done.stderr
    assert "seccomp" not in done.stderr


@pytest.mark.parametrize(
    "call", ["privileges.demand()", "nvml.query('/lib/libnvidia-ml.so.1', '/', '', ())"]
)
def test_a_call_that_needs_prctl_names_the_package(call: str) -> None:
    """Configuring a container and querying NVML, which drop capabilities, are refused with the
    package to install.
    """
    program = f"""
import sys
sys.modules["_prctl"] = None
from nvgraft.base.errors import Refusal
from nvgraft.host import nvml
from nvgraft.system import privileges
try:
    {call}
except Refusal as refusal:
    print(refusal.line())
"""
    done = run(program)
    assert done.stdout.startswith(
        "nvgraft: permission error: python-prctl is not installed | run apt-get install python3-prctl"
    )
