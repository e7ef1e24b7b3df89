"""Entering a container, as far as it can be checked without one."""

import os
import posix

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.container import container, starter
from nvgraft.container.container import Container
from nvgraft.system import syscalls


@pytest.fixture
def nowhere() -> Container:
    return Container(1234, 77, "/rootfs", 78, 0, 0)


def test_a_second_thread_is_refused_before_setns(
    nowhere: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook with two threads is refused before setns(2), which the kernel would refuse."""

    def exploded(_fd: int, _kinds: int) -> None:
        raise AssertionError("setns was called")

    monkeypatch.setattr(syscalls, "setns", exploded)
    monkeypatch.setattr(posix, "listdir", lambda _path: ["1", "2"])
    with pytest.raises(Refusal, match="the hook has 2 threads"):
        container.enter(nowhere)


def test_a_container_that_has_ended_is_refused(
    nowhere: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends before its namespace is entered is a refusal of stage container."""

    def gone(_fd: int, _kinds: int) -> None:
        raise syscalls.SyscallError(3, "setns(77, NEWNS)")

    monkeypatch.setattr(syscalls, "setns", gone)
    monkeypatch.setattr(posix, "listdir", lambda _path: ["1"])
    with pytest.raises(Refusal, match="no such process") as refusal:
        container.enter(nowhere)
    assert refusal.value.stage == "container"


@pytest.mark.parametrize(
    "pid", [1, 0, -1, os.getpid(), os.getppid()], ids=["init", "0", "-1", "own", "parent"]
)
def test_processes_that_cannot_be_a_container_are_refused(pid: int) -> None:
    """Init, this process, its parent and impossible pids are refused without a look at them."""
    with pytest.raises(Refusal, match=f"invalid process id: {pid}"):
        container.hold_process(pid)


@pytest.mark.parametrize("rootfs", ["", "rootfs", "/", "//"])
def test_a_rootfs_is_an_absolute_path_other_than_the_root(rootfs: str) -> None:
    """A rootfs that is not an absolute path below / is an input error, as in the reference."""
    with pytest.raises(Refusal, match="invalid rootfs directory"):
        container.open_container(os.getpid(), 77, rootfs)


@pytest.mark.parametrize(
    ("parents", "same"),
    [
        ({70: 10}, True),
        ({70: 40}, True),
        ({70: 30, 40: 30}, True),
        ({70: 30, 40: 35, 35: 30}, True),
        ({70: 30, 40: 35, 35: 1}, False),
        ({70: 1, 40: 1}, False),
        ({70: 0, 40: 0}, False),
        ({}, False),
    ],
    ids=[
        "a child of this process",
        "a child of its parent",
        "a child of its grandparent",
        "a child of an ancestor",
        "another's child",
        "adopted by init",
        "in other pid namespaces",
        "ended",
    ],
)
def test_who_has_started_a_process(
    parents: dict[int, int], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has the same starter as this one, 10, whose parent is 40, if its own parent is one
    of them or above them. Init adopts processes, so it proves nothing.
    """

    def read_text(path: str) -> str:
        pid = int(path.split("/")[2])
        if pid not in parents:
            raise FileNotFoundError(path)
        return f"{pid} (a) b) S {parents[pid]} 1 1"

    monkeypatch.setattr(posix, "getpid", lambda: 10)
    monkeypatch.setattr(posix, "getppid", lambda: 40)
    monkeypatch.setattr(starter, "read_text", read_text)
    assert starter.has_same_starter(70) == same
