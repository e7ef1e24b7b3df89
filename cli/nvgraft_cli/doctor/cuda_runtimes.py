"""Find the CUDA runtimes (libcudart) of an image: the one of the container's program, which is
linked into it or loaded with it, and else those that the loader finds by their names, and those
where toolkits, wheels and conda put them. Where none of these is there, the other directories of
the image are searched, the outer ones first, up to a number of names.

The names of listed directories count towards the bounds of the image.
"""

import posixpath
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nvgraft.formats.tree import OutOfBounds, PathError, Tree
from nvgraft_cli.case.texts import texts_in
from nvgraft_cli.doctor.patient import LIBRARY_DIRECTORIES, Patient
from nvgraft_cli.prove.proof import all_objects
from nvgraft_cli.prove.pythons import names, prefixes, resolve, site_packages
from nvgraft_specs.cuda_versions import FIRST_COMPATIBLE, MINIMUM_DRIVERS

#: Wheels rename the copy that they bundle: libcudart-d0da41ae.so.11.0.
_NAME = re.compile(r"libcudart(?:-[0-9a-f]+)?\.so\.(\d{1,3})(?:\.(\d{1,3})(\.\d+)*)?")
_WHEEL = re.compile(r"nvidia_cuda_runtime(?:_cu\d+)?-(\d{1,3})\.(\d{1,3})[.\d]*\.dist-info")

#: SONAMEs of runtimes, by which programs open them.
_SONAMES = tuple(
    f"libcudart.so.{version}" for version in ("10.0", "10.1", "10.2", "11.0", "12", "13")
)
#: A text of every runtime, also of one that is linked into a program (CUDA 11.7 to 13.5 were
#: looked at), and texts that came with a major version: an error's name and a function's.
_MARK = b"/cudart.shm.%x.%x.%llx"
_MAJORS = ((b"cudaMemPrefetchBatchAsync", 13), (b"cudaErrorCdpVersionMismatch", 12))
_OLDEST_MARKED = 11
#: Bytes of the program that are looked at: its constants stand behind its code.
_PROGRAM_LIMIT = 64 << 20

#: Directories that are not searched: many files, and no libraries of programs.
_NOT_SEARCHED = frozenset(
    (
        *("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var"),  # noqa: S108 - image's
        *("/usr/include", "/usr/sbin", "/usr/bin", "/usr/share", "/usr/src"),
    )
)
#: What a directory may be called: python3.11, 12.4, .venv, numpy.libs; files have other endings.
_MAY_BE_DIRECTORY = re.compile(r"\.?[\w+-]*(?:\.(?:\d+|libs))*")
_SKIPPED = frozenset(("__pycache__", "node_modules", ".git", "include", "share", "doc"))
_PACKAGES = ("site-packages", "dist-packages")
#: Names that may be directories and are looked at in the search.
_SEARCHED = 10_000

_TOOLKIT_DIRECTORIES = ("lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


@dataclass(frozen=True, slots=True)
class CudaRuntime:
    """A libcudart of the image.

    :ivar path: of the file, symbolic links followed.
    :ivar minor: the second number of its version; None where only the first is known.
    :ivar inside: whether it is linked into the program at ``path``.
    :ivar of_program: whether the container's program certainly uses it.
    """

    path: str
    major: int
    minor: int | None
    inside: bool = False
    of_program: bool = False

    @property
    def version(self) -> str:
        """The version as far as it is known: 12.4, or 12.x."""
        return f"{self.major}.{'x' if self.minor is None else self.minor}"

    @property
    def minimum_driver(self) -> str:
        """The least driver that NVIDIA's table names, or "" where it has no such CUDA."""
        key = str(self.major) if self.major >= FIRST_COMPATIBLE else f"{self.major}.{self.minor}"
        return MINIMUM_DRIVERS.get(key, "")

    def newer_than(self, cuda_version: str) -> bool:
        """Tell whether this is newer than a driver's CUDA. An unknown minor version counts as 0."""
        return (self.major, self.minor or 0) > numbers(cuda_version)[:2]

    def runs_on(self, driver_version: str, cuda_version: str) -> bool:
        """Tell whether it starts on a driver, also by minor-version compatibility."""
        if not self.newer_than(cuda_version):
            return True
        least = self.minimum_driver
        return least != "" and numbers(driver_version) >= numbers(least)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def find_runtimes(patient: Patient) -> list[CudaRuntime]:
    """Return the CUDA runtimes of the image, one for each file; that of the container's program
    alone if it has one.
    """
    own = _of_program(patient)
    if own:
        return own
    found = {runtime.path: runtime for runtime in _by_name(patient)}
    return list((found | _in_directories(patient.rootfs, _directories(patient))).values())


def search_runtimes(patient: Patient) -> list[CudaRuntime]:
    """Return the CUDA runtimes of the image that are in no usual place: which program uses them,
    and how it finds them, is not known.
    """
    tree = patient.rootfs
    try:
        return list(_in_directories(tree, _searched(tree)).values())
    except OutOfBounds:
        return []
    finally:
        if tree.bounds is not None:
            tree.bounds.next_step()  # the directories of data are this search's alone


def _in_directories(
    tree: Tree, directories: Iterable[tuple[str, tuple[int, int] | None]]
) -> dict[str, CudaRuntime]:
    """Return the runtimes in directories by their paths, each with NVIDIA's wheel's version."""
    found: dict[str, CudaRuntime] = {}
    seen: set[str] = set()
    for directory, wheel in directories:
        resolved = resolve(tree, directory)
        if resolved in seen:
            continue
        seen.add(resolved)
        for name in names(tree, resolved, "libcudart"):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            path = f"{resolved}/{name}"
            tree.count_library(path)
            node = tree.lstat(path)
            if node is not None and node.type == "file":
                found[path] = CudaRuntime(path, int(match[1]), _minor(match, wheel))
    return found


def _searched(tree: Tree) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yield the directories of an image, the outer ones first, and those of NVIDIA's wheels."""
    waiting = deque(("/",))
    left = _SEARCHED
    while waiting:
        directory = waiting.popleft()
        if posixpath.basename(directory) in _PACKAGES:
            yield from _wheels(tree, directory)
            continue
        yield directory, None
        for name in names(tree, directory, "", most=left):
            path = posixpath.join(directory, name)
            if name in _SKIPPED or path in _NOT_SEARCHED or not _MAY_BE_DIRECTORY.fullmatch(name):
                continue
            left -= 1
            node = tree.lstat(path)
            if node is not None and node.type == "dir":
                waiting.append(path)


def _of_program(patient: Patient) -> list[CudaRuntime]:
    """Return the runtimes that are inside the container's program or loaded when it starts."""
    tree = patient.planned
    program = patient.program
    if not program:
        return []
    try:
        resolved = tree.resolve(program)
        inside = None if tree.from_host(resolved) else _linked_into(tree, resolved)
    except (OSError, PathError):
        return []
    if inside is not None:
        return [inside]
    files = {
        loaded.file: runtime
        for loaded in all_objects(patient.proof(program).load.root)
        if (runtime := _of_file(loaded.file, of_program=True)) is not None
    }
    return list(files.values())


def _linked_into(tree: Tree, path: str) -> CudaRuntime | None:
    """Return the runtime inside a program, with its major version as far as it is known."""
    marks = {_MARK, *(text for text, _ in _MAJORS)}
    found = texts_in(tree, path, marks, _PROGRAM_LIMIT)
    if _MARK not in found:
        return None
    major = next((number for text, number in _MAJORS if text in found), _OLDEST_MARKED)
    return CudaRuntime(path, major, None, inside=True, of_program=True)


def _by_name(patient: Patient) -> Iterator[CudaRuntime]:
    """Yield the runtimes that the container's program gets when it opens one by its name."""
    for soname in _SONAMES:
        final = patient.proof(soname).final
        if final.path:
            runtime = _of_file(patient.planned.resolve(final.path))
            if runtime is not None:
                yield runtime


def _of_file(path: str, *, of_program: bool = False) -> CudaRuntime | None:
    match = _NAME.fullmatch(posixpath.basename(path))
    if match is None:
        return None
    return CudaRuntime(path, int(match[1]), _minor(match, None), of_program=of_program)


def find_cupy(patient: Patient) -> str | None:
    """Return the path of a cupy of the image, which has a CUDA runtime inside; None without one."""
    tree = patient.rootfs
    program = patient.program
    for prefix in prefixes(patient.container.spec.env, program):
        for packages in site_packages(tree, prefix):
            if "cupy" in names(tree, resolve(tree, packages), "cupy"):
                return f"{packages}/cupy"
    return None


def _minor(match: re.Match[str], wheel: tuple[int, int] | None) -> int | None:
    """Return the second number of a version.

    From 11 on the SONAME, which a wheel's file has as its name, does not tell it.
    """
    major = int(match[1])
    if match[2] is not None and (match[3] is not None or major < FIRST_COMPATIBLE):
        return int(match[2])
    return wheel[1] if wheel is not None and wheel[0] == major else None


def _directories(patient: Patient) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yield directories of libraries, and the version of NVIDIA's wheel where it is known."""
    tree, env = patient.rootfs, patient.container.spec.env
    for directory in (*LIBRARY_DIRECTORIES, *env.get("LD_LIBRARY_PATH", "").split(":")):
        if directory.startswith("/"):
            yield directory, None
    for name in names(tree, resolve(tree, "/usr/local"), "cuda"):
        for directory in _TOOLKIT_DIRECTORIES:
            yield f"/usr/local/{name}/{directory}", None
    program = patient.program
    for prefix in prefixes(env, program):
        yield f"{prefix}/lib", None
        for packages in site_packages(tree, prefix):
            yield from _wheels(tree, packages)


def _wheels(tree: Tree, packages: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yield the directories in which NVIDIA's wheels and PyTorch keep libraries."""
    versions = [
        (int(match[1]), int(match[2]))
        for name in names(tree, resolve(tree, packages), "nvidia_cuda_runtime")
        if (match := _WHEEL.fullmatch(name))
    ]
    for name in names(tree, resolve(tree, f"{packages}/nvidia"), ""):
        yield f"{packages}/nvidia/{name}/lib", max(versions, default=None)
    yield f"{packages}/torch/lib", None
