"""Faults: each system call of the apply phase fails in turn, also while it is undone; signals come at each; memory and disk end.

After a failure nothing of the hook's is left: neither mounts nor files, links, device rules, programs, locks, journals or
processes (SECURITY R33, cases T45 to T49 and T70). A call may also fail without harm: then the container is configured as
without the fault, to the last mount.
"""

import errno
import os
import random
import resource
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from attacked import ROOTFS
from harness import run_in_mount_namespace
from nvgraft import syscalls
from safety.figures import Figure
from safety.shim import HOOK, Fault, Faults, Site
from safety.stage import Run, Stage, State, on_stage

ERRNOS = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOENT,
    errno.ENOSPC,
    errno.EMFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
    errno.EROFS,
    errno.EBUSY,
    errno.EINVAL,
    errno.ENOSYS,
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)

#: Versions of cgroups, and the ways to write the loader cache: a line for config.toml's table [nvgraft].
VERSIONS = (2, 1)


class Tally(NamedTuple):
    """What a campaign has shown: runs, the distinct calls that were struck, how runs ended, and what was not as it must be."""

    runs: int
    sites: int
    undone: int
    unharmed: int
    reported: int
    problems: tuple[str, ...]

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]
        sums = (mine + theirs for mine, theirs in zip(self[:-1], other[:-1], strict=True))
        return Tally(*sums, self.problems + other.problems)

    @property
    def value(self) -> str:
        """For the report."""
        ends = f"{self.undone} undone, {self.unharmed} unharmed"
        if self.reported:
            ends += f", {self.reported} left something and named it"
        problems = f"; {len(self.problems)} WRONG: {self.problems[0]}" if self.problems else ""
        return f"{self.runs} runs at {self.sites} calls: {ends}{problems}"


NOTHING = Tally(0, 0, 0, 0, 0, ())


class Campaign:
    """Runs of the hook on one stage, each with faults, and a judgement on each."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.before = stage.state()
        plain = stage.run(record=True)
        assert plain.code == 0, plain.stderr
        #: Every call of a start without faults.
        self.sites = plain.sites
        self.success = stage.state()
        assert self.success.mounts != self.before.mounts
        assert self.success.rules != self.before.rules
        assert not self.success.run
        self.renew()
        self._places: set[tuple[int, str, str]] = set()
        self._counts = [0, 0, 0, 0]
        self._problems: list[str] = []

    def tally(self) -> Tally:
        return Tally(self._counts[0], len(self._places), *self._counts[1:], tuple(self._problems))

    def strike(self, site: Site, fault: Fault, first: tuple[Site, Fault] | None = None) -> None:
        """Run the hook with ``fault`` at ``site``, perhaps after another one, and judge."""
        faults = {(site.process, site.number): fault}
        if first is not None:
            faults[first[0].process, first[0].number] = first[1]
        self._places.add((site.process, site.call, site.place))
        after = f" after {_name(*first)}" if first else ""
        self.judge(self.stage.run(faults), f"{_name(site, fault)}{after}", second=first is not None, site=site)

    def judge(self, run: Run, what: str, *, second: bool = False, site: Site | None = None) -> None:
        """Count ``run``, and note what is wrong with it; the stage is as before afterwards."""
        self._counts[0] += 1
        state = self.stage.state()
        problem = ""
        if run.code == 0:
            self._counts[2] += 1
            if state.success() != self.success.success() and not _lock_is_the_rest(self.success, state, site):
                problem = f"succeeded, but not as without it: {difference(self.success.success(), state.success())}"
        elif run.code == 1:
            self._counts[1] += 1
            if state != self.before and not _lock_is_the_rest(self.before, state, site):
                problem = f"left behind: {difference(self.before, state)}"
            elif "everything was undone" not in run.stderr and "nvgraft: " not in run.stderr:
                problem = f"said nothing: {run.stderr!r}"
        elif run.code == 3 and second:
            self._counts[3] += 1
            problem = self._unreported(run, state)
        else:
            problem = f"ended with {run.code}: {difference(self.before, state)}; {run.stderr.strip()[-300:]}"
        if problem:
            self._problems.append(f"{what}: {problem}")
        if run.code != 1 or problem or state != self.before:
            self.renew()

    def renew(self) -> None:
        """Set up a new container, as the first one was but for the number of its device program."""
        self.stage.renew()
        state = self.stage.state()
        assert state.success() == self.before.success(), difference(self.before, state)
        self.before = state

    def _unreported(self, run: Run, state: State) -> str:
        """Say what is left of a run whose undo failed, but was not named; then have it recovered."""
        left = residue(self.before, state)
        named = run.reported()
        silent = [thing for thing in left if not any(_covers(name, thing) for name in named)]
        if silent or not named:
            return f"left {silent or left} and named {named}"
        # Of the loader cache step it may be unknown whether there is anything left: then it is named.
        sure = [name for name in named if not name.startswith(("SONAME links in ", "/etc/ld.so.cache"))]
        empty = [name for name in sure if not any(_covers(name, thing) for thing in left)]
        if empty:
            return f"named {empty}, which is not left"
        self.stage.end_container()
        if not self.stage.recover():
            return "not recovered"
        self.stage.renew(files=False)
        rest = self.stage.state()
        return "" if (rest.files, rest.run) == (self.before.files, ()) else f"after recovery: {difference(self.before, rest)}"


def _name(site: Site, fault: Fault) -> str:
    detail = errno.errorcode[fault.detail] if fault.kind == "error" else signal.Signals(fault.detail).name if fault.detail in SIGNALS else ""
    return f"{fault.kind} {detail} at {site.call} #{site.number} of process {site.process} ({site.place})"


def _lock_is_the_rest(before: State, state: State, site: Site | None) -> bool:
    """Tell whether only a lock's file is left, by a fault of the lock itself: nobody holds it, and the next hook removes it."""
    locks = all(path.startswith("/run/nvgraft/lock/") for path in state.run)
    return site is not None and site.place.startswith("lock.py") and locks and state._replace(run=(), programs=before.programs) == before


def _covers(name: str, thing: str) -> bool:
    if name.startswith("SONAME links in "):
        return os.path.dirname(thing) == name.removeprefix("SONAME links in ")
    if name.startswith("device rule"):
        return thing == "device rules"
    return name == thing


def residue(before: State, state: State) -> list[str]:
    """Return what ``state`` has, or lacks, in the words of the hook's own report. A journal is meant to stay with the rest."""
    changed = {path for path, _ in before.files ^ state.files}
    mounts = [f"mount {_inside(mount)}" for mount in state.mounts if mount not in before.mounts]
    rules = ["device rules"] if state.rules != before.rules else []
    others = [path for path in state.run if "/journal/" not in path] + [thing for thing in state.host if thing not in before.host]
    return [*sorted(changed), *mounts, *rules, *others]


def _inside(mount: str) -> str:
    return mount.split(" ")[1].removeprefix(str(ROOTFS))


def difference(wanted: State, got: State) -> str:
    """Say how two states differ, briefly."""
    parts = []
    for name, first, second in zip(State._fields, wanted, got, strict=True):
        if first != second:
            missing, new = [thing for thing in first if thing not in second], [thing for thing in second if thing not in first]
            parts.append(f"{name} +{new[:3]} -{missing[:3]}" if missing or new else f"{name} in another order")
    return "; ".join(parts)


def places(sites: Iterable[Site], choice: random.Random) -> list[Site]:
    """Return one of the calls from each place of the code, by chance."""
    by_place: dict[tuple[int, str, str], list[Site]] = {}
    for site in sites:
        by_place.setdefault((site.process, site.call, site.place), []).append(site)
    return [choice.choice(found) for found in by_place.values()]


def each_call_fails(campaign: Campaign, choice: random.Random, *, full: bool, only: Callable[[Site], bool] = lambda site: True) -> None:
    """T45, T46: every call with every errno; small: a call from each place, with one."""
    if full:
        for site in filter(only, campaign.sites):
            for number in ERRNOS:
                campaign.strike(site, Fault("error", number))
    else:
        for site in places(filter(only, campaign.sites), choice):
            campaign.strike(site, Fault("error", choice.choice(ERRNOS)))


def each_call_is_short(campaign: Campaign, choice: random.Random, *, full: bool) -> None:
    """T47: the kernel takes or gives half of what was asked."""
    sites = [site for site in campaign.sites if site.call in {"read", "pread", "write"}]
    for site in sites if full else places(sites, choice):
        campaign.strike(site, Fault("short"))


def signals_come(campaign: Campaign, choice: random.Random, *, full: bool) -> None:
    """T49: each signal that ends a hook, before and after every call."""
    for site in campaign.sites if full else places(campaign.sites, choice):
        if site.process == HOOK:
            for number in SIGNALS if full else (choice.choice(SIGNALS),):
                for moment in ("before", "after") if full else (choice.choice(("before", "after")),):
                    campaign.strike(site, Fault(moment, number))


def undo_fails_too(campaign: Campaign, choice: random.Random, *, full: bool) -> None:
    """T46: one call fails, and then one of those that take everything back."""
    calls = [site for site in campaign.sites if site.process == HOOK]
    firsts = [next(site for site in reversed(calls) if site.call == call) for call in ("waitpid", "fork") if call in {site.call for site in calls}]
    if full:
        firsts += choice.sample(calls, 10)
    for site in firsts:
        first = (site, Fault("error", errno.EPERM))
        run = campaign.stage.run({(site.process, site.number): first[1]}, record=True)
        campaign.judge(run, f"{_name(*first)} alone", site=site)
        later = [found for found in run.sites if found.process == HOOK and found.number > site.number]
        for found in later if full else places(later, choice):
            for number in ERRNOS if full else (choice.choice((errno.EPERM, errno.EIO, errno.ENOSPC, errno.EINTR)),):
                campaign.strike(found, Fault("error", number), first)


def _on_stage(versions: Sequence[int], work: Callable[[Campaign], None], nvgraft: str = "") -> Tally:
    total = NOTHING
    for version in versions:

        def measured(version: int = version) -> Tally:
            with on_stage(version, nvgraft=nvgraft) as stage:
                campaign = Campaign(stage)
                work(campaign)
                return campaign.tally()

        total += run_in_mount_namespace(measured)
    return total


def of_cgroups(site: Site) -> bool:
    """Tell whether a call is about device rules: all others are the same with either version."""
    return site.place.startswith(("apply/cgroup.py", "apply/bpf.py"))


def failing_calls(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    full = size == "full"
    tally = _on_stage([2], lambda campaign: each_call_fails(campaign, choice, full=full))
    return tally + _on_stage([1], lambda campaign: each_call_fails(campaign, choice, full=full, only=of_cgroups))


def failing_undo(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    return _on_stage(VERSIONS if size == "full" else [2], lambda campaign: undo_fails_too(campaign, choice, full=size == "full"))


def short_calls(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    return _on_stage(VERSIONS, lambda campaign: each_call_is_short(campaign, choice, full=size == "full"))


def signalled(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    return _on_stage([2], lambda campaign: signals_come(campaign, choice, full=size == "full"))
