"""The document ``nvgraft.recover/1``: what killed hooks have left behind, and what became of it.

Written by ``nvgraft recover``.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.recover/1"


class Thing(Strict):
    """A file, link or directory that a hook had created, or was about to create."""

    path: str = Field(description="the path inside the root file system")
    fate: Literal["removed", "restored", "kept", "stuck"] = Field(
        description="kept: it was changed after the hook created it"
    )
    reason: str = Field(description="why it is kept or stuck; else empty")


class Journal(Strict):
    """The result for one hook's journal."""

    journal: str
    rootfs: str = Field(description="empty if the journal does not name it")
    state: Literal["cleared", "running", "gone", "unreachable", "damaged"]
    left: bool = Field(description="whether anything of the hook is, or may be, left behind")
    message: str
    things: list[Thing]


class Recovery(Strict):
    """All journals of this machine."""

    version: Literal["nvgraft.recover/1"] = Field(alias="schema")
    dry_run: bool = Field(description="nothing was changed: a fate is what would happen")
    journals: list[Journal]
