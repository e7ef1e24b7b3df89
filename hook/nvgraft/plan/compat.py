"""CUDA's forward compatibility libraries in an image: the directory in which the loader searches
first.

A CUDA image may have a newer libcuda for an older kernel driver in /usr/local/cuda/compat. No file
of an image is ever a mount source (SECURITY R15). Instead, its directory comes first when the
loader cache is made (reference behaviour 6.9, mode ldconfig).
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.container.target import OnVolume
from nvgraft.formats.tree import LOOP, NOT_A_DIRECTORY, PathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.container.target import Target
    from nvgraft.formats.tree import Tree

#: The directory of CUDA, and the libraries in it.
_CUDA = "/usr/local/cuda"
_LIBRARIES = "compat/lib*.so.*"

#: The modes of the reference CLI. The first one is its default.
MODES = ("mount", "ldconfig", "disabled")


def compat_directory(
    target: Target, driver_version: str, mode: str, *, compute: bool = True
) -> tuple[str | None, list[Finding]]:
    """Return the directory of the image whose libraries come before the driver's, or None, and
    findings.

    :param mode: ``ldconfig`` takes libraries of a greater major version than the driver's,
        ``mount`` those of any other one.
    :param compute: false for a container that gets no compute libraries; it needs no such
        directory.
    A directory on a volume is not listed (SECURITY R41), and so is not returned.

    :raises Refusal: stage ``container``: an unknown mode, links that lead out of the image,
        libraries in two directories, more names or libraries than the bounds allow.
    """
    if mode not in MODES:
        raise Refusal(
            "container",
            f"invalid option: cuda-compat-mode={mode}",
            f"use one of {', '.join(MODES)}",
        )
    if mode == "disabled" or not compute:
        return None, []
    tree = target.tree
    try:
        directory = _compat(tree, tree.resolve(_CUDA))
        if directory is None:
            return None, []
        if (volume := target.volume(f"{directory}/")) is not None:
            return None, [_on_volume(directory, volume)]
        libraries = dict.fromkeys(
            _resolved(tree, f"{directory}/{name}")
            for name in tree.listdir(directory)
            if name.startswith("lib") and ".so." in name
        )
    except OnVolume as refusal:
        return None, [_on_volume(f"{_CUDA}/compat", refusal.volume)]
    except PathError as error:
        raise Refusal(
            "container",
            error.text,
            f"use another image: a path below its {_CUDA} leads {error.leads}",
        ) from error
    chosen = [
        path for path in libraries if _comes_first(paths.basename(path), driver_version, mode)
    ]
    directories = list(dict.fromkeys(map(paths.dirname, chosen)))
    if len(directories) > 1:
        raise Refusal(
            "container",
            f"compat libraries in more than one directory: {', '.join(directories)}",
            f"rebuild the image with links in {_CUDA}/compat that lead to one directory, or"
            " set cuda-compat-mode to disabled",
        )
    if not directories:
        return None, []
    if (volume := target.volume(f"{directories[0]}/")) is not None:
        return None, [_on_volume(directories[0], volume)]
    findings = []
    if mode == "mount":
        hint = (
            "cuda-compat-mode = mount acts as ldconfig: mounts out of an image are unsafe"
            " (CVE-2025-23359)"
        )
        findings.append(
            Finding(
                "cuda-compat-not-mounted",
                "warning",
                f"{directories[0]} is not mounted; the loader searches it first",
                hint,
            )
        )
    return directories[0], findings


def _resolved(tree: Tree, path: str) -> str:
    tree.count_library(path)
    return tree.resolve(path)


def _on_volume(directory: str, volume: str) -> Finding:
    return Finding(
        "cuda-compat-on-volume",
        "warning",
        f"{directory} is on the volume {volume}: its libraries do not come before the driver's",
        "install CUDA's compatibility libraries in the image, or name their directory in"
        " LD_LIBRARY_PATH",
    )


def _compat(tree: Tree, cuda: str) -> str | None:
    """Return the directory of the libraries below the directory of CUDA; None if there is none.

    A file in the place of a directory is not an error, because the reference looks for the
    libraries with glob(3).

    :raises PathError: links that lead in a circle or out of the image.
    """
    try:
        directory, node = tree.find(f"{cuda}/compat")
    except PathError as error:
        if error.cause == NOT_A_DIRECTORY:
            return None
        if error.cause == LOOP:
            pattern = f"{tree.label}{cuda}/{_LIBRARIES}"
            raise PathError(f"glob search failed: {pattern}", LOOP) from None
        raise
    return directory if node is not None and node.type == "dir" else None


def _comes_first(name: str, driver_version: str, mode: str) -> bool:
    """Compare as the reference does: the library's major version with as many characters of the
    driver's version.
    """
    _, separator, version = name.partition(".so.")
    if not separator:
        return True
    major = version.partition(".")[0]
    ours = driver_version[: len(major)]
    return ours != major if mode == "mount" else ours < major
