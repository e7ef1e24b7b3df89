"""The document ``nvgraft.doctor/1``: what every check found (``nvgraft doctor``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.doctor/1"


class Finding(Strict):
    """One thing that is wrong."""

    level: Literal["error", "warning"]
    message: str = Field(description="what was seen")
    cause: str
    fix: str


class Result(Strict):
    """What one check found."""

    id: str = Field(
        description="the section of docs/failures.md; refused: the hook's own refusal, which no check explains"
    )
    title: str
    phrase: str = Field(description="the words that users see")
    status: Literal["ok", "found", "not-checked"]
    lacking: str = Field(description="why it was not checked, or not to its end; else empty")
    findings: list[Finding]


class Examination(Strict):
    """Every check, whether it could be made or not."""

    version: Literal["nvgraft.doctor/1"] = Field(alias="schema")
    results: list[Result]
