"""The document ``nvgraft.diff/1``: how two descriptions of a container differ."""

from typing import Literal

from pydantic import Field, JsonValue

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.diff/1"

Kind = Literal["plan", "snapshot", "host", "container", "cdi", "mountinfo", "log", "pod"]
ChangeKind = Literal["added", "removed", "moved", "version", "changed", "order"]


class SideInfo(Strict):
    """One of the two sides."""

    label: str = Field(description="as it was given")
    kind: Kind = Field(
        description="snapshot: a host with the container of --container; host: a host alone;"
        " container: a container on the host of --host"
    )
    driver_version: str | None


class Summary(Strict):
    """What a person asks first of both sides; null where a side does not tell it."""

    what: str = Field(
        description="outcome, driver, CUDA, GPUs, capabilities, or example NAME: the outcome of a"
        " container of the documentation"
    )
    a: str | None
    b: str | None


class Change(Strict):
    """One difference. `a` and `b` are null where the side has no such entry."""

    what: str = Field(
        description="mount, device node, device rule, link, file, directory, environment, hook, ..."
    )
    kind: ChangeKind = Field(
        description="version: it differs only in the driver's version in names"
    )
    name: str = Field(description="the entry's name: libcuda.so, /dev/nvidia0, a variable")
    fields: list[str] = Field(description="for changed: the members that differ")
    a: JsonValue
    b: JsonValue


class NotCompared(Strict):
    """An aspect that one side does not have."""

    what: str
    why: str


class Diff(Strict):
    """The difference of A and B; equal exactly when there is no change."""

    version: Literal["nvgraft.diff/1"] = Field(alias="schema")
    a: SideInfo
    b: SideInfo
    equal: bool
    summary: list[Summary]
    changes: list[Change]
    not_compared: list[NotCompared]
