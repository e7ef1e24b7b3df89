"""Children of the hook: how they are followed, ended, and tied to the hook."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from descriptors import nothing_stays_open
from nvgraft.system import child, syscalls, userns

IS_ROOT = os.geteuid() == 0


def started(work: Callable[[int], None]) -> child.Child:
    return child.start(work, forks=False)


def test_follow_keeps_the_end_of_what_was_written() -> None:
    """Of 64 MiB of output only the last 4 KiB are kept, and the child is never blocked by a full
    pipe.
    """

    def count(writer: int) -> None:
        for number in range(1024):
            block = b"%7d\n" % number * 8192
            while block:
                block = block[os.write(writer, block) :]

    process = started(count)
    assert process.follow(time.monotonic() + 60, 4096) == (False, b"   1023\n" * 512)
    assert process.end() == 0


@pytest.mark.parametrize("closes", [False, True])
def test_the_deadline_counts_for_a_silent_child(closes: bool) -> None:
    """A silent child is late and killed, whether it holds its output open or has closed it."""

    def sleep(writer: int) -> None:
        if closes:
            os.close(writer)
        time.sleep(60)

    process = started(sleep)
    assert process.follow(time.monotonic() + 0.1, 4096) == (True, b"")
    status = process.end()
    assert status is not None
    assert os.WTERMSIG(status) == signal.SIGKILL


class Steps:
    """A child's work in steps: the child takes one whenever its parent polls, and the poll then
    ends early.

    :param then: milliseconds for which the parent really polls when all steps are taken.
    :param at_each: what the child does in a step, which takes processor time in any case.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        then: int,
        at_each: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.left = number
        self.then = then
        self.at_each = at_each
        self.begin, self.done = os.pipe(), os.pipe()
        monkeypatch.setattr(child, "select", SimpleNamespace(poll=self.poll, POLLIN=select.POLLIN))

    def work(self, writer: int) -> None:
        """Take the steps. This runs in the child."""
        for _ in range(self.left):
            os.read(self.begin[0], 1)
            # On a loaded virtual machine the kernel may count a few system calls as no time at all.
            enough = time.process_time() + 0.001
            while time.process_time() < enough:
                pass
            self.at_each(writer)
            os.write(self.done[1], b".")

    def poll(self) -> SimpleNamespace:
        events = select.poll()

        def poll(timeout: float) -> list[tuple[int, int]]:
            if not self.left or not timeout:
                return events.poll(self.then if timeout else 0)
            self.left -= 1
            os.write(self.begin[1], b".")
            os.read(self.done[0], 1)
            return events.poll(0)

        return SimpleNamespace(register=events.register, unregister=events.unregister, poll=poll)


@pytest.mark.parametrize("closes", [False, True])
def test_a_child_that_only_waits_is_late_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """A child is late after ``still`` seconds without work or output, whatever it did before."""
    steps = Steps(monkeypatch, 6, then=0)

    def wait(writer: int) -> None:
        if closes:
            os.close(writer)
        steps.work(writer)
        time.sleep(60)

    process = started(wait)
    assert process.follow(time.monotonic() + 60, 4096, still=0.2) == (True, b"")
    assert steps.left == 0
    process.end(grace=0)


@pytest.mark.parametrize("writes", [False, True])
def test_a_child_at_work_is_not_late_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    """A child that uses processor time or writes output is not late."""
    steps = Steps(
        monkeypatch, 30, then=60_000, at_each=lambda writer: writes and os.write(writer, b"x")
    )
    process = started(steps.work)
    outcome = process.follow(time.monotonic() + 60, 4096, still=0.2)
    status = process.end()
    assert outcome == (False, b"x" * 30 * writes)
    assert status == 0


@pytest.mark.parametrize("way", ["follow", "read"])
def test_the_deadline_counts_for_a_child_that_never_stops(way: str) -> None:
    """The deadline is checked even while output is always ready."""

    def flood(writer: int) -> None:
        while True:
            os.write(writer, b"x")
            time.sleep(0.001)

    process = started(flood)
    late = (
        process.follow(time.monotonic() + 0.1, 1)[0]
        if way == "follow"
        else process.read(time.monotonic() + 0.1, 1 << 20) is None
    )
    process.end(grace=0)
    assert late


def test_read_stops_at_its_limit() -> None:
    """Endless output is cut at the limit and does not fill this process's memory."""

    def flood(writer: int) -> None:
        for _ in range(1 << 20):
            os.write(writer, b"x" * 4096)

    process = started(flood)
    data = process.read(time.monotonic() + 60, 100_000)
    process.end(grace=0)
    assert data is not None
    assert 100_000 < len(data) <= 100_000 + (1 << 16)


@pytest.mark.parametrize(
    "raised", [OSError(5, "x"), KeyboardInterrupt(), SystemExit(3), MemoryError()]
)
def test_a_child_ends_whatever_its_work_raises(raised: BaseException) -> None:
    """The child ends with status 1 whatever its work raises, and nothing of it is left."""
    parent = os.getpid()

    def fail(_writer: int) -> None:
        raise raised

    try:
        with nothing_stays_open():
            process = started(fail)
            assert process.read(time.monotonic() + 30, 100) == b""
            status = process.end()
        assert status is not None
        assert os.waitstatus_to_exitcode(status) == 1
    finally:
        if os.getpid() != parent:
            os._exit(99)  # the child went on; the parent sees this status above


def test_a_signal_that_waited_for_the_fork_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that raises right after the fork leaves no process and no descriptor."""

    class Late(Exception):
        pass

    def handler(_number: int, _frame: object) -> None:
        raise Late

    fork = child._fork

    def with_signal(forks: bool) -> int:
        pid = fork(forks)
        if pid:
            # To this thread only: another one may not have blocked the signal.
            signal.raise_signal(signal.SIGUSR1)
        return pid

    monkeypatch.setattr(child, "_fork", with_signal)
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with nothing_stays_open(), pytest.raises(Late):
            started(lambda _: time.sleep(60))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_failed_fork_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fork leaves no descriptor and no blocked signal."""

    def fork(forks: bool) -> int:
        raise OSError(11, "no process")

    monkeypatch.setattr(child, "_fork", fork)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with nothing_stays_open(), pytest.raises(OSError, match="no process"):
        started(lambda _: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A child ends when its parent is killed."""
    script = f"""
import os, time
from nvgraft.system import child
def work(writer):
    open({str(tmp_path / "pid")!r}, "w").write(os.readlink("/proc/self"))
    os.rename({str(tmp_path / "pid")!r}, {str(tmp_path / "there")!r})
    time.sleep(60)
child.start(work, forks=False)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    there = tmp_path / "there"
    try:
        deadline = time.monotonic() + 20
        while not there.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    process = Path("/proc", there.read_text())
    deadline = time.monotonic() + 5
    while process.exists() and "State:\tZ" not in (process / "status").read_text():
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.01)


def test_an_orphan_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose parent ended before the child was tied to it gets an error and stops."""
    monkeypatch.setattr(syscalls, "set_parent_death_signal", lambda _: None)
    reader, writer = os.pipe()
    child.tie(writer)
    os.close(reader)
    with pytest.raises(BrokenPipeError, match="the hook has ended"):
        child.tie(writer)
    os.close(writer)


@pytest.mark.requires("root")
def test_a_child_that_forks_is_the_first_of_its_namespace() -> None:
    """The children of a child end with it, even one that has left its session."""

    def fork(writer: int) -> None:
        if os.fork() == 0:
            os.setsid()
            os.write(writer, os.readlink("/proc/self").encode() + b"\n")
            time.sleep(60)
            os._exit(0)
        os.write(writer, b"%d\n" % os.getpid())
        time.sleep(60)

    process = child.start(fork)
    output = b""
    while output.count(b"\n") < 2:
        output += os.read(process.output, 100)
    grandchild = next(line for line in output.decode().split() if line != "1")
    assert "1" in output.decode().split()
    process.end(grace=0)
    assert not Path("/proc", grandchild).exists()


def test_without_the_privilege_for_a_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the privilege for a pid namespace only children that fork are refused."""

    def refused() -> int:
        raise syscalls.SyscallError(1, "unshare(NEWPID)")

    monkeypatch.setattr(syscalls, "fork_in_pid_namespace", refused)
    assert started(lambda _: None).end(grace=60) == 0
    with pytest.raises(syscalls.SyscallError, match="EPERM"):
        child.start(lambda _: None)


def test_in_a_user_namespace_the_one_pid_namespace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a user namespace, a child that does not fork gets no pid namespace.

    The hook can make only one there, and ldconfig's child needs it.
    """

    def exploded() -> int:
        raise AssertionError

    monkeypatch.setattr(userns, "inside", lambda: True)
    monkeypatch.setattr(syscalls, "fork_in_pid_namespace", exploded)
    assert started(lambda _: None).end(grace=60) == 0
