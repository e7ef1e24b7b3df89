"""One hook at a time for each root file system: the lock."""

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


def test_a_second_hook_waits_and_then_says_so(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the lock is held nobody else gets it; the refusal names it."""
    monkeypatch.setattr(lock, "TIMEOUT", 0.05)
    with (
        lock.lock_rootfs(rootfs),
        pytest.raises(
            Refusal, match="another hook has been working on this root file system"
        ) as refusal,
    ):
        lock.lock_rootfs(rootfs)
    assert refusal.value.stage == "container"


def test_a_lock_is_gone_with_its_holder(directory: Path, rootfs: int) -> None:
    """After its release the next one gets it, and no file is left."""
    with lock.lock_rootfs(rootfs):
        assert len(list(directory.iterdir())) == 1
    assert list(directory.iterdir()) == []
    assert (
        lock.acquire(lock.lock_name(os.fstat(rootfs).st_dev, os.fstat(rootfs).st_ino), 0)
        is not None
    )


def test_a_lock_that_was_removed_meanwhile_is_not_taken(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that its last holder removed between our opening and locking it protects nobody: the next file is locked."""
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


def test_a_lock_that_was_replaced_meanwhile_is_not_taken(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one whose name another hook has given to a file of its own: two hooks would work at once."""
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
    """Two containers with a root file system each are configured at the same time."""
    other = os.open(tmp_path, os.O_PATH)
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(other):
        assert len(list(directory.iterdir())) == 2


def test_a_user_who_may_not_make_the_directory_locks_nothing(
    rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rootless there is no directory that all hooks share; the start goes on."""
    monkeypatch.setattr(lock, "DIRECTORY", "/proc/nvgraft/lock")
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(rootfs):
        pass


def test_root_is_not_left_without_a_lock(rootfs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where root cannot have the directory something is wrong with the host: the start is refused, with the path."""
    monkeypatch.setattr(lock, "DIRECTORY", "/proc/nvgraft/lock")
    monkeypatch.setattr(posix, "geteuid", lambda: 0)
    monkeypatch.setattr("nvgraft.system.userns.inside", lambda: False)
    with pytest.raises(Refusal, match="open failed: /proc/nvgraft/lock"):
        lock.lock_rootfs(rootfs)


def test_a_signal_ends_the_waiting_and_leaves_no_lock_of_ours(
    directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another hook is waited for, signals are taken; while nothing waits, they are held."""

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


def test_locks_of_killed_hooks_are_dropped(directory: Path, rootfs: int) -> None:
    """A file that nobody holds goes; one that is held stays with its holder."""
    with lock.lock_rootfs(rootfs):
        (held,) = directory.iterdir()
        (directory / "1-2").touch()
        lock.drop_unheld()
        assert list(directory.iterdir()) == [held]
