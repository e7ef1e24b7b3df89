"""The document ``nvgraft.story/1``: a decision in steps, as ``nvgraft explain`` tells it."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.story/1"

StepId = Literal[
    "pod",
    "asked",
    "host",
    "place",
    "edits",
    "files",
    "kernel",
    "hooks",
    "loader",
    "original",
    "findings",
    "end",
]


class Fact(Strict):
    """A fact."""

    name: str
    value: str
    why: str = Field(description="where it comes from, or empty")


class Entry(Strict):
    """One file, link or device that is mounted, created or allowed."""

    what: str
    how: str
    why: str
    capability: str = Field(
        description="a driver capability; device: a requested GPU needs it; always: every container"
        " gets it"
    )
    size: int | None = Field(description="in bytes; null where it has none", ge=0)


class Step(Strict):
    """One step of the decision."""

    id: StepId
    title: str
    text: str
    doc: str = Field(description="the page below docs/ to read about this step, with an anchor")
    facts: list[Fact]
    entries: list[Entry]


class Story(Strict):
    """The steps in order; the decision ended in the last one."""

    version: Literal["nvgraft.story/1"] = Field(alias="schema")
    decision: Literal["inject", "skip", "refuse"]
    headline: str
    host: str = Field(description="as it was given, or this machine's name")
    container: str = Field(description="as it was given")
    steps: list[Step] = Field(min_length=1)
