"""Path and environment functions of ``os`` and ``posixpath`` that the engine needs.

The engine does not load these two modules (see ``nvgraft.base._os``), and neither has a C version
of what is here.
"""

from __future__ import annotations

import sys

from nvgraft.base._os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ENCODING = sys.getfilesystemencoding()


def fsencode(name: str) -> bytes:
    """Return ``name`` as bytes for the kernel, like ``os.fsencode``."""
    return name.encode(_ENCODING, "surrogateescape")


def fsdecode(name: bytes) -> str:
    """Return a name from the kernel as text, like ``os.fsdecode``; :func:`fsencode` is the
    inverse.
    """
    return name.decode(_ENCODING, "surrogateescape")


def environment() -> Mapping[str, str]:
    """Return the environment with which this process was started, like ``os.environ`` at that
    time.
    """
    return {fsdecode(name): fsdecode(value) for name, value in os.environ.items()}


def exists(path: str) -> bool:
    """Tell whether ``path`` exists, following links, like ``os.path.exists``."""
    try:
        os.stat(path)
    except (OSError, ValueError):  # ValueError: the path has a NUL byte
        return False
    return True


def join(directory: str, name: str) -> str:
    """Join two paths, like ``posixpath.join``: an absolute ``name`` is returned as it is."""
    if name.startswith("/"):
        return name
    return directory + name if not directory or directory.endswith("/") else f"{directory}/{name}"


def split(path: str) -> tuple[str, str]:
    """Split a path at its last slash into directory and name, like ``posixpath.split``."""
    head, slash, tail = path.rpartition("/")
    return head.rstrip("/") or head + slash, tail


def dirname(path: str) -> str:
    """Return the directory of a path, like ``posixpath.dirname``."""
    return split(path)[0]


def basename(path: str) -> str:
    """Return the part after the last slash, like ``posixpath.basename``."""
    return path.rpartition("/")[2]


def clean(path: str) -> str:
    """Simplify a path by its text alone, like Go's ``filepath.Clean``: "" becomes ".", "//x"
    becomes "/x".
    """
    root = "/" if path.startswith("/") else ""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and (parts[-1:] not in ([], [".."])):
            parts.pop()
        elif part not in {"", "."} and not (part == ".." and root):
            parts.append(part)
    return root + "/".join(parts) or "."
