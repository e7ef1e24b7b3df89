"""Taking back what a failed start has done."""

import errno
import os

import pytest

from nvgraft.apply.undo import UndoLog


def test_the_newest_step_goes_first() -> None:
    """What was made last may depend on what was made before."""
    log, order = UndoLog(), list[str]()
    for name in ("directory", "file", "mount"):
        log.add(name, lambda name=name: order.append(name))  # type: ignore[misc]
    assert len(log) == 3
    assert log.run() == []
    assert order == ["mount", "file", "directory"]
    assert len(log) == 0


def test_a_step_is_taken_back_once() -> None:
    """Running again does nothing."""
    log, order = UndoLog(), list[str]()
    log.add("x", lambda: order.append("x"))
    log.run()
    assert log.run() == []
    assert order == ["x"]


def test_a_failing_step_does_not_stop_the_others() -> None:
    """What is left behind is named with the kernel's reason, newest first; everything else is taken back."""
    log, order = UndoLog(), list[str]()

    def busy() -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def odd() -> None:
        raise OSError("no number")

    log.add("first", lambda: order.append("first"))
    log.add("mount /a", busy)
    log.add("last", lambda: order.append("last"))
    log.add("mount /b", odd)
    assert log.run() == ["mount /b (no number)", "mount /a (Device or resource busy)"]
    assert order == ["last", "first"]


def test_success_forgets_everything() -> None:
    """After the whole transaction nothing is taken back any more."""
    log, order = UndoLog(), list[str]()
    log.add("x", lambda: order.append("x"))
    log.forget()
    assert (log.run(), order, len(log)) == ([], [], 0)


def test_an_interrupted_undo_goes_on_where_it_was() -> None:
    """What is no OSError ends the run, but not the log: the step that was interrupted is not run twice."""
    log, order = UndoLog(), list[str]()

    def interrupted() -> None:
        raise KeyboardInterrupt

    log.add("first", lambda: order.append("first"))
    log.add("second", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.run()
    assert log.run() == []
    assert order == ["first"]


@pytest.mark.parametrize("number", [errno.EINTR, errno.EAGAIN])
def test_a_step_that_cannot_be_taken_now_is_taken_again(number: int) -> None:
    """A few times, and no more: then it is named."""
    log, tries = UndoLog(), list[str]()

    def busy(times: int, name: str) -> None:
        tries.append(name)
        if tries.count(name) <= times:
            raise OSError(number, os.strerror(number))

    log.add("twice", lambda: busy(2, "twice"))
    log.add("always", lambda: busy(1000, "always"))
    (left,) = log.run()
    assert left.startswith("always (")
    assert tries.count("twice") == 3
    assert tries.count("always") < 20
