"""The document ``nvgraft.doctor/1``: the result of every check of ``nvgraft doctor``."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.doctor/1"


class Finding(Strict):
    """One problem."""

    level: Literal["error", "warning"]
    message: str = Field(description="what was seen")
    cause: str
    fix: str
    phrase: str = Field(description="what users see because of it")


class Result(Strict):
    """The result of one check."""

    id: str = Field(
        description="the section of docs/failures.md; refused: the hook refuses the container, and "
        "no check explains why"
    )
    title: str
    phrase: str = Field(description="the words that users see, and search for")
    about: Literal["container", "host"] = Field(
        description="what the check is about; what it finds of the host does not make a container "
        "bad that gets its GPUs"
    )
    status: Literal["ok", "found", "not-checked"]
    lacking: str = Field(description="why the check was not made or not completed; else empty")
    findings: list[Finding]


class Verdicts(Strict):
    """One sentence about each side."""

    container: str | None = Field(description="null where no container was given")
    host: str


class Examination(Strict):
    """The results of all checks, also of those that could not be made."""

    version: Literal["nvgraft.doctor/1"] = Field(alias="schema")
    verdict: str = Field(
        description="one sentence: whether the container starts, and what CUDA finds in it; of the "
        "host where no container was given"
    )
    verdicts: Verdicts
    results: list[Result]
