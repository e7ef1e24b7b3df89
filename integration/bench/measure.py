"""Choose the starts to measure, the nodes and the order."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import hosts, image, planning
from bench.cases import NOTHING, Case, Outcome
from bench.report import STAND_IN, Curve, Edits, Limited, Row, Spread, spread

#: What grows -> the sizes that are measured.
SIZES = {
    "GPUs": (1, 2, 4, 8, 16, 32, 64),
    "entries": (0, 1_000, 5_000, 10_000, 50_000),
    # A snapshot may have 80,000 values, and an entry of the host's loader cache has five.
    "entries of the host": (0, 1_000, 5_000, 10_000),
    "names": (0, 1_000, 5_000, 10_000, 50_000),
    "mounts": (0, 100, 1_000, 3_000),
}
QUICK_SIZES = {
    "GPUs": (1, 2),
    "entries": (0, 1_000),
    "entries of the host": (0, 1_000),
    "names": (0, 1_000),
    "mounts": (0, 100),
}
#: Allocates of the device plugin.
ALLOCATIONS, QUICK_ALLOCATIONS = 10_000, 200
#: Rounds for each point of a curve.
CURVE_ROUNDS = 11

#: Whether the inventory of an earlier start exists -> the words of the table.
_CACHED = {True: "cached", False: "not cached"}


class Figures(NamedTuple):
    """Everything that one run has measured."""

    rows: list[Row]
    phases: list[Outcome]
    curves: list[Curve]
    #: Starts by nvgraft-runtime in mode jit-cdi, with all hooks of the edits.
    edits: list[Edits]
    #: (name, milliseconds, target) of plans made offline.
    offline: list[tuple[str, Spread, str]]
    plugin: list[Limited]
    notes: list[str]


class Bench:
    """One run of the bench."""

    def __init__(
        self, prefix: str, rounds: int, image: Path, *, quick: bool, beside: str, seed: int
    ) -> None:
        self._prefix = prefix
        self._beside = beside
        self._seed = seed
        self._rounds = rounds
        self._quick = quick
        self._image = image
        self._gallery = Path(prefix, "lib/nvgraft/hook/nvgraft_specs/gallery")
        self._notes: list[str] = []

    def measure(self) -> Figures:
        """Measure everything.

        :raises SystemExit: when something does not work, and there is nothing to measure.
        """
        rootfs = self._real_image()
        rows = self._starts(rootfs)
        sizes = QUICK_SIZES if self._quick else SIZES
        curves = [
            *(self._by_gpus(sizes["GPUs"], cached=cached) for cached in (True, False)),
            self._by_entries_of_image(sizes["entries"]),
            self._by_entries_of_host(sizes["entries of the host"]),
            self._by_names_of_image(sizes["names"]),
            self._by_mounts(sizes["mounts"]),
        ]
        edits = self._edits(["", rootfs] if rootfs else [""])
        offline = self._offline()
        plugin = self._plugin()
        phases = [row.outcome for row in rows if row.outcome.phases]
        beside = (
            "the reference hook of this machine"
            if rows[0].outcome.reference.seconds
            else f"{STAND_IN}x a bare start, its stand-in"
        )
        self._notes[:0] = [
            f"to the reference: {beside}",
            f"programs shuffled in each round: --seed {self._seed}",
        ]
        return Figures(rows, phases, curves, edits, offline, plugin, self._notes)

    def _real_image(self) -> str:
        """Return the directory of the real image; empty if there is none."""
        if self._quick and not self._image.exists():
            self._notes.append("no real image: --quick makes none")
            return ""
        trouble = image.prepare(self._image)
        if trouble:
            self._notes.append(f"no real image: {trouble}")
            return ""
        self._notes.append(
            f"real image: {image.libraries(self._image)} entries in its loader cache"
        )
        return str(self._image)

    def _starts(self, rootfs: str) -> list[Row]:
        rows = []
        for gpus in (2, 1, 8):
            cases = []
            if gpus == 2:
                cases += [
                    Case(f"no GPU, {_CACHED[cached]}", NOTHING, cached, phases=True, calls=True)
                    for cached in (True, False)
                ]
            places = ("", rootfs) if rootfs and gpus > 1 else ("",)
            for place in places:
                name = f"{gpus} GPU{'s' * (gpus > 1)}" + (", real image" if place else "")
                cases += [
                    Case(
                        f"{name}, {_CACHED[cached]}",
                        cached=cached,
                        image=place,
                        phases=True,
                        calls=True,
                    )
                    for cached in (True, False)
                ]
            outcomes, ldconfig = self._node(gpus, cases, images=list(places))
            extra = 0.0
            if len(places) > 1 and not outcomes[0].reference.seconds:
                nearly_empty, full = (statistics.median(ldconfig[place]) for place in places)
                extra = full - nearly_empty
                self._notes.append(
                    f"{gpus} GPUs, real image: the stand-in has {extra * 1e3:.1f} ms more, "
                    "ldconfig's over its libraries"
                )
            rows += [
                Row(outcome, _budget(case), extra if case.image else 0.0)
                for case, outcome in zip(cases, outcomes, strict=True)
            ]
        return rows

    def _by_gpus(self, sizes: tuple[int, ...], *, cached: bool) -> Curve:
        points = [
            (gpus, self._node(gpus, [Case("all", cached=cached)], curve=True)[0][0])
            for gpus in sizes
        ]
        return Curve(f"GPUs, {_CACHED[cached]}", points)

    def _by_entries_of_image(self, sizes: tuple[int, ...]) -> Curve:
        cases = [Case(f"{entries} entries", entries=entries) for entries in sizes]
        return Curve(
            "loader cache of the image, entries",
            list(zip(sizes, self._node(2, cases, curve=True)[0], strict=True)),
        )

    def _by_entries_of_host(self, sizes: tuple[int, ...]) -> Curve:
        points = [
            (entries, self._node(2, [Case("all", cached=False)], curve=True, entries=entries)[0][0])
            for entries in sizes
        ]
        return Curve("loader cache of the host, entries, not cached", points)

    def _by_names_of_image(self, sizes: tuple[int, ...]) -> Curve:
        cases = [Case(f"{names} names", names=names) for names in sizes]
        return Curve(
            "names in the library directory of the image",
            list(zip(sizes, self._node(2, cases, curve=True)[0], strict=True)),
        )

    def _by_mounts(self, sizes: tuple[int, ...]) -> Curve:
        return Curve(
            "mounts on the host",
            [
                (mounts, self._node(2, [Case("all")], curve=True, mounts=mounts)[0][0])
                for mounts in sizes
            ],
        )

    def _node(
        self,
        gpus: int,
        cases: list[Case],
        *,
        images: list[str] | None = None,
        curve: bool = False,
        entries: int = 0,
        mounts: int = 0,
    ) -> tuple[list[Outcome], dict[str, list[float]]]:
        """Measure ``cases`` on a node of their own."""
        document = hosts.document(self._gallery, gpus, entries)
        rounds = min(self._rounds, CURVE_ROUNDS) if curve else self._rounds
        request = {
            "beside": "" if curve else self._beside,
            "seed": self._seed,
            "rounds": rounds,
            "cases": cases,
            "images": images or [],
            "mounts": mounts,
        }
        print(
            f"bench: {gpus} GPUs, {entries} entries, {mounts} mounts: "
            f"{', '.join(case.name for case in cases)}",
            file=sys.stderr,
        )
        answer = self._on_node(document, "node", request)
        return [Outcome.from_json(row) for row in answer["outcomes"]], answer["ldconfig"]

    def _edits(self, images: list[str]) -> list[Edits]:
        """Measure starts by CDI edits, beside the reference's where it is in PATH."""
        print("bench: 2 GPUs, mode jit-cdi", file=sys.stderr)
        document = hosts.for_edits(hosts.document(self._gallery, 2))
        request = {"rounds": self._rounds, "images": images, "seed": self._seed}
        answer = self._on_node(document, "edits", request)
        names = {"": "2 GPUs, mode jit-cdi"}
        return [
            Edits(names.get(image, "2 GPUs, mode jit-cdi, real image"), **runs)
            for image, runs in answer.items()
        ]

    def _plugin(self) -> list[Limited]:
        """Measure the device plugin on a node of eight GPUs."""
        print("bench: 8 GPUs, device plugin", file=sys.stderr)
        document = hosts.document(self._gallery, 8)
        count = QUICK_ALLOCATIONS if self._quick else ALLOCATIONS
        request = {"rounds": min(self._rounds, CURVE_ROUNDS), "allocations": count}
        answer = self._on_node(document, "plugin", request)
        starts, lists = zip(*answer["starts"], strict=True)
        milliseconds = [seconds * 1e3 for seconds in answer["allocations"]["seconds"]]
        preferred = [seconds * 1e3 for seconds in answer["preferences"]]
        return [
            Limited("program start to first ListAndWatch, ms", [s * 1e3 for s in starts], 1000),
            Limited("of that, from its registration, ms", [s * 1e3 for s in lists]),
            Limited("Allocate, ms", milliseconds, 5),
            Limited(
                "GetPreferredAllocation, 64 GPUs x 7 MIG devices x 10 shares, ms", preferred, 100
            ),
            Limited("resident memory, MB", [answer["allocations"]["megabytes"]], 75),
            Limited(f"growth over {count:,} Allocates, MB", [answer["allocations"]["growth"]], 1),
        ]

    def _on_node(
        self, document: dict[str, Any], part: str, request: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a part of the bench on a simulated node, and return its answer."""
        with tempfile.NamedTemporaryFile(
            "w", suffix=".json", dir="/var/tmp"
        ) as file:  # a simulated node has a /run of its own
            json.dump(document, file)
            file.flush()
            command = [
                f"{self._prefix}/bin/nvgraft",
                "simulate",
                file.name,
                "--",
                sys.executable,
                "-IB",
                str(Path(__file__).parent),
                part,
            ]
            done = subprocess.run(
                [*command, self._prefix, json.dumps(request)],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"bench: the simulated node ended with exit status {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _offline(self) -> list[tuple[str, Spread, str]]:
        """Measure plans from a snapshot, in this process and by the command."""
        document = self._gallery / f"{hosts.MODEL}.json"
        loaded, alone = planning.seconds(document, 10 if self._quick else 200)
        with tempfile.TemporaryDirectory() as bundle:
            os.makedirs(f"{bundle}/rootfs/usr/bin")
            Path(bundle, "config.json").write_text(json.dumps(planning.bundle_config("rootfs")))
            command = [
                f"{self._prefix}/bin/nvgraft",
                "plan",
                "--host",
                hosts.MODEL,
                "--bundle",
                bundle,
            ]
            whole = [_timed(command) for _ in range(self._rounds)]
        return [
            ("plan from a loaded snapshot", _milliseconds(loaded), "2 ms"),
            ("of that, target and planner", _milliseconds(alone), ""),
            ("nvgraft plan, the whole command", _milliseconds(whole), ""),
        ]


def _timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _milliseconds(seconds: list[float]) -> Spread:
    return spread([value * 1e3 for value in seconds])


def _budget(case: Case) -> str:
    """Return the budget of a case, as DESIGN sets it."""
    if not case.variables:
        return "1.8x a bare start"
    if case.image:
        return "1.0x (aim 0.7x)" if case.cached else ""
    return "1.3x (aim 1.0x)" if case.cached else "3.5x"
