"""Keeping what the hook said: bounded, root-only, and never a way to another file."""

import os
from pathlib import Path

import pytest

from documents import read_document
from nvgraft.report import last_error
from nvgraft_cli.shell import main


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nvgraft" / "last-error"
    for module in ("nvgraft.report.last_error", "nvgraft_cli.last_error.command"):
        monkeypatch.setattr(f"{module}.DIRECTORY", str(place))
    return place


def keep(container_id: str, *lines: str) -> None:
    fd = last_error.open_directory()
    assert fd is not None
    last_error.keep(fd, container_id, 1, list(lines))
    os.close(fd)


def test_a_record_is_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest record, or that of an id's beginning, is shown with time and exit code."""
    keep("abc1", "nvgraft: device error: 7: unknown device")
    keep("def2", "nvgraft: mount error: x")
    os.utime(directory / "id-abc1", (1, 1))
    assert main.main(["last-error"]) == 0
    assert "mount error: x" in capsys.readouterr().out
    assert main.main(["last-error", "ab"]) == 0
    shown = capsys.readouterr().out
    assert "exit 1 container 'abc1'" in shown
    assert "7: unknown device" in shown


def test_a_new_record_replaces_the_old_one(directory: Path) -> None:
    """One record for each container, the last."""
    keep("a", "first")
    keep("a", "second")
    assert [path.name for path in directory.iterdir()] == ["id-a"]
    assert "second" in (directory / "id-a").read_text()


def test_nothing_recorded_is_said(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No record is exit 1 and one line."""
    assert main.main(["last-error", "nobody"]) == 1
    assert "there is no record of a container 'nobody'" in capsys.readouterr().err


def test_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For machines: the head and the messages."""
    keep("a", "one", "two")
    assert main.main(["last-error", "--format", "json"]) == 0
    shown = read_document(capsys.readouterr().out)
    assert (shown["messages"], shown["others"]) == (["one", "two"], 0)
    assert "exit 1 container 'a'" in shown["record"]


@pytest.mark.parametrize(
    "container_id", ["../../etc/passwd", "a/b", ".", "", "x\0y", "\n", "%2e", "ä" * 200]
)
def test_an_id_is_never_a_path(directory: Path, container_id: str) -> None:
    """Whatever id an engine gives, the record is one file of the directory."""
    keep(container_id, "line")
    (record,) = directory.iterdir()
    assert record.name == last_error.file_name(container_id)
    assert "/" not in record.name
    assert len(os.fsencode(record.name)) < 255 * 4


def test_different_ids_have_different_files() -> None:
    """Escaping does not merge ids."""
    assert len({last_error.file_name(name) for name in ("a/b", "a%2fb", "a_b", "ab")}) == 4


def test_records_are_bounded_and_root_s_own(directory: Path) -> None:
    """A long message is cut, old records go, and nobody else can read them."""
    for number in range(last_error.KEPT + 5):
        keep(f"c{number}", "x" * 100_000)
    records = list(directory.iterdir())
    assert len(records) == last_error.KEPT
    assert max(record.stat().st_size for record in records) <= last_error.SIZE_LIMIT
    assert {record.stat().st_mode & 0o777 for record in records} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_directory_of_others_is_not_used(directory: Path) -> None:
    """A directory that others can read or write, or a link in its place, keeps no record, and fails nothing."""
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    assert last_error.open_directory() is None
    directory.rmdir()
    directory.symlink_to("/tmp")
    assert last_error.open_directory() is None
