"""Undoing the steps of a failed start."""

import errno
import os

import pytest

from nvgraft.apply.undo import UndoLog


def test_steps_are_undone_newest_first() -> None:
    """Steps are undone newest first, because later ones may depend on earlier ones."""
    log, order = UndoLog(), list[str]()
    for name in ("directory", "file", "mount"):
        log.add(name, lambda name=name: order.append(name))  # type: ignore[misc]
    assert len(log) == 3
    assert log.run() == []
    assert order == ["mount", "file", "directory"]
    assert len(log) == 0


def test_a_part_of_the_steps_is_undone() -> None:
    """A run with a number leaves that many of the oldest steps for a later run."""
    log, order = UndoLog(), list[str]()
    for name in ("directory", "file", "mount"):
        log.add(name, lambda name=name: order.append(name))  # type: ignore[misc]
    assert log.run(down_to=1) == []
    assert order == ["mount", "file"]
    assert log.run() == []
    assert order == ["mount", "file", "directory"]


def test_a_step_is_undone_once() -> None:
    """A second run does nothing."""
    log, order = UndoLog(), list[str]()
    log.add("x", lambda: order.append("x"))
    log.run()
    assert log.run() == []
    assert order == ["x"]


def test_a_failing_step_does_not_stop_the_others() -> None:
    """A step that fails is named with the kernel's reason, newest first, and the other steps are
    undone.
    """
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


def test_forget_keeps_everything() -> None:
    """After forget() nothing is undone."""
    log, order = UndoLog(), list[str]()
    log.add("x", lambda: order.append("x"))
    log.forget()
    assert (log.run(), order, len(log)) == ([], [], 0)


def test_an_interrupted_undo_can_be_continued() -> None:
    """An exception other than OSError ends the run, and the next run continues with the following
    step.
    """
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
def test_a_temporary_failure_is_tried_again(number: int) -> None:
    """A step that fails with EINTR or EAGAIN is tried again a few times, and then named."""
    log, tries = UndoLog(), list[str]()

    def busy(times: int, name: str) -> None:
        tries.append(name)
        if tries.count(name) <= times:
            raise OSError(number, os.strerror(number))

    log.add("twice", lambda: busy(2, "twice"))
    log.add("always", lambda: busy(1000, "always"))
    (failure,) = log.run()
    assert failure.startswith("always (")
    assert tries.count("twice") == 3
    assert tries.count("always") < 20
