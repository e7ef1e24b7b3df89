"""Measure on a simulated node: start hooks one after another, and print their times as JSON.

Each round starts, for every case, a bare interpreter, the hook, the hook of another installation if
one was named, and the reference hook if there is one. Each hook gets a new container, because a
second run in the same one has less to do. Cases, and the programs of a case, are shuffled in each
round, so that no program always follows the same one. Ratios are taken within a round, so that a
change of the machine's speed spoils a round and not the comparison.
"""

import json
import os
import py_compile
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.cases import Case, Outcome, Times
from bench.container import container, ldconfig_seconds, make_bundle
from nvgraft.system import syscalls

PYTHON = "/usr/bin/python3"
BARE = [PYTHON, "-IS", "-c", "pass"]
#: The reference hook runs the reference CLI. Both are looked up in PATH.
REFERENCE = ("nvidia-container-runtime-hook", "nvidia-container-cli")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What the hook keeps between starts.
KEPT = "/run/nvgraft/cache"
MOUNTS = "/run/bench-mounts"


class Hook(NamedTuple):
    """A way to run a hook.

    ``kept`` is the directory in which what its starts keep waits for the next one, because two
    installations need not understand each other's documents.
    """

    command: list[str]
    kept: str
    path: str = PATH


class Sample(NamedTuple):
    """One process: its start and end (ns of CLOCK_MONOTONIC), processor time and output.

    The processor time is in seconds, for the process and for its children.
    """

    started: int
    ended: int
    processor: float
    said: str

    def add_to(self, times: Times) -> None:
        times.seconds.append((self.ended - self.started) / 1e9)
        times.processor.append(self.processor)


def start(command: list[str], stdin: str, directory: str, path: str = PATH) -> Sample:
    """Run a command to its end in a working directory: a runtime starts its hooks in the bundle.

    :raises SystemExit: if it fails. What does not work is not measured.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as warned,
    ):
        given.write(stdin)
        given.seek(0)
        started = time.monotonic_ns()
        try:
            process = subprocess.Popen(
                [word.replace("@STARTED@", str(started)) for word in command],
                stdin=given, stdout=said, stderr=warned, env={"PATH": path}, cwd=directory,
            )  # fmt: skip
        except OSError as error:
            raise SystemExit(f"bench: cannot run {command[0]}: {error.strerror}") from None
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.monotonic_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode != 0:
            warned.seek(0)
            raise SystemExit(
                f"bench: {' '.join(command)}: exit status "
                f"{process.returncode}\n{said.read()}{warned.read()}"
            )
        return Sample(started, ended, usage.ru_utime + usage.ru_stime, said.read())


def find_reference() -> tuple[str, str] | None:
    """Return the reference hook and the PATH in which it finds its CLI; None unless PATH has
    both.
    """
    programs = [shutil.which(name) for name in REFERENCE]
    if not all(programs):
        return None
    return str(programs[0]), ":".join([*(os.path.dirname(str(path)) for path in programs), PATH])


@contextmanager
def kept_in(place: str, *, cached: bool) -> Iterator[None]:
    """Put what earlier starts kept in ``place`` under /run for the context.

    Unless ``cached``, there is nothing, and nothing of this start is kept.
    """
    shutil.rmtree(KEPT, ignore_errors=True)
    if cached and os.path.isdir(place):
        os.rename(place, KEPT)
    yield
    if cached and os.path.isdir(KEPT):
        os.rename(KEPT, place)


class Node:
    """The cases of this node and what was measured so far."""

    def __init__(self, prefix: str, beside: str, cases: list[Case], work: str, seed: int) -> None:
        own, other = f"{work}/kept", f"{work}/kept-beside"
        clock = py_compile.compile(
            str(Path(__file__).with_name("phases.py")), f"{work}/phases.pyc", doraise=True
        )
        library = f"{prefix}/lib/nvgraft/hook"
        self._hook = Hook([f"{prefix}/bin/nvgraft-hook", "prestart"], own)
        self._clock = Hook([PYTHON, "-ISB", str(clock), library, "@STARTED@", "prestart"], own)
        self._hooks = {"hook": self._hook}
        if beside:
            self._hooks["beside"] = Hook([f"{beside}/bin/nvgraft-hook", "prestart"], other)
        reference = find_reference()
        if reference:
            program, path = reference
            self._hooks["reference"] = Hook([program, "prestart"], f"{work}/nothing", path)
        self._work = work
        self._warm: set[tuple[str, Case]] = set()  # those for which something is kept
        self._random = random.Random(seed)
        self.outcomes = {case: Outcome.begun(case.name) for case in cases}
        for case in cases:
            make_bundle(self._bundle(case), case)

    def _bundle(self, case: Case) -> str:
        return f"{self._work}/{list(self.outcomes).index(case)}"  # a comma would end a mount option

    def _run(self, case: Case, hook: Hook) -> Sample:
        """Start a new container once, with the inventory that the case needs."""
        bundle = self._bundle(case)
        with kept_in(hook.kept, cached=case.cached), container(bundle, case.image) as state:
            return start(hook.command, state, bundle, hook.path)

    def round(self) -> None:
        """Run one round of all cases."""
        for case in self._random.sample(list(self.outcomes), len(self.outcomes)):
            self._round_of(case)

    def _round_of(self, case: Case) -> None:
        if case.cached:
            for hook in self._hooks.values():
                if (hook.kept, case) not in self._warm:
                    self._run(case, hook)
                    self._warm.add((hook.kept, case))
        outcome = self.outcomes[case]
        programs = ["bare", *self._hooks, *(["clock"] if case.phases else [])]
        for name in self._random.sample(programs, len(programs)):
            if name == "bare":
                start(BARE, "", self._work).add_to(outcome.bare)
            elif name == "clock":
                self._look_inside(case)
            else:
                self._run(case, self._hooks[name]).add_to(getattr(outcome, name))

    def _look_inside(self, case: Case) -> None:
        sample = self._run(case, self._clock)
        said = json.loads(sample.said.splitlines()[-1])
        searched = set(said["searched"]) - {"nvgraft", "nvgraft.startup"}
        if (
            searched and case.cached and not case.image
        ):  # an image's own libraries may have to be read
            raise SystemExit(
                f"bench: {case.name}: nvgraft.startup.GROUPS lacks {', '.join(sorted(searched))}"
            )
        outcome = self.outcomes[case]
        outcome.phases.append({**said["phases"], "process end": sample.ended - said["ended"]})
        self.outcomes[case] = outcome._replace(
            memory=max(outcome.memory, said["peak"]), modules=said["modules"]
        )

    def count_calls(self, case: Case) -> None:
        """Count the system calls of one start, with those of its children, and the programs
        executed.
        """
        if not case.calls or shutil.which("strace") is None:
            return
        trace = f"{self._work}/trace"
        strace = ["strace", "-f", "-qq", "-o", trace]
        self._run(case, self._hook._replace(command=[*strace, *self._hook.command]))
        with open(trace, encoding="utf-8", errors="replace") as file:
            # PID NAME(ARGUMENTS... The second half of an interrupted call begins with "<...".
            calls = [
                name
                for line in file
                if (name := line.split(None, 1)[1].partition("(")[0]).isidentifier()
            ]
        self.outcomes[case] = self.outcomes[case]._replace(
            syscalls=len(calls), executed=calls.count("execve") + calls.count("execveat") - 1
        )


def mount(count: int) -> None:
    """Add ``count`` mounts to this host."""
    for number in range(count):
        path = f"{MOUNTS}/{number}"
        os.makedirs(path)
        syscalls.mount("tmpfs", path, "tmpfs", 0, "size=4k")


def main(
    prefix: str,
    beside: str,
    seed: int,
    rounds: int,
    cases: list[Case],
    images: list[str],
    mounts: int,
) -> int:
    """Measure, and print one JSON object: outcomes, and the seconds of ldconfig for each of
    ``images``.

    :param beside: the prefix of another installation, measured in the same rounds; empty for none.
    """
    mount(mounts)
    work = tempfile.mkdtemp(prefix="nvgraft-bench.", dir="/run")
    try:
        node = Node(prefix, beside, cases, work, seed)
        time.sleep(0.1)  # the hook keeps nothing of files that have changed less than 50 ms ago
        for number in range(rounds):
            node.round()
            print(f"bench: round {number + 1} of {rounds}", file=sys.stderr)
        for case in cases:
            node.count_calls(case)
        os.makedirs(f"{work}/ldconfig/rootfs")
        ldconfig = {
            image: [ldconfig_seconds(f"{work}/ldconfig", image) for _ in range(rounds)]
            for image in images
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps({"outcomes": list(node.outcomes.values()), "ldconfig": ldconfig}))
    return 0


def measure(prefix: str, request: str) -> int:
    """Measure as a JSON object requests. It has a member for each further parameter of
    :func:`main`.
    """
    given = json.loads(request)
    given["cases"] = [
        Case(name, tuple(variables), *rest) for name, variables, *rest in given["cases"]
    ]
    return main(prefix, **given)
