"""The document ``nvgraft.last-error/1``: the hook's last messages about a container.

Written by ``nvgraft last-error``.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict
from nvgraft_specs.models.error import ErrorFacts

SCHEMA = "nvgraft.last-error/1"


class LastError(Strict):
    """One record of messages."""

    version: Literal["nvgraft.last-error/1"] = Field(alias="schema")
    record: str = Field(description="time, exit code and container")
    messages: list[str]
    refusal: ErrorFacts | None = Field(description="null if the hook only warned")
    others: int = Field(description="the number of further records that match", ge=0)
