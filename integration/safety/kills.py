"""Kills: SIGKILL around each system call of the apply phase, then recovery or another start.

Recovery is ``nvgraft recover``. A killed hook undoes nothing. Only its journal stays on the host.
The journal names what stays in the root file system, and after recovery all of it is gone (SECURITY
R35, cases T50 and T51).
"""

import random
import signal
from typing import NamedTuple

from harness import run_in_mount_namespace
from safety.faults import FIRST, SECOND, THIRD, Scene, difference, in_third, places
from safety.figures import Figure
from safety.shim import HOOK, Fault, Site
from safety.stage import Stage, on_stage


class Tally(NamedTuple):
    """The results of kills: their number, the files that they left, and what was wrong."""

    kills: int
    sites: int
    finished: int
    left_most: int
    left_sum: int
    restarts: int
    problems: tuple[str, ...]

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]
        return Tally(
            self.kills + other.kills,
            self.sites + other.sites,
            self.finished + other.finished,
            max(self.left_most, other.left_most),
            self.left_sum + other.left_sum,
            self.restarts + other.restarts,
            self.problems + other.problems,
        )


class Kills:
    """Kills on one stage, each judged."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.before = stage.state()
        plain = stage.run(record=True)
        assert plain.code == 0, plain.stderr
        self.sites = [site for site in plain.sites if site.process == HOOK]
        self.success = stage.state()
        stage.renew()
        self._left: list[int] = []
        self._finished = self._restarts = 0
        self._struck: set[tuple[str, str]] = set()
        self._problems: list[str] = []

    def tally(self) -> Tally:
        most = max(self._left, default=0)
        return Tally(
            len(self._left),
            len(self._struck),
            self._finished,
            most,
            sum(self._left),
            self._restarts,
            tuple(self._problems),
        )

    def kill(self, site: Site, fault: Fault, *, restart: bool = False) -> None:
        """Kill the hook at ``site``, then recover; with ``restart``, start a new container on the
        same files.
        """
        what = f"{fault.kind} {site.call} #{site.number} ({site.place})"
        self._struck.add((site.call, site.place))
        run = self._stage.run({(HOOK, site.number): fault})
        if run.code != -signal.SIGKILL:
            self._problems.append(f"{what}: the hook was not killed: {run.code} {run.stderr}")
        self._stage.end_container()  # like the runtime
        self._stage.renew(files=False)
        state = self._stage.state()
        left = {path for path, _ in state.files ^ self.before.files}
        self._left.append(len(left))
        if state.success()._replace(files=frozenset(), run=()) != self.before.success()._replace(
            files=frozenset(), run=()
        ):
            self._problems.append(
                f"{what}: left on the host or in the next container: "
                f"{difference(self.before, state)}"
            )
        if left and not any("/journal/" in path for path in state.run):
            # Without a journal the start had succeeded. A restart finds what a successful start
            # leaves.
            self._finished += 1
            if _at_rest(state.files) != self._files_of_a_success():
                self._problems.append(
                    f"{what}: {len(left)} things are left, and no journal: {sorted(left)[:3]}"
                )
        elif restart:
            self._restarts += 1
            self._start_again(what)
        elif not self._stage.recover():
            self._problems.append(f"{what}: not recovered")
        else:
            rest = self._stage.state()
            if (rest.files, rest.run) != (self.before.files, ()):
                self._problems.append(f"{what}: after recovery: {difference(self.before, rest)}")
        self._stage.renew()

    def end_container(self, site: Site) -> None:
        """End the container at ``site``, as when its runtime is killed. The hook goes on until it
        notices.
        """
        what = f"the container ends before {site.call} #{site.number} ({site.place})"
        run = self._stage.run({(HOOK, site.number): Fault("orphan", self._stage.container)})
        self._stage.renew(files=False)
        state = self._stage.state()
        expected_files = self._files_of_a_success() if run.code == 0 else self._files_before()
        if run.code not in {0, 1} or _at_rest(state.files) != expected_files or state.run:
            self._problems.append(
                f"{what}: {run.code} {run.stderr} {difference(self.before, state)}"
            )
        self._stage.renew()

    def _files_before(self) -> frozenset[tuple[str, str]]:
        return _at_rest(self.before.files)

    def _files_of_a_success(self) -> frozenset[tuple[str, str]]:
        return _at_rest(self.success.files)

    def _start_again(self, what: str) -> None:
        again = self._stage.run()
        state = self._stage.state()
        if again.code != 0 or state.success() != self.success.success():
            self._problems.append(
                f"{what}: the next start: {again.code} {again.stderr} "
                f"{difference(self.success, state)}"
            )


def _at_rest(files: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Leave out what went with the container's mounts."""
    return frozenset(entry for entry in files if not entry[0].startswith("/dev/"))


def kills(size: str, seed: int) -> Tally:
    """Kill before and after every call, and tear every announcement.

    Size small takes one call from each place.
    """
    choice = random.Random(seed)
    full = size == "full"
    total = Tally(0, 0, 0, 0, 0, 0, ())
    for scene in (FIRST, SECOND, THIRD) if full else (FIRST, THIRD):

        def measured(scene: Scene = scene) -> Tally:
            with on_stage(scene.version, nvgraft=scene.nvgraft, steps=scene.steps) as stage:
                work = Kills(stage)
                if scene is THIRD and not full:
                    work.sites = list(filter(in_third, work.sites))
                for site in work.sites if full else places(work.sites, choice):
                    for moment in (
                        ("before", "after") if full else (choice.choice(("before", "after")),)
                    ):
                        work.kill(
                            site, Fault(moment, signal.SIGKILL), restart=choice.random() < 0.25
                        )
                for site in work.sites:
                    if site.call == "write" and site.place.startswith(
                        ("base/files.py", "apply/journal.py")
                    ):
                        work.kill(site, Fault("torn", signal.SIGKILL))
                some = places(work.sites, choice)
                ends = work.sites if full else choice.sample(some, min(len(some), 12))
                for site in ends:
                    work.end_container(site)
                return work.tally()

        total += run_in_mount_namespace(measured)
    return total


def figures(size: str, seed: int) -> list[Figure]:
    """Measure at ``size``, with the random ``seed``."""
    tally = kills(size, seed)
    mean = tally.left_sum / tally.kills
    return [
        Figure(
            "kills of the hook",
            f"{tally.kills} at {tally.sites} calls, {tally.restarts} followed by a start",
            "-",
            tally.kills > 0,
        ),
        Figure(
            "left in the root file system by a kill",
            f"{tally.left_most} things at most, {mean:.1f} on average",
            "-",
            tally.left_most > 0,
        ),
        Figure(
            "left on the host, or anywhere after recovery or the next start",
            _first(tally.problems),
            "0",
            not tally.problems,
        ),
    ]


def _first(problems: tuple[str, ...]) -> str:
    return f"{len(problems)}: {problems[0]}" if problems else "0"
