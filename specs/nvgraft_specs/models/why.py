"""The document ``nvgraft.why/1``: why things are in a container, or are not (``nvgraft why``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.why/1"

Rule = Literal[
    "nothing-requested",
    "refused",
    "capability",
    "device",
    "imex",
    "mig",
    "nothing-on-host",
    "not-on-host",
    "not-in-cache",
    "rejected",
    "another-file",
    "another-architecture",
    "image",
    "not-in-catalogue",
]


class Link(Strict):
    """One link of the chain that brings a thing in."""

    step: str
    how: str


class Candidate(Strict):
    """A file of the host that a row of the catalogue could have been."""

    entry: str = Field(description="as the host's loader cache names it")
    path: str = Field(description="where that leads")
    verdict: str


class Exclusion(Strict):
    """The first rule that keeps a thing out."""

    rule: Rule
    text: str
    mend: str = Field(description="advice where no variable helps, or empty")


class Answer(Strict):
    """The answer about one thing. `excluded_by` is null exactly when it is in the plan."""

    name: str = Field(description="as it was given")
    kind: Literal["capability", "device", "library", "binary", "path"] = Field(
        description="what the name was taken for"
    )
    in_plan: bool
    chain: list[Link]
    candidates: list[Candidate]
    excluded_by: Exclusion | None
    smallest_change: list[str] = Field(
        description="NAME=VALUE entries that would bring it in: tried out; empty where none does"
    )


class Answers(Strict):
    """One answer for each thing that was named, in that order."""

    version: Literal["nvgraft.why/1"] = Field(alias="schema")
    answers: list[Answer]
