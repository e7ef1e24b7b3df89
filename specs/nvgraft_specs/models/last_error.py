"""The document ``nvgraft.last-error/1``: what the hook last said about a container (``nvgraft last-error``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.last-error/1"


class LastError(Strict):
    """One record."""

    version: Literal["nvgraft.last-error/1"] = Field(alias="schema")
    record: str = Field(description="time, exit code and container")
    messages: list[str]
    others: int = Field(description="how many more records would have matched", ge=0)
