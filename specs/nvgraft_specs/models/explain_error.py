"""The document ``nvgraft.explain-error/1``: a pasted error explained by ``nvgraft
explain-error``."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.explain-error/1"


class Wrapper(Strict):
    """A program that passed on another program's error."""

    name: str
    says: str


class Meaning(Strict):
    """One recognised error."""

    id: str = Field(description="the name of this error, which does not change")
    failure: str = Field(description="the section of docs/failures.md, or empty")
    title: str
    stage: str = Field(description="the stage of a container's start that prints this error")
    words: str = Field(description="the recognised part of the text")
    fixed_by: str = Field(description="who can fix it")
    cause: str = Field(description="the likeliest cause")
    otherwise: list[str] = Field(description="other causes, each with what tells it apart")
    rarer: list[str] = Field(description="causes that few people meet, in a few words each")
    next: list[str] = Field(description="what to do next")


class Analysis(Strict):
    """The explanation of a text."""

    version: Literal["nvgraft.explain-error/1"] = Field(alias="schema")
    wrappers: list[Wrapper] = Field(description="the outermost first")
    stage: str = Field(description="the failing program's own name of the stage, or empty")
    detail: str
    meanings: list[Meaning] = Field(description="the likeliest cause first")
    innermost: str = Field(description="the innermost message where nothing is known, or empty")
    said_by: str = Field(description="the program that said it, or empty")
    general: list[str] = Field(
        description="what errno words, exit codes and signals in it mean in any error"
    )
    checks: list[str] = Field(description="where nothing is known: what separates the causes")
