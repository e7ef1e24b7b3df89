"""The safety report: the figures of every module here, a table for each, and whether all are right.

usage: ./dev safety [--size small|full] [--seed N] [--write] [MODULE...]
"""

import argparse
import importlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safety.figures import SIZES, Figure

REPORT = Path(__file__).parent.parent.parent / "docs" / "safety-figures.md"
HEADING = """\
# Safety figures

`./dev safety --write` makes this page; each part was measured by the command that stands in it. \
[Security](security.md) has the meaning of the rules (R) and cases (T).

An attack that harms no naive victim, or a test that notices no mutant, would prove nothing. \
Controls and mutants therefore stand beside the figures.
"""
DEFAULT_SEED = 1

Measure = Callable[[str, int], list[Figure]]


class Section(NamedTuple):
    """The figures of one module."""

    name: str
    title: str
    figures: list[Figure]
    seconds: float


def modules() -> dict[str, tuple[str, Measure]]:
    """Return the modules that measure, by name, with the first line of their docstrings."""
    measuring = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        # Do not load modules that only help. A fuzzed process, for one, changes everything imported
        # after it.
        if "\ndef figures(" in path.read_text():
            module = importlib.import_module(f"safety.{path.stem}")
            measuring[path.stem] = ((module.__doc__ or "").splitlines()[0], module.figures)
    return measuring


def measure(names: Iterable[str], size: str, seed: int) -> list[Section]:
    """Ask each of the modules ``names`` for its figures. A module that fails counts as a wrong
    figure.
    """
    measuring = modules()
    sections = []
    for name in names:
        title, figures = measuring[name]
        print(f"safety: {name} ...", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            measured = figures(size, seed)
        except AssertionError as error:
            measured = [Figure(name, str(error).strip().splitlines()[-1], "a result", False)]
        sections.append(Section(name, title, measured, time.monotonic() - start))
    return sections


def text(section: Section, size: str, seed: int) -> str:
    """Return one part of the report as Markdown."""
    command = f"./dev safety --size {size} --seed {seed} --write {section.name}"
    machine = (
        f"Linux {platform.release()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    )
    lines = [f"## {section.name}", "", section.title, ""]
    lines += [f"`{command}`, {time.strftime('%Y-%m-%d')}, {section.seconds:.0f} s: {machine}.", ""]
    lines += ["| figure | result | has to be | |", "| --- | --- | --- | --- |"]
    for figure in section.figures:
        lines.append(
            f"| {figure.name} | {_cell(figure.value)} | {figure.target} | "
            f"{'ok' if figure.ok else 'NOT OK'} |"
        )
    return "\n".join(lines) + "\n"


def merged(report: str, parts: Mapping[str, str]) -> str:
    """Return ``report`` with its parts replaced by ``parts``, and without parts of modules that are
    gone.
    """
    kept = {part.partition("\n")[0]: f"## {part.strip()}\n" for part in report.split("\n## ")[1:]}
    now = {**kept, **parts}
    return "\n".join([HEADING, *(now[name] for name in modules() if name in now)])


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and with ``--write`` keep the report; return 1 when a figure is wrong."""
    parser = argparse.ArgumentParser(
        prog="./dev safety",
        description="Measure the safety of the hook.",
        epilog="example: ./dev safety --size small race",
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="small",
        help="small takes a minute or two, full some hours (default: small)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=DEFAULT_SEED,
        help="seed of the random choices (default: %(default)s)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write the figures to {REPORT.relative_to(REPORT.parent.parent)}",
    )
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help="only these: " + ", ".join(modules())
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.modules if name not in modules()]
    if unknown:
        parser.error(f"no module {unknown[0]}; there are {', '.join(modules())}")
    sections = measure(options.modules or modules(), options.size, options.seed)
    parts = {section.name: text(section, options.size, options.seed) for section in sections}
    print("\n".join(parts.values()), end="")
    if options.write:
        REPORT.write_text(merged(REPORT.read_text() if REPORT.exists() else "", parts))
    wrong = [figure.name for section in sections for figure in section.figures if not figure.ok]
    print(
        f"safety: {len(wrong)} not as it has to be: {', '.join(wrong)}"
        if wrong
        else "safety: all as it has to be",
        file=sys.stderr,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
