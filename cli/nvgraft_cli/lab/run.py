"""A start of a container in the lab, phase by phase: the engine, the runtime, and what changed."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from nvgraft_cli.lab.engine import EngineGone, EngineReport, LabEngine
from nvgraft_cli.lab.looks import Difference, Look, differ, look_at
from nvgraft_cli.lab.phases import END, MOUNTS, PHASES, PIVOT, PROGRAM
from nvgraft_cli.lab.waiting import StartFailed, WaitingContainer, signal_name


class LabError(Exception):
    """A command that cannot be obeyed here; the text says why and what to do."""


class Stop(NamedTuple):
    """One stop of a start.

    :ivar number: the phase that would come next; ``END`` after the last one.
    :ivar way: how it was reached: "begin", "next" or "back".
    :ivar done: the phase that was carried out or taken back; None at the beginning.
    :ivar difference: what that has changed in the container.
    :ivar calls: the system calls that were made; ``other_calls`` the functions of ``os``.
    :ivar lines: what the hook or the program has written.
    :ivar facts: what the engine knows so far.
    :ivar failed: whether the phase has failed, and with it the start.
    """

    number: int
    way: str
    done: int | None
    milliseconds: float
    difference: Difference
    calls: list[str]
    other_calls: dict[str, int]
    lines: list[str]
    facts: dict[str, Any]
    failed: bool = False


class LabRun:
    """One start. :meth:`end` takes everything back, in every state.

    :ivar stops: every stop so far, the newest last.
    :ivar failure: why the start has failed; "" while it has not.
    """

    def __init__(self, container: WaitingContainer) -> None:
        self.container = container
        self.stops: list[Stop] = []
        self.failure = ""
        self._engine: LabEngine | None = None
        self._look: Look | None = None

    @property
    def number(self) -> int:
        """The phase that comes next."""
        return self.stops[-1].number

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine knows so far."""
        return self.stops[-1].facts

    def begin(self) -> Stop:
        """Let the runtime make the container, and stop before the first phase.

        :raises StartFailed: it refuses, or the hook's process was killed.
        """
        self._engine = LabEngine(self.container.create())
        try:
            report = self._engine.report()
        except EngineGone:
            raise StartFailed("the hook's process was killed") from None
        self._look = self._look_now()
        return self._note("begin", None, report)

    def next(self) -> Stop:
        """Carry out the next phase.

        :raises LabError: there is none, or the start has failed.
        """
        number = self.number
        self._check_alive()
        if number == PIVOT:
            return self._pivot()
        if number == PROGRAM:
            return self._start()
        if number == END or self._engine is None:
            raise LabError("the program has been started: there is no next phase | write quit")
        report = self._asked(self._engine.go_on)
        return self._note("next", number, report)

    def back(self) -> Stop:
        """Take the last phase back, by the executor's own undo.

        :raises LabError: there is nothing to take back, or no way back.
        """
        self._check_alive()
        if self.number > PIVOT:
            raise LabError("there is no way back from the changed root | write quit")
        if self.number == 0:
            raise LabError("this is the beginning | write next")
        if self._engine is None:
            raise LabError("the hook has ended by itself | write next or quit")
        report = self._asked(self._engine.go_back)
        assert report.at is not None
        if report.at == MOUNTS and not report.left:
            return self._note("back", MOUNTS, self._made_anew(self._engine, report))
        stop = self._note("back", report.at, report)
        if report.left:
            self._fail("left behind: " + ", ".join(report.left))
        return stop

    def _made_anew(self, engine: LabEngine, report: EngineReport) -> EngineReport:
        """Open the sources and make the targets once more: the kernel attaches a detached mount
        once, and those of this stop were attached.
        """
        for order in (engine.go_back, engine.go_back, engine.go_on, engine.go_on):
            newest = self._asked(order)
        return report._replace(at=newest.at, facts=newest.facts, code=newest.code)

    @property
    def look(self) -> Look | None:
        """The container at the newest stop."""
        return self._look

    def end(self) -> None:
        """Let the engine take back what it has done, and the runtime the container."""
        self._close_engine()
        self.container.remove()

    def _asked(self, order: Callable[[], EngineReport]) -> EngineReport:
        try:
            return order()
        except EngineGone:
            self._fail("the hook's process was killed")
            raise LabError(f"{self.failure}, and with it the start | write quit") from None

    def _check_alive(self) -> None:
        if self.failure:
            raise LabError(f"the start has failed: {self.failure} | write quit")
        if self.number < PROGRAM and not self.container.waits():
            self._fail("runc has ended")
            raise LabError("runc has ended, and with it the container | write quit")
        if self.number < END and not self.container.lives():
            self._fail("the container's process has ended")
            raise LabError(f"{self.failure} | write quit")

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _fail(self, reason: str) -> None:
        self.failure = reason

    def _pivot(self) -> Stop:
        lines: list[str] = []
        if self._engine is not None:
            report = self._asked(self._engine.go_on)
            lines = self._engine.new_lines()
            self._close_engine()
            if report.code:
                return self._note("next", PIVOT, report, lines)
        return self._by_runtime(PIVOT, self.container.pivot, lines)

    def _start(self) -> Stop:
        return self._by_runtime(PROGRAM, self.container.start, [])

    def _by_runtime(self, number: int, act: Callable[[], None], lines: list[str]) -> Stop:
        began = time.monotonic()
        try:
            act()
        except StartFailed as error:
            self._fail(str(error))
            raise LabError(f"runc: {error} | write quit") from None
        milliseconds = (time.monotonic() - began) * 1000
        if number == PROGRAM:
            code = self.container.end_of_program()
            lines = self.container.output()
            lines.append(how_it_ended(code))
        report = EngineReport(number + 1, milliseconds, [], {}, self.facts, [])
        return self._note("next", number, report, lines)

    def _note(
        self, way: str, done: int | None, report: EngineReport, lines: list[str] | None = None
    ) -> Stop:
        before = self._look
        now = self._look_now()
        assert now is not None
        self._look = now
        if lines is None:
            lines = self._engine.new_lines() if self._engine is not None else []
        number = report.at
        if number is None:
            # The hook has ended before everything was carried out: skipped, or refused.
            number = PIVOT
            self._close_engine()
        stop = Stop(
            number,
            way,
            done,
            report.milliseconds,
            differ(before or now, now),
            report.calls,
            report.other_calls,
            lines,
            report.facts,
            bool(report.code),
        )
        if stop.failed:
            self._fail(lines[-1] if lines else f"exit code {report.code}")
        self.stops.append(stop)
        return stop

    def _look_now(self) -> Look | None:
        container = self.container
        try:
            return look_at(container.pid, "" if container.pivoted else container.rootfs)
        except OSError:
            return self._look  # its process has ended


def how_it_ended(code: int | None) -> str:
    """Tell how a program has ended; ``code`` is negative for a signal, None while it runs."""
    if code is None:
        return "(the program runs)"
    if code < 0:
        return f"(the program was ended by {signal_name(-code)})"
    return f"(the program ended, exit code {code})"


def title_of(number: int) -> str:
    """Return the words for a stop before the phase ``number``."""
    return "the end" if number == END else PHASES[number].task
