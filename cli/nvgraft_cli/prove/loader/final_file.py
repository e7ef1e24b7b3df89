"""Say which file a library's name leads to, why, and what happens when it is not the host's.

Sources of the consequences: NVIDIA's CUDA documentation (cudaErrorStubLibrary 34,
cudaErrorSystemDriverMismatch 803, cudaErrorCompatNotSupportedOnDevice 804) and NVML's
NVML_ERROR_LIB_RM_VERSION_MISMATCH (18).
"""

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum

from nvgraft.plan.actions import Injection, Plan
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.loading import Load, Object
from nvgraft_cli.prove.loader.precedence import (
    NO_REASON,
    Precedence,
    is_compat_path,
    precedence,
)
from nvgraft_specs import catalogue

_VERSION = re.compile(r"\.so\.(\d{3,4}\.\d+(?:\.\d+)?)$")
_STUB = "it is a stub for linking, not a driver"
_CUDA_STUB = f"{_STUB}: CUDA calls fail with error 34 (CUDA_ERROR_STUB_LIBRARY)"
_NVML_STUB = f"{_STUB}: NVML does not start"
_COMPAT = (
    "it is CUDA's forward compatibility library: it works on data center GPUs, and fails with error"
    " 804 on others"
)
_DRIVER_LIBRARIES = tuple(row.name for row in catalogue.LIBRARIES)


class LoadedFrom(StrEnum):
    """Where the file that is loaded comes from."""

    HOST = "host"
    IMAGE = "image"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FinalFile:
    """The file that is loaded in the end.

    :ivar path: symbolic links followed; "" if nothing is loaded.
    :ivar found: the path by which the loader found it, in place of the host's.
    :ivar rule: the rule of the loader by which it was found.
    :ivar foreign: it is loaded in place of a library of the host's driver.
    :ivar precedence: why it comes before the host's, if it is foreign.
    :ivar consequence: what happens because it is foreign, or "".
    :ivar volume: the volume on which it is, or "".
    """

    side: LoadedFrom
    path: str = ""
    rule: str = ""
    foreign: bool = False
    precedence: Precedence = NO_REASON
    consequence: str = ""
    volume: str = ""
    found: str = ""

    @property
    def origin(self) -> str:
        """What brings it into the container, in words."""
        return f"the volume {self.volume}" if self.volume else f"the {self.side}"

    @property
    def how(self) -> str:
        """The rule by which it was found, and why it comes before the host's."""
        return ": ".join(filter(None, (self.rule, self.precedence.words)))

    @property
    def is_stub(self) -> bool:
        """Whether it is a stub of CUDA's development files, which has no functions."""
        return self.consequence.startswith(_STUB)

    @property
    def is_compat(self) -> bool:
        """Whether it is a library of the image's CUDA forward compatibility package."""
        return self.foreign and is_compat_path(self.path)

    @property
    def is_newer_compat(self) -> bool:
        """Whether it is such a library, and is not known to be too old for the host's driver."""
        return self.is_compat and self.consequence == _COMPAT


#: Nothing is loaded.
NO_FILE = FinalFile(LoadedFrom.NONE)


def is_driver_library(name: str) -> bool:
    """Tell whether a SONAME or path names a library of NVIDIA's driver."""
    base = posixpath.basename(name)
    return any(base == row or base.startswith(f"{row}.") for row in _DRIVER_LIBRARIES)


def final_file(what: str, load: Load, plan: Plan, tree: PlannedTree) -> FinalFile:
    """Return the file that ``what`` leads to.

    :param plan: the container's; ``tree`` is the file system after it.
    """
    root = load.root
    if root is None:
        return NO_FILE
    if root.from_host:
        return FinalFile(LoadedFrom.HOST, root.file, root.how)
    covering = tree.volumes.over(root.file)
    volume = "" if covering is None else covering.path
    if not is_driver_library(what):
        return FinalFile(LoadedFrom.IMAGE, root.file, root.how, volume=volume)
    version = plan.host.driver_version if isinstance(plan, Injection) else ""
    return FinalFile(
        LoadedFrom.IMAGE,
        root.file,
        root.how,
        foreign=True,
        precedence=precedence(what, root, plan, tree),
        consequence=_consequence(root, version or ""),
        volume=volume,
        found=root.path,
    )


def _consequence(loaded: Object, driver_version: str) -> str:
    name = posixpath.basename(loaded.name or loaded.path)
    places = (loaded.path, loaded.file)
    if any("/stubs/" in place for place in places):
        if "nvidia-ml" in name:
            return _NVML_STUB
        return _CUDA_STUB if name.startswith("libcuda.so") else _STUB
    match = _VERSION.search(loaded.file)
    if any(map(is_compat_path, places)):
        if match is not None and driver_version and _major(match[1]) <= _major(driver_version):
            return (
                f"it is CUDA's forward compatibility library {match[1]}, which works only with an "
                f"older driver, and the host's is {driver_version}: CUDA fails with error 803 "
                "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"
            )
        return _COMPAT
    if match is not None and match[1] == driver_version:
        return "it has the version of the host's driver, and fails after an upgrade of the driver"
    driver = f"the host's driver is {driver_version}" if driver_version else "the host's is another"
    if "nvidia-ml" in name:
        words = "NVML fails with error 18 (Driver/library version mismatch)"
    elif name.startswith("libcuda.so"):
        words = "CUDA fails with error 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"
    else:
        words = "it does not fit the kernel module"
    if match is not None and driver_version:
        return f"it has version {match[1]}, and {driver}: {words}"
    version = f"version {match[1]}" if match is not None else "a version that its name does not say"
    return f"it has {version}, and {driver}: unless they are equal, {words}"


def _major(version: str) -> int:
    return int(version.partition(".")[0])
