"""What a test may require of the machine, what becomes of it where the machine does not have it, and where it runs."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
MOON = "import conftest\nconftest.REQUIREMENTS['a moon'] = lambda: 'no moon here'\n"


def run(
    directory: Path, tests: dict[str, str], *options: str, **environment: str
) -> tuple[int, str]:
    """Run test modules, by their paths, under this project's conftest; return pytest's exit status and all that it printed."""
    for path, body in tests.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(f"import pytest\n{body}")
    options = (
        "-pconftest",
        "-pno:cacheprovider",
        "-omarkers=requires",
        f"--rootdir={directory}",
        "-ra",
        *options,
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        cwd=directory,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "body",
    [
        MOON + "@pytest.mark.requires('a moon')\ndef test_x(): ...",
        "def test_x(): pytest.skip('no moon here')",
    ],
)
@pytest.mark.parametrize(
    ("ci", "options"), [("", []), ("true", []), ("true", ["-n1"])], ids=["", "CI", "CI parallel"]
)
def test_a_skip_is_a_failure_in_ci(body: str, ci: str, options: list[str], tmp_path: Path) -> None:
    """Where something is missing a developer's run goes on with the reason; CI fails, whoever asked for the skip."""
    status, said = run(tmp_path, {"test_it.py": body}, *options, CI=ci)
    assert status == int(bool(ci)), said
    assert "no moon here" in said
    assert ("1 skipped" in said) is not bool(ci)


def test_an_unknown_requirement_is_an_error(tmp_path: Path) -> None:
    """A misspelt requirement would be one that is always met, or never: nothing is run."""
    body = "@pytest.mark.requires('roott')\ndef test_x(): ..."
    status, said = run(tmp_path, {"test_it.py": body})
    assert status == 4
    assert "requires 'roott'" in said


def test_what_no_package_provides_is_left_out_loudly(tmp_path: Path) -> None:
    """It is no skip, which CI would not allow; the header and the summary tell of it."""
    body = (
        '@pytest.mark.requires("chromium")\ndef test_page(): raise AssertionError\n\n'
        "def test_other(): pass\n"
    )
    tests = {"test_it.py": body}
    status, said = run(tmp_path, tests, CI="true", NVGRAFT_NOT_PACKAGED="chromium")
    assert status == 0, said
    assert "left out: tests that require chromium" in said
    assert "1 passed, 1 deselected" in said


def test_integration_tests_never_run_in_parallel(tmp_path: Path) -> None:
    """One worker gets all of them, and hermetic ones may run beside it; one summary counts both."""
    record = (
        "import os, pathlib\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_x(number):\n"
        f"    with open({str(tmp_path / 'ran')!r}, 'a') as file:\n"
        "        print(pathlib.Path(__file__).parent.name, os.getpid(), file=file)\n"
    )
    tests = {
        f"{directory}/test_{directory}{number}.py": record
        for directory in ("tests", "integration")
        for number in range(3)
    }
    status, said = run(tmp_path, tests, "-n3")
    assert status == 0, said
    assert "18 passed" in said
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 18
    assert len({worker for directory, worker in ran if directory == "integration"}) == 1
    assert len({worker for directory, worker in ran if directory == "tests"}) > 1


def test_a_program_that_is_not_required_is_refused() -> None:
    """So ``./dev test --quick`` finds on every machine what it starts."""
    with pytest.raises(AssertionError, match=r"mark the test with requires\('sh'\)"):
        subprocess.run(["sh", "-c", ":"])
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.requires("sh")
def test_a_program_that_is_required_is_started() -> None:
    """A mark on the test, its class or its module is enough."""
    subprocess.run(["sh", "-c", ":"], check=True)
