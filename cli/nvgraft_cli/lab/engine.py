"""The hook's functions in a process of the lab, which stops before each phase.

A stop is a fork: the child goes on, and the parent keeps the state before the phase. A step back is
then a partial undo of the child, by the executor's own undo log, and its end (docs/decisions/0069).
The processes talk to the lab through one socket, which only the youngest of them uses.
"""

import json
import os
import socket
import sys
import time
from typing import Any, NamedTuple

from nvgraft import hook
from nvgraft.base._os import os as posix
from nvgraft.base._os import signal
from nvgraft.plan.document import plan_document, request_document
from nvgraft.system import launch
from nvgraft_cli.lab.observer import PhaseObserver
from nvgraft_cli.simulate.demo import PATH

_NEXT, _BACK, _QUIT = b"n", b"b", b"q"
#: How a process ends that has taken its phase back.
_WENT_BACK = 100


class EngineGone(Exception):
    """The engine's process was killed."""


class EngineReport(NamedTuple):
    """What the engine tells when it stops or ends.

    :ivar at: the number of the phase before which it stops; None after its end.
    :ivar code: the exit code of the hook, after its end.
    :ivar left: what a step back could not take back.
    """

    at: int | None
    milliseconds: float
    calls: list[str]
    other_calls: dict[str, int]
    facts: dict[str, Any]
    left: list[str]
    code: int = 0


class LabEngine:
    """The engine's process, as the lab sees it."""

    def __init__(self, state: bytes) -> None:
        """Start it; it stops before the first phase.

        :param state: the OCI state, which the hook gets on standard input.
        """
        ours, theirs = socket.socketpair()
        self._link = ours
        self._reader = ours.makefile("rb")
        self._lines = os.memfd_create("hook-stderr")
        self._read = 0
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                code = _become_hook(state, theirs.fileno(), self._lines)
            finally:
                os._exit(code)
        theirs.close()

    def report(self) -> EngineReport:
        """Wait until the engine stops or ends.

        :raises EngineGone: it was killed.
        """
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise EngineGone
        return EngineReport(**json.loads(line))

    def go_on(self) -> EngineReport:
        """Let it carry out the next phase."""
        return self._order(_NEXT)

    def go_back(self) -> EngineReport:
        """Let it take the last phase back."""
        return self._order(_BACK)

    def give_up(self) -> EngineReport:
        """Let it fail here, so that it takes everything back as after a signal."""
        return self._order(_QUIT)

    def new_lines(self) -> list[str]:
        """Return what the hook has written to standard error since the last call."""
        data = os.pread(self._lines, 1 << 20, self._read)
        self._read += len(data)
        return data.decode("utf-8", "replace").splitlines()

    def close(self) -> None:
        """Wait for its end. An engine that stops somewhere takes everything back."""
        self._link.shutdown(socket.SHUT_RDWR)
        os.waitpid(self._pid, 0)
        self._reader.close()
        self._link.close()
        os.close(self._lines)

    def _order(self, order: bytes) -> EngineReport:
        try:
            self._link.sendall(order)
        except BrokenPipeError as error:
            raise EngineGone from error
        return self.report()


def _become_hook(state: bytes, link: int, lines: int) -> int:
    """Be the hook: what :func:`nvgraft.hook.begin` does, without the deadline."""
    os.setsid()  # a terminal's signals are for the lab
    stdin = os.memfd_create("state")
    os.write(stdin, state)
    for fd, number in ((stdin, 0), (link, 1), (lines, 2)):
        os.dup2(fd, number)
    for name in ("__stdin__", "__stdout__", "__stderr__"):
        if getattr(sys, name) is None:  # the lab's was closed; reset_process() would close ours
            setattr(sys, name, sys.stderr)
    posix.environ.clear()
    name, _, value = PATH.partition("=")
    posix.environ[name.encode()] = value.encode()
    launch.check_identity()
    directory = launch.reset_process()  # closes everything but the first three descriptors
    stops = _Stops()
    invocation = hook.Invocation()

    def work() -> None:
        stops.stop(0)
        hook.prestart(invocation, directory)

    code = hook.report(invocation, work)
    sys.setprofile(None)
    stops.tell(None, code=code)
    return code


class _Stops:
    """The stops of the engine's process, and of its children."""

    def __init__(self) -> None:
        self.observer = PhaseObserver(self.stop)
        #: For each stop on the way: its phase, and how many steps there were to undo; None before
        #: the undo log.
        self._marks: list[tuple[int, int | None]] = []

    def stop(self, number: int) -> None:
        """Stop before a phase, until the lab lets this process or a child of it go on.

        :raises nvgraft.system.launch.Interrupted: the lab gives the start up.
        """
        undo = self.observer.undo
        self._marks.append((number, None if undo is None else len(undo)))
        self.tell(number)
        began = time.monotonic()
        while True:
            order = os.read(1, 1)
            if order == _BACK:
                self._go_back()
            elif order != _NEXT:  # also where the lab was killed
                launch.hold_signals()
                raise launch.Interrupted(signal.SIGTERM)
            os.lseek(0, 0, os.SEEK_SET)  # the state may be read a second time
            child = os.fork()
            if child == 0:
                for bounds in self.observer.bounds:
                    bounds.allow(time.monotonic() - began)
                self.observer.watch()
                self.observer.forget()
                return
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != _WENT_BACK:
                os._exit(code if code >= 0 else 1)

    def _go_back(self) -> None:
        """Take back what was done since the stop before, and end this process."""
        self.observer.forget()
        launch.hold_signals()
        number, before = self._marks[-2]
        left: list[str] = []
        if self.observer.undo is not None:
            left = self.observer.undo.run(before or 0)
        if before is None and self.observer.journal is not None:
            self.observer.journal.end()
        self.tell(number, left=left)
        os._exit(_WENT_BACK)

    def tell(self, at: int | None, *, left: list[str] | None = None, code: int = 0) -> None:
        """Send a report to the lab, as best effort: the lab may be gone."""
        observer = self.observer
        report = EngineReport(
            at,
            observer.milliseconds(),
            observer.calls,
            dict(observer.other_calls),
            _facts(observer.results),
            left or [],
            code,
        )
        data = json.dumps(report._asdict()).encode() + b"\n"
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            return


def _facts(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine has found out, as a document."""
    facts: dict[str, Any] = {}
    if "state" in results:
        facts["state"] = {"pid": results["state"].pid, "bundle": results["state"].bundle}
    if "decision" in results:
        decision = results["decision"]
        facts["decision"] = {"verdict": decision.verdict, "reason": decision.reason}
        if decision.request is not None:
            facts["request"] = request_document(decision.request)
    if "inventory" in results:
        found = results["inventory"]
        facts["inventory"] = {
            "driver": found.report.driver_version,
            "cuda": found.report.cuda_version,
            "gpus": [f"{device.node.path} {device.gpu.model}" for device in found.devices.gpus],
            "libraries": len(found.files.libraries),
            "libraries32": len(found.files.libraries32),
            "binaries": len(found.files.binaries),
            "missing": [row.name for row in found.files.missing],
        }
    if "plan" in results:
        facts["plan"] = plan_document(results["plan"])
    return facts
