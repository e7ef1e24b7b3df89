"""Show the figures: on a terminal, and in docs/performance.md with its charts."""

import datetime
import os
import platform
from pathlib import Path

from bench import chart
from bench.measure import Figures
from bench.report import (
    BESIDE_HEADINGS,
    CURVE_HEADINGS,
    EDITS_HEADINGS,
    HEADINGS,
    PLUGIN_HEADINGS,
    Curve,
    markdown_table,
    phase_cells,
    phase_medians,
    text_table,
)

PAGE, PHASES, GROWTH = "performance.md", "performance-phases.svg", "performance-growth.svg"
#: A person writes the explanation of the figures above this line; each run replaces the text below.
MARK = "<!-- Below this line everything is written by ./dev bench --write. -->"

#: Starts whose phases are drawn on a terminal, where eight charts would be too many.
_DRAWN = ("no GPU, cached", "2 GPUs, cached", "2 GPUs, not cached")
_OFFLINE_HEADINGS = ["offline", "ms", "target"]


def machine() -> str:
    """Return where and when the figures were measured."""
    uname = os.uname()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"Linux {uname.release} {uname.machine}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, load {load}, {date}"
    )


def as_text(figures: Figures) -> str:
    """Return all tables, and the phases as bars."""
    rounds = len(figures.rows[0].outcome.hook.seconds)
    bars = {outcome.name: phase_medians(outcome) for outcome in figures.phases}
    beside = _beside_cells(figures)
    return "\n\n".join(
        [
            f"{machine()}\nmedian of {rounds} rounds, tenth to ninetieth percentile in parentheses",
            text_table(HEADINGS, [row.cells() for row in figures.rows]),
            "\n".join(figures.notes),
            text_table(EDITS_HEADINGS, [edits.cells() for edits in figures.edits]),
            *([text_table(BESIDE_HEADINGS, beside)] if beside else []),
            text_table(["phase, ms", *bars], phase_cells(figures.phases)),
            chart.text_bars({name: bars[name] for name in _DRAWN}),
            text_table(CURVE_HEADINGS, _curve_cells(figures.curves)),
            text_table(_OFFLINE_HEADINGS, _offline_cells(figures)),
            text_table(PLUGIN_HEADINGS, [figure.cells() for figure in figures.plugin]),
        ]
    )


def write_page(directory: Path, figures: Figures, command: str) -> None:
    """Replace the figures of docs/performance.md and its charts."""
    bars = {outcome.name: phase_medians(outcome) for outcome in figures.phases}
    (directory / PHASES).write_text(chart.svg_bars(bars))
    (directory / GROWTH).write_text(
        chart.svg_curves([(curve.name, curve.milliseconds()) for curve in figures.curves])
    )
    page = directory / PAGE
    kept = page.read_text().partition(MARK)[0].rstrip() if page.exists() else "# What a start costs"
    rounds = len(figures.rows[0].outcome.hook.seconds)
    beside = _beside_cells(figures)
    parts = [
        kept,
        MARK,
        "## Figures",
        (
            f"`{command}` on {machine()}. Medians of {rounds} rounds, "
            "tenth to ninetieth percentile in parentheses."
        ),
        markdown_table(HEADINGS, [row.cells() for row in figures.rows]),
        "\n".join(f"- {note}" for note in figures.notes),
        "## By CDI edits",
        markdown_table(EDITS_HEADINGS, [edits.cells() for edits in figures.edits]),
        *(["## Beside another state", markdown_table(BESIDE_HEADINGS, beside)] if beside else []),
        "## Where the time goes",
        f"![milliseconds by phase]({PHASES})",
        markdown_table(["phase, ms", *bars], phase_cells(figures.phases)),
        "## How it grows",
        f"![milliseconds by size]({GROWTH})",
        markdown_table(CURVE_HEADINGS, _curve_cells(figures.curves)),
        "## Planning offline",
        markdown_table(_OFFLINE_HEADINGS, _offline_cells(figures)),
        "## The device plugin",
        markdown_table(PLUGIN_HEADINGS, [figure.cells() for figure in figures.plugin]),
    ]
    page.write_text("\n\n".join(parts) + "\n")


def _curve_cells(curves: list[Curve]) -> list[list[str]]:
    return [line for curve in curves for line in curve.cells()]


def _beside_cells(figures: Figures) -> list[list[str]]:
    return [row.beside_cells() for row in figures.rows if row.outcome.beside.seconds]


def _offline_cells(figures: Figures) -> list[list[str]]:
    return [[name, taken.text(), target] for name, taken, target in figures.offline]
