"""The document ``nvgraft.gallery/1``: the recorded hosts that ship with nvgraft.

Written by ``nvgraft simulate --list``.
"""

from typing import Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.gallery/1"


class GalleryHost(Strict):
    """A host, whose name can be given in place of a snapshot."""

    name: str
    description: str
    driver_version: str
    cuda_version: str
    gpus: list[str] = Field(description="models, in NVML's order")
    root: str = Field(description="driver root")
    path: str = Field(description="the path of its nvgraft.host/1 document")


class Gallery(Strict):
    """All hosts."""

    version: Literal["nvgraft.gallery/1"] = Field(alias="schema")
    hosts: list[GalleryHost]
