"""A driver that is not installed: unpacked packages, or a driver's root file system, as a host to
plan on.

Nothing of it runs, so what NVML would say is taken from the files (the versions) and from a host
that has the GPUs.
"""

import errno
import os
import re
from collections.abc import Iterator
from functools import cmp_to_key

from nvgraft.container.target import DEBIAN_DIRECTORIES
from nvgraft.formats.ldcache import ARCHITECTURES, SIZE_LIMIT, compare_names
from nvgraft.formats.ldcache_entries import CacheEntry, parse
from nvgraft.formats.tree import Bounds, Node, OutOfBounds, PathError, Tree, open_tree_at
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport
from nvgraft.host.libraries import LIBRARY_PREFIXES
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.snapshot.runfile import RunfileTree, is_runfile
from nvgraft_specs import catalogue
from nvgraft_specs.cuda_versions import CUDA_VERSIONS

#: Libraries whose file names end in the driver's version. Every driver has one of them.
_VERSIONED = ("libcuda.so.", "libnvidia-ml.so.")

#: Where packages install libraries, and how deep below (Debian:
#: /usr/lib/x86_64-linux-gnu/nvidia/current).
_LIBRARY_ROOTS = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
)
_DEPTH = 5

#: Where Debian's packages install programs, one directory for each driver, and where programs are
#: searched.
_DEBIAN_PROGRAMS = "/usr/lib/nvidia"
_PROGRAMS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")

#: What the kernel makes on the host that has the GPUs, and where its services have their sockets:
#: packages contain none of it, and an upgrade leaves it there.
_KERNELS = ("/dev", "/proc")
_SERVICES = ("/run", "/tmp", "/var")  # noqa: S108 - of the recorded host

_VERSION_FILE = "/proc/driver/nvidia/version"

#: (machine, bits) of an ELF file -> the driver's machine, and whether the file is for 32-bit
#: programs.
_ARCHITECTURES = {
    ("EM_X86_64", 64): ("x86_64", False),
    ("EM_386", 32): ("x86_64", True),
    ("EM_AARCH64", 64): ("aarch64", False),
    ("EM_ARM", 32): ("aarch64", True),
    ("EM_PPC64", 64): ("ppc64le", False),
}


class PackageTree(LayeredTree):
    """The files of a driver that is not installed, with /dev, /proc and the services' sockets of
    a host that has the GPUs.

    The links that an installation adds are added: /lib of a merged /usr, and those of Debian's
    alternatives. In the texts under /proc the driver has the version of the files.

    :param version: the driver's version.
    :param gpus: the host that has the GPUs; None for none.
    """

    def __init__(self, below: Tree, version: str, gpus: Host | None) -> None:
        self._below = below
        self._version = version
        self._machine = None if gpus is None else gpus.tree
        self._old_version = "" if gpus is None else gpus.report.driver_version
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        for path, target in (*_merged_directories(below), *_alternatives(below)):
            self._links[path] = target
            while path != "/":
                parent, _, name = path.rpartition("/")
                self._names.setdefault(parent or "/", set()).add(name)
                path = parent or "/"

    def _tree(self, path: str) -> Tree | None:
        if _is_below(path, _KERNELS) or (self._machine is not None and _is_below(path, _SERVICES)):
            return self._machine
        return self._below

    def lstat(self, path: str) -> Node | None:
        if path in self._links:
            return Node("symlink", target=self._links[path])
        tree = self._tree(path)
        node = None if tree is None else tree.lstat(path)
        return Node("dir", 0o755) if node is None and path in self._names else node

    def listdir(self, path: str) -> list[str]:
        tree = self._tree(path)
        names = [] if tree is None else tree.listdir(path)
        return sorted({*names, *self._names.get(path, ())})

    def read(self, path: str, limit: int) -> bytes:
        data = super().read(path, limit)
        old, new = self._old_version.encode(), self._version.encode()
        if not path.startswith("/proc/driver/nvidia/") or not old:
            return data
        if path == _VERSION_FILE and old != new:
            # The date of the old module's build is not the new one's.
            return re.sub(re.escape(old) + rb"[^\n]*", new, data, count=1)
        return data.replace(old, new)

    def side(self, path: str) -> tuple[Tree, str]:
        tree = self._tree(path)
        if tree is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return tree, path


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in directories)


def _merged_directories(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the links of a merged /usr that packages do not contain."""
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        if tree.lstat(f"/{name}") is None and tree.lstat(f"/usr/{name}") is not None:
            yield f"/{name}", f"usr/{name}"
    firmware = "/lib/firmware"
    node = tree.lstat("/lib")
    if node is not None and node.type == "dir" and tree.lstat(firmware) is None:
        yield firmware, f"/usr{firmware}"


def _alternatives(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the links to programs that Debian's update-alternatives makes when it installs them."""
    drivers = tree.lstat(_DEBIAN_PROGRAMS)
    if drivers is None or drivers.type != "dir":
        return
    for row in catalogue.BINARIES:
        if any(tree.lstat(f"{place}/{row.name}") for place in _PROGRAMS):
            continue
        for driver in sorted(tree.listdir(_DEBIAN_PROGRAMS)):
            program = f"{_DEBIAN_PROGRAMS}/{driver}/{row.name}"
            if tree.lstat(program) is not None:
                link = f"/etc/alternatives/nvidia--{row.name}"
                yield link, program
                yield f"/usr/bin/{row.name}", link
                break


def open_package(directory: str, installed_at: str, gpus: Host | None) -> Host:
    """Return the host that results when the driver below ``directory`` is installed.

    :param installed_at: the driver root at which it will be installed.
    :param gpus: the host that has the GPUs, device nodes and /proc entries; None for none.
    :raises InputError: ``directory`` has no driver, or more than one.
    """
    try:
        files: Tree = open_tree_at(directory, directory.rstrip("/"), Bounds())
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        raise InputError(
            f"{directory}: {cause}: --root must name a directory with the files of a driver"
        ) from error
    try:
        if is_runfile(files):
            files = RunfileTree(files, lambda machine: _library_directories(machine, gpus))
        versions = _versions(files)
    except OutOfBounds as error:
        raise InputError(
            f"{error.text}: --root must name a directory with the files of a driver"
        ) from error
    if len(versions) != 1:
        versions_text = ", ".join(sorted(versions))
        cause = f"has the driver versions {versions_text}" if versions else "has no driver"
        raise InputError(
            f"{directory}: {cause}: name a directory with the files of exactly one driver version"
        )
    version, directories = versions.popitem()
    entries, machine = _entries(files, directories)
    branch = int(version.partition(".")[0])
    if branch not in CUDA_VERSIONS:
        fix = "upgrade nvgraft" if branch > max(CUDA_VERSIONS) else "name another driver"
        cause = f"the CUDA version of branch {branch} is not known"
        raise InputError(f"{directory}: driver {version}: {cause}: {fix}")
    report = DriverReport(
        version, CUDA_VERSIONS[branch], gpus.report.gpus if gpus is not None else ()
    )
    majors = gpus.majors if gpus is not None else {}
    tree = PackageTree(files, version, gpus)
    return Host(
        name=f"driver-{version}",
        root=installed_at,
        tree=tree,
        entries=entries,
        report=report,
        majors=majors,
        machine=machine,
    )


def _library_directories(machine: str, gpus: Host | None) -> tuple[str, str]:
    """Return where the driver's installer puts libraries, and those for 32-bit programs.

    :param machine: the ELF machine of the libraries.
    :param gpus: the host on which it installs them; Debian's directories for None.
    """
    if gpus and any(entry.path.startswith(("/lib64/", "/usr/lib64/")) for entry in gpus.entries):
        return "/usr/lib64", "/usr/lib"
    name, _ = _ARCHITECTURES.get((machine, 64), ("", False))
    return DEBIAN_DIRECTORIES.get(name, ("/usr/lib64", "/usr/lib"))


def _versions(tree: Tree) -> dict[str, set[str]]:
    """Return driver version -> directories with its libraries."""
    versions: dict[str, set[str]] = {}
    pending = [(root, 0) for root in _LIBRARY_ROOTS]
    directories: list[tuple[str, list[str]]] = []
    while pending:
        path, depth = pending.pop()
        tree.count_library(path)
        node = tree.lstat(path)
        if node is None or node.type != "dir":
            continue
        names = tree.listdir(path)
        directories.append((path, names))
        for name in names:
            for prefix in _VERSIONED:
                version = name.removeprefix(prefix)
                # Compatibility libraries of a CUDA toolkit have such names too, but are elsewhere.
                if (
                    name.startswith(prefix)
                    and version.count(".") in {1, 2}
                    and version.replace(".", "").isdecimal()
                ):
                    versions.setdefault(version, set())
            if depth < _DEPTH and "." not in name:
                pending.append((f"{path}/{name}", depth + 1))
    for version, places in versions.items():
        places.update(
            path
            for path, names in directories
            if any(name.endswith(f".so.{version}") for name in names)
        )
    return versions


def _entries(tree: Tree, directories: set[str]) -> tuple[list[CacheEntry], str]:
    """Return the tree's loader cache, or the one that ldconfig would write, and the libraries'
    machine.
    """
    prefixes = tuple(prefix.decode() for prefix in LIBRARY_PREFIXES)
    found, machine = _scan(tree, directories, prefixes)
    try:
        cached = parse(tree.read(tree.resolve("/etc/ld.so.cache"), SIZE_LIMIT), LIBRARY_PREFIXES)
    except (OSError, ValueError, PathError):
        cached = []
    # A cache without this driver is older than its files.
    known = {entry.soname for entry in cached}
    return (cached if {entry.soname for entry in found} <= known else found), machine


def _scan(
    tree: Tree, directories: set[str], prefixes: tuple[str, ...]
) -> tuple[list[CacheEntry], str]:
    machine = ""
    rows: list[CacheEntry] = []
    for directory in sorted(directories):
        newest: dict[tuple[str, int], str] = {}
        for name in tree.listdir(directory):
            node = tree.lstat(f"{directory}/{name}")
            if not name.startswith(prefixes) or node is None or node.type != "file":
                continue
            try:
                facts = tree.elf(f"{directory}/{name}", sections=False)
            except (ValueError, OSError):
                continue
            known = _ARCHITECTURES.get((facts.machine, facts.bits))
            if known is None or facts.soname is None or not facts.soname.startswith(prefixes):
                continue
            wide, narrow = ARCHITECTURES[known[0]]
            key = (facts.soname, wide if not known[1] or narrow is None else narrow)
            machine = machine or known[0]
            # Of several files with one SONAME, ldconfig takes the one with the greatest name.
            if key not in newest or compare_names(name, newest[key]) > 0:
                newest[key] = name
        rows += [
            CacheEntry(soname, architecture, f"{directory}/{name}")
            for (soname, architecture), name in newest.items()
        ]
    rows.sort(
        key=cmp_to_key(lambda one, other: compare_names(one.soname, other.soname)), reverse=True
    )
    return rows, machine or os.uname().machine
