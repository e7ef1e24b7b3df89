"""Faults: each system call fails in turn; signals come at each; memory and disk run out.

These are the calls of the apply phase and of its undo. After a failure nothing of the hook is left:
no mounts, files, links, device rules, programs, locks, journals or processes (SECURITY R33, cases
T45 to T49 and T70). Some calls may fail without harm; then the container is configured as without
the fault, to the last mount.
"""

import errno
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from attacked import LIBS, PLACE, ROOTFS
from harness import run_in_mount_namespace
from nvgraft.apply.cache import rootfs
from nvgraft.system import syscalls
from nvgraft_specs import cdi_hooks
from safety.figures import Figure
from safety.shim import HOOK, Fault, Site
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


class Scene(NamedTuple):
    """A way to start containers: the cgroup version, lines for config.toml's table [nvgraft], and
    the command line of nvgraft-cdi-hook, if that is run.
    """

    version: int
    nvgraft: str
    steps: tuple[str, ...] = ()


#: Together these use all code that applies a plan.
FIRST, SECOND = Scene(2, ""), Scene(1, 'ldcache = "ldconfig"')
THIRD = Scene(
    2,
    "",
    tuple(
        cdi_hooks.in_one(
            [
                [
                    cdi_hooks.CREATE_SYMLINKS,
                    "--link=x::/new/a/b",
                    f"--link=y::{LIBS}/libcuda.so.1,z::/usr/bin/true",
                ],
                [cdi_hooks.UPDATE_LDCACHE, f"--folder={LIBS}", "--folder=/opt/lib"],
                [cdi_hooks.CHMOD, "--mode=711", "--path=/tmp,/etc/ld.so.conf"],
            ]
        )
    ),
)


class Tally(NamedTuple):
    """The results of a campaign: runs, distinct calls struck, how the runs ended, and what was
    wrong.
    """

    runs: int
    sites: int
    undone: int
    unharmed: int
    reported: int
    problems: tuple[str, ...]

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]
        return Tally(
            self.runs + other.runs,
            self.sites + other.sites,
            self.undone + other.undone,
            self.unharmed + other.unharmed,
            self.reported + other.reported,
            self.problems + other.problems,
        )

    @property
    def value(self) -> str:
        """Return the value for the report."""
        ends = f"{self.undone} undone, {self.unharmed} unharmed"
        if self.reported:
            ends += f", {self.reported} left something and named it"
        problems = f"; {len(self.problems)} WRONG: {self.problems[0]}" if self.problems else ""
        return f"{self.runs} runs at {self.sites} calls: {ends}{problems}"


NOTHING = Tally(0, 0, 0, 0, 0, ())


class Campaign:
    """Runs of the hook on one stage, each with faults, and each judged."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        #: Everything as the hook finds it.
        self.before = stage.state()
        plain = stage.run(record=True)
        assert plain.code == 0, plain.stderr
        #: Every call of a start without faults.
        self.sites = plain.sites
        self.success = stage.state()
        assert self.success != self.before
        assert not self.success.run
        self.renew()
        self._places: set[tuple[int, str, str]] = set()
        self._runs = self._undone = self._unharmed = self._reported = 0
        self._problems: list[str] = []

    def tally(self) -> Tally:
        return Tally(
            self._runs,
            len(self._places),
            self._undone,
            self._unharmed,
            self._reported,
            tuple(self._problems),
        )

    def strike(self, site: Site, fault: Fault, first: tuple[Site, Fault] | None = None) -> None:
        """Run the hook with ``fault`` at ``site``, after the fault ``first`` if given, and judge
        the run.
        """
        faults = {(site.process, site.number): fault}
        if first is not None:
            faults[first[0].process, first[0].number] = first[1]
        self._places.add((site.process, site.call, site.place))
        after = f" after {_name(*first)}" if first else ""
        self.judge(
            self.stage.run(faults),
            f"{_name(site, fault)}{after}",
            struck=(site, fault),
            may_leave=first is not None,
        )

    def judge(
        self,
        run: Run,
        what: str,
        *,
        struck: tuple[Site, Fault] | None = None,
        may_leave: bool = False,
    ) -> None:
        """Count ``run`` and note what is wrong with it. The stage is as before afterwards.

        :param may_leave: whether things may be left if they are named: the fault persists during
            the undo.
        """
        self._runs += 1
        state = self.stage.state()
        problem = ""
        if run.code == 0:
            self._unharmed += 1
            if state.success() != self.success.success() and not _is_excused(
                self.success, state, struck, succeeded=True
            ):
                problem = (
                    "succeeded, but not as without it: "
                    f"{difference(self.success.success(), state.success())}"
                )
        elif run.code == 1:
            self._undone += 1
            if state != self.before and not _is_excused(
                self.before, state, struck, succeeded=False
            ):
                problem = f"left behind: {difference(self.before, state)}"
            elif "nvgraft: " not in run.stderr:
                problem = f"said nothing: {run.stderr!r}"
        elif run.code == 3 and may_leave:
            self._reported += 1
            problem = self._unreported(run, state)
        else:
            problem = (
                f"ended with {run.code}: {difference(self.before, state)}; "
                f"{run.stderr.strip()[-300:]}"
            )
        if problem:
            self._problems.append(f"{what}: {problem}")
        if run.code != 1 or problem or state != self.before:
            self.renew()

    def renew(self) -> None:
        """Set up a new container like the first one, except for the number of its device
        program.
        """
        self.stage.renew()
        state = self.stage.state()
        assert state.success() == self.before.success(), difference(self.before, state)
        self.before = state

    def _unreported(self, run: Run, state: State) -> str:
        """Name things that a failed undo left without reporting them, then run the recovery."""
        left = residue(self.before, state)
        named = run.reported()
        silent = [thing for thing in left if not any(_covers(name, thing) for name in named)]
        if silent or not named:
            return f"left {silent or left} and named {named}"
        # The loader cache step may not know whether anything is left, and a mount may go with the
        # one below it.
        sure = [
            name
            for name in named
            if not name.startswith(("SONAME links in ", "/etc/ld.so.cache", "mount /proc/driver/"))
        ]
        empty = [name for name in sure if not any(_covers(name, thing) for thing in left)]
        if empty:
            return f"named {empty}, which is not left"
        self.stage.end_container()
        if not self.stage.recover():
            return "not recovered"
        self.stage.renew(files=False)
        rest = self.stage.state()
        return (
            ""
            if (rest.files, rest.run) == (self.before.files, ())
            else f"after recovery: {difference(self.before, rest)}"
        )


def _name(site: Site, fault: Fault) -> str:
    detail = (
        errno.errorcode[fault.detail]
        if fault.kind == "error"
        else signal.Signals(fault.detail).name
        if fault.detail in SIGNALS
        else ""
    )
    return (
        f"{fault.kind} {detail} at {site.call} #{site.number} of process {site.process} "
        f"({site.place})"
    )


#: Code that reads the image's own libraries. Like ldconfig, it leaves an unreadable library out of
#: the cache.
_OF_THE_IMAGE = tuple(
    f"{name}.py"
    for name in (
        "apply/cache/library_search",
        "apply/cache/rootfs",
        "apply/cache/search_path",
        "apply/descriptors",
        "formats/elf",
    )
)
#: The calls of these lookups, and the calls with which each opens directories.
_LOOKS = {
    "open",
    "openat",
    "openat2",
    "readlink",
    "readlinkat",
    "stat",
    "newfstatat",
    "lstat",
    "listdir",
    "getdents64",
    "scandir",
}
_OPENS = ":open_in_root"


def _is_excused(
    expected: State, state: State, struck: tuple[Site, Fault] | None, *, succeeded: bool
) -> bool:
    """Tell whether the fault itself explains a difference.

    A fault of the lock leaves its file: no process holds it, and the next hook removes it. Where
    the kernel reports that a cgroup hierarchy or a library directory is missing, nothing is added
    to it. The image's own files may be missing (:func:`nvgraft.apply.cache.rootfs.check_absent`):
    the cache is written without them. A failed start leaves no cache, whatever it read.
    """
    if struck is None:
        return False
    site, fault = struck
    if (site.call, fault) == ("chmod", Fault("error", errno.EPERM)):
        return True  # the reference ignores this error
    expected, state = expected.success(), state.success()
    if site.place.startswith("system/lock.py"):
        return (
            all(path.startswith("/run/nvgraft/lock/") for path in state.run)
            and state._replace(run=()) == expected
        )
    answered = (
        fault.kind == "error"
        and fault.detail in rootfs.ABSENT
        and (site.place.endswith(_OPENS) or not site.place)
    )
    if succeeded and (site.place.startswith(_OF_THE_IMAGE) or (answered and site.call in _LOOKS)):
        return _without_cache(state) == _without_cache(expected)
    absent = fault == Fault("error", errno.ENOENT) and site.place.endswith((":open_mounts", _OPENS))
    return absent and state._replace(rules=expected.rules, files=expected.files) == expected


def _without_cache(state: State) -> State:
    return state._replace(
        files=frozenset(entry for entry in state.files if entry[0] != "/etc/ld.so.cache")
    )


def _covers(name: str, thing: str) -> bool:
    if name.startswith("SONAME links in "):
        return os.path.dirname(thing) == name.removeprefix("SONAME links in ")
    if name.startswith("device rule"):
        return thing == "device rules"
    return name == thing


def residue(before: State, state: State) -> list[str]:
    """Return what ``state`` has too much, or lacks, in the words of the hook's own report.

    A journal is meant to stay with the rest.
    """
    changed = {path for path, _ in before.files ^ state.files}
    mounts = [f"mount {_inside(mount)}" for mount in state.mounts if mount not in before.mounts]
    rules = ["device rules"] if state.rules != before.rules else []
    others = [path for path in state.run if "/journal/" not in path] + [
        thing for thing in state.host if thing not in before.host
    ]
    return [*sorted(changed), *mounts, *rules, *others]


def _inside(mount: str) -> str:
    return mount.split(" ")[1].removeprefix(str(ROOTFS))


def difference(expected: State, got: State) -> str:
    """Describe briefly how two states differ."""
    parts = []
    for name, first, second in zip(State._fields, expected, got, strict=True):
        if first != second:
            missing, new = (
                [thing for thing in first if thing not in second],
                [thing for thing in second if thing not in first],
            )
            parts.append(
                f"{name} +{new[:3]} -{missing[:3]}"
                if missing or new
                else f"{name} in another order"
            )
    return "; ".join(parts)


def places(sites: Iterable[Site], choice: random.Random) -> list[Site]:
    """Return one random call from each place of the code."""
    by_place: dict[tuple[int, str, str], list[Site]] = {}
    for site in sites:
        by_place.setdefault((site.process, site.call, site.place), []).append(site)
    return [choice.choice(sites_of_place) for sites_of_place in by_place.values()]


def each_call_fails(
    campaign: Campaign,
    choice: random.Random,
    *,
    full: bool,
    only: Callable[[Site], bool] = lambda site: True,
) -> None:
    """T45, T46: every call fails with every errno; small: one call from each place, with one
    errno.
    """
    if full:
        for site in filter(only, campaign.sites):
            for number in ERRNOS:
                campaign.strike(site, Fault("error", number))
    else:
        for site in places(filter(only, campaign.sites), choice):
            campaign.strike(site, Fault("error", choice.choice(ERRNOS)))


def each_call_is_short(campaign: Campaign, choice: random.Random, *, full: bool) -> None:
    """T47: the kernel takes or gives half of what was requested."""
    sites = [site for site in campaign.sites if site.call in {"read", "pread", "write"}]
    for site in sites if full else places(sites, choice):
        campaign.strike(site, Fault("short"))


def signals_come(
    campaign: Campaign,
    choice: random.Random,
    *,
    full: bool,
    only: Callable[[Site], bool] = lambda site: True,
) -> None:
    """T49: each signal that ends a hook comes before and after every call."""
    sites = list(filter(only, campaign.sites))
    for site in sites if full else places(sites, choice):
        if site.process == HOOK:
            for number in SIGNALS if full else (choice.choice(SIGNALS),):
                for moment in (
                    ("before", "after") if full else (choice.choice(("before", "after")),)
                ):
                    campaign.strike(site, Fault(moment, number))


#: ENOENT is not a failure of an undo: the kernel says that there is nothing to take back, and
#: nothing shows that it lies.
_OF_AN_UNDO = tuple(number for number in ERRNOS if number != errno.ENOENT)


def undo_fails_too(campaign: Campaign, choice: random.Random, *, full: bool) -> None:
    """T46: one call fails, then one of the calls that take everything back."""
    calls = [site for site in campaign.sites if site.process == HOOK]
    end = max(
        site.number
        for site in calls
        if site.call == "unlink" and site.place.startswith("apply/journal.py")
    )
    # A signal at the end of the work: all of it is undone.
    firsts = [(calls[end - 1], Fault("after", signal.SIGTERM))]
    firsts += [
        (site, Fault("error", errno.EPERM))
        for site in (choice.sample(calls[:end], 10) if full else ())
    ]
    for index, (site, fault) in enumerate(firsts):
        first = (site, fault)
        run = campaign.stage.run({(site.process, site.number): fault}, record=True)
        campaign.judge(run, f"{_name(*first)} alone", struck=first)
        later = [
            later_site
            for later_site in run.sites
            if later_site.process == HOOK and later_site.number > site.number
        ]
        for found in later if full else places(later, choice):
            for number in (
                _OF_AN_UNDO
                if full and index == 0
                else (choice.choice((errno.EPERM, errno.EIO, errno.ENOSPC, errno.EINTR)),)
            ):
                campaign.strike(found, Fault("error", number), first)


def room_ends(size: str, _seed: int) -> Tally:
    """T48: a root file system has room for a limited number of files or pages, from none to
    enough.
    """

    def work(campaign: Campaign) -> None:
        used = os.statvfs(ROOTFS)
        for files in range(len(campaign.success.files - campaign.before.files) + 2):
            _resize(f"nr_inodes={used.f_files - used.f_ffree + files}")
            campaign.judge(campaign.stage.run(), f"room for {files} files", may_leave=True)
        for pages in range(8):
            _resize(f"nr_inodes=0,size={(used.f_blocks - used.f_bfree + pages) * used.f_frsize}")
            campaign.judge(campaign.stage.run(), f"room for {pages} pages", may_leave=True)
        _resize("nr_inodes=0,size=0")

    return _on_stage([FIRST], work, tmpfs=True)


def _resize(options: str) -> None:
    syscalls.mount(None, str(ROOTFS), None, syscalls.MS_REMOUNT, options)


def limits_are_low(size: str, _seed: int) -> Tally:
    """T48: few descriptors, and little memory, from far too little to enough."""

    def work(campaign: Campaign) -> None:
        for number in range(8, 200, 2 if size == "full" else 24):
            campaign.stage.prepare = partial(_limit, resource.RLIMIT_NOFILE, number)
            campaign.judge(campaign.stage.run(), f"{number} descriptors")
        for step in range(0, 128, 1 if size == "full" else 12):
            campaign.stage.prepare = partial(_limit_memory, step << 16)
            campaign.judge(campaign.stage.run(), f"{step << 6} KiB of memory", may_leave=True)

    return _on_stage([FIRST], work)


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def _limit_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)


def mounts_are_used_up(_size: str, _seed: int) -> Tally:
    """T48: the mount namespace has room for a limited number of mounts (sysctl fs.mount-max)."""

    def work(campaign: Campaign) -> None:
        for room in (0, 1, 2, 7, len(campaign.success.mounts) - len(campaign.before.mounts) - 1):
            campaign.stage.renew()
            campaign.stage.fill(room)
            campaign.before = campaign.stage.state()
            campaign.judge(campaign.stage.run(), f"room for {room} mounts")

    return _on_stage([FIRST], work)


def real_calls_fail(size: str, seed: int) -> Tally:
    """T45: the hook runs as a program under strace(1), and the system call itself fails."""
    choice = random.Random(seed)

    def work(campaign: Campaign) -> None:
        for call, number in _traced_calls(campaign, choice, full=size == "full"):
            for code in choice.sample(ERRNOS, 2 if size == "full" else 1):
                name = errno.errorcode[code]
                run = campaign.stage.trace(
                    "-o",
                    "/dev/null",
                    "-e",
                    f"trace={call}",
                    "-e",
                    f"inject={call}:error={name}:when={number}",
                )
                # strace cannot tell which line made the call.
                unplaced = Site(HOOK, number, call, "")
                campaign.judge(
                    run,
                    f"strace: {name} at {call} #{number}",
                    struck=(unplaced, Fault("error", code)),
                )

    return _on_stage([FIRST], work)


#: Calls of Python itself, calls that cannot fail, and the end.
_NOT_STRUCK = {
    "brk",
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "mprotect",
    "futex",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
} | {
    "exit_group",
    "getpid",
    "getppid",
    "gettid",
    "geteuid",
    "getegid",
    "setitimer",
    "clock_nanosleep",
    "setfsuid",
    "setfsgid",
}


def _traced_calls(
    campaign: Campaign, choice: random.Random, *, full: bool
) -> list[tuple[str, int]]:
    """Return the calls from the journal's beginning to its end, as (name, its count within that
    name).
    """
    trace = PLACE / "trace"
    run = campaign.stage.trace("-o", str(trace))
    assert run.code == 0, run.stderr
    campaign.renew()
    counts: dict[str, int] = {}
    calls: dict[str, list[tuple[str, int]]] = {}
    journal = ""
    for line in trace.read_text().splitlines():
        name = line.partition("(")[0]
        counts[name] = counts.get(name, 0) + 1
        begun = re.match(
            r'openat\(\d+, "([0-9a-f]+-[0-9a-f]+-[0-9a-f]+)", O_WRONLY\|O_CREAT\|O_EXCL', line
        )
        journal = begun[1] if begun else journal
        if journal and name.isidentifier() and name not in _NOT_STRUCK:
            calls.setdefault(name, []).append((name, counts[name]))
        if journal and name == "unlinkat" and journal in line:
            if full:
                return [call for calls_of_name in calls.values() for call in calls_of_name]
            return [choice.choice(calls[call]) for call in choice.sample(sorted(calls), 20)]
    raise AssertionError("no journal was begun, and ended")


def soak(cycles: int) -> str:
    """T70: start and end ``cycles`` containers, and return which resources have grown."""

    def work() -> str:
        with on_stage() as stage:
            stage.run()
            stage.renew()
            first, peak = _resources(stage), 0
            for cycle in range(cycles):
                run = stage.run()
                if run.code:
                    return f"start {cycle}: {run.stderr}"
                peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
                if cycle == 0:
                    start = peak
                stage.end_container()
                # Every second start finds the placeholders of the one before.
                stage.renew(files=cycle % 2 == 0)
            stage.renew()
            last = _resources(stage)
            grown = [
                f"{name}: {first[name]}, then {last[name]}"
                for name in first
                if first[name] != last[name]
            ]
            if peak > start * 1.1:
                grown.append(f"memory: {start} KiB, then {peak}")
            return ", ".join(grown)

    return run_in_mount_namespace(work)


def _resources(stage: Stage) -> dict[str, int]:
    state = stage.state()
    return {
        "files": len(state.files),
        "mounts of a container": len(state.mounts),
        "mounts of the host": len(state.host),
        "locks and journals": len(state.run),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "cgroups": len(list(stage.cgroup_path.parent.glob(f"{stage.cgroup_path.name}*"))),
    }


def _on_stage(
    scenes: Sequence[Scene], work: Callable[[Campaign], None], *, tmpfs: bool = False
) -> Tally:
    total = NOTHING
    for scene in scenes:

        def measured(scene: Scene = scene) -> Tally:
            with on_stage(
                scene.version, nvgraft=scene.nvgraft, tmpfs=tmpfs, steps=scene.steps
            ) as stage:
                campaign = Campaign(stage)
                work(campaign)
                return campaign.tally()

        total += run_in_mount_namespace(measured)
    return total


#: Where the second scene differs from the first one.
_SECOND = tuple(
    f"{name}.py"
    for name in (
        "apply/cgroup",
        "apply/bpf",
        "apply/cache/ldconfig",
        "apply/restore",
        "system/jail",
        "system/seccomp",
        "system/child",
    )
)


def _in_second(site: Site) -> bool:
    return site.process != HOOK or site.place.startswith(_SECOND)


#: Where the third one differs.
_THIRD = ("apply/placement.py", "apply/placed_file.py", "apply/replaced_link.py")


def in_third(site: Site) -> bool:
    """Tell whether only the scene of nvgraft-cdi-hook has this call."""
    return site.place.startswith(_THIRD)


def failing_calls(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    full = size == "full"
    tally = _on_stage([FIRST], lambda campaign: each_call_fails(campaign, choice, full=full))
    for scene, only in ((SECOND, _in_second), (THIRD, in_third)):
        tally += _on_stage(
            [scene],
            lambda campaign, only=only: each_call_fails(  # type: ignore[misc]
                campaign, choice, full=full, only=only
            ),
        )
    return tally


def failing_undo(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    return _on_stage(
        (FIRST, SECOND), lambda campaign: undo_fails_too(campaign, choice, full=size == "full")
    )


def short_calls(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    return _on_stage(
        (FIRST, SECOND), lambda campaign: each_call_is_short(campaign, choice, full=size == "full")
    )


def signalled(size: str, seed: int) -> Tally:
    choice = random.Random(seed)
    tally = _on_stage([FIRST], lambda campaign: signals_come(campaign, choice, full=size == "full"))
    for scene, only in ((SECOND, _in_second), (THIRD, in_third)):
        tally += _on_stage(
            [scene],
            lambda campaign, only=only: signals_come(  # type: ignore[misc]
                campaign, choice, full=size == "full", only=only
            ),
        )
    return tally


#: Measures for every size, by their name in the report.
MEASURES: dict[str, Callable[[str, int], Tally]] = {
    "each call fails": failing_calls,
    "each call fails while an earlier failure is undone": failing_undo,
    "the kernel takes or gives half": short_calls,
    "signals come at each call": signalled,
    "a full file system": room_ends,
    "few descriptors, little memory": limits_are_low,
    "system calls of the hook as a program fail (strace)": real_calls_fail,
}


def figures(size: str, seed: int) -> list[Figure]:
    """Measure at ``size``, with the random ``seed``."""
    measures = dict(MEASURES)
    if size == "full":
        measures["no room for mounts"] = mounts_are_used_up
    tallies = {name: measure(size, seed) for name, measure in measures.items()}
    rows = [
        Figure(name, tally.value, "nothing left, or all of it named", not tally.problems)
        for name, tally in tallies.items()
    ]
    cycles = 10_000 if size == "full" else 100
    grown = soak(cycles)
    rows.append(
        Figure(
            "starts and ends", f"{cycles}, grown: {grown or 'nothing'}", "nothing grown", not grown
        )
    )
    return rows
