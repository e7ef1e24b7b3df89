"""All or nothing: the result of a failure, of an undo that fails, and of a late signal.

Applying a real plan needs a container and is tested in integration/.
"""

import os
import posix
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvgraft.apply import executor
from nvgraft.apply.cache_step import LoaderCacheStep
from nvgraft.apply.journal import Heading, Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import UNDO_FAILED, Refusal
from nvgraft.container.container import Container
from nvgraft.plan.actions import Plan, Symlink, Why
from nvgraft.system.launch import Interrupted

NOTHING = Plan("inject", "")
NOWHERE = Container(1234, 77, "/rootfs", 78, 0, 0)

Work = Callable[[UndoLog], None]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cannot_be_given_back() -> None:
    raise OSError(5, "Input/output error")


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], bool]:
    """Return a function that applies a plan whose work is a function of the undo log."""

    def run(work: Work) -> bool:
        def carry_out(
            _plan: Plan,
            _container: Container,
            _cache: LoaderCacheStep,
            undo: UndoLog,
            releases: list[Callable[[], None]],
            _journal: Journal,
        ) -> None:
            releases.append(_cannot_be_given_back)  # its failure must not matter
            work(undo)

        monkeypatch.setattr(Journal, "begin", lambda _heading: Journal())
        monkeypatch.setattr(Heading, "of", lambda *_root: None)
        monkeypatch.setattr(executor, "_carry_out", carry_out)
        return executor.apply_plan(NOTHING, NOWHERE, LoaderCacheStep())

    return run


def test_success_keeps_everything_and_takes_no_more_signals(apply: Callable[[Work], bool]) -> None:
    """After success nothing is undone, and signals are blocked.

    A signal that comes then cannot claim that everything was undone.
    """
    undone: list[str] = []
    assert apply(lambda undo: undo.add("a mount", lambda: undone.append("mount")))
    assert undone == []
    assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(
    "failure",
    [
        Refusal("mount", "x"),
        OSError(28, "no space"),
        Interrupted(15),
        KeyboardInterrupt(),
        MemoryError(),
    ],
)
def test_any_failure_takes_everything_back_newest_first(
    apply: Callable[[Work], bool], failure: BaseException
) -> None:
    """Whatever exception ends the work, each step is undone, newest first, and the exception goes
    on.
    """
    undone: list[str] = []

    def work(undo: UndoLog) -> None:
        undo.add("first", lambda: undone.append("first"))
        undo.add("second", lambda: undone.append("second"))
        raise failure

    with pytest.raises(type(failure)):
        apply(work)
    assert undone == ["second", "first"]


def test_an_undo_that_fails_is_its_own_exit_code_and_names_what_is_left(
    apply: Callable[[Work], bool],
) -> None:
    """The other steps are undone even if one fails.

    The message names what stays and why the hook failed; the exit code is 3.
    """
    undone: list[str] = []

    def busy() -> None:
        raise OSError(16, "device or resource busy")

    def work(undo: UndoLog) -> None:
        undo.add("first", lambda: undone.append("first"))
        undo.add("mount /usr/bin/nvidia-smi", busy)
        raise Refusal("mount", "mount operation failed: x")

    with pytest.raises(Refusal) as failed:
        apply(work)
    assert undone == ["first"]
    assert failed.value.exit_code == UNDO_FAILED
    assert "left behind: mount /usr/bin/nvidia-smi" in failed.value.line()
    assert "mount operation failed: x" in failed.value.line()


def test_a_journal_that_cannot_be_ended_is_named(
    apply: Callable[[Work], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the journal cannot be ended after success, everything is undone.

    The message names the journal, which would otherwise list files that do not exist.
    """
    undone: list[str] = []

    def refused(_journal: Journal) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Journal, "end", refused)
    with pytest.raises(Refusal, match=r"left behind: journal .*Read-only file system") as failed:
        apply(lambda undo: undo.add("a mount", lambda: undone.append("mount")))
    assert failed.value.exit_code == UNDO_FAILED
    assert undone == ["mount"]


def rootfs(path: Path) -> Container:
    """Return a directory as a container's root file system."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    return Container(os.getpid(), None, str(path), fd, os.geteuid(), os.getegid())


def replace(path: str, target: str) -> Symlink:
    return Symlink(path, target, Why("", "", ""), replaces=True)


def test_links_are_replaced_and_put_back(tmp_path: Path) -> None:
    """Another link takes the place of the first one, and an undo restores it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a").symlink_to("old")
    undo = UndoLog()
    executor._replace_links([replace("/lib/a", "../new")], rootfs(tmp_path), undo, Journal())
    assert os.readlink(tmp_path / "lib/a") == "../new"
    assert undo.run() == []
    assert os.readlink(tmp_path / "lib/a") == "old"


def test_a_replacement_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement that fails names the link; the undo restores it and those replaced before."""
    for name in "ab":
        (tmp_path / name).symlink_to(f"old-{name}")
    make = os.symlink

    def fail_for_b(target: str, name: str, *, dir_fd: int) -> None:
        if target == "new-b":
            raise OSError(28, "No space left on device")
        make(target, name, dir_fd=dir_fd)

    monkeypatch.setattr(posix, "symlink", fail_for_b)
    undo = UndoLog()
    with pytest.raises(Refusal, match=r"file creation failed: .*[0-9]/b: no space left on device"):
        executor._replace_links(
            [replace("/a", "new-a"), replace("/b", "new-b")], rootfs(tmp_path), undo, Journal()
        )
    assert not (tmp_path / "b").is_symlink()
    assert undo.run() == []
    assert {name: os.readlink(tmp_path / name) for name in "ab"} == {"a": "old-a", "b": "old-b"}


def test_a_file_in_place_of_a_link_is_not_touched(tmp_path: Path) -> None:
    """A file or directory that took a link's place since planning is not touched.

    A link on the way is not followed.
    """
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    (tmp_path / "way").symlink_to("directory")
    for path in ("/file", "/directory", "/way/x"):
        with pytest.raises(Refusal, match=f"file creation failed: .*{path}"):
            executor._replace_links([replace(path, "t")], rootfs(tmp_path), UndoLog(), Journal())
    assert (tmp_path / "file").read_text() == "x"
    assert os.listdir(tmp_path / "directory") == []
