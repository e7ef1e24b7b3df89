"""The documents ``nvgraft.cdi-devices/1`` and ``nvgraft.cdi-check/1``: the CDI devices of a
machine, and what is wrong with their specifications.

Written by ``nvgraft cdi list`` and ``nvgraft cdi validate``.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

DEVICES_SCHEMA = "nvgraft.cdi-devices/1"
CHECK_SCHEMA = "nvgraft.cdi-check/1"


class CdiDevice(Strict):
    """A device that engines find."""

    name: str = Field(description="VENDOR/CLASS=NAME")
    file: str
    hides: list[str] = Field(description="files of earlier directories that have it, too")


class CdiConflict(Strict):
    """A device that no engine finds, since several files of one directory have it."""

    name: str
    files: list[str]


class CdiFileError(Strict):
    """A file or directory that cannot be used."""

    file: str
    line: int | None = Field(description="null if no line is to blame, or the fix names it")
    cause: str
    fix: str


class CdiDevices(Strict):
    """The output of `nvgraft cdi list`."""

    version: Literal["nvgraft.cdi-devices/1"] = Field(alias="schema")
    directories: list[str] = Field(description="the most important one last")
    devices: list[CdiDevice]
    conflicts: list[CdiConflict]
    errors: list[CdiFileError]


class CdiFile(Strict):
    """A specification that engines accept."""

    file: str
    kind: str
    version: str
    devices: list[str]


class CdiFinding(Strict):
    """Something wrong with a specification on this machine."""

    id: Literal[
        "invalid",
        "conflict",
        "hidden",
        "writable",
        "source-missing",
        "stale",
        "node-missing",
        "not-a-device",
        "node-numbers",
        "hook-missing",
        "hook-writable",
        "hook-environment",
    ]
    level: Literal["error", "warning"]
    file: str
    line: int | None
    message: str
    hint: str


class CdiCheck(Strict):
    """The output of `nvgraft cdi validate`."""

    version: Literal["nvgraft.cdi-check/1"] = Field(alias="schema")
    driver_version: str | None = Field(description="of the loaded kernel module; null without one")
    files: list[CdiFile]
    findings: list[CdiFinding]
