"""Decide whether CUDA's forward compatibility libraries of an image come before the driver's.

This is enable-cuda-compat of nvgraft-cdi-hook: the library says itself, in an ELF note, for which
drivers it is made. In mode legacy the rule is another one (:mod:`nvgraft.plan.compat`).
"""

from __future__ import annotations

from nvgraft.base.finding import Finding
from nvgraft.base.jsontext import JsonError, loads
from nvgraft.container.target import OnVolume
from nvgraft.formats.ld_so_conf import Pattern
from nvgraft.formats.tree import PathError
from nvgraft.request.oci import path_problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.container.target import Target
    from nvgraft.formats.tree import Tree
    from nvgraft.request.hook_steps import EnableCudaCompat

    Version = tuple[int, int, int, bool, str]

_LIBRARY = "libcuda.so."
_PATTERN = f"{_LIBRARY}*.*"
_NOTE = ".note.cuda.fwd_compatibility"
_NOTE_OWNER = b"NVIDIA Corporation"
_NOTE_LIMIT = 64 << 10


def compat_folder(
    target: Target, tree: Tree, step: EnableCudaCompat
) -> tuple[str | None, list[Finding]]:
    """Return the folder of the image that the loader must search first, or None, and findings.

    A folder on a volume is not listed (SECURITY R41), and so is not returned.

    :param tree: the container's tree as former steps leave it.
    """
    if not step.driver_version and not step.cuda_version:
        return None, []
    try:
        folder, node = tree.find(step.directory)
        if node is None or node.type != "dir":
            return None, []
        if (volume := target.volume(f"{folder}/x")) is not None:
            raise OnVolume("", volume, "")
        pattern = Pattern(_PATTERN)
        files = []
        for name in filter(pattern.fits, tree.listdir(folder)):
            found = tree.lstat(f"{folder}/{name}")
            if found is not None and found.type == "file":
                files.append(name)
    except PathError:
        return None, []
    except OnVolume as refusal:
        message = f"{step.directory} is on the volume {refusal.volume}: it is not searched first"
        return None, [_finding("cuda-compat-on-volume", message)]
    if len(files) > 1:
        message = f"Unexpected number of CUDA compat libraries in container: {', '.join(files)}"
        return None, [_finding("cuda-compat-several", message)]
    if not files or not _comes_first(_note(tree, f"{folder}/{files[0]}"), files[0], step):
        return None, []
    if path_problem(folder) or folder != folder.strip() or "#" in folder:
        message = f"{folder} cannot be a line of ld.so.conf"
        return None, [_finding("cuda-compat-name", message)]
    return folder, []


def _finding(id: str, message: str) -> Finding:
    hint = "install one version of CUDA's compatibility libraries in the image"
    return Finding(id, "warning", message, hint)


class _Note:
    """The note of a compatibility library: major versions of drivers, and its CUDA version."""

    def __init__(self, drivers: tuple[int, ...], cuda: str) -> None:
        self.drivers = drivers
        self.cuda = cuda


def _note(tree: Tree, path: str) -> _Note | None:
    """Return the note of a library. One that is damaged counts as missing, as in the reference."""
    try:
        data = tree.note(path, _NOTE, _NOTE_OWNER)
        value = loads(data.strip(b"\0"), _NOTE_LIMIT, one_value=True) if data else None
    except (OSError, ValueError, JsonError):
        return None
    if not isinstance(value, dict):
        return None
    drivers, cuda = value.get("Driver") or [], value.get("CUDA Version") or ""
    if not isinstance(drivers, list) or not isinstance(cuda, str):
        return None
    if not all(type(driver) is int for driver in drivers):
        return None
    return _Note(tuple(drivers), cuda)


def _comes_first(note: _Note | None, name: str, step: EnableCudaCompat) -> bool:
    compat = parse_version(name.removeprefix(_LIBRARY))
    driver = parse_version(step.driver_version)
    if note is None:
        return (
            not step.cuda_version
            and compat is not None
            and driver is not None
            and driver[0] < compat[0]
        )
    if compat is not None and driver is not None:
        return driver[0] in note.drivers and compat > driver
    ours, theirs = parse_version(step.cuda_version), parse_version(note.cuda)
    return ours is not None and theirs is not None and theirs > ours


def parse_version(text: str) -> Version | None:
    """Return a version of one to three numbers for comparison, or None for any other text.

    A version with a suffix like ``-rc1`` comes before the one without; ``+`` and what follows do
    not count.
    """
    core, dash, suffix = text.removeprefix("v").partition("+")[0].partition("-")
    parts = core.split(".")
    if len(parts) > 3 or (dash and not suffix):
        return None
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        return None
    numbers = [int(part) for part in parts] + [0, 0]
    return numbers[0], numbers[1], numbers[2], not dash, suffix
