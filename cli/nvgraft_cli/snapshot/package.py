"""A driver that is not installed: unpacked packages, or a driver's root file system, as a host to
plan on.

Nothing of it runs, so what NVML would say is taken from the files (the versions) and from a host
that has the GPUs.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import islice
from typing import NamedTuple

from nvgraft.container.target import DEBIAN_DIRECTORIES
from nvgraft.formats.ldcache import ARCHITECTURES, SIZE_LIMIT, compare_names
from nvgraft.formats.ldcache_entries import CacheEntry, parse
from nvgraft.formats.tree import Bounds, Node, OutOfBounds, PathError, Tree, open_tree_at
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport
from nvgraft.host.libraries import LIBRARY_PREFIXES
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.snapshot.runfile import MANIFEST, RunfileTree, is_runfile
from nvgraft_specs import catalogue
from nvgraft_specs.cuda_versions import CUDA_VERSIONS, FIRST_BRANCHES, LAST_BRANCHES

#: Libraries whose file names end in the driver's version, and what a host without them lacks.
#: Every driver has one of them.
_VERSIONED = {
    "libcuda.so.": "no container can use CUDA on a host without it",
    "libnvidia-ml.so.": "the live host starts no GPU container without it, which plans leave out",
}

#: What people have before they unpack it -> the command that unpacks it.
_UNPACKED_BY = {
    ".deb": "dpkg-deb -x FILE DIR",
    ".rpm": "rpm2cpio FILE | cpio -id",
    ".run": "sh FILE --extract-only",
}

#: Directories that are looked at for packages that were unpacked into one each.
_MOST_PACKAGES = 64

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
        for path, target in (*_merged_directories(below, version), *_alternatives(below)):
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


def _merged_directories(tree: Tree, version: str) -> Iterator[tuple[str, str]]:
    """Yield the links of a merged /usr that packages do not contain, and links to firmware that is
    in /usr/lib beside other firmware in /lib.
    """
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        if tree.lstat(f"/{name}") is None and tree.lstat(f"/usr/{name}") is not None:
            yield f"/{name}", f"usr/{name}"
    path = "/lib"
    for name in ("firmware", "nvidia", version):
        node = tree.lstat(path)
        if node is None or node.type != "dir":
            return
        path = f"{path}/{name}"
        if tree.lstat(path) is None or (name == version and not tree.listdir(path)):
            if tree.lstat(f"/usr{path}") is not None:
                yield path, f"/usr{path}"
            return


def _alternatives(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the links to programs that Debian's update-alternatives makes when it installs them."""
    drivers = tree.lstat(_DEBIAN_PROGRAMS)
    if drivers is None or drivers.type != "dir":
        return
    for row in catalogue.BINARIES:
        if any(tree.is_there(f"{place}/{row.name}") for place in _PROGRAMS):
            continue
        for driver in sorted(tree.listdir(_DEBIAN_PROGRAMS)):
            program = f"{_DEBIAN_PROGRAMS}/{driver}/{row.name}"
            if tree.lstat(program) is not None:
                link = f"/etc/alternatives/nvidia--{row.name}"
                yield link, program
                yield f"/usr/bin/{row.name}", link
                break


def _ignore(_: str) -> None:
    """Take a warning that nobody wants to have."""


def open_package(
    directory: str, installed_at: str, gpus: Host | None, warn: Callable[[str], None] = _ignore
) -> Host:
    """Return the host that results when the driver below ``directory`` is installed.

    :param installed_at: the driver root at which it will be installed.
    :param gpus: the host that has the GPUs, device nodes and /proc entries; None for none.
    :param warn: is called with a line about what this driver lacks.
    :raises InputError: ``directory`` has no driver, or more than one.
    """
    try:
        files: Tree = open_tree_at(directory, directory.rstrip("/"), Bounds())
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        fix = "--root must name a directory with the files of a driver"
        if isinstance(error, NotADirectoryError) and (command := _unpacking(directory)):
            fix = f"unpack it ({command}), and name the directory with its files"
        raise InputError(f"{directory}: {cause}: {fix}") from error
    try:
        if is_runfile(files):
            if files.lstat(MANIFEST) is None:
                warn(
                    f"{directory}: taken for an extracted .run archive, although it has no"
                    f" {MANIFEST[1:]} | if it is a directory of libraries, name the root above it"
                )
            files = RunfileTree(files, lambda machine: _library_directories(machine, gpus))
        versions = _versions(files)
        if not versions:
            raise InputError(f"{directory}: has no driver: {_other_files(files, directory)}")
    except OutOfBounds as error:
        raise InputError(
            f"{error.text}: --root must name a directory with the files of a driver"
        ) from error
    if len(versions) != 1:
        found = [f"{version} (in {places[0]})" for version, places in sorted(versions.items())]
        raise InputError(
            f"{directory}: has the driver versions {', '.join(found)}: name a directory with the"
            " files of exactly one driver version"
        )
    version, directories = versions.popitem()
    branch = int(version.partition(".")[0])
    if branch not in CUDA_VERSIONS:
        fix = "upgrade nvgraft" if branch > max(CUDA_VERSIONS) else "name another driver"
        cause = f"the CUDA version of branch {branch} is not known"
        raise InputError(f"{directory}: driver {version}: {cause}: {fix}")
    libraries = _scan(files, directories, version)
    machine = _machine(directory, version, libraries)
    report = DriverReport(
        version, CUDA_VERSIONS[branch], gpus.report.gpus if gpus is not None else ()
    )
    entries = _entries(files, libraries.entries)
    for line in _lacking(entries, machine, version, libraries.faults):
        warn(f"{directory}: {line}")
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


def unsupported(report: DriverReport) -> str:
    """Return why the driver does not drive one of the GPUs that a report has, or "" if it drives
    all of them, as far as that is known.
    """
    branch = int(report.driver_version.partition(".")[0])
    for gpu in report.gpus:
        first = FIRST_BRANCHES.get(gpu.arch, 0)
        last = LAST_BRANCHES.get(gpu.arch.partition(".")[0], branch)
        last = LAST_BRANCHES.get(gpu.arch, last)
        if first <= branch <= last:
            continue
        needed = f"{first} or newer" if branch < first else f"{last} or older"
        return (
            f"driver {report.driver_version} does not support {gpu.model} (compute capability"
            f" {gpu.arch}), which needs branch {needed}"
        )
    return ""


def _unpacking(name: str) -> str:
    """Return the command that unpacks a package, by the end of its name; "" if it is none."""
    return _UNPACKED_BY.get(os.path.splitext(name)[1], "")


def _other_files(tree: Tree, directory: str) -> str:
    """Return what a directory without a driver has in place of one, and what to do."""
    for name in tree.listdir("/"):
        if command := _unpacking(name):
            return f"{name} is not unpacked | unpack it ({command})"
    names = (name for name in tree.listdir("/") if _type(tree, f"/{name}") == "dir")
    for name in islice(names, _MOST_PACKAGES):
        place = f"{directory.rstrip('/')}/{name}"
        try:
            below = open_tree_at(place, place, tree.bounds)
        except OSError:
            continue
        try:
            versions = _versions(below)
        except OSError:
            continue  # this directory is not what the user asked about
        finally:
            below.close()
        if versions:
            return (
                f"its directory {name} has driver {min(versions)} | name {place}, or unpack all"
                " packages into one directory"
            )
    names_of_libraries = " nor ".join(f"{name}VERSION" for name in _VERSIONED)
    return (
        f"neither {names_of_libraries} is in its library directories | unpack the packages with the"
        " driver's libraries into it too"
    )


def _type(tree: Tree, path: str) -> str:
    node = tree.lstat(path)
    return "" if node is None else node.type


def _machine(directory: str, version: str, libraries: "_Scan") -> str:
    """Return the machine of a driver's libraries.

    :raises InputError: they are for none, or for several.
    """
    if len(libraries.machines) == 1:
        return next(iter(libraries.machines))
    if libraries.machines:
        raise InputError(
            f"{directory}: has libraries for {' and '.join(sorted(libraries.machines))}: name a"
            " directory with the packages of one architecture"
        )
    start = f"{directory}: driver {version}"
    if libraries.entries:
        raise InputError(
            f"{start}: has only 32-bit libraries | unpack the packages with the 64-bit libraries"
            " into it too"
        )
    path, fault = next(iter(libraries.faults.items()))
    raise InputError(
        f"{start}: none of its libraries can be read ({path}: {fault}) | unpack its packages again"
    )


def _lacking(
    entries: list[CacheEntry], machine: str, version: str, faults: dict[str, str]
) -> Iterator[str]:
    """Yield a line for each library that cannot be read, and for each main one that a driver
    lacks.
    """
    wide, _ = ARCHITECTURES[machine]
    have = {entry.soname for entry in entries if entry.architecture == wide}
    without = {
        f"/{prefix}{version}": (f"{prefix}1", consequence)
        for prefix, consequence in _VERSIONED.items()
        if f"{prefix}1" not in have
    }
    for path, fault in faults.items():
        _, consequence = without.pop(path[path.rfind("/") :], ("", ""))
        words = f"; {consequence}" if consequence else ""
        yield f"{path} is left out: {fault}{words} | unpack its package again"
    for soname, consequence in without.values():
        yield f"{soname} is not in these files; {consequence} | unpack its package there too"


def _library_directories(machine: str, gpus: Host | None) -> tuple[str, str]:
    """Return where the driver's installer puts libraries, and those for 32-bit programs.

    :param machine: the ELF machine of the libraries.
    :param gpus: the host on which it installs them; Debian's directories for None.
    """
    if gpus and any(entry.path.startswith(("/lib64/", "/usr/lib64/")) for entry in gpus.entries):
        return "/usr/lib64", "/usr/lib"
    name, _ = _ARCHITECTURES.get((machine, 64), ("", False))
    return DEBIAN_DIRECTORIES.get(name, ("/usr/lib64", "/usr/lib"))


def _versions(tree: Tree) -> dict[str, list[str]]:
    """Return driver version -> directories with its libraries, first one that names it."""
    versions: dict[str, list[str]] = {}
    pending = [(root, 0) for root in _LIBRARY_ROOTS]
    directories: list[tuple[str, list[str]]] = []
    while pending:
        path, depth = pending.pop()
        tree.count_library(path)
        node = tree.lstat(path)
        if node is None or node.type != "dir":
            continue
        try:
            names = tree.listdir(path)
        except OSError as error:
            place = f"{tree.label}{path}"
            raise OSError(error.errno, os.strerror(error.errno or 0), place) from error
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
                    versions.setdefault(version, [path])
            if depth < _DEPTH and "." not in name:
                pending.append((f"{path}/{name}", depth + 1))
    for version, places in versions.items():
        places.extend(
            path
            for path, names in directories
            if path not in places and any(name.endswith(f".so.{version}") for name in names)
        )
    return versions


def _entries(tree: Tree, found: list[CacheEntry]) -> list[CacheEntry]:
    """Return the tree's loader cache, or the one that ldconfig would write: the libraries that were
    found.
    """
    try:
        cached = parse(tree.read(tree.resolve("/etc/ld.so.cache"), SIZE_LIMIT), LIBRARY_PREFIXES)
        files = {tree.resolve(entry.path) for entry in found}
        known = {entry.soname for entry in cached if tree.resolve(entry.path) in files}
    except (OSError, ValueError, PathError):
        return found
    # A cache that does not lead to this driver is older than its files.
    return cached if {entry.soname for entry in found} <= known else found


class _Scan(NamedTuple):
    """The libraries in a driver's directories.

    :ivar entries: those that ldconfig would list.
    :ivar machines: the machines of those that are not for 32-bit programs.
    :ivar faults: path -> why ldconfig would not list it.
    """

    entries: list[CacheEntry]
    machines: set[str]
    faults: dict[str, str]


def _scan(tree: Tree, directories: list[str], version: str) -> _Scan:
    scan = _Scan([], set(), {})
    prefixes = tuple(prefix.decode() for prefix in LIBRARY_PREFIXES)
    for directory in sorted(directories):
        newest: dict[tuple[str, int], str] = {}
        for name in tree.listdir(directory):
            path = f"{directory}/{name}"
            # Links to SONAMEs lead to files that are looked at themselves.
            if not name.startswith(prefixes) or not (
                _type(tree, path) == "file" or name.endswith(f".so.{version}")
            ):
                continue
            try:
                facts = tree.elf(tree.resolve(path), sections=False)
            except PathError as error:
                scan.faults[path] = f"a link that leads {error.leads}"
                continue
            except OSError as error:
                scan.faults[path] = (error.strerror or str(error)).lower()
                continue
            except ValueError as error:
                scan.faults[path] = str(error)
                continue
            known = _ARCHITECTURES.get((facts.machine, facts.bits))
            if known is None:
                scan.faults[path] = f"it is for another machine ({facts.machine})"
                continue
            if facts.soname is None or not facts.soname.startswith(prefixes):
                continue
            machine, is_narrow = known
            wide, narrow = ARCHITECTURES[machine]
            if not is_narrow:
                scan.machines.add(machine)
            key = (facts.soname, wide if not is_narrow or narrow is None else narrow)
            # Of several files with one SONAME, ldconfig takes the one with the greatest name.
            if key not in newest or compare_names(name, newest[key]) > 0:
                newest[key] = name
        scan.entries.extend(
            CacheEntry(soname, architecture, f"{directory}/{name}")
            for (soname, architecture), name in newest.items()
        )
    scan.entries.sort(
        key=cmp_to_key(lambda one, other: compare_names(one.soname, other.soname)), reverse=True
    )
    return scan
