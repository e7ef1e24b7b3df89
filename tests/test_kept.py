"""Documents kept under /run for the next hook: read only if undamaged and private to this user."""

import os
import posix
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvgraft.system import keep, kept
from nvgraft_cli.shell import main

KEY = ["1.0", ["a", 2, None, True]]
VALUE = {"libraries": [["/usr/lib/\udcff.so", 1]], "nothing": None}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nvgraft" / "cache"
    monkeypatch.setattr(kept, "DIRECTORY", str(place))
    return place


@pytest.fixture
def document(directory: Path) -> Path:
    """The path of the document with KEY, once written."""
    assert keep.write("kind", KEY, VALUE)
    return directory / kept.name_of("kind", KEY)


def test_a_document_is_read_back(document: Path) -> None:
    """A document is read under its key; its file and directories are private."""
    assert kept.read("kind", KEY) == VALUE
    assert document.stat().st_mode & 0o777 == 0o600
    assert [path.stat().st_mode & 0o777 for path in (document.parent, document.parent.parent)] == [
        0o700,
        0o700,
    ]
    assert list(document.parent.iterdir()) == [document]


@pytest.mark.parametrize(
    ("kind", "key"), [("kind", ["1.0"]), ("kind", ["1.1", KEY[1]]), ("other", KEY)]
)
def test_another_key_has_no_document(document: Path, kind: str, key: object) -> None:
    """Another key has no document, also if a file has that key's name."""
    assert kept.read(kind, key) is None
    document.rename(document.parent / kept.name_of(kind, key))
    assert (kept.read(kind, key) is None) == (kind == "kind")


def test_reading_creates_no_directory(directory: Path) -> None:
    """Reading creates no directory."""
    assert kept.read("kind", KEY) is None
    assert not directory.parent.exists()


def spoil_mode(path: Path) -> None:
    path.chmod(0o604)


def spoil_links(path: Path) -> None:
    os.link(path, path.parent.parent / "second")


def spoil_by_link(path: Path) -> None:
    os.rename(path, path.parent.parent / "real")
    path.symlink_to("../real")


def spoil_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def spoil_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o600)


def spoil_directory(path: Path) -> None:
    path.parent.chmod(0o750)


def spoil_parent(path: Path) -> None:
    path.parent.parent.chmod(0o720)


def spoil_directory_by_link(path: Path) -> None:
    path.parent.rename(path.parent.parent / "real")
    path.parent.symlink_to("real")


def spoil_size(path: Path) -> None:
    with open(path, "ab") as file:
        file.truncate(kept.LIMIT + 1)


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_mode,
        spoil_links,
        spoil_by_link,
        spoil_by_fifo,
        spoil_by_directory,
        spoil_directory,
        spoil_parent,
        spoil_directory_by_link,
        spoil_size,
    ],
    ids=lambda spoil: str(spoil.__name__),
)
def test_a_file_that_others_can_reach_is_not_read(
    document: Path, spoil: Callable[[Path], None]
) -> None:
    """A file with other permissions, a second name or another type, or in an open directory, is not
    read.
    """
    spoil(document)
    assert kept.read("kind", KEY) is None


@pytest.mark.requires("root")
@pytest.mark.parametrize("what", ["file", "directory", "parent"])
def test_a_file_of_another_owner_is_not_read(document: Path, what: str) -> None:
    """A file or directory of another owner is not read."""
    os.chown(
        {"file": document, "directory": document.parent, "parent": document.parent.parent}[what],
        1234,
        0,
    )
    assert kept.read("kind", KEY) is None


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_document_is_not_read(document: Path, data: st.DataObject) -> None:
    """A document with a changed byte, missing bytes or added bytes is not read."""
    whole = document.read_bytes()
    try:
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = data.draw(
            st.sampled_from(
                [
                    whole[:at],
                    whole + whole[at:],
                    whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :],
                ]
            )
        )
        document.write_bytes(changed)
        assert kept.read("kind", KEY) is None
    finally:
        document.write_bytes(whole)
    assert kept.read("kind", KEY) == VALUE


def test_exchanged_bytes_are_noticed(document: Path) -> None:
    """A document with two bytes exchanged, at any distance, is not read: the checksum depends on
    order.
    """
    whole = document.read_bytes()
    body = whole.index(b"\n") + 1
    for first in range(body, body + 8):
        for second in range(first + 1, len(whole)):
            if whole[first] != whole[second]:
                changed = bytearray(whole)
                changed[first], changed[second] = whole[second], whole[first]
                document.write_bytes(changed)
                assert kept.read("kind", KEY) is None


def test_a_place_that_cannot_be_written_is_not_an_error(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be written, and beyond the size limit, write() returns False and raises
    nothing.
    """
    monkeypatch.setattr(kept, "DIRECTORY", "/proc/none/cache")
    assert not keep.write("kind", KEY, VALUE)
    assert kept.read("kind", KEY) is None
    assert keep.drop() == 0
    monkeypatch.setattr(kept, "DIRECTORY", str(directory))
    monkeypatch.setattr(kept, "LIMIT", 10)
    assert not keep.write("kind", KEY, VALUE)


def test_an_interrupted_writer_leaves_the_old_document(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted write leaves the old document and no file of its own."""

    def fail(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(posix, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        keep.write("kind", KEY, "new")
    assert kept.read("kind", KEY) == VALUE
    assert list(document.parent.iterdir()) == [document]


def test_files_of_killed_writers_are_removed(document: Path) -> None:
    """A write removes old unfinished files; young ones may belong to another writer."""
    old, young = document.parent / ".17-abc", document.parent / ".18-abc"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    assert keep.write("kind", KEY, VALUE)
    assert sorted(document.parent.iterdir()) == sorted([document, young])


def test_only_the_newest_documents_are_kept(directory: Path) -> None:
    """A write removes the oldest documents of its kind beyond the limit."""
    keep.write("other", KEY, 1)
    for number in range(keep.KEPT + 5):
        assert keep.write("kind", number, number)
        os.utime(directory / kept.name_of("kind", number), (number, number))
    assert len(list(directory.iterdir())) == keep.KEPT + 1
    assert kept.read("other", KEY) == 1
    assert kept.read("kind", 4) is None
    assert kept.read("kind", keep.KEPT + 4) == keep.KEPT + 4


def test_drop_removes_one_kind_or_everything(document: Path) -> None:
    """drop() removes the documents of one kind, or everything including unfinished files."""
    keep.write("other", KEY, 1)
    (document.parent / ".1-a").touch()
    assert keep.drop("kind-") == 1
    assert kept.read("other", KEY) == 1
    assert keep.drop() == 2
    assert list(document.parent.iterdir()) == []


def test_readers_see_whole_documents_while_others_write(document: Path) -> None:
    """Readers get one whole document at any time while two threads write."""
    values = [VALUE, {"other": ["x" * 10_000]}]
    done = threading.Event()

    def write(value: object) -> None:
        while not done.is_set():
            keep.write("kind", KEY, value)

    writers = [threading.Thread(target=write, args=(value,)) for value in values]
    for writer in writers:
        writer.start()
    try:
        documents = [kept.read("kind", KEY) for _ in range(300)]
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert all(value in values for value in documents)
    assert list(document.parent.iterdir()) == [document]


def test_changed_source_gives_another_key(tmp_path: Path) -> None:
    """A changed source gives another key, so that an upgrade does not read documents of the former
    version.
    """
    source = tmp_path / "module.py"
    source.write_text("1")
    before = kept.code(str(source))
    assert kept.code(str(source)) == before
    os.utime(source, (1, 1))
    after = kept.code(str(source))
    assert after != before
    source.unlink()
    assert kept.code(str(source)) not in (before, after)


def test_packed_byte_code_decides_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packed byte code the key depends on its directory and not on the sources."""
    packed, source = tmp_path / "bytecode", tmp_path / "module.py"
    monkeypatch.setattr(kept, "_PACKED", str(packed))
    source.write_text("1")
    without = kept.code(str(source))
    packed.mkdir()
    first = kept.code(str(source))
    assert first != without
    os.utime(source, (1, 1))
    assert kept.code(str(source)) == first
    packed.rename(tmp_path / "old")
    packed.mkdir()
    assert kept.code(str(source)) not in (without, first)


def test_what_is_not_a_document_stays(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory among the documents keeps no other one from being written and dropped."""
    assert keep.write("kind", [0], VALUE)
    (directory / "kind-odd").mkdir()
    os.utime(directory / "kind-odd", (1, 1))
    monkeypatch.setattr(keep, "KEPT", 1)
    assert keep.write("kind", KEY, VALUE)
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        ["kind-odd", kept.name_of("kind", KEY)]
    )
    assert kept.read("kind", KEY) == VALUE
    monkeypatch.setattr("nvgraft_cli.inventory.command.require_root", lambda: None)
    assert main.main(["inventory", "drop"]) == 1
    assert (
        "kind-odd: is a directory | remove it: no hook writes such a file"
        in capsys.readouterr().err
    )
