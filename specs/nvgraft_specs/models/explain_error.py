"""The document ``nvgraft.explain-error/1``: a pasted error taken apart (``nvgraft explain-error``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.explain-error/1"


class Wrapper(Strict):
    """A program that reported somebody else's error."""

    name: str
    says: str


class Meaning(Strict):
    """One error that was recognised."""

    failure: str = Field(description="the section of docs/failures.md, or empty")
    title: str
    stage: str = Field(description="where on the way to a running container it is said")
    words: str = Field(description="the part of the text that was recognised")
    cause: str
    next: list[str] = Field(description="what to look at")


class Analysis(Strict):
    """All that a text tells."""

    version: Literal["nvgraft.explain-error/1"] = Field(alias="schema")
    wrappers: list[Wrapper] = Field(description="from the outside in")
    stage: str = Field(description="the failing program's own word for it, or empty")
    detail: str
    meanings: list[Meaning]
