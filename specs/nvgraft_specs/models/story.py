"""The document ``nvgraft.story/1``: the whole decision about one container, in order (``nvgraft explain``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.story/1"

StepId = Literal[
    "asked", "host", "place", "files", "kernel", "loader", "original", "findings", "end"
]


class Fact(Strict):
    """Something that holds."""

    name: str
    value: str
    why: str = Field(description="where it comes from, or empty")


class Entry(Strict):
    """One thing that is put in, made, mounted or allowed."""

    what: str
    how: str
    why: str
    capability: str = Field(
        description="a driver capability; device: comes with a GPU that was asked for; always: comes in any case"
    )
    size: int | None = Field(description="bytes; null where it has none", ge=0)


class Step(Strict):
    """One step of the decision."""

    id: StepId
    title: str
    text: str
    doc: str = Field(description="the page below docs/, with an anchor, that teaches this step")
    facts: list[Fact]
    entries: list[Entry]


class Story(Strict):
    """The steps in order; the last one is where the decision ended."""

    version: Literal["nvgraft.story/1"] = Field(alias="schema")
    decision: Literal["inject", "skip", "refuse"]
    headline: str
    host: str = Field(description="as it was given, or this machine's name")
    container: str = Field(description="as it was given")
    steps: list[Step] = Field(min_length=1)
