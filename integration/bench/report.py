"""Turn outcomes into figures and tables: text for a terminal, Markdown for docs/performance.md."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bench.cases import Outcome
from bench.phases import ORDER

#: The factor of the reference hook and CLI together where they are missing: 15.0 ms to 6.5 ms of a
#: bare start.
STAND_IN = 2.3


class Spread(NamedTuple):
    """Median, tenth and ninetieth percentile."""

    middle: float
    low: float
    high: float

    def text(self, form: str = ".2f") -> str:
        return f"{self.middle:{form}} ({self.low:{form}}-{self.high:{form}})"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of some values."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[8])


class Row(NamedTuple):
    """One line of the first table. ``budget`` is what DESIGN demands, or empty."""

    outcome: Outcome
    budget: str
    #: Seconds that the stand-in takes beyond its factor: ldconfig over a large image.
    extra: float = 0.0

    def cells(self) -> list[str]:
        outcome = self.outcome
        hook, bare = outcome.hook, outcome.bare
        reference = outcome.reference.seconds or [
            STAND_IN * seconds + self.extra for seconds in bare.seconds
        ]
        return [
            outcome.name,
            spread([seconds * 1e3 for seconds in hook.seconds]).text(".1f"),
            _ratio(hook.seconds, bare.seconds).text(),
            _ratio(hook.seconds, reference).text(),
            self.budget,
            _ratio(hook.processor, bare.processor).text(),
            f"{outcome.memory / 1e6:.1f}" if outcome.memory else "",
            str(outcome.modules or ""),
            _count(outcome.syscalls),
            _count(outcome.executed),
        ]

    def beside_cells(self) -> list[str]:
        """Return the line of the table that compares two installations."""
        hook, beside = self.outcome.hook, self.outcome.beside
        return [
            self.outcome.name,
            spread([seconds * 1e3 for seconds in beside.seconds]).text(".1f"),
            _ratio(hook.seconds, beside.seconds).text(".3f"),
            _ratio(hook.processor, beside.processor).text(".3f"),
        ]


HEADINGS = [
    "start",
    "ms",
    "to a bare start",
    "to the reference",
    "budget",
    "processor time",
    "peak MB",
    "modules",
    "system calls",
    "programs run",
]
BESIDE_HEADINGS = ["start", "old ms", "new/old", "new/old, processor time"]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of the ratios of rounds."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def phase_medians(outcome: Outcome) -> dict[str, float]:
    """Return the median milliseconds of each phase."""
    return {phase: statistics.median(row[phase] for row in outcome.phases) / 1e6 for phase in ORDER}


def phase_cells(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return the table of phases: a line for each phase, a column for each outcome, and their
    sums.
    """
    columns = [phase_medians(outcome) for outcome in outcomes]
    lines = [[phase, *(f"{column[phase]:.2f}" for column in columns)] for phase in ORDER]
    return [*lines, ["sum", *(f"{sum(column.values()):.2f}" for column in columns)]]


class Curve(NamedTuple):
    """The growth of cost: points of (size, outcome) for one kind of size."""

    name: str
    points: list[tuple[int, Outcome]]

    def milliseconds(self) -> list[tuple[int, float]]:
        return [
            (size, statistics.median(outcome.hook.seconds) * 1e3) for size, outcome in self.points
        ]

    def cells(self) -> list[list[str]]:
        return [
            [
                self.name,
                f"{size:,}",
                spread([seconds * 1e3 for seconds in outcome.hook.seconds]).text(".1f"),
                _ratio(outcome.hook.seconds, outcome.bare.seconds).text(),
            ]
            for size, outcome in self.points
        ]


class Edits(NamedTuple):
    """Starts by nvgraft-runtime in mode jit-cdi with all hooks, and the reference's in the same
    rounds. A run is (seconds of the runtime, of the hooks, of the processor, number of hooks).
    """

    name: str
    ours: list[tuple[float, float, float, int]]
    reference: list[tuple[float, float, float, int]] | None = None

    def cells(self) -> list[str]:
        walls = [run[0] + run[1] for run in self.ours]
        cells = [
            self.name,
            str(self.ours[0][3]),
            spread([run[0] * 1e3 for run in self.ours]).text(".1f"),
            spread([run[1] * 1e3 for run in self.ours]).text(".1f"),
        ]
        if not self.reference:
            return [*cells, "", "", ""]
        theirs = [run[0] + run[1] for run in self.reference]
        processor = [run[2] for run in self.ours], [run[2] for run in self.reference]
        return [*cells, _ratio(walls, theirs).text(), "1.0x (aim 0.7x)", _ratio(*processor).text()]


class Limited(NamedTuple):
    """A figure of the device plugin, and what issue 17 allows: its median may not be greater."""

    name: str
    values: Sequence[float]
    limit: float | None = None

    @property
    def exceeded(self) -> bool:
        return self.limit is not None and spread(self.values).middle > self.limit

    def cells(self) -> list[str]:
        return [
            self.name,
            spread(self.values).text() if len(self.values) > 1 else f"{self.values[0]:.2f}",
            "" if self.limit is None else f"{self.limit:,g}",
        ]


PLUGIN_HEADINGS = ["device plugin", "measured", "limit"]

EDITS_HEADINGS = [
    "start by CDI edits",
    "hooks",
    "runtime ms",
    "hooks ms",
    "to the reference",
    "budget",
    "processor time to the reference",
]

CURVE_HEADINGS = ["what grows", "size", "ms", "to a bare start"]


def text_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal. All columns but the first are aligned to the right."""
    widths = [
        max(len(line[index]) for line in (headings, *lines)) for index in range(len(headings))
    ]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not index else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (headings, *lines)
    )


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return the same table as Markdown."""
    rule = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *lines))
