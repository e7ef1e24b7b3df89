"""An ldconfig that config.toml names, where nvgraft writes the loader cache itself."""

import os
import posix
from pathlib import Path

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.host.ldconfig import USUAL_PROGRAMS, check_program


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("missing", "open failed: {}: no such file or directory"),
        ("", "open failed: : no such file or directory"),
        ("plain/x", "open failed: {}: not a directory"),
        ("directory", "process {} failed with error code: 1"),
        ("plain", "process {} failed with error code: 1"),
        ("fifo", "process {} failed with error code: 1"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused(tmp_path: Path, program: str, text: str) -> None:
    """An ldconfig that only config.toml names is refused in the reference's words if it is missing
    or not a program, although it is not run.
    """
    (tmp_path / "directory").mkdir()
    (tmp_path / "plain").touch(0o644)
    os.mkfifo(tmp_path / "fifo", 0o755)
    path = str(tmp_path / program) if program else ""
    with pytest.raises(Refusal) as caught:
        check_program(path)
    assert caught.value.reference_line() == f"nvgraft: ldcache error: {text.format(path)}"
    assert "set ldconfig under [nvidia-container-cli]" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "warned"), [("ldconfig", False), ("ldconfig.real", False), ("wrapper", True)]
)
def test_a_program_of_another_name_is_a_warning(tmp_path: Path, name: str, warned: bool) -> None:
    """A program that is not called ldconfig is not run, and a warning says so. The usual programs
    may be missing.
    """
    (tmp_path / name).touch(0o755)
    findings = check_program(str(tmp_path / name))
    assert [finding.id for finding in findings] == ["ldconfig-not-run"] * warned


def test_the_usual_programs_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without ldconfig is served: the default of config.toml is not looked at."""
    monkeypatch.delattr(posix, "stat")
    for program in USUAL_PROGRAMS:
        assert check_program(program) == []
