"""The one form into which everything that can be compared is brought.

An aspect that a description does not carry is None, which is not the same as empty: a mountinfo says nothing of variables,
a plan says that it sets none.
"""

import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nvgraft_specs import catalogue

#: A driver's version as it ends the name of a library.
_VERSION = re.compile(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$")

LIBRARY_PREFIXES = tuple(row.name for row in catalogue.LIBRARIES)
_BINARIES = frozenset(row.name for row in catalogue.BINARIES)


@dataclass(frozen=True, slots=True)
class ComparedMount:
    """A mount of a file, a directory or a tmpfs; device nodes are no mounts here, whether they are bound or made.

    ``None`` is what the side does not tell. ``partial``: the source is told from the root of its own file system only.
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
    """One side. Named things are by their name; ``order`` are targets in the order in which they are made."""

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
    #: decision, reason, host, request, target, findings: whatever else a plan says
    about: dict[str, Any] | None = None


def guess_version(targets: list[str]) -> str | None:
    """Return the driver version that most of the libraries among ``targets`` carry in their names."""
    found = Counter(match[1] for target in targets if (match := _VERSION.search(target)))
    return found.most_common(1)[0][0] if found else None


def of_the_driver(path: str) -> bool:
    """Tell whether a path in a container looks like the driver's: what a mountinfo has beside belongs to the engine."""
    name = posixpath.basename(path)
    return "nvidia" in path or name.startswith(LIBRARY_PREFIXES) or name in _BINARIES
