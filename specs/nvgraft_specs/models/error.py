"""The document ``nvgraft.error/1``: an error in place of the answer of a command.

Every command with ``--format json`` prints it on standard output when it refuses.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.error/1"


class ErrorFacts(Strict):
    """What is known of an error."""

    id: str = Field(
        description="a section of docs/failures.md; for other errors the stage, or input"
    )
    stage: str = Field(description="the stage of a container's start that failed, hook or input")
    message: str = Field(description="the original's words, or the input and what is wrong with it")
    cause: str
    fix: str = Field(description="what to do; empty where nothing is known")


class CommandError(ErrorFacts):
    """The error with which a command ended."""

    version: Literal["nvgraft.error/1"] = Field(alias="schema")
    command: str
    exit_code: int = Field(ge=1)
