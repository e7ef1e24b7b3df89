"""Versions of the driver, as its files and its kernel module say them."""

import re

#: The file in which the loaded kernel module says its version.
MODULE_VERSION = "/proc/driver/nvidia/version"

_MODULE = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d+\.\d+(?:\.\d+)?)")
_LIBRARY = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")

#: Other libraries of the driver have versions of their own, which are smaller.
_OLDEST_BRANCH = 300


def module_version(text: str) -> str | None:
    """Return the version in the text of MODULE_VERSION, or None if it has another form."""
    found = _MODULE.search(text)
    return found[1] if found else None


def library_version(path: str) -> str | None:
    """Return the driver's version in the path of a library, or None if it has none."""
    found = _LIBRARY.search(path)
    return found[1] if found and int(found[1].partition(".")[0]) > _OLDEST_BRANCH else None
