"""The measuring itself, on a simulated node: starts hooks, one after the other, and prints what they took as JSON.

Each round starts, for every case in turn, a bare interpreter, the hook, and the reference hook where it is installed, each hook
for a new container: a second run in the same one has less to do. A ratio is taken within a round, so that a machine whose
speed drifts, or is shared, spoils a round and not the comparison.
"""

import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.cases import Case, Outcome
from bench.container import container, ldconfig_seconds, make_bundle
from nvgraft.system import syscalls

PYTHON = "/usr/bin/python3"
BARE = [PYTHON, "-IS", "-c", "pass"]
#: The reference hook runs the reference CLI; both are looked up in PATH.
REFERENCE = ("nvidia-container-runtime-hook", "nvidia-container-cli")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: What the hook has kept of an earlier start.
KEPT = "/run/nvgraft/cache"
MOUNTS = "/run/bench-mounts"


class Sample(NamedTuple):
    """One process: when it was started and when it had ended (nanoseconds of CLOCK_MONOTONIC), its seconds of processor time
    and its children's, and what it printed."""

    started: int
    ended: int
    processor: float
    said: str

    @property
    def seconds(self) -> float:
        return (self.ended - self.started) / 1e9


def start(command: list[str], stdin: str, directory: str) -> Sample:
    """Run a command in a working directory (a runtime starts its hooks in the bundle) to its end.

    :raises SystemExit: if it fails: what does not work is not measured.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as warned,
    ):
        given.write(stdin)
        given.seek(0)
        started = time.monotonic_ns()
        process = subprocess.Popen(
            [word.replace("@STARTED@", str(started)) for word in command],
            stdin=given, stdout=said, stderr=warned, env=ENVIRONMENT, cwd=directory,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.monotonic_ns()
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode != 0:
            warned.seek(0)
            raise SystemExit(
                f"bench: {' '.join(command)}: exit status {process.returncode}\n{said.read()}{warned.read()}"
            )
        return Sample(started, ended, usage.ru_utime + usage.ru_stime, said.read())


class Node:
    """The cases of this node and what was measured so far."""

    def __init__(self, prefix: str, cases: list[Case], work: str) -> None:
        self._hook = [f"{prefix}/bin/nvgraft-hook", "prestart"]
        clock = py_compile.compile(
            str(Path(__file__).with_name("phases.py")), f"{work}/phases.pyc", doraise=True
        )
        self._clock = [
            PYTHON,
            "-ISB",
            str(clock),
            f"{prefix}/lib/nvgraft/hook",
            "@STARTED@",
            "prestart",
        ]
        self._reference = all(shutil.which(name) for name in REFERENCE)
        self._work = work
        self._warm: set[Case] = set()  # cases for which something is kept
        self.outcomes = {
            case: Outcome(case.name, [], [], [], [], [], [], 0, 0, None, None) for case in cases
        }
        for case in cases:
            make_bundle(self._bundle(case), case)

    def _bundle(self, case: Case) -> str:
        return f"{self._work}/{list(self.outcomes).index(case)}"  # a comma would end a mount option

    def _hook_run(self, case: Case, command: list[str]) -> Sample:
        """One start for a new container, with the inventory as the case wants it."""
        bundle = self._bundle(case)
        if not case.cached:
            shutil.rmtree(KEPT, ignore_errors=True)
            self._warm.clear()
        elif case not in self._warm:
            with container(bundle, case.image) as state:
                start(self._hook, state, bundle)
            self._warm.add(case)
        with container(bundle, case.image) as state:
            return start(command, state, bundle)

    def round(self, case: Case) -> None:
        """One round of one case."""
        outcome = self.outcomes[case]
        bare, hook = start(BARE, "", self._work), self._hook_run(case, self._hook)
        outcome.bare.append(bare.seconds)
        outcome.bare_processor.append(bare.processor)
        outcome.seconds.append(hook.seconds)
        outcome.processor.append(hook.processor)
        if self._reference:
            command = [REFERENCE[0], "prestart"]
            outcome.reference.append(self._hook_run(case, command).seconds)
        if case.phases:
            sample = self._hook_run(case, self._clock)
            said = json.loads(sample.said.splitlines()[-1])
            phases = said["phases"]
            phases["process end"] = sample.ended - said["ended"]
            outcome.phases.append(phases)
            self.outcomes[case] = outcome._replace(
                memory=max(outcome.memory, said["peak"]), modules=said["modules"]
            )

    def count_calls(self, case: Case) -> None:
        """Count the system calls of one start, of its children too, and the programs that it executes."""
        if not case.calls or shutil.which("strace") is None:
            return
        trace = f"{self._work}/trace"
        self._hook_run(case, ["strace", "-f", "-qq", "-o", trace, *self._hook])
        with open(trace, encoding="utf-8", errors="replace") as file:
            # PID NAME(ARGUMENTS...; the second half of a call that was interrupted begins with "<...".
            calls = [
                name
                for line in file
                if (name := line.split(None, 1)[1].partition("(")[0]).isidentifier()
            ]
        self.outcomes[case] = self.outcomes[case]._replace(
            syscalls=len(calls), executed=calls.count("execve") + calls.count("execveat") - 1
        )


def mount(count: int) -> None:
    """Have ``count`` mounts more on this host."""
    for number in range(count):
        path = f"{MOUNTS}/{number}"
        os.makedirs(path)
        syscalls.mount("tmpfs", path, "tmpfs", 0, "size=4k")


def main(prefix: str, rounds: int, cases: list[Case], images: list[str], mounts: int) -> int:
    """Measure and print one JSON object: outcomes, and for each of ``images`` the seconds that ldconfig takes for it."""
    mount(mounts)
    work = tempfile.mkdtemp(prefix="nvgraft-bench.", dir="/run")
    try:
        node = Node(prefix, cases, work)
        for number in range(rounds):
            for case in cases:
                node.round(case)
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
    """Do what a JSON object asks for: it has a member for each further parameter of :func:`main`."""
    given = json.loads(request)
    given["cases"] = [
        Case(name, tuple(variables), *rest) for name, variables, *rest in given["cases"]
    ]
    return main(prefix, **given)
