"""Records of links and files, and their restoration."""

import errno
import os
import posix
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvgraft.apply import restore
from nvgraft.apply.cache import directory_links
from nvgraft.apply.cache.directory_links import Links
from nvgraft.apply.restore import DirectoryEntry, Owner, SharedDirectory


@pytest.fixture
def directory(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), "/etc")


@pytest.fixture
def own_fds() -> Iterator[int]:
    fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def owner() -> Owner:
    return Owner(os.getuid(), os.getgid())


def _links(path: Path) -> dict[str, str]:
    return {entry.name: os.readlink(entry) for entry in path.iterdir() if entry.is_symlink()}


def test_links_are_restored(directory: SharedDirectory, owner: Owner, tmp_path: Path) -> None:
    """New links are removed, replaced and removed ones come back, with dangling and undecodable
    names; files stay.
    """
    before = {
        "kept": "a",
        "replaced": "old",
        "removed": "nowhere",
        os.fsdecode(b"\xff"): os.fsdecode(b"\xfe"),
    }
    for name, target in before.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "file").write_text("1")
    links = Links(directory, owner)
    for name in ("replaced", "removed", os.fsdecode(b"\xff")):
        (tmp_path / name).unlink()
    (tmp_path / "replaced").symlink_to("new")
    (tmp_path / "made").symlink_to("new")
    (tmp_path / "file").write_text("2")
    links.restore()
    assert _links(tmp_path) == before
    assert (tmp_path / "file").read_text() == "2"


def test_a_file_in_a_links_place_is_kept_and_reported(
    directory: SharedDirectory, owner: Owner, tmp_path: Path
) -> None:
    """A foreign file in a link's place is not removed, and restore() raises FileExistsError."""
    (tmp_path / "name").symlink_to("old")
    links = Links(directory, owner)
    (tmp_path / "name").unlink()
    (tmp_path / "name").write_text("not ours")
    with pytest.raises(FileExistsError):
        links.restore()
    assert (tmp_path / "name").read_text() == "not ours"


def test_too_many_links_are_refused(
    directory: SharedDirectory, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with more links than the limit is refused."""
    monkeypatch.setattr(directory_links, "LINKS_LIMIT", 2)
    for name in "ab":
        (tmp_path / name).symlink_to("x")
    Links(directory, owner)
    (tmp_path / "c").symlink_to("x")
    with pytest.raises(OSError, match="more than 2 symbolic links") as caught:
        Links(directory, owner)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("kind", ["file", "link", "absent"])
@pytest.mark.parametrize("change", ["replaced", "removed", "none"])
def test_an_entry_is_restored(
    directory: SharedDirectory, owner: Owner, own_fds: int, tmp_path: Path, kind: str, change: str
) -> None:
    """A file (bytes, mode, time), link or missing entry is restored, and not touched if it did not
    change.
    """
    path = tmp_path / "ld.so.cache"
    if kind == "file":
        path.write_bytes(b"\0old\n" * 1000)
        path.chmod(0o640)
        os.utime(path, ns=(5, 1_000_000_007))
    elif kind == "link":
        path.symlink_to("/elsewhere")

    def state() -> object:
        if not path.is_symlink() and not path.exists():
            return None
        return (
            os.readlink(path)
            if path.is_symlink()
            else (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        )

    before = state()
    inode = path.lstat().st_ino if before is not None else 0
    entry = DirectoryEntry(directory, path.name, owner, own_fds)
    assert entry.exists == (kind != "absent")
    if change == "replaced":
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").rename(path)
    elif change == "removed":
        path.unlink(missing_ok=True)
    entry.restore()
    assert state() == before
    if change == "none" and kind != "absent":
        assert path.lstat().st_ino == inode


def test_the_target_of_a_link_is_not_opened(
    directory: SharedDirectory, owner: Owner, own_fds: int, tmp_path: Path
) -> None:
    """A link is recorded as a link, and its target is not opened."""
    (tmp_path / "name").symlink_to("/proc/kcore")
    entry = DirectoryEntry(directory, "name", owner, own_fds)
    (tmp_path / "name").unlink()
    entry.restore()
    assert os.readlink(tmp_path / "name") == "/proc/kcore"


def test_an_entry_that_cannot_be_restored_is_refused(
    directory: SharedDirectory, owner: Owner, own_fds: int, tmp_path: Path
) -> None:
    """A FIFO, which would block, a directory and a file beyond the limit are refused."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(restore.FILE_LIMIT + 1)
    for name, number in (
        ("fifo", errno.EINVAL),
        ("directory", errno.EINVAL),
        ("sparse", errno.EFBIG),
    ):
        with pytest.raises(OSError, match=f"/etc/{name}") as caught:
            DirectoryEntry(directory, name, owner, own_fds)
        assert caught.value.errno == number


@pytest.mark.parametrize("call", ["write", "fchmod", "utime"])
def test_a_failed_restoration_can_be_repeated(
    directory: SharedDirectory,
    owner: Owner,
    own_fds: int,
    tmp_path: Path,
    call: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restoration that fails leaves no half-written file, and a second one succeeds."""
    (tmp_path / "name").write_bytes(b"old")
    entry = DirectoryEntry(directory, "name", owner, own_fds)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").rename(tmp_path / "name")
    entry.replaced()
    real = getattr(os, call)

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(posix, call, real)
        raise OSError(errno.EINTR, "Interrupted system call")

    monkeypatch.setattr(posix, call, interrupted)
    with pytest.raises(OSError, match="Interrupted"):
        entry.restore()
    assert not (tmp_path / "name").exists()
    entry.restore()
    assert (tmp_path / "name").read_bytes() == b"old"


def test_the_directory_is_closed_with_its_last_record(
    owner: Owner, own_fds: int, tmp_path: Path
) -> None:
    """The descriptor of a directory is closed with its last record."""
    fd = os.open(tmp_path, os.O_RDONLY)
    records = [DirectoryEntry(SharedDirectory(fd, "/etc"), "a", owner, own_fds)]
    os.fstat(fd)
    records.clear()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
