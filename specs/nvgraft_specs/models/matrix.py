"""The document ``nvgraft.matrix/1``: which container would run on which host."""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict
from nvgraft_specs.models.error import ErrorFacts

SCHEMA = "nvgraft.matrix/1"


class Warned(Strict):
    """A warning of a plan."""

    id: str
    message: str


class Cell(Strict):
    """The result for one container on one group of equal hosts."""

    outcome: Literal["runs", "skipped", "refused"] = Field(
        description="skipped: the container asks for no GPU and gets nothing"
    )
    reason: str = Field(description="the hook's error, or why it has nothing to do; empty for runs")
    warnings: list[Warned]
    refusal: ErrorFacts | None = Field(default=None, description="only for refused")
    mounts: int = Field(description="the number of mounts that the container would get")


class Hosts(Strict):
    """Hosts whose documents are equal except for their names."""

    names: list[str] = Field(description="as they were given", min_length=1)
    driver_version: str
    cuda_version: str
    gpus: list[str] = Field(description="models, in NVML's order")
    cells: list[Cell] = Field(description="one for each entry of `bundles`, in that order")


class Matrix(Strict):
    """The results of every bundle on every host."""

    version: Literal["nvgraft.matrix/1"] = Field(alias="schema")
    bundles: list[str] = Field(description="as they were given")
    hosts: list[Hosts]
