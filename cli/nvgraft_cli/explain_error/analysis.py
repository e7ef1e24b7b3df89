"""Analyse a pasted error: which programs passed it on, which stage failed, the cause, what to do.

Engines quote the runtime's message and runtimes quote the hook's, each with a prefix of its own,
and some escape it once more. The known errors are data: ``nvgraft_specs/errors.toml``.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nvgraft_specs
from nvgraft_specs.checks import FAILURES

#: Only the last bytes of a longer paste are analysed: the error is at its end.
LIMIT = 1 << 18

#: The reference's stages in their order: the stages before the failing one have succeeded.
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
    """A program that passed on another program's error."""

    name: str
    says: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """One recognised error.

    :ivar failure: the id that ``nvgraft doctor`` uses, or "".
    :ivar stage: the stage that prints the error.
    :ivar words: the recognised part of the paste.
    :ivar next: what to do next.
    """

    failure: str
    title: str
    stage: str
    words: str
    cause: str
    next: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a paste.

    :ivar wrappers: the programs that passed the error on, the outermost first.
    :ivar stage: the failing program's own name of the stage, or "".
    :ivar detail: the failing program's own message, or "".
    """

    wrappers: tuple[Wrapper, ...]
    stage: str
    detail: str
    meanings: tuple[Meaning, ...]


#: Compiled patterns, each with its table of errors.toml.
_Table = list[tuple[re.Pattern[str], dict[str, Any]]]


@cache
def _known_errors() -> tuple[_Table, _Table]:
    """Return the errors and the wrappers of errors.toml."""
    data = tomllib.loads(Path(nvgraft_specs.__file__).with_name("errors.toml").read_text("utf-8"))
    errors = [(re.compile(row["pattern"], re.IGNORECASE), row) for row in data["error"]]
    return errors, [(re.compile(row["pattern"]), row) for row in data["wrapper"]]


def plain(text: str) -> str:
    """Return the end of ``text`` without terminal sequences and without escaped quotes."""
    text = _TERMINAL.sub("", text[-LIMIT:])
    # The lookbehind makes a long row of backslashes match once, not at each backslash.
    text = re.sub(r"(?<!\\)\\+n", "\n", text)
    text = re.sub(r"(?<!\\)\\+([\"'`])", r"\1", text)
    return text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'})


def analyse(text: str) -> Analysis:
    """Analyse a paste. Errors that are not known are not guessed."""
    text = plain(text)
    known_errors, known_wrappers = _known_errors()
    wrappers = tuple(
        Wrapper(row["name"], row["says"]) for pattern, row in known_wrappers if pattern.search(text)
    )
    by_position: dict[int, Meaning] = {}
    spans: list[tuple[int, int]] = []
    for pattern, row in known_errors:
        match = pattern.search(text)
        if match is None:
            continue
        if any(start < match.end() and match.start() < end for start, end in spans):
            continue  # a more special pattern has matched these words already
        spans.append(match.span())
        by_position[match.start()] = _meaning(row, match)
    meanings = [by_position[position] for position in sorted(by_position)]
    # That crun hides the reason matters only if the paste does not contain the reason.
    if len(meanings) > 1:
        meanings = [meaning for meaning in meanings if meaning.failure != "stderr-hidden"]
    stage = _STAGE.search(text)
    return Analysis(
        wrappers, stage[1] if stage else "", stage[2].strip() if stage else "", tuple(meanings)
    )


def _meaning(row: dict[str, Any], match: re.Match[str]) -> Meaning:
    # Of alternatives, only the one that matched has groups: {1} is its first.
    groups = [group for group in match.groups() if group]

    def group_text(reference: re.Match[str]) -> str:
        index = int(reference[1]) - 1
        return groups[index] if index < len(groups) else "it"

    def fill(text: str) -> str:
        return re.sub(r"\{(\d)\}", group_text, text)

    title = next((failure.title for failure in FAILURES if failure.id == row["failure"]), "")
    return Meaning(
        row["failure"],
        title,
        row["stage"],
        match[0],
        fill(row["cause"]),
        tuple(map(fill, row["next"])),
    )
