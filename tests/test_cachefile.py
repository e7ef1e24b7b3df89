"""What is kept for the next hook: whole and one's own, or not there at all."""

import os
import posix
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvgraft import cachefile

KEY = ["1.0", ["a", 2, None, True]]
VALUE = {"libraries": [["/usr/lib/\udcff.so", 1]], "nothing": None}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nvgraft" / "cache"
    monkeypatch.setattr(cachefile, "DIRECTORY", str(place))
    return place


@pytest.fixture
def kept(directory: Path) -> Path:
    """The file of KEY."""
    assert cachefile.write("kind", KEY, VALUE)
    return directory / cachefile.name_of("kind", KEY)


def test_what_is_written_is_read(kept: Path) -> None:
    """Under its key, in a file and a directory that nobody else can look into."""
    assert cachefile.read("kind", KEY) == VALUE
    assert kept.stat().st_mode & 0o777 == 0o600
    assert [path.stat().st_mode & 0o777 for path in (kept.parent, kept.parent.parent)] == [0o700, 0o700]
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize(("kind", "key"), [("kind", ["1.0"]), ("kind", ["1.1", KEY[1]]), ("other", KEY)])
def test_another_key_has_nothing(kept: Path, kind: str, key: object) -> None:
    """Not even where its file has the same name by chance."""
    assert cachefile.read(kind, key) is None
    kept.rename(kept.parent / cachefile.name_of(kind, key))
    assert (cachefile.read(kind, key) is None) == (kind == "kind")


def test_nothing_is_made_by_reading(directory: Path) -> None:
    """A look at what is cached leaves no directory behind."""
    assert cachefile.read("kind", KEY) is None
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
        file.truncate(cachefile.LIMIT + 1)


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
def test_what_others_can_reach_is_not_read(kept: Path, spoil: Callable[[Path], None]) -> None:
    """A file with other permissions, another name or of another type, in a directory that is not closed, is as if it were not there."""
    spoil(kept)
    assert cachefile.read("kind", KEY) is None


@pytest.mark.requires("root")
@pytest.mark.parametrize("what", ["file", "directory", "parent"])
def test_what_others_own_is_not_read(kept: Path, what: str) -> None:
    """Whatever its mode."""
    os.chown({"file": kept, "directory": kept.parent, "parent": kept.parent.parent}[what], 1234, 0)
    assert cachefile.read("kind", KEY) is None


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_seen(kept: Path, data: st.DataObject) -> None:
    """One byte changed, bytes missing at the end, or bytes added: none of it is read."""
    whole = kept.read_bytes()
    try:
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = data.draw(
            st.sampled_from([whole[:at], whole + whole[at:], whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]])
        )
        kept.write_bytes(changed)
        assert cachefile.read("kind", KEY) is None
    finally:
        kept.write_bytes(whole)
    assert cachefile.read("kind", KEY) == VALUE


def test_exchanged_bytes_are_seen(kept: Path) -> None:
    """A checksum that only counts bytes would miss them, at whatever distance."""
    whole = kept.read_bytes()
    body = whole.index(b"\n") + 1
    for first in range(body, body + 8):
        for second in range(first + 1, len(whole)):
            if whole[first] != whole[second]:
                changed = bytearray(whole)
                changed[first], changed[second] = whole[second], whole[first]
                kept.write_bytes(changed)
                assert cachefile.read("kind", KEY) is None


def test_where_nothing_can_be_kept_nothing_is(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that cannot be written to is no error."""
    monkeypatch.setattr(cachefile, "DIRECTORY", "/proc/none/cache")
    assert not cachefile.write("kind", KEY, VALUE)
    assert cachefile.read("kind", KEY) is None
    assert cachefile.drop() == 0
    monkeypatch.setattr(cachefile, "DIRECTORY", str(directory))
    monkeypatch.setattr(cachefile, "LIMIT", 10)
    assert not cachefile.write("kind", KEY, VALUE)


def test_an_interrupted_writer_leaves_the_old_document(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of its own."""

    def fail(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(posix, "rename", fail)
    with pytest.raises(KeyboardInterrupt):
        cachefile.write("kind", KEY, "new")
    assert cachefile.read("kind", KEY) == VALUE
    assert list(kept.parent.iterdir()) == [kept]


def test_what_a_killed_writer_left_goes_with_the_next_write(kept: Path) -> None:
    """Once it is old; another writer may be at work on a young one."""
    old, young = kept.parent / ".17-abc", kept.parent / ".18-abc"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    assert cachefile.write("kind", KEY, VALUE)
    assert sorted(kept.parent.iterdir()) == sorted([kept, young])


def test_only_the_newest_documents_are_kept(directory: Path) -> None:
    """A node whose configuration is changed again and again does not fill its memory."""
    cachefile.write("other", KEY, 1)
    for number in range(cachefile.KEPT + 5):
        assert cachefile.write("kind", number, number)
        os.utime(directory / cachefile.name_of("kind", number), (number, number))
    assert len(list(directory.iterdir())) == cachefile.KEPT + 1
    assert cachefile.read("other", KEY) == 1
    assert cachefile.read("kind", 4) is None
    assert cachefile.read("kind", cachefile.KEPT + 4) == cachefile.KEPT + 4


def test_dropping(kept: Path) -> None:
    """One kind, or all with what is unfinished."""
    cachefile.write("other", KEY, 1)
    (kept.parent / ".1-a").touch()
    assert cachefile.drop("kind-") == 1
    assert cachefile.read("other", KEY) == 1
    assert cachefile.drop() == 2
    assert list(kept.parent.iterdir()) == []


def test_readers_see_one_whole_document_at_any_time(kept: Path) -> None:
    """While two others write it."""
    values = [VALUE, {"other": ["x" * 10_000]}]
    done = threading.Event()

    def write(value: object) -> None:
        while not done.is_set():
            cachefile.write("kind", KEY, value)

    writers = [threading.Thread(target=write, args=(value,)) for value in values]
    for writer in writers:
        writer.start()
    try:
        seen = [cachefile.read("kind", KEY) for _ in range(300)]
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert all(value in values for value in seen)
    assert list(kept.parent.iterdir()) == [kept]


def test_another_state_of_the_code_is_another_key(tmp_path: Path) -> None:
    """An upgrade does not read what the version before it has kept."""
    source = tmp_path / "module.py"
    source.write_text("1")
    before = cachefile.code(str(source))
    assert cachefile.code(str(source)) == before
    os.utime(source, (1, 1))
    after = cachefile.code(str(source))
    assert after != before
    source.unlink()
    assert cachefile.code(str(source)) not in (before, after)
