"""The document ``nvgraft.register/1``: what ``nvgraft register`` or ``unregister`` did."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.register/1"


class Registration(Strict):
    """A change of one configuration file, or none."""

    version: Literal["nvgraft.register/1"] = Field(alias="schema")
    engine: str
    file: str
    state: Literal["registered", "removed", "unchanged", "dry-run"]
    diff: str = Field(description="the change as a unified diff; empty for unchanged")
    before: str = Field(description="the backup that was made, or empty")
    next: str = Field(description="what makes the registration effective, or empty")
