"""The document ``nvgraft.why/1``: why files and devices are in a container, or are not."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict
from nvgraft_specs.models.prove import FinalFile, Verdict

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
    "not-in-edits",
    "not-recorded",
]


class Link(Strict):
    """One step that leads to a mounted file or device."""

    step: str
    how: str


class Candidate(Strict):
    """A library of the host that fits a row of the catalogue."""

    entry: str = Field(description="its path in the host's loader cache")
    path: str = Field(description="the file to which that leads")
    verdict: str


class Exclusion(Strict):
    """The first rule that keeps a file or device out of the container."""

    rule: Rule
    text: str
    mend: str = Field(description="what to do where no variable helps, or empty")


class Loading(Strict):
    """What the container's program loads under the name by which programs open a library."""

    what: str = Field(description="the SONAME")
    verdict: Verdict
    file: FinalFile | None = Field(description="null where nothing is loaded")
    program: str = Field(description="the program that opens the library, or empty")
    words: str = Field(description="why this file is loaded and what follows, or why none is")


class Answer(Strict):
    """The answer about one argument. `excluded_by` is null exactly when it is in the plan."""

    name: str = Field(description="as it was given")
    kind: Literal["capability", "device", "library", "binary", "path"] = Field(
        description="what the argument names"
    )
    in_plan: bool
    chain: list[Link]
    candidates: list[Candidate]
    excluded_by: Exclusion | None
    smallest_change: list[str] = Field(
        description="NAME=VALUE entries that add it, tested by a plan; empty where none do"
    )
    loading: Loading | None = Field(
        description="null where no program opens it, where the files of the image are not known, "
        "and for a library that is not in the plan unless a file of the image is loaded"
    )


class Answers(Strict):
    """One answer for each argument, in their order."""

    version: Literal["nvgraft.why/1"] = Field(alias="schema")
    answers: list[Answer]
