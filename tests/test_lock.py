"""One hook at a time for each root file system: the lock."""

import os
from pathlib import Path

import pytest

from nvgraft import lock
from nvgraft.errors import Refusal


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "DIRECTORY", str(tmp_path / "nvgraft" / "lock"))
    return tmp_path / "nvgraft" / "lock"


@pytest.fixture
def rootfs(tmp_path: Path) -> int:
    (tmp_path / "rootfs").mkdir()
    return os.open(tmp_path / "rootfs", os.O_PATH)


def test_a_second_hook_waits_and_then_says_so(directory: Path, rootfs: int) -> None:
    """While the lock is held nobody else gets it; the refusal names it."""
    with lock.lock_rootfs(rootfs), pytest.raises(Refusal, match="another hook has been working on this root file system") as refusal:
        lock.lock_rootfs(rootfs, timeout=0.05)
    assert refusal.value.stage == "container"


def test_a_lock_is_gone_with_its_holder(directory: Path, rootfs: int) -> None:
    """After its release the next one gets it, and no file is left."""
    with lock.lock_rootfs(rootfs):
        assert len(list(directory.iterdir())) == 1
    assert list(directory.iterdir()) == []
    with lock.lock_rootfs(rootfs, timeout=0):
        pass


def test_a_lock_that_was_removed_meanwhile_is_not_taken(directory: Path, rootfs: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_different_root_file_systems_do_not_wait(directory: Path, rootfs: int, tmp_path: Path) -> None:
    """Two containers with a root file system each are configured at the same time."""
    other = os.open(tmp_path, os.O_PATH)
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(other, timeout=0):
        assert len(list(directory.iterdir())) == 2


def test_without_a_directory_nothing_is_locked(rootfs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who cannot make the directory (rootless) goes on without."""
    monkeypatch.setattr(lock, "DIRECTORY", "/proc/nvgraft/lock")
    with lock.lock_rootfs(rootfs), lock.lock_rootfs(rootfs):
        pass
