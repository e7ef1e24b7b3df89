"""Observe the engine in this process: where a phase begins, which system calls are made.

The interpreter's own call for profilers (``sys.setprofile``) tells of every call of a function.
The engine has no line for the lab (docs/decisions/0069).
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from nvgraft.apply.journal import Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.formats.tree import Bounds
from nvgraft_cli.lab.phases import KEPT, KEPT_BY, PHASES, PIVOT

#: Functions whose results are shown.
_RESULTS = {
    "state": "nvgraft.request.oci:read_state",
    "decision": "nvgraft.request.decision:decide",
    "inventory": "nvgraft.host.inventory:read_inventory",
    "plan": "nvgraft.plan.planner:make_plan",
}

#: System call -> how many descriptors its arguments begin with.
_DESCRIPTORS = {
    "openat2": 1,
    "statx": 1,
    "open_tree": 1,
    "mount_setattr": 1,
    "move_mount": 2,
    "setns": 1,
    "flock": 1,
}
#: Functions of ``os`` that make no system call.
_NO_CALLS = frozenset(("fspath", "strerror", "getpid", "major", "minor", "makedev"))


def code_of(name: str) -> CodeType:
    """Return the code of the function ``module:name`` of the engine."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    code: CodeType = found.__code__
    return code


class PhaseObserver:
    """Calls ``stop`` with the number of each phase before it begins, in the engine's own stack.

    :ivar calls: the system calls since :meth:`forget`, as text.
    :ivar other_calls: how often a function of ``os`` was called since then.
    :ivar results: what the engine's functions have returned.
    :ivar undo: the undo log of the start, once there is one; ``journal`` likewise.
    :ivar bounds: the bounds of what is read, which have a limit of time.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._phases = {
            code_of(name): number for number, phase in enumerate(PHASES) for name in phase.begins
        }
        self._results = {code_of(name): key for key, name in _RESULTS.items()}
        self._kept, self._kept_by = code_of(KEPT), code_of(KEPT_BY)
        self._bounded = code_of("nvgraft.formats.tree:Bounds.__init__")
        self._call = code_of("nvgraft.system.syscalls:_Call.__call__")
        self._failure = code_of("nvgraft.system.syscalls:_Call._failure")
        self._began = 0
        self._process = os.getpid()
        self._error = 0
        self._since = time.monotonic_ns()
        self.calls: list[str] = []
        self.other_calls: Counter[str] = Counter()
        self.results: dict[str, Any] = {}
        self.undo: UndoLog | None = None
        self.journal: Journal | None = None
        self.bounds: list[Bounds] = []

    def watch(self) -> None:
        """Observe this process from here on."""
        self._process = os.getpid()
        sys.setprofile(self)

    def forget(self) -> None:
        """Begin to record anew."""
        self.calls, self.other_calls = [], Counter()
        self._since = time.monotonic_ns()

    def milliseconds(self) -> float:
        """Return the time since :meth:`forget`."""
        return (time.monotonic_ns() - self._since) / 1e6

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at one event (see ``sys.setprofile``)."""
        if event == "c_call":
            if value.__module__ == "posix" and value.__name__ not in _NO_CALLS:
                self.other_calls[value.__name__] += 1
            return
        code = frame.f_code
        if event == "call":
            if code in self._phases:
                self._begin(self._phases[code], frame)
            elif code is self._failure:
                self._error = frame.f_locals["number"]
            elif code is self._kept and frame.f_back and frame.f_back.f_code is self._kept_by:
                self._begin(PIVOT, frame)
        elif event == "return":
            if code is self._call:
                self._record(frame, value)
            elif code is self._bounded:
                self.bounds.append(frame.f_locals["self"])
            elif value is not None and code in self._results:
                self.results[self._results[code]] = value

    def _begin(self, number: int, frame: FrameType) -> None:
        if os.getpid() != self._process:  # a child of the engine
            sys.setprofile(None)
            return
        if number <= self._began:
            return
        self._began = number
        if "undo" in frame.f_locals and "journal" in frame.f_locals:
            self.undo, self.journal = frame.f_locals["undo"], frame.f_locals["journal"]
        self._stop(number)

    def _record(self, frame: FrameType, value: int | None) -> None:
        """Write down a system call: the engine itself puts its arguments into words, for errors."""
        call, name = frame.f_locals["call"], frame.f_locals["self"]._name
        text = _with_names(name, call if isinstance(call, str) else call())
        if value is None:
            outcome = f" = -1 {os.strerror(self._error)}"
        else:
            outcome = f" = {value}" if value else ""
        self.calls.append(f"{name}({text}){outcome}")


def _with_names(call: str, text: str) -> str:
    """Add to the descriptors at the beginning of a call's arguments what they are open on."""
    words = text.split(", ")
    for place in range(_DESCRIPTORS.get(call, 0)):
        if words[place].isdecimal():
            try:
                words[place] += f"<{os.readlink(f'/proc/self/fd/{words[place]}')}>"
            except OSError:
                continue  # nothing shows descriptors here
    return ", ".join(words)
