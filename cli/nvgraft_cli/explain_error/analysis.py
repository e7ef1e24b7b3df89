"""A pasted error taken apart: who wrapped whom, at which stage it failed, what that means, and what to look at next.

Engines quote what a runtime says, runtimes quote what a hook says, each with its own prefixes, and some escape it once more.
The knowledge itself is data: ``nvgraft_specs/errors.toml``.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nvgraft_specs
from nvgraft_specs.checks import FAILURES

#: Of a longer paste only the end is looked at: the error is there.
LIMIT = 1 << 18

#: The original's stages in the order in which they come: what stands before the failing one has worked.
STAGES = (
    "engine",
    "hook",
    "input",
    "permission",
    "initialization",
    "container",
    "detection",
    "device",
    "mig-config",
    "mig-monitor",
    "requirement",
    "mount",
    "ldcache",
    "inside the container",
)

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_STAGE = re.compile(r"(?:nvidia-container-cli|nvgraft): ([a-z-]+) error: ?([^\n]*)")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that reported somebody else's error."""

    name: str
    says: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """One recognised error: the words that were found, the stage that prints them, the cause, what to look at next.

    ``failure`` is the id that ``nvgraft doctor`` uses, or "".
    """

    failure: str
    title: str
    stage: str
    words: str
    cause: str
    next: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that a paste tells. ``wrappers`` are from the outside in; ``stage`` and ``detail`` are the failing program's own."""

    wrappers: tuple[Wrapper, ...]
    stage: str
    detail: str
    meanings: tuple[Meaning, ...]


@cache
def _knowledge() -> tuple[
    list[tuple[re.Pattern[str], dict[str, Any]]], list[tuple[re.Pattern[str], dict[str, Any]]]
]:
    data = tomllib.loads(Path(nvgraft_specs.__file__).with_name("errors.toml").read_text("utf-8"))
    errors = [(re.compile(row["pattern"], re.IGNORECASE), row) for row in data["error"]]
    return errors, [(re.compile(row["pattern"]), row) for row in data["wrapper"]]


def plain(text: str) -> str:
    """Return the end of ``text`` without terminal sequences and without the backslashes that quoting puts before quotes."""
    text = _TERMINAL.sub("", text[-LIMIT:])
    # Looking back keeps a long row of backslashes from being tried at each of them.
    text = re.sub(r"(?<!\\)\\+n", "\n", text)
    text = re.sub(r"(?<!\\)\\+([\"'`])", r"\1", text)
    return text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})


def analyse(text: str) -> Analysis:
    """Take a paste apart. What is not recognised is not guessed at."""
    text = plain(text)
    errors, known_wrappers = _knowledge()
    wrappers = tuple(
        Wrapper(row["name"], row["says"]) for pattern, row in known_wrappers if pattern.search(text)
    )
    stage = _STAGE.search(text)
    meanings = []
    taken: list[tuple[int, int]] = []
    for pattern, row in errors:
        match = pattern.search(text)
        # A more special row has explained these words already.
        if match is None or any(
            start < match.end() and match.start() < end for start, end in taken
        ):
            continue
        taken.append(match.span())
        meanings.append((match.start(), _meaning(row, match)))
    specific = [meaning for _, meaning in sorted(meanings, key=lambda item: item[0])]
    # That crun hides the reason is news only where the reason is not in the paste.
    if len(specific) > 1:
        specific = [meaning for meaning in specific if meaning.failure != "stderr-hidden"]
    return Analysis(
        wrappers, stage[1] if stage else "", stage[2].strip() if stage else "", tuple(specific)
    )


def _meaning(row: dict[str, Any], match: re.Match[str]) -> Meaning:
    # Of alternatives only one has groups: {1} is the first that took part.
    groups = [group for group in match.groups() if group]

    def fill(text: str) -> str:
        return re.sub(
            r"\{(\d)\}",
            lambda number: groups[int(number[1]) - 1] if int(number[1]) <= len(groups) else "it",
            text,
        )

    title = next((failure.title for failure in FAILURES if failure.id == row["failure"]), "")
    return Meaning(
        row["failure"],
        title,
        row["stage"],
        match[0],
        fill(row["cause"]),
        tuple(map(fill, row["next"])),
    )
