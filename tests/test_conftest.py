"""What a test may require of the machine, and what becomes of it where the machine does not have it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent


def outcome(directory: Path, body: str, *, ci: bool) -> tuple[int, str]:
    """Run one test module under this project's conftest; return pytest's exit status and all that it printed."""
    (directory / "test_it.py").write_text(
        f"import pytest\nimport conftest\nconftest.REQUIREMENTS['a moon'] = lambda: 'no moon here'\n{body}"
    )
    options = [
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-o",
        "markers=requires",
        "-ra",
        f"--rootdir={directory}",
    ]
    environment = {
        "PYTHONPATH": str(CHECKOUT),
        "CI": "true" if ci else "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", *options, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "@pytest.mark.requires('a moon')\ndef test_x(): ...",
        "def test_x(): pytest.skip('no moon here')",
    ],
)
@pytest.mark.parametrize("ci", [False, True])
def test_a_skip_is_a_failure_in_ci(body: str, ci: bool, tmp_path: Path) -> None:
    """Where something is missing a developer's run goes on with the reason; CI fails, whoever asked for the skip."""
    status, said = outcome(tmp_path, body, ci=ci)
    assert status == int(ci), said
    assert "no moon here" in said
    assert ("1 skipped" in said) is not ci


def test_an_unknown_requirement_is_an_error(tmp_path: Path) -> None:
    """A misspelt requirement would be one that is always met, or never: nothing is run."""
    status, said = outcome(tmp_path, "@pytest.mark.requires('roott')\ndef test_x(): ...", ci=False)
    assert status == 4
    assert "requires 'roott'" in said


def test_what_no_package_provides_is_left_out_loudly(tmp_path: Path) -> None:
    """It is no skip, which CI would not allow; the header and the summary tell of it."""
    (tmp_path / "test_it.py").write_text(
        'import pytest\n\n@pytest.mark.requires("chromium")\ndef test_page(): raise AssertionError\n\ndef test_other(): pass\n'
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-o",
        "markers=requires",
        str(tmp_path),
    ]
    environment = {
        **os.environ,
        "CI": "true",
        "NVGRAFT_NOT_PACKAGED": "chromium",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
    assert "left out: tests that require chromium" in done.stdout
    assert "1 passed, 1 deselected" in done.stdout
