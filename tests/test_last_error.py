"""Keeping the hook's last messages: limited, private to root, and never in another file."""

import os
from pathlib import Path

import pytest

from documents import read_document
from nvgraft.report import last_error
from nvgraft.system import userns
from nvgraft_cli.last_error import command
from nvgraft_cli.shell import main


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nvgraft" / "last-error"
    for module in ("nvgraft.report.last_error", "nvgraft_cli.last_error.command"):
        monkeypatch.setattr(f"{module}.DIRECTORY", str(place))
        monkeypatch.setattr(
            f"{module}.directory_of", lambda uid: f"{tmp_path}/user/{uid}/n/records"
        )
    return place


@pytest.fixture
def rootless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be the root of a user namespace of user 1000; return the directory of that user's records."""
    (tmp_path / "user/1000").mkdir(parents=True)
    maps = {"uid_map": f"{os.geteuid():>10} 1000 1\n  100000 200000 65536\n"}
    monkeypatch.setattr(userns, "_read", lambda path: maps.get(os.path.basename(path), ""))
    return tmp_path / "user/1000/n/records"


def keep(container_id: str, *lines: str, exit_code: int = 1) -> None:
    fd = last_error.open_directory()
    assert fd is not None
    last_error.keep(fd, container_id, exit_code, list(lines))
    os.close(fd)


def test_a_record_is_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest record, or that of a given beginning of an id, is shown with time and exit
    code.
    """
    keep("abc1", "nvgraft: device error: 7: unknown device")
    keep("def2", "nvgraft: mount error: x")
    os.utime(directory / "id-abc1", (1, 1))
    assert main.main(["last-error"]) == 0
    assert "mount error: x" in capsys.readouterr().out
    assert main.main(["last-error", "ab"]) == 0
    output = capsys.readouterr().out
    assert "exit 1 container 'abc1'" in output
    assert "7: unknown device" in output


def test_a_new_record_replaces_the_old_one(directory: Path) -> None:
    """A container has one record, the last."""
    keep("a", "first")
    keep("a", "second")
    assert [path.name for path in directory.iterdir()] == ["id-a"]
    assert "second" in (directory / "id-a").read_text()


def test_a_missing_record_is_reported(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing record exits with 1 and one line that says where a record would be found."""
    assert main.main(["last-error", "nobody"]) == 1
    error = capsys.readouterr().err
    assert "there is no record of a container 'nobody'" in error
    assert "| run the command as root, or for a rootless container as the user" in error


def test_a_rootless_hook_keeps_its_record_with_the_user(
    directory: Path, rootless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where /run/nvgraft is not the hook's, the record goes to the user's own directory, and
    last-error finds it there.
    """
    directory.parent.write_text("the host's root has /run/nvgraft")
    keep("abc1", "nvgraft: mount error: x")
    assert (rootless / "id-abc1").stat().st_mode & 0o777 == 0o600
    directory.parent.unlink()
    assert main.main(["last-error", "abc"]) == 0
    assert "mount error: x" in capsys.readouterr().out


def test_the_newest_record_of_both_directories_is_shown(
    directory: Path, rootless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an id the newest record counts, whoever's container it was."""
    keep("root", "nvgraft: of root")
    rootless.mkdir(parents=True)
    (rootless / "id-user").write_text("nvgraft: of the user\n")
    os.utime(directory / "id-root", (1, 1))
    assert main.main(["last-error"]) == 0
    assert capsys.readouterr().out == "nvgraft: of the user\n"


def test_records_of_root_need_root(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a record of their own is told whose records are where (exit code 2)."""

    keep("a", "line")
    records = command._records

    def closed(place: str, wanted: str) -> list[tuple[int, str]]:
        if place == str(directory):
            raise PermissionError(13, "Permission denied", place)
        return records(place, wanted)

    monkeypatch.setattr(command, "_records", closed)
    assert main.main(["last-error"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"nvgraft last-error: {directory}: permission denied | run the command as"
    )
    assert err.count("\n") == 1


def test_the_refusal_of_a_record(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON of a refusal has its id, stage, cause and fix; that of warnings has none."""
    line = "nvgraft: initialization error: nvml error: driver not loaded | load the module"
    keep("a", "Using requested mode", line)
    assert main.main(["last-error", "--format", "json"]) == 0
    refusal = read_document(capsys.readouterr().out)["refusal"]
    assert (refusal["id"], refusal["stage"]) == ("driver-not-loaded", "initialization")
    assert (refusal["message"], refusal["fix"]) == tuple(line.split(" | "))
    keep("a", "could not open OCI spec: open /b/config.json: no such file or directory | look")
    assert main.main(["last-error", "--format", "json"]) == 0
    refusal = read_document(capsys.readouterr().out)["refusal"]
    assert (refusal["stage"], refusal["fix"]) == ("hook", "look")
    keep("a", "nvgraft: warning: x", exit_code=0)
    assert main.main(["last-error", "--format", "json"]) == 0
    assert read_document(capsys.readouterr().out)["refusal"] is None


def test_a_record_as_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON output has the heading and the messages of a record."""
    keep("a", "one", "two")
    assert main.main(["last-error", "--format", "json"]) == 0
    document = read_document(capsys.readouterr().out)
    assert (document["messages"], document["others"]) == (["one", "two"], 0)
    assert "exit 1 container 'a'" in document["record"]


@pytest.mark.parametrize(
    "container_id", ["../../etc/passwd", "a/b", ".", "", "x\0y", "\n", "%2e", "ä" * 200]
)
def test_an_id_is_never_a_path(directory: Path, container_id: str) -> None:
    """The record of any container id is one file of the directory."""
    keep(container_id, "line")
    (record,) = directory.iterdir()
    assert record.name == last_error.file_name(container_id)
    assert "/" not in record.name
    assert len(os.fsencode(record.name)) < 255 * 4


def test_different_ids_have_different_files() -> None:
    """Different ids have different file names after escaping."""
    assert len({last_error.file_name(name) for name in ("a/b", "a%2fb", "a_b", "ab")}) == 4


def test_records_are_limited_and_private(directory: Path) -> None:
    """A long message is cut, old records are removed, and records are private to root."""
    for number in range(last_error.KEPT + 5):
        keep(f"c{number}", "x" * 100_000)
    records = list(directory.iterdir())
    assert len(records) == last_error.KEPT
    assert max(record.stat().st_size for record in records) <= last_error.SIZE_LIMIT
    assert {record.stat().st_mode & 0o777 for record in records} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700


def test_an_open_directory_is_not_used(directory: Path) -> None:
    """A directory that others can read or write to, or a link in its place, is not used, and
    nothing fails.
    """
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    assert last_error.open_directory() is None
    directory.rmdir()
    directory.symlink_to("/tmp")
    assert last_error.open_directory() is None


def test_what_is_not_a_record_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the hook has not made in the directory of records is named and not shown, and keeps no
    record from being written or dropped.
    """
    keep("c", "first")
    (directory / "id-a").mkdir()
    os.mkfifo(directory / "id-b")
    (directory / "id-open").write_text("made up")
    (directory / "id-open").chmod(0o666)
    for name in ("id-a", "id-b", "id-open"):
        os.utime(directory / name, (1, 1))
    keep("a", "never written")
    assert main.main(["last-error"]) == 0
    output, problems = capsys.readouterr()
    assert output.splitlines()[1:] == ["first"]
    for name, problem in {
        "id-a": "it is not a regular file",
        "id-b": "it is not a regular file",
        "id-open": "its mode is 0666 instead of 0600",
    }.items():
        assert f"/{name} is not used: {problem} | remove it: no hook writes such a file" in problems
    for number in range(last_error.KEPT + 5):
        keep(f"c{number}", "x")
    left = {path.name for path in directory.iterdir()}
    assert "id-a" in left, "a directory is not removed"
    assert len(left) == last_error.KEPT + 1
