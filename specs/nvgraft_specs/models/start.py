"""The document ``nvgraft.start/1``: a container start, as ``nvgraft watch --starts`` sees it.

One document a line.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.start/1"


class Start(Strict):
    """The start of one container."""

    version: Literal["nvgraft.start/1"] = Field(alias="schema")
    time: str = Field(description="when the runtime was started, in UTC")
    container: str = Field(description="the id that the engine chose")
    runtime: str = Field(description="the program that starts the container")
    command: Literal["create", "run"]
    bundle: str
    hook: Literal["configured", "nothing-to-do", "refused", "killed", "not-seen"]
    exit_code: int | None = Field(description="of the hook; null if it was killed or not seen")
    message: str = Field(description="what the hook gave, or why it gave nothing")
    warnings: list[str]
    milliseconds: float | None = Field(description="how long the hook ran; null if not seen")
