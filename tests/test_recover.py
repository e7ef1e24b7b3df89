"""Recovery after a killed hook: what its journal names is removed, and nothing else. The tests need
no mounts.
"""

import os
import posix
import time
from pathlib import Path

import pytest

from documents import read_document
from nvgraft.apply import journal, left_journal
from nvgraft.apply.journal import Heading, Journal, JournalEntry
from nvgraft.apply.leftovers import take_over
from nvgraft.container.container import Container
from nvgraft.system import lock
from nvgraft_cli.shell import main

Capture = pytest.CaptureFixture[str]
LIBS = "/usr/lib"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private /run, and a caller who appears as root."""
    place = tmp_path / "nvgraft"
    monkeypatch.setattr(journal, "DIRECTORY", str(place / "journal"))
    monkeypatch.setattr(lock, "DIRECTORY", str(place / "lock"))
    monkeypatch.setattr("nvgraft_cli.recover.command._is_root", lambda: True)
    return place / "journal"


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    (root / "usr/lib").mkdir(parents=True)
    (root / "proc").mkdir()
    (root / "etc").mkdir()
    (root / "etc/empty").touch()
    return root


def heading(rootfs: Path) -> Heading:
    fd = os.open(rootfs, os.O_PATH)
    try:
        return Heading.of(str(rootfs), fd, os.getuid(), os.getgid())
    finally:
        os.close(fd)


def killed(rootfs: Path, *items: JournalEntry) -> None:
    """Leave the journal of a hook that announced ``items`` and was killed; the test creates the
    files.
    """
    begun = Journal.begin(heading(rootfs))
    begun.announce(items)
    begun.close()


def tree(root: Path) -> dict[str, str | bytes]:
    contents: dict[str, str | bytes] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        contents[name] = (
            os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes()
        )
    return contents


def recover(*arguments: str) -> int:
    return main.main(["recover", *arguments])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_created_files_are_removed(rootfs: Path, directory: Path, capsys: Capture) -> None:
    """Directories, placeholders and links of the killed hook are removed, even if some were never
    created, and so is the journal.
    """
    before = tree(rootfs)
    link = JournalEntry("link", "/usr/lib/libcuda.so", "libcuda.so.1")
    killed(
        rootfs,
        JournalEntry("dir", "/opt"),
        JournalEntry("dir", "/opt/new"),
        JournalEntry("file", "/opt/new/node"),
        link,
        JournalEntry("file", "/etc/never-made"),
    )
    (rootfs / "opt/new").mkdir(parents=True)
    (rootfs / "opt/new/node").touch()
    (rootfs / "usr/lib/libcuda.so").symlink_to("libcuda.so.1")
    assert recover("--dry-run") == 0
    assert "would be removed /opt/new/node" in capsys.readouterr().out
    assert (rootfs / "opt/new/node").exists()
    assert recover() == 0
    output = capsys.readouterr().out
    assert f"{rootfs}: 4 things of a hook that was killed" in output
    assert "  removed /usr/lib/libcuda.so" in output
    assert tree(rootfs) == before
    assert names(directory) == []
    assert recover() == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_the_loader_cache_is_restored(rootfs: Path, directory: Path) -> None:
    """The loader cache and replaced links are restored, the cache with mode and time; its temporary
    file and new links are removed.
    """
    cache = rootfs / "etc/ld.so.cache"
    for name, target in (("kept.so", "kept.so.1"), ("replaced.so", "old"), ("removed.so", "gone")):
        (rootfs / "usr/lib" / name).symlink_to(target)
    before = tree(rootfs)
    owner = (str(os.getuid()), str(os.getgid()))
    old_links = [
        JournalEntry("was-link", f"{LIBS}/{name}", target, *owner)
        for name, target in (("kept.so", "kept.so.1"), ("replaced.so", "old"))
    ]
    old_links.append(JournalEntry("was-link", f"{LIBS}/removed.so", "gone", *owner))
    file = JournalEntry(
        "was-file", "/etc/ld.so.cache", str(0o640), *owner, "3", "4", data=b"\0former"
    )
    killed(
        rootfs,
        JournalEntry("links", LIBS),
        *old_links,
        file,
        JournalEntry("absent", "/etc/ld.so.cache~"),
    )
    cache.write_bytes(b"new")
    (rootfs / "etc/ld.so.cache~").write_bytes(b"half of a ne")
    for name in ("replaced.so", "removed.so"):
        (rootfs / "usr/lib" / name).unlink()
    (rootfs / "usr/lib/replaced.so").symlink_to("new")
    (rootfs / "usr/lib/made.so").symlink_to("new")
    (rootfs / "usr/lib/file").touch()
    assert recover() == 0
    assert tree(rootfs) == {**before, "etc/ld.so.cache": b"\0former", "usr/lib/file": b""}
    assert (cache.stat().st_mode & 0o777, cache.stat().st_mtime_ns) == (0o640, 4)
    assert names(directory) == []


def test_foreign_files_are_kept_and_named(rootfs: Path, directory: Path, capsys: Capture) -> None:
    """A file with content, a directory that is not empty, another link, and anything older than the
    start is kept and named once (exit code 1).
    """
    (rootfs / "usr/lib/older").touch()
    time.sleep(0.02)  # file systems take times from a clock with coarse ticks
    items = [
        JournalEntry("dir", "/opt"),
        *(
            JournalEntry("file", f"/{name}")
            for name in ("etc/content", "etc/directory", "usr/lib/older")
        ),
    ]
    killed(
        rootfs,
        *items,
        JournalEntry("link", "/etc/link", "made"),
        JournalEntry("dir", "/etc/file"),
        JournalEntry("absent", "/etc/ld.so.cache~"),
    )
    (rootfs / "opt").mkdir()
    (rootfs / "opt/file").touch()
    (rootfs / "etc/content").write_text("x")
    (rootfs / "etc/directory").mkdir()
    (rootfs / "etc/ld.so.cache~").mkdir()
    (rootfs / "etc/link").symlink_to("other")
    (rootfs / "etc/file").touch()
    before = tree(rootfs)
    assert recover("--format", "json") == 1
    (report,) = read_document(capsys.readouterr().out)["journals"]
    assert report["left"] is True
    assert {thing["path"]: (thing["fate"], thing["reason"]) for thing in report["things"]} == {
        "/opt": ("kept", "it is not empty"),
        "/etc/content": ("kept", "it is not an empty file any more"),
        "/etc/directory": ("kept", "it is not an empty file any more"),
        "/usr/lib/older": ("kept", "it is older than the interrupted start"),
        "/etc/link": ("kept", "it is not the link that was made"),
        "/etc/file": ("kept", "it is not a directory any more"),
        "/etc/ld.so.cache~": ("kept", "it is not a file any more"),
    }
    assert tree(rootfs) == before
    assert recover() == 0, "foreign files are named once"


def test_files_created_later_are_kept(rootfs: Path, directory: Path) -> None:
    """A file that appears under an announced name after the hook was killed is kept."""
    killed(
        rootfs,
        JournalEntry("file", "/etc/late"),
        JournalEntry("was-file", "/etc/empty", "420", "0", "0", "0", "0", data=b"former"),
    )
    (path,) = directory.iterdir()
    data = bytearray(path.read_bytes())
    os.utime(path, ns=(1, 1))
    path.write_bytes(data)
    os.utime(path, ns=(0, time.time_ns() - 10**12))
    (rootfs / "etc/late").touch()
    (rootfs / "etc/empty").write_text("written since")
    assert recover() == 1
    assert (rootfs / "etc/late").exists()
    assert (rootfs / "etc/empty").read_text() == "written since"


def test_links_are_never_followed(rootfs: Path, directory: Path, tmp_path: Path) -> None:
    """A directory that became a link, in the rootfs or out of it, is not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    killed(
        rootfs,
        JournalEntry("file", "/opt/victim"),
        JournalEntry("dir", "/opt/new"),
        JournalEntry("links", "/opt"),
        JournalEntry("absent", "/opt/../../outside/victim"),
    )
    (outside / "victim").touch()
    (outside / "new").mkdir()
    (outside / "link").symlink_to("x")
    (rootfs / "opt").symlink_to(outside)
    assert recover() == 0
    assert sorted(path.name for path in outside.iterdir()) == ["link", "new", "victim"]


def test_the_journal_of_a_removed_rootfs_is_dropped(
    rootfs: Path, directory: Path, capsys: Capture
) -> None:
    """The journal of a removed rootfs is dropped."""
    killed(rootfs, JournalEntry("file", "/etc/x"))
    rootfs.rename(rootfs.parent / "removed")
    assert recover() == 0
    assert "was removed" in capsys.readouterr().out
    assert names(directory) == []


def test_another_rootfs_at_the_same_path_is_not_changed(
    rootfs: Path, directory: Path, capsys: Capture
) -> None:
    """If another rootfs is at the path (an overlay that is not mounted, a new bundle), the journal
    stays and is named.
    """
    killed(rootfs, JournalEntry("file", "/etc/x"))
    rootfs.rename(rootfs.parent / "moved")
    (rootfs / "etc").mkdir(parents=True)
    (rootfs / "etc/x").touch()
    assert recover() == 1
    assert "another root file system is mounted there" in capsys.readouterr().out
    assert (rootfs / "etc/x").exists()
    assert len(names(directory)) == 1


def test_the_journal_of_a_running_hook_is_skipped(
    rootfs: Path, directory: Path, capsys: Capture
) -> None:
    """While a hook holds the lock, its journal is skipped and does not count as left."""
    killed(rootfs, JournalEntry("file", "/etc/x"))
    (rootfs / "etc/x").touch()
    fd = os.open(rootfs, os.O_PATH)
    with lock.lock_rootfs(fd):
        assert recover() == 0
    assert "a hook is at work" in capsys.readouterr().out
    assert (rootfs / "etc/x").exists()
    assert recover() == 0
    assert not (rootfs / "etc/x").exists()
    os.close(fd)


def test_an_unfinished_heading_leaves_a_journal_only(rootfs: Path, directory: Path) -> None:
    """A hook killed while writing its heading has created nothing, and its journal is removed."""
    begun = Journal.begin(heading(rootfs))
    (directory / begun.name).write_bytes(b"nvg")
    assert recover() == 0
    assert names(directory) == []


def test_a_damaged_journal_is_named_and_stays(
    rootfs: Path, directory: Path, capsys: Capture
) -> None:
    """A damaged journal is not used; the message names it and the file to remove."""
    killed(rootfs, JournalEntry("file", "/etc/x"))
    (path,) = directory.iterdir()
    path.write_bytes(b"x" * 100)
    (rootfs / "etc/x").touch()
    assert recover() == 1
    output = capsys.readouterr().out
    assert "the journal is damaged: no record at byte 0" in output
    assert str(path) in output
    assert (rootfs / "etc/x").exists()
    assert path.exists()


def test_items_that_cannot_be_removed_stay_in_the_journal(
    rootfs: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """An item that cannot be removed is named with the reason and tried again by the next run; the
    others are removed.
    """
    killed(rootfs, JournalEntry("file", "/etc/stuck"), JournalEntry("file", "/etc/removed"))
    (rootfs / "etc/stuck").touch()
    (rootfs / "etc/removed").touch()
    real = os.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        if name == "stuck":
            raise OSError(30, "Read-only file system")
        real(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(posix, "unlink", unlink)
        assert recover() == 1
    assert "stuck /etc/stuck: read-only file system" in capsys.readouterr().out
    assert not (rootfs / "etc/removed").exists()
    assert recover() == 0
    assert "1 thing of" in capsys.readouterr().out
    assert not (rootfs / "etc/stuck").exists()


def test_the_next_start_recovers_first(rootfs: Path, directory: Path, tmp_path: Path) -> None:
    """A start on the same rootfs removes the killed hook's files, says so, and leaves other
    journals.
    """
    killed(rootfs, JournalEntry("file", "/etc/x"))
    other = tmp_path / "other"
    other.mkdir()
    killed(other, JournalEntry("file", "/y"))
    for path in (rootfs / "etc/x", other / "y"):
        path.touch()
    begun = Journal.begin(heading(rootfs))
    os.truncate(directory / begun.name, 3)
    fd = os.open(rootfs, os.O_PATH)
    messages: list[str] = []
    take_over(Container(4321, 77, str(rootfs), fd, 0, 0), messages.append)
    os.close(fd)
    assert len(messages) == 1
    assert "was killed; 1 of the things that it had made were taken away | " in messages[0]
    assert not (rootfs / "etc/x").exists()
    assert (other / "y").exists()
    assert len(names(directory)) == 1


def odd_entries(directory: Path, name: str) -> dict[str, str]:
    """Put into ``directory`` what no hook makes; return the name of each with the problem."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.parent.chmod(0o700)
    (directory / f"{name}1").mkdir(mode=0o700)
    os.mkfifo(directory / f"{name}2", 0o600)
    (directory / f"{name}3").symlink_to("/dev/zero")
    for number, mode in ((4, 0o600), (5, 0o666)):
        (directory / f"{name}{number}").touch(mode=mode)
        (directory / f"{name}{number}").chmod(mode)
    os.truncate(directory / f"{name}4", 65 << 20)
    kind = "it is not a regular file"
    return {
        f"{name}1": kind,
        f"{name}2": kind,
        f"{name}3": kind,
        f"{name}4": "it has more than",
        f"{name}5": "its mode is 0666 instead of 0600",
    }


def odd_journals(directory: Path, of: Heading) -> dict[str, str]:
    name = f"{lock.lock_name(of.device, of.inode)}-f"
    problems = odd_entries(directory, name)
    (directory / "notes").write_text("x")
    (directory / "notes").chmod(0o600)
    return {**problems, "notes": "its name is not that of a journal"}


def test_odd_entries_are_named_and_stay(
    rootfs: Path, directory: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no hook has made in the directories of journals and locks is named with its path, and
    neither read nor removed; the journals beside it are used.
    """
    expected = odd_journals(directory, heading(rootfs))
    expected |= odd_entries(directory.parent / "lock", "1-")
    killed(rootfs, JournalEntry("file", "/etc/x"))
    (rootfs / "etc/x").touch()
    assert recover("--format", "json") == 1
    reports = read_document(capsys.readouterr().out)["journals"]
    foreign = {report["journal"]: report for report in reports if report["state"] == "damaged"}
    assert foreign.keys() == expected.keys()
    for name, problem in expected.items():
        assert foreign[name]["message"].startswith(problem)
        assert f"/{name}, then remove it" in foreign[name]["message"]
    assert not (rootfs / "etc/x").exists()
    left = {*names(directory), *names(directory.parent / "lock")}
    assert left == set(expected)
    assert recover("--dry-run") == 1
    assert "notes: its name is not that of a journal: not used | " in capsys.readouterr().out


def test_odd_entries_do_not_keep_a_container_from_starting(
    rootfs: Path, directory: Path, tmp_path: Path
) -> None:
    """A start names what no hook has made in one warning, leaves it, and uses the journals beside
    it; a journal that others can write is not used.
    """
    expected = odd_journals(directory, heading(rootfs))
    killed(rootfs, JournalEntry("file", "/etc/x"))
    (rootfs / "etc/x").touch()
    messages = started(rootfs)
    assert len(messages) == 2
    assert "; 1 of the things that it had made were taken away" in messages[0]
    assert ", and 5 more | run nvgraft recover" in messages[1]
    assert any(
        f"/{name} is not used: {problem}" in messages[1] for name, problem in expected.items()
    )
    assert names(directory) == sorted(expected)


def started(rootfs: Path) -> list[str]:
    """Do what a start does first on ``rootfs``; return its warnings."""
    fd = os.open(rootfs, os.O_PATH)
    messages: list[str] = []
    take_over(Container(4321, 77, str(rootfs), fd, 0, 0), messages.append)
    os.close(fd)
    return messages


@pytest.mark.parametrize("limit", ["KEPT", "KEPT_BYTES"])
def test_the_oldest_journals_are_dropped(
    rootfs: Path, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Beyond a number and a size the next start drops the oldest journals of killed hooks, and says
    so. That of a hook at work stays.
    """
    others = [tmp_path / f"other{number}" for number in range(5)]
    ages: dict[str, int] = {}
    for number, other in enumerate(others):
        other.mkdir()
        killed(other, JournalEntry("file", "/y"))
        (name,) = set(names(directory)) - set(ages)
        os.utime(directory / name, (number, number))
        ages[name] = number
    size = (directory / next(iter(ages))).stat().st_size
    monkeypatch.setattr(left_journal, limit, 3 if limit == "KEPT" else 3 * size + 1)
    held = os.open(others[0], os.O_PATH)
    with lock.lock_rootfs(held):
        (message,) = started(rootfs)
    os.close(held)
    assert message.startswith("2 of the journals of killed hooks were dropped")
    assert sorted(ages[name] for name in names(directory)) == [0, 3, 4]
    assert started(rootfs) == []


def test_a_directory_that_is_no_root_file_system_is_not_changed(
    rootfs: Path, directory: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that names a directory without /proc, or the host's own root, is reported, and
    nothing there is changed: a hook has worked in neither.
    """
    (rootfs / "proc").rmdir()
    killed(rootfs, JournalEntry("file", "/etc/empty"))
    (rootfs / "etc/empty").touch()
    assert recover() == 1
    assert "it has no directory /proc: nothing was changed | remove " in capsys.readouterr().out
    monkeypatch.setattr("nvgraft_cli.recover.command.is_host_root", lambda _: True)
    (rootfs / "proc").mkdir()
    assert recover() == 1
    assert "it is the host's own root file system" in capsys.readouterr().out
    assert (rootfs / "etc/empty").exists()
    assert len(names(directory)) == 1


def test_a_root_file_system_on_fuse_is_not_looked_at(
    rootfs: Path, directory: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root file system on FUSE, whose server may never answer, is named and not looked at."""
    killed(rootfs, JournalEntry("file", "/etc/empty"))
    (rootfs / "etc/empty").touch()
    mount = f"99 1 0:9 / {rootfs.parent} rw - fuse.x y rw,user_id=0\n"
    monkeypatch.setattr("nvgraft_cli.case.fuse._mountinfo", lambda: mount)
    assert recover() == 1
    assert f"{rootfs}: it is on the FUSE file system {rootfs.parent}" in capsys.readouterr().out
    assert (rootfs / "etc/empty").exists()
    assert len(names(directory)) == 1


def test_a_dry_run_creates_no_directory(directory: Path) -> None:
    """Where no hook has run, --dry-run creates no directory."""
    assert recover("--dry-run") == 0
    assert not directory.parent.exists()


def test_recover_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Another user than root is refused with exit code 2 and the command to use."""
    monkeypatch.setattr("nvgraft_cli.recover.command._is_root", lambda: False)
    assert recover() == 2
    assert "sudo nvgraft recover" in capsys.readouterr().err
