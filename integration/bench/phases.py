"""The hook with a clock in it: a launcher that times the engine's own functions from outside.

The engine has no switch for this, so it costs nothing there. The functions of :data:`PHASES` are
replaced when their module has been loaded. Time counts for the innermost phase. :mod:`bench.node`
runs this as

    python3 -ISB phases.pyc LIBRARY STARTED [HOOK-ARGUMENT...]

with the directory of the engine and the time at which the process was started, in nanoseconds of
CLOCK_MONOTONIC. It prints one JSON object and needs only modules that the hook has.
"""

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FIRST = time.monotonic_ns()
_BEFORE = frozenset(sys.modules)

START, IMPORTS, REST, END, CLOCK = (
    "interpreter start",
    "imports",
    "hook's own",
    "process end",
    "this clock",
)

#: module -> name in it -> phase. An imported name is replaced in the module that uses it.
PHASES = {
    "nvgraft.system.launch": {"check_environment": REST, "reset_process": REST},
    "nvgraft.hook": {
        "load_config": "config.toml",
        "read_state": "state, config.json",
        "read_config": "state, config.json",
        "decide": "state, config.json",
    },
    "nvgraft.container.container": {
        "hold_process": "target",
        "open_container": "target",
        "Container.read_mounts": "target",
    },
    "nvgraft.container.live_target": {"LiveTarget.__init__": "target"},
    "nvgraft.host.nvml": {"query": "NVML child"},
    "nvgraft.graft": {"read_host": "inventory"},
    "nvgraft.host.inventory": {"read_inventory": "inventory"},
    "nvgraft.plan.planner": {"make_plan": "plan"},
    "nvgraft.system.lock": {"lock_rootfs": "target"},
    "nvgraft.apply.executor": {
        "_is_configured": "second run?",
        "open_sources": "sources",
        "_attach": "attach",
    },
    "nvgraft.apply.targets": {"Targets.prepare": "targets"},
    "nvgraft.apply.cgroup": {"find_cgroup": "cgroup", "DeviceCgroup.allow": "cgroup"},
    "nvgraft.apply.cache.ldconfig": {
        "LoaderCache.prepare": "loader cache",
        "LoaderCache.update": "loader cache",
    },
    "nvgraft.apply.cache.native": {
        "NativeCache.survey": "loader cache",
        "NativeCache.update": "loader cache",
    },
}

#: Every phase, in the order of the hook.
ORDER = (
    START,
    IMPORTS,
    REST,
    "config.toml",
    "state, config.json",
    "inventory",
    "NVML child",
    "target",
    "plan",
    "second run?",
    "sources",
    "targets",
    "attach",
    "cgroup",
    "loader cache",
    END,
    CLOCK,
)


class Clock:
    """Nanoseconds by phase. A phase that begins inside another one interrupts it."""

    def __init__(self, now: int) -> None:
        self.totals = dict.fromkeys(ORDER, 0)
        self._stack = [CLOCK]
        self._mark = now

    def enter(self, phase: str) -> None:
        now = time.monotonic_ns()
        self.totals[self._stack[-1]] += now - self._mark
        self._stack.append(phase)
        self._mark = now

    def leave(self) -> None:
        now = time.monotonic_ns()
        self.totals[self._stack.pop()] += now - self._mark
        self._mark = now


def timed(clock: Clock, phase: str, function: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return ``function`` with its time counted for ``phase``."""

    def call(*args: object, **options: object) -> object:
        clock.enter(phase)
        try:
            return function(*args, **options)
        finally:
            clock.leave()

    return call


def replace(clock: Clock, module: object, names: "dict[str, str]") -> None:
    """Replace the functions ``names`` of ``module``.

    :raises AttributeError: when one of them is gone: change :data:`PHASES` with the engine.
    """
    for name, phase in names.items():
        owner = module
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        function = timed(clock, phase, getattr(owner, last))
        bound = isinstance(vars(owner).get(last), classmethod)
        setattr(owner, last, staticmethod(function) if bound else function)


class Watch:
    """Count the loading of modules, and replace the timed functions in those that have been
    loaded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting = dict(PHASES)
        self._depth = 0
        #: Modules of ours that the import system was asked for.
        self.searched: list[str] = []

    def importing(self) -> None:
        """Watch the import system."""
        machinery = sys.modules["_frozen_importlib"]
        find = self.counted(machinery._find_and_load)

        def search(name: str, *rest: object) -> object:
            if name.startswith("nvgraft"):
                self.searched.append(name)
            return find(name, *rest)

        machinery._find_and_load = search  # type: ignore[attr-defined]

    def counted(self, load: "Callable[..., object]") -> "Callable[..., object]":
        """Return a function that does the same as ``load``, which loads modules, and is timed."""

        def call(*args: object) -> object:
            self._clock.enter(IMPORTS)
            self._depth += 1
            try:
                return load(*args)
            finally:
                self._depth -= 1
                self._clock.leave()
                if not self._depth:  # otherwise one of them may still lack some of its functions
                    for name in [name for name in self._waiting if name in sys.modules]:
                        replace(self._clock, sys.modules[name], self._waiting.pop(name))

        return call


def main(library: str, started: int, arguments: "list[str]") -> int:
    """Run the hook and print the times."""
    clock = Clock(_FIRST)
    clock.totals[START] = _FIRST - started
    watch = Watch(clock)
    watch.importing()
    sys.path.insert(0, library)
    import gc

    from nvgraft import startup

    gc.disable()
    startup.load = watch.counted(startup.load)  # type: ignore[assignment]
    startup.load("hook")
    from nvgraft.hook import main as hook

    code: int = timed(clock, REST, hook)(["nvgraft-hook", *arguments])
    loaded = len(set(sys.modules) - _BEFORE)
    with open("/proc/self/status", encoding="ascii") as file:
        peak = next(line for line in file if line.startswith("VmHWM")).split()[1]
    clock.leave()
    totals = ", ".join(f'"{phase}": {spent}' for phase, spent in clock.totals.items())
    searched = ", ".join(f'"{name}"' for name in watch.searched)
    print(
        f'{{"phases": {{{totals}}}, "modules": {loaded}, "searched": [{searched}], "peak": '
        f'{int(peak) * 1024}, "ended": {time.monotonic_ns()}}}',
        flush=True,
    )
    return code


if __name__ == "__main__":
    import os  # like the hook's launcher, skip the interpreter's shutdown

    os._exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
