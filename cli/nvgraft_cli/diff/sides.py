"""The common form of descriptions that are compared.

An aspect that a kind of description does not have is None, which differs from empty: a mountinfo
does not show variables, a plan sets none.
"""

import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nvgraft_specs import catalogue

#: The driver's version at the end of a library's name.
_VERSION = re.compile(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$")

LIBRARY_PREFIXES = tuple(row.name for row in catalogue.LIBRARIES)
_BINARIES = frozenset(row.name for row in catalogue.BINARIES)


@dataclass(frozen=True, slots=True)
class ComparedMount:
    """A mount of a file, a directory or a tmpfs. Device nodes are not mounts here, even if bound.

    :ivar source: None if the side does not tell it; so with ``options``.
    :ivar facts: further members.
    :ivar partial: whether ``source`` is relative to the root of its own file system.
    """

    target: str
    source: str | None
    type: str
    options: tuple[str, ...] | None
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    partial: bool = False


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """A device node in the container."""

    path: str
    source: str | None
    rdev: tuple[int, int] | None
    facts: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(slots=True)
class Side:
    """One side.

    :ivar mounts: by target; ``nodes`` by path, other aspects by the names of their entries. Of a
        host without a container these are the driver's files.
    :ivar order: the targets in the order in which they are mounted.
    """

    label: str
    kind: str
    version: str | None
    mounts: dict[str, ComparedMount]
    nodes: dict[str, ComparedNode]
    order: list[str] | None = None
    rules: dict[str, Any] | None = None
    links: dict[str, Any] | None = None
    soname_links: dict[str, Any] | None = None
    files: dict[str, Any] | None = None
    directories: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    hooks: dict[str, Any] | None = None
    cache: dict[str, Any] | None = None
    #: other facts of a plan: decision, reason, host, request, target, findings
    about: dict[str, Any] | None = None
    #: inject, skip or refuse, and the reason in the words of the hook
    decision: tuple[str, str] | None = None
    cuda: str | None = None
    #: the architecture of a host, as its kernel names it
    machine: str | None = None
    #: the model of each GPU, "" if it is not known; None for a host that was recorded without its
    #: GPUs and device nodes
    gpus: list[str] | None = None
    gpu_facts: dict[str, Any] | None = None
    capabilities: list[str] | None = None
    #: whether a plan is of CDI edits, which know no capabilities
    edits: bool = False
    #: the expressions that were checked before the plan was made
    requirements: list[str] | None = None
    #: where the files of a container are that is a side itself
    rootfs: str = ""
    #: for a host without a container: the outcome of each container of the documentation
    examples: dict[str, str] | None = None

    @property
    def nodes_unseen(self) -> bool:
        """Whether this is a mountinfo without device nodes. The container may have some."""
        return self.kind == "mountinfo" and not self.nodes


def guess_version(targets: list[str]) -> str | None:
    """Return the driver version that is most frequent in the names of libraries, or None."""
    versions = Counter(match[1] for target in targets if (match := _VERSION.search(target)))
    return versions.most_common(1)[0][0] if versions else None


def of_the_driver(path: str) -> bool:
    """Tell whether a path looks like the driver's. Other mounts of a mountinfo are the engine's."""
    name = posixpath.basename(path)
    return (
        "nvidia" in path
        or path == "/proc/driver"
        or name.startswith(LIBRARY_PREFIXES)
        or name in _BINARIES
    )
