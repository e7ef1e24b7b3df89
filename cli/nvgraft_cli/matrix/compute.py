"""Plan every container on every host.

Each host is read once, each container opened once in each process, and each pair is one plan.
Hosts with equal documents are planned once. The pairs are spread over processes.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection, wait
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import Bind, Plan, Tmpfs
from nvgraft_cli.case.bundle import ContainerSide, open_container
from nvgraft_cli.case.hosts import HostSide, open_host
from nvgraft_cli.case.planning import Case
from nvgraft_cli.shell import logs, refusals
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.progress import Progress
from nvgraft_specs.models.matrix import SCHEMA, Cell, Hosts, Matrix, Warned

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    _Part = tuple[tuple[int, int], list[Cell] | InputError]
    _Reader = Connection[Any, _Part]
    _Writer = Connection[_Part, Any]

_OUTCOMES = {"inject": "runs", "skip": "skipped", "refuse": "refused"}

#: Containers in one task: few enough for progress and an even load, and worth one message.
_SLICE = 50

_hosts: list[HostSide] = []
_containers: list[ContainerSide | Refusal] = []
_mode = ["hook"]


def expand(names: Sequence[str], what: str, suffix: str) -> list[str]:
    """Replace each directory that is not a bundle by its files or bundles, sorted.

    :param what: what is looked for, for the error.
    :param suffix: the suffix of the files to take; "" for directories with a config.json.
    :raises InputError: when a directory has none.
    """
    expanded = []
    for name in names:
        if not os.path.isdir(name) or _is_bundle(name):
            expanded.append(name)
            continue
        paths = [os.path.join(name, entry) for entry in sorted(os.listdir(name))]
        selected = [
            path for path in paths if (path.endswith(suffix) if suffix else _is_bundle(path))
        ]
        if not selected:
            raise InputError(
                f"{name}: there is no {what} in this directory | name the files themselves, or the "
                "directory that contains them"
            )
        expanded += selected
    return expanded


def _is_bundle(path: str) -> bool:
    return os.path.exists(os.path.join(path, "config.json"))


def compute(
    hosts: Sequence[str],
    bundles: Sequence[str],
    config_path: str | None,
    jobs: int,
    mode: str = "hook",
) -> Matrix:
    """Plan every bundle on every host.

    :param hosts: snapshots or names of gallery hosts, as :func:`expand` returns them.
    :param jobs: the number of processes.
    :param mode: how the containers are started, as :class:`nvgraft_cli.case.planning.Case` has it.
    :raises InputError: when any input cannot be used.
    """
    groups = _fold(hosts, config_path)
    # The workers are forked later and inherit these.
    _hosts[:] = [group[0] for group in groups.values()]
    _containers[:] = [_open(path) for path in bundles]
    _mode[:] = [mode]
    tasks = [
        (host, start) for start in range(0, len(bundles), _SLICE) for host in range(len(_hosts))
    ]
    cells: dict[tuple[int, int], list[Cell]] = {}
    with Progress("planning", len(_hosts) * len(bundles), "pairs") as progress:
        for task, part in _run(tasks, jobs):
            if isinstance(part, InputError):
                raise part
            cells[task] = part
            progress.step(len(part))
    rows = []
    for index, group in enumerate(groups.values()):
        document: dict[str, Any] = group[0].document or {}
        nvml = document["nvml"]
        rows.append(
            Hosts(
                names=[side.label for side in group],
                driver_version=nvml["driver_version"],
                cuda_version=nvml["cuda_version"],
                gpus=[gpu["model"] for gpu in nvml["gpus"]],
                cells=[
                    cell for start in range(0, len(bundles), _SLICE) for cell in cells[index, start]
                ],
            )
        )
    return Matrix.model_validate({"schema": SCHEMA, "bundles": list(bundles), "hosts": rows})


def _fold(names: Sequence[str], config_path: str | None) -> dict[str, list[HostSide]]:
    """Group hosts by the content of their documents, without the name, which no rule reads."""
    groups: dict[str, list[HostSide]] = {}
    with Progress("reading", len(names), "hosts") as progress:
        for name in names:
            try:
                side = open_host(name, config_path)
            except Refusal as refusal:
                raise InputError(refusal.line()) from refusal
            content = {key: value for key, value in (side.document or {}).items() if key != "name"}
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            if digest in groups:
                reason = f"planned with {groups[digest][0].label}: they are equal"
                logs.debug("skipped", name=side.label, reason=reason)
            groups.setdefault(digest, []).append(side)
            progress.step()
    return groups


def _open(path: str) -> ContainerSide | Refusal:
    try:
        return open_container(path)
    except Refusal as refusal:
        return refusal  # the hook would refuse this config.json on every host


def _run(
    tasks: list[tuple[int, int]], jobs: int
) -> Iterator[tuple[tuple[int, int], list[Cell] | InputError]]:
    if jobs == 1 or len(tasks) == 1:
        yield from _plan(tasks)
        return
    # Only pipes: the locks of a pool are files, which a confined command cannot create.
    context = multiprocessing.get_context("fork")
    workers: dict[_Reader, ForkProcess] = {}
    try:
        for first in range(count := min(jobs, len(tasks))):
            reader, writer = context.Pipe(duplex=False)
            worker = context.Process(
                target=_work, args=(tasks[first::count], writer, [*workers, reader])
            )
            worker.start()
            writer.close()
            workers[reader] = worker
        waiting = list(workers)
        while waiting:
            for ready in wait(waiting):
                assert isinstance(ready, Connection)
                try:
                    yield ready.recv()
                except EOFError:
                    waiting.remove(ready)
                    workers[ready].join()
                    if code := workers[ready].exitcode:
                        raise InputError(
                            f"a planning process ended with {code} | check the inputs: one is too "
                            "large or damaged"
                        ) from None
    finally:
        for reader in workers:
            reader.close()  # a worker that still plans then ends at its next message
        for worker in workers.values():
            worker.join()


def _work(tasks: list[tuple[int, int]], writer: "_Writer", readers: "list[_Reader]") -> None:
    for reader in readers:
        reader.close()
    with contextlib.suppress(BrokenPipeError):
        for part in _plan(tasks):
            writer.send(part)


def _plan(
    tasks: list[tuple[int, int]],
) -> Iterator[tuple[tuple[int, int], list[Cell] | InputError]]:
    """Plan tasks in which the hosts of a slice follow one another, and close its containers after
    the last: a process may have 1,024 files open, and each container has some.
    """
    for start, hosts in groupby(tasks, key=itemgetter(1)):
        try:
            yield from map(_plan_slice, hosts)
        finally:
            for container in _containers[start : start + _SLICE]:
                if isinstance(container, ContainerSide):
                    container.close()


def _plan_slice(task: tuple[int, int]) -> tuple[tuple[int, int], list[Cell] | InputError]:
    host, start = task
    try:
        return task, [
            _cell(_hosts[host], container) for container in _containers[start : start + _SLICE]
        ]
    except InputError as error:
        return task, error


def _cell(host: HostSide, container: ContainerSide | Refusal) -> Cell:
    refusal: Refusal | None
    if isinstance(container, Refusal):
        plan, refusal = Plan("refuse", container.reference_line()), container
    else:
        plan, refusal = Case(host, container, _mode[0]).outcome
    warnings = [
        Warned(id=finding.id, message=finding.message)
        for finding in plan.findings
        if finding.level == "warning"
    ]
    mounts = sum(isinstance(action, Bind | Tmpfs) for action in plan.actions)
    reason = "" if plan.decision == "inject" else plan.reason
    return Cell.model_validate(
        {
            "outcome": _OUTCOMES[plan.decision],
            "reason": reason,
            "warnings": warnings,
            "refusal": None if refusal is None else refusals.describe(refusal),
            "mounts": mounts,
        }
    )
