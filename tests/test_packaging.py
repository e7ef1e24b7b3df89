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
    for root in ("hook", "cli", "specs", "plugin"):
        for path in (CHECKOUT / root).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(path.relative_to(CHECKOUT / root)) in packed


def test_pip_needs_no_compiler() -> None:
    """python-prctl, which gcc builds, is required only by the extra "node" and those with it."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert not [name for name in project["dependencies"] if "prctl" in name]
    assert [name for name in extras["node"] if "prctl" in name]
    assert "nvgraft[node]" in extras["install"]
    assert "nvgraft[install,device-plugin]" in extras["test"]


def test_the_wheel_has_pages(wheel: zipfile.ZipFile) -> None:
    """The wheel has manual pages and completions for the environment's share directory, and the
    pages that `nvgraft help` reads.
    """
    packed = {name.partition(".data/data/")[2] for name in wheel.namelist()}
    assert {
        "share/man/man1/nvgraft.1",
        "share/man/man1/nvgraft-plan.1",
        "share/bash-completion/completions/nvgraft",
        "share/zsh/site-functions/_nvgraft",
        "share/fish/vendor_completions.d/nvgraft.fish",
    } <= packed
    assert {"nvgraft_cli/docs/glossary.md", "nvgraft_cli/docs/failures.md"} <= set(wheel.namelist())


def test_help_works_from_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """`nvgraft help TERM` works in an environment that pip made."""
    wheel.extractall(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        " from nvgraft_cli.shell.main import main; sys.exit(main())"
    )
    for word in ("driver root", "nvml-slow"):
        done = subprocess.run(
            [sys.executable, "-IS", "-c", program, "help", word],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{word}\n")


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
