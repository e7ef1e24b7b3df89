"""What ``os`` and ``posixpath`` offer beyond ``posix`` and a start needs: names joined and taken apart, names as the kernel takes them.

``os`` loads the abstract classes of collections and its own environment, a millisecond, a tenth of a start that wants no GPU. So what
every start loads works with ``posix``, the module under it, and with these (docs/decisions/0026).
"""

from __future__ import annotations

import sys

from nvgraft.base._os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ENCODING = sys.getfilesystemencoding()


def fsencode(name: str) -> bytes:
    """Return the bytes that the kernel knows ``name`` by, as ``os.fsencode``."""
    return name.encode(_ENCODING, "surrogateescape")


def fsdecode(name: bytes) -> str:
    """Return a name of the kernel's as text that :func:`fsencode` takes back, as ``os.fsdecode``."""
    return name.decode(_ENCODING, "surrogateescape")


def environment() -> Mapping[str, str]:
    """Return what this process was started with, as ``os.environ``; later changes are not in it."""
    return {fsdecode(name): fsdecode(value) for name, value in os.environ.items()}


def exists(path: str) -> bool:
    """Tell whether there is something at ``path``, links followed, as ``os.path.exists``."""
    try:
        os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in it
        return False
    return True


def join(directory: str, name: str) -> str:
    """Return ``name`` as seen from ``directory``, as ``posixpath.join``."""
    if name.startswith("/"):
        return name
    return directory + name if not directory or directory.endswith("/") else f"{directory}/{name}"


def split(path: str) -> tuple[str, str]:
    """Return what is before the last slash, without slashes at its end, and what is after it, as ``posixpath.split``."""
    head, slash, tail = path.rpartition("/")
    return head.rstrip("/") or head + slash, tail


def dirname(path: str) -> str:
    """Return what :func:`split` has first."""
    return split(path)[0]


def basename(path: str) -> str:
    """Return what is after the last slash."""
    return path.rpartition("/")[2]


def clean(path: str) -> str:
    """Return the shortest equal path by its text alone, as Go's ``filepath.Clean``: no ``//`` at the start, "" is "." ."""
    root = "/" if path.startswith("/") else ""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and (parts[-1:] not in ([], [".."])):
            parts.pop()
        elif part not in {"", "."} and not (part == ".." and root):
            parts.append(part)
    return root + "/".join(parts) or "."
