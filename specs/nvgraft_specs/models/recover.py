"""The document ``nvgraft.recover/1``: what killed hooks have left, and what became of it (``nvgraft recover``)."""

from typing import Literal

from pydantic import Field

from . import Strict

SCHEMA = "nvgraft.recover/1"


class Thing(Strict):
    """Something that a hook had made, or was going to make."""

    path: str = Field(description="below the root file system")
    fate: Literal["removed", "restored", "kept", "stuck"] = Field(
        description="kept: it is no longer as the hook makes it"
    )
    reason: str = Field(description="why it is kept or stuck; else empty")


class Journal(Strict):
    """What came of one hook's journal."""

    journal: str
    rootfs: str = Field(description="empty where the journal does not tell")
    state: Literal["cleared", "running", "gone", "unreachable", "damaged"]
    left: bool = Field(description="whether something of it is, or may be, still there")
    message: str
    things: list[Thing]


class Recovery(Strict):
    """Every journal of this machine."""

    version: Literal["nvgraft.recover/1"] = Field(alias="schema")
    dry_run: bool = Field(description="nothing was changed: fates are what would happen")
    journals: list[Journal]
