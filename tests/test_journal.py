"""The journal: written records are read again, and a truncated record is ignored."""

import os
import posix
import stat
from pathlib import Path

import pytest

from nvgraft.apply import journal, left_journal
from nvgraft.apply.journal import Heading, Journal, JournalEntry
from nvgraft.apply.left_journal import Left
from nvgraft.base.errors import Refusal

HEADING = Heading("/run/b/rootfs \udcff", 2065, 77, 5, 1_700_000_000_000_000_000, 100000, 100001)
FIRST = [
    JournalEntry("dir", "/usr/lib/firmware/nvidia"),
    JournalEntry("file", "/dev/nvidia0"),
    JournalEntry("link", "/usr/lib/libcuda.so", "libcuda.so.1"),
]
SECOND = [
    JournalEntry("links", "/usr/lib"),
    JournalEntry("was-link", "/usr/lib/libcuda.so.1", "libcuda.so.\udce9\n", "0", "0"),
    JournalEntry(
        "was-file",
        "/etc/ld.so.cache",
        "420",
        "0",
        "0",
        "1",
        "2",
        data=b"\0glibc\0" + bytes(range(256)) * 10,
    ),
    JournalEntry("absent", "/etc/ld.so.cache~"),
    JournalEntry("devices", "/sys/fs/cgroup/devices/x", "12"),
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "DIRECTORY", str(tmp_path / "nvgraft" / "journal"))
    return tmp_path / "nvgraft" / "journal"


def read(directory: Path, name: str) -> Left:
    fd = os.open(directory, os.O_RDONLY)
    try:
        return left_journal.read(fd, name)
    finally:
        os.close(fd)


def written(directory: Path) -> Path:
    begun = Journal.begin(HEADING)
    begun.announce(FIRST)
    begun.announce(SECOND)
    begun.close()
    (path,) = directory.iterdir()
    return path


def test_announced_items_are_read_back(directory: Path) -> None:
    """The heading and all items are read as written, with any bytes in paths and contents. Within
    one announcement, items with data come first.
    """
    path = written(directory)
    left = read(directory, path.name)
    assert left.heading == HEADING
    assert left.entries[:3] == tuple(FIRST)
    assert sorted(map(repr, left.entries[3:])) == sorted(map(repr, SECOND))
    assert left.written == path.stat().st_mtime_ns


def test_a_journal_is_private_to_its_owner(directory: Path) -> None:
    """Directory and file are private to their owner; the file's name gives the lock that its hook
    holds.
    """
    path = written(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert left_journal.lock_of(path.name) == "811-4d"


def test_a_journal_cut_at_any_byte_keeps_complete_records(directory: Path) -> None:
    """A journal cut at any byte has exactly the records that were complete, in their order."""
    path = written(directory)
    data, whole = path.read_bytes(), read(directory, path.name)
    counts: list[int] = []
    for length in reversed(range(len(data) + 1)):
        os.truncate(path, length)
        left = read(directory, path.name)
        if left.heading is None:
            assert left.entries == ()
        else:
            assert left.heading == HEADING
            assert left.entries == whole.entries[: len(left.entries)]
        counts.insert(0, (left.heading is not None) + len(left.entries))
    assert counts == sorted(counts)
    assert sorted(set(counts)) == [0, 1, 4, 5, 9], "each record counts as a whole"
    assert counts[-2] < counts[-1], "the last byte belongs to a record"


def test_a_journal_that_was_changed_is_damaged(directory: Path) -> None:
    """A flipped bit in any byte is noticed, and the journal is not used."""
    path = written(directory)
    data = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for offset, byte in enumerate(data):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << offset % 8]), offset)
            with pytest.raises(ValueError, match="record at byte"):
                read(directory, path.name)
            os.pwrite(file.fileno(), bytes([byte]), offset)


@pytest.mark.parametrize(
    "words",
    [("nvgraft.journal/1", "/r"), ("nvgraft.journal/2", "/r", "1", "2", "x", "4", "5", "6"), ("",)],
)
def test_an_unknown_format_is_damage(directory: Path, words: tuple[str, ...]) -> None:
    """A whole record in an unknown format is damage."""
    path = written(directory)
    path.write_bytes(journal.frame("\0".join(words).encode()))
    with pytest.raises(ValueError, match=r"format|literal|unpack"):
        read(directory, path.name)


@pytest.mark.parametrize(
    "record", [b"what\0/x\0", b"dir\0/x", b"link\0/x\0target", b"was-link\0/x\0t\x000\0"]
)
def test_an_unknown_item_is_damage(directory: Path, record: bytes) -> None:
    """An item of an unknown kind, or with too few fields, is damage."""
    path = written(directory)
    path.write_bytes(journal.frame(journal.heading_record(HEADING)) + journal.frame(record))
    with pytest.raises(ValueError, match="malformed entry"):
        read(directory, path.name)


def test_end_removes_the_journal(directory: Path) -> None:
    """end() removes the journal."""
    assert not journal.pending()
    begun = Journal.begin(HEADING)
    assert journal.pending()
    begun.end()
    begun.close()
    assert not journal.pending()


def test_a_journal_that_cannot_be_removed_is_emptied(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that cannot be removed is emptied: its items belong to a running container and must
    stay.
    """
    path = written(directory)
    begun = Journal.begin(Heading("/r", 1, 2, 3, 4, 0, 0))
    begun.announce(FIRST)

    def refused(*_path: object, **_where: object) -> None:
        raise PermissionError(1, "not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(posix, "unlink", refused)
        begun.end()
    assert read(directory, begun.name) == Left(
        begun.name, None, (), (directory / begun.name).stat().st_mtime_ns
    )
    assert path.exists()


def test_a_start_without_a_journal_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the journal cannot be written, the start is refused and no journal is left."""

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(posix, "write", full)
        with pytest.raises(Refusal, match="no space left on device") as refusal:
            Journal.begin(HEADING)
    assert refusal.value.stage == "initialization"
    assert list(directory.iterdir()) == []
    begun = Journal.begin(HEADING)
    with monkeypatch.context() as patch:
        patch.setattr(posix, "write", full)
        with pytest.raises(Refusal, match="no space left on device"):
            begun.announce(FIRST)


def test_a_rootless_user_has_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rootless user gets no journal, and starts go on."""
    monkeypatch.setattr(journal, "DIRECTORY", "/proc/nvgraft/journal")
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    begun = Journal.begin(HEADING)
    begun.announce(FIRST)
    begun.end()
    begun.close()
    assert not journal.pending()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"rootfs": "/elsewhere"}, True),  # one directory with two names
        ({"device": 9}, True),  # an overlay, mounted again
        ({"device": 9, "rootfs": "/elsewhere"}, False),
        ({"inode": 9}, False),
        ({"born": 9}, False),
        ({"born": HEADING.since - 1}, False),
        ({"born": HEADING.since + 10**9}, True),  # from an overlay's lower layer, copied up
        ({"born": HEADING.since + 10**12}, False),  # a new directory with the former inode number
        ({"since": 9, "uid": 9, "gid": 9}, True),
    ],
)
def test_a_root_file_system_is_known_again(change: dict[str, int | str], same: bool) -> None:
    """A rootfs is recognised by the inode of its root directory, and by its device or its path."""
    fields = {
        name: getattr(HEADING, name)
        for name in ("rootfs", "device", "inode", "born", "since", "uid", "gid")
    }
    assert Left("x", HEADING, (), HEADING.since).is_of(Heading(**{**fields, **change})) is same


def test_rewriting_keeps_what_is_still_to_be_done(directory: Path) -> None:
    """rewrite() keeps the remaining items and the time; without remaining items it removes the
    journal.
    """
    path = written(directory)
    left = read(directory, path.name)
    fd = os.open(directory, os.O_RDONLY)
    rest = Left(left.name, left.heading, left.entries[1:2], left.written)
    left_journal.rewrite(fd, rest)
    assert read(directory, path.name) == rest
    left_journal.rewrite(fd, Left(left.name, left.heading, (), left.written))
    assert list(directory.iterdir()) == []
    os.close(fd)


def test_a_journal_has_a_largest_size(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement beyond the largest size is refused before it is written: nobody could read
    it.
    """
    monkeypatch.setattr(journal, "SIZE_LIMIT", 4000)
    begun = Journal.begin(HEADING)
    begun.announce(FIRST)
    with pytest.raises(Refusal, match=r"file too large") as refusal:
        begun.announce([JournalEntry("was-file", "/etc/x", *"12345", data=bytes(4000))])
    assert "a journal has at most" in refusal.value.hint
    assert (directory / begun.name).stat().st_size <= 4000


def test_a_journal_of_another_root_by_its_name_is_damaged(directory: Path) -> None:
    """A journal under the name of another root file system is not used: its lock would be the wrong
    one.
    """
    path = written(directory)
    path.rename(directory / "811-4e-1")
    with pytest.raises(ValueError, match="its name is that of another root file system"):
        read(directory, "811-4e-1")


@pytest.mark.parametrize("name", ["x", "-1", "1-2", "1--3", "1-2-", "1-2-3.", "g-2-3", "1-2-3-4"])
def test_other_names_are_not_those_of_journals(directory: Path, name: str) -> None:
    """Names that no hook gives, and a journal of any other name, are told apart."""
    path = written(directory)
    path.rename(directory / name)
    (directory / "1-2-3.77").touch()
    fd = os.open(directory, os.O_RDONLY)
    problems = {entry.name: entry.problem for entry in left_journal.entries_of(fd)}
    os.close(fd)
    expected = "" if name == "1-2-3." else "its name is not that of a journal"
    assert problems == {name: expected, "1-2-3.77": ""}
