"""CUDA forward-compatibility libraries that an image carries: which directory the loader shall look in first.

A CUDA image may bring a newer libcuda for an older kernel driver in /usr/local/cuda/compat. No file of an image is ever a
mount source (SECURITY R15); all that is done is to name its directory first when the loader cache is made (reference
behaviour 6.9, mode ldconfig).
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.formats.tree import PathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.formats.tree import Tree

_DIRECTORY = "/usr/local/cuda/compat"

#: What the reference CLI may be asked for; it takes the first one if nobody says.
MODES = ("mount", "ldconfig", "disabled")


def compat_directory(
    tree: Tree, driver_version: str, mode: str, *, compute: bool = True
) -> tuple[str | None, list[Finding]]:
    """Return the directory of the image whose libraries come before the driver's, or None, and what to say about it.

    :param mode: ``ldconfig`` takes libraries of a major version above the driver's, ``mount`` those of any other one.
    :param compute: false for a container that gets no compute libraries: then there is nothing to come before.
    :raises Refusal: stage ``container``, for another mode, links that lead out of the image, or libraries in two directories.
    """
    if mode not in MODES:
        raise Refusal(
            "container",
            f"invalid option: cuda-compat-mode={mode}",
            f"use one of {', '.join(MODES)}",
        )
    if mode == "disabled" or not compute:
        return None, []
    try:
        directory = tree.resolve(_DIRECTORY)
        names = [
            name for name in tree.listdir(directory) if name.startswith("lib") and ".so." in name
        ]
        libraries = dict.fromkeys(tree.resolve(f"{directory}/{name}") for name in names)
    except PathError as error:
        raise Refusal(
            "container",
            error.text,
            f"the image's {_DIRECTORY} leads out of it, or in a circle: do not run it",
        ) from error
    directories = list(
        dict.fromkeys(
            paths.dirname(path)
            for path in libraries
            if _comes_first(paths.basename(path), driver_version, mode)
        )
    )
    if len(directories) > 1:
        raise Refusal(
            "container",
            f"compat libraries in more than one directory: {', '.join(directories)}",
            f"the links in {_DIRECTORY} have to lead to one directory: rebuild the image, or set cuda-compat-mode to disabled",
        )
    if not directories:
        return None, []
    findings = []
    if mode == "mount":
        hint = "cuda-compat-mode = mount acts as ldconfig: mounts out of an image are unsafe (CVE-2025-23359)"
        findings.append(
            Finding(
                "cuda-compat-not-mounted",
                "warning",
                f"{directories[0]} is not mounted, the loader looks there first",
                hint,
            )
        )
    return directories[0], findings


def _comes_first(name: str, driver_version: str, mode: str) -> bool:
    """Compare as the reference does: the digits of the library's major version with as many characters of the driver's."""
    _, separator, version = name.partition(".so.")
    if not separator:
        return True
    major = version.partition(".")[0]
    ours = driver_version[: len(major)]
    return ours != major if mode == "mount" else ours < major
