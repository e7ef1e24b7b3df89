"""What a test may require of the machine, the result where it is missing, and where tests run."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
MOON = "import conftest\nconftest.REQUIREMENTS['a moon'] = lambda: 'no moon here'\n"


def run(
    directory: Path,
    tests: dict[str, str],
    *options: str,
    before: Callable[[], object] | None = None,
    **environment: str,
) -> tuple[int, str]:
    """Run test modules, by their paths, under this project's conftest; return exit status and
    output.

    :param before: what to call in the new process before pytest starts.
    """
    for path, body in tests.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(f"import pytest\n{body}")
    options = (
        "-pconftest",
        "-pxdist",
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
        env={
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **environment,
        },
        cwd=directory,
        preexec_fn=before,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ci", "options"), [("", []), ("true", []), ("true", ["-n1"])], ids=["", "CI", "CI parallel"]
)
def test_a_skip_is_a_failure_in_ci(ci: str, options: list[str], tmp_path: Path) -> None:
    """A developer's run skips a test with the reason; in CI every skip is a failure."""
    body = (
        f"{MOON}@pytest.mark.requires('a moon')\ndef test_x(): ...\n"
        "def test_y(): pytest.skip('no sun here')\n"
    )
    status, printed = run(tmp_path, {"test_it.py": body}, *options, CI=ci)
    assert status == int(bool(ci)), printed
    assert "no moon here" in printed
    assert "no sun here" in printed
    assert ("1 failed, 1 error" if ci else "2 skipped") in printed


def test_an_unknown_requirement_is_an_error(tmp_path: Path) -> None:
    """A misspelt requirement stops the run; it would always or never be met."""
    body = "@pytest.mark.requires('roott')\ndef test_x(): ..."
    status, printed = run(tmp_path, {"test_it.py": body})
    assert status == 4
    assert "requires 'roott'" in printed


def test_a_test_of_an_unavailable_program_is_left_out(tmp_path: Path) -> None:
    """A test that requires an unavailable program is deselected, and header and summary say so.

    It is not skipped, because CI does not allow skips.
    """
    body = (
        '@pytest.mark.requires("chromium")\ndef test_page(): raise AssertionError\n\n'
        "def test_other(): pass\n"
    )
    tests = {"test_it.py": body}
    status, printed = run(tmp_path, tests, CI="true", NVGRAFT_NOT_PACKAGED="chromium")
    assert status == 0, printed
    assert "left out: tests that require chromium" in printed
    assert "1 passed, 1 deselected" in printed


def test_an_interrupt_ends_what_a_run_in_the_background_starts(tmp_path: Path) -> None:
    """A shell starts a job in the background with SIGINT ignored; programs of tests get it."""
    body = (
        "import signal, subprocess, sys\n"
        "def test_x():\n"
        "    program = 'import signal; signal.raise_signal(signal.SIGINT)'\n"
        "    done = subprocess.run([sys.executable, '-c', program], stderr=subprocess.DEVNULL)\n"
        "    assert done.returncode == -signal.SIGINT\n"
    )
    status, printed = run(
        tmp_path,
        {"test_it.py": body},
        before=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert status == 0, printed


def test_integration_tests_never_run_in_parallel(tmp_path: Path) -> None:
    """One worker runs all integration tests, beside hermetic ones; one summary counts both."""
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
    status, printed = run(tmp_path, tests, "-n3")
    assert status == 0, printed
    assert "18 passed" in printed
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 18
    assert len({worker for directory, worker in ran if directory == "integration"}) == 1
    assert len({worker for directory, worker in ran if directory == "tests"}) > 1


def test_a_program_that_is_not_required_is_refused() -> None:
    """A test that starts a program without requiring it fails.

    ``./dev test --quick`` therefore finds every program that it starts on every machine.
    """
    with pytest.raises(AssertionError, match=r"mark the test with requires\('sh'\)"):
        subprocess.run(["sh", "-c", ":"])
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.requires("sh")
def test_a_program_that_is_required_is_started() -> None:
    """A mark on the test, its class or its module allows the program."""
    subprocess.run(["sh", "-c", ":"], check=True)
