"""The lock that lets one hook at a time work on a rootfs."""

import os
import posix
import signal
import time
from pathlib import Path

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.system import launch, lock


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "DIRECTORY", str(tmp_path / "nvgraft" / "lock"))
    return tmp_path / "nvgraft" / "lock"


@pytest.fixture
def rootfs(tmp_path: Path) -> int:
    (tmp_path / "rootfs").mkdir()
    return os.open(tmp_path / "rootfs", os.O_PATH)


def test_a_second_hook_waits_and_is_then_refused(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that waits too long for the lock is refused, and the message names the cause."""
    monkeypatch.setattr(lock, "TIMEOUT", 0.05)
    with (
        lock.lock_rootfs(rootfs),
        pytest.raises(
            Refusal, match="another hook has been working on this root file system"
        ) as refusal,
    ):
        lock.lock_rootfs(rootfs)
    assert refusal.value.stage == "container"


def test_a_released_lock_leaves_no_file(directory: Path, rootfs: int) -> None:
    """A released lock can be taken again, and its file is removed."""
    with lock.lock_rootfs(rootfs):
        assert len(list(directory.iterdir())) == 1
    assert list(directory.iterdir()) == []
    assert (
        lock.acquire(lock.lock_name(os.fstat(rootfs).st_dev, os.fstat(rootfs).st_ino), 0)
        is not None
    )


def test_a_removed_lock_file_is_not_taken(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file that its holder removed between open and lock is not taken: the next file is
    locked.
    """
    tries = []
    real = lock._try_lock

    def removed_the_first_time(fd: int) -> bool:
        tries.append(fd)
        if len(tries) == 1:
            (name,) = directory.iterdir()
            name.unlink()
        return real(fd)

    monkeypatch.setattr(lock, "_try_lock", removed_the_first_time)
    with lock.lock_rootfs(rootfs):
        assert len(tries) == 2
        assert len(list(directory.iterdir())) == 1


def test_a_replaced_lock_file_is_not_taken(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file that was replaced between open and lock is not taken: otherwise two hooks would
    work at the same time.
    """
    tries = []
    real = lock._try_lock

    def replaced_the_first_time(fd: int) -> bool:
        tries.append(fd)
        if len(tries) == 1:
            (name,) = directory.iterdir()
            name.unlink()
            (directory / "another").touch()
            (directory / "another").rename(name)
        return real(fd)

    monkeypatch.setattr(lock, "_try_lock", replaced_the_first_time)
    with lock.lock_rootfs(rootfs):
        assert len(tries) == 2


def test_different_root_file_systems_do_not_wait(
    directory: Path, rootfs: int, tmp_path: Path
) -> None:
    """Hooks of two containers, each with its own rootfs, do not wait for each other."""
    other = os.open(tmp_path, os.O_PATH)
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(other):
        assert len(list(directory.iterdir())) == 2


def test_a_rootless_user_locks_nothing(rootfs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rootless start goes on without a lock, as there is no directory that all hooks share."""
    monkeypatch.setattr(lock, "DIRECTORY", "/proc/nvgraft/lock")
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(rootfs):
        pass


def test_a_start_of_root_without_a_lock_is_refused(
    rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's start is refused if the lock directory cannot be created, with its path."""
    monkeypatch.setattr(lock, "DIRECTORY", "/proc/nvgraft/lock")
    monkeypatch.setattr(posix, "geteuid", lambda: 0)
    monkeypatch.setattr("nvgraft.system.userns.inside", lambda: False)
    with pytest.raises(Refusal, match="open failed: /proc/nvgraft/lock"):
        lock.lock_rootfs(rootfs)


def test_a_signal_ends_the_wait_for_a_lock(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that waits for another one takes signals; afterwards they are blocked again."""

    def ring(_seconds: float) -> None:
        signal.raise_signal(signal.SIGHUP)

    def handler(_number: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGHUP, handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(time, "sleep", ring)
    try:
        with lock.lock_rootfs(rootfs):
            launch.hold_signals()
            with pytest.raises(InterruptedError):
                lock.lock_rootfs(rootfs)
            assert len(list(directory.iterdir())) == 1
            assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_locks_of_killed_hooks_are_removed(directory: Path, rootfs: int) -> None:
    """Lock files without a holder are removed; a held one stays."""
    with lock.lock_rootfs(rootfs):
        (lock_file,) = directory.iterdir()
        (directory / "1-2").touch()
        lock.drop_unheld()
        assert list(directory.iterdir()) == [lock_file]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("directory", "it is not a regular file"),
        ("fifo", "it is not a regular file"),
        ("link", "it is not a regular file"),
        ("writable", "its mode is 0622 instead of 0600"),
    ],
)
def test_what_is_not_a_lock_is_named(directory: Path, rootfs: int, kind: str, problem: str) -> None:
    """A directory, a FIFO, a link or a file that others can write in the place of a lock is named
    in the refusal, and stays.
    """
    with lock.lock_rootfs(rootfs):
        (path,) = directory.iterdir()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "link":
        path.symlink_to("/dev/null")
    else:
        path.touch()
        path.chmod(0o622)
    with pytest.raises(Refusal, match=f"open failed: {path}: {problem}") as refusal:
        lock.lock_rootfs(rootfs)
    assert (refusal.value.stage, refusal.value.hint) == (
        "container",
        "remove it: no hook writes such a file",
    )
    assert lock.drop_unheld() == {path.name: problem}
    assert path.is_symlink() or path.exists()
