"""Where the dynamic loader of an image looks for libraries: its own directories, its cache, and what the container says.

A loader is built with its directories and the path of its cache: a Nix image's are in the store, Debian's are the multiarch
ones. They are read from the loader's own file. Source: ld.so(8), and glibc's elf/dl-load.c for the order.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nvgraft.ld_so_conf import FILE_LIMIT, Configuration
from nvgraft.ldcache import SIZE_LIMIT, CacheEntry, parse
from nvgraft.plan import Plan, UpdateLoaderCache
from nvgraft.tree import PathError
from nvgraft_cli.planned_tree import PlannedTree
from nvgraft_cli.prove.dynamic import BadElf, Dynamic, read_dynamic

#: Bytes of a loader; glibc's has about 250 KiB.
_LOADER_LIMIT = 16 << 20

_GLIBC_LOADERS = {
    ("EM_X86_64", 64): "/lib64/ld-linux-x86-64.so.2",
    ("EM_386", 32): "/lib/ld-linux.so.2",
    ("EM_AARCH64", 64): "/lib/ld-linux-aarch64.so.1",
    ("EM_ARM", 32): "/lib/ld-linux-armhf.so.3",
    ("EM_PPC64", 64): "/lib64/ld64.so.2",
}
_LIB = {("EM_X86_64", 64): "lib64", ("EM_PPC64", 64): "lib64"}
_MULTIARCH = {
    ("EM_X86_64", 64): "x86_64-linux-gnu",
    ("EM_386", 32): "i386-linux-gnu",
    ("EM_AARCH64", 64): "aarch64-linux-gnu",
    ("EM_ARM", 32): "arm-linux-gnueabihf",
    ("EM_PPC64", 64): "powerpc64le-linux-gnu",
}

#: Two or more directories in a row, each with its slash and its NUL: the array that glibc's loader is built with.
_SYSTEM_DIRECTORIES = re.compile(rb"(?:/[\x21-\x7e]*/\0){2,}")
_CACHE_PATH = re.compile(rb"(/[\x21-\x7e]*/ld\.so\.cache)\0")


@dataclass(frozen=True, slots=True)
class Loader:
    """A dynamic loader: its path, whether it is musl's, and what it was built with."""

    path: str
    musl: bool
    directories: tuple[str, ...]
    cache: str


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that was taken: its path as the loader names it, the file behind it, and the rule that led there."""

    name: str
    path: str
    how: str


def default_loader(machine: str, bits: int) -> str:
    """Return where programs of glibc expect their loader."""
    return _GLIBC_LOADERS.get((machine, bits), "/lib64/ld-linux-x86-64.so.2")


def read_loader(tree: PlannedTree, path: str, machine: str, bits: int) -> Loader:
    """Return the loader at ``path``.

    :raises OSError: when it is missing.
    """
    resolved = _resolved(tree, path)
    if resolved is None:
        raise FileNotFoundError(2, "no such file or directory", path)
    if "ld-musl" in posixpath.basename(path):
        return Loader(path, True, ("/lib", "/usr/local/lib", "/usr/lib"), "")
    data = tree.read(resolved, _LOADER_LIMIT)
    cache = _CACHE_PATH.search(data)
    array = _SYSTEM_DIRECTORIES.search(data)
    if array is not None:
        directories = tuple(part.decode().rstrip("/") or "/" for part in array[0].split(b"\0") if part)
    else:
        directories = _usual_directories(tree, machine, bits)
    return Loader(path, False, directories, cache[1].decode() if cache else "/etc/ld.so.cache")


def _usual_directories(tree: PlannedTree, machine: str, bits: int) -> tuple[str, ...]:
    multiarch = _MULTIARCH.get((machine, bits))
    if multiarch and _resolved(tree, "/etc/debian_version") is not None:
        return (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib", "/usr/lib")
    name = _LIB.get((machine, bits), "lib")
    return (f"/{name}", f"/usr/{name}")


class Searcher:
    """Finds libraries as one loader does, in one container.

    :ivar tried: the paths that were passed over for the library that was searched last, in order, and why.
    """

    def __init__(self, tree: PlannedTree, plan: Plan, loader: Loader, machine: str, bits: int, library_path: str) -> None:
        self._tree = tree
        self._machine = machine
        self._bits = bits
        self.loader = loader
        self.library_path = [entry or "." for entry in re.split("[:;]", library_path)] if library_path else []
        self._cache = {} if loader.musl else _cache(tree, plan, loader)
        self._directories = _musl_directories(tree, loader) if loader.musl else loader.directories
        self.tried: list[tuple[str, str]] = []

    def find(self, name: str, chain: list[tuple[str, Dynamic]]) -> Found | None:
        """Return what the loader takes for ``name``, asked for by the last of ``chain``, which the others led to.

        :raises BadElf: when it stops at a file that is none.
        """
        self.tried = []
        for path, how in self._candidates(name, chain):
            found = self._open(path, how)
            if found is not None:
                return found
        return None

    def _open(self, path: str, how: str) -> Found | None:
        resolved = _resolved(self._tree, path)
        if resolved is None:
            self.tried.append((path, "not there"))
            return None
        node = self._tree.lstat(resolved)
        if node is None or node.type == "dir":
            self.tried.append((path, "a directory"))
            return None
        try:
            facts = read_dynamic(self._tree, resolved)
        except BadElf as error:
            raise BadElf(f"{path}: {error}") from error
        except OSError:
            return Found(path, resolved, how)  # it is there; what it needs is not recorded
        if (facts.machine, facts.bits) != (self._machine, self._bits):
            self.tried.append((path, f"for another machine: {facts.machine}, {facts.bits} bits"))
            return None
        return Found(path, resolved, how)

    def _candidates(self, name: str, chain: list[tuple[str, Dynamic]]) -> Iterator[tuple[str, str]]:
        """Return every path at which the loader would look, in its order (ld.so(8); for musl ldso/dynlink.c's)."""
        if "/" in name:
            yield name, "by its path"
            return
        for directory, how in self._first_directories(chain):
            yield posixpath.join(directory, name), how
        for path in self._cache.get(name, ()):
            yield path, "loader cache"
        for directory in self._directories:
            yield posixpath.join(directory, name), "directory that the loader is built with"

    def _first_directories(self, chain: list[tuple[str, Dynamic]]) -> Iterator[tuple[str, str]]:
        asker, facts = chain[-1] if chain else ("", None)
        if not self.loader.musl and (facts is None or not facts.runpath):
            # The RPATH of whoever led here counts as well, unless it has a RUNPATH itself.
            for path, other in reversed(chain):
                if other.rpath and not other.runpath:
                    yield from ((directory, f"RPATH of {path}") for directory in self._expand(other.rpath, path))
        yield from ((directory, "LD_LIBRARY_PATH") for directory in self.library_path)
        if self.loader.musl:
            for path, other in reversed(chain):
                yield from ((directory, f"RPATH of {path}") for directory in self._expand(other.runpath or other.rpath, path))
        elif facts is not None:
            yield from ((directory, f"RUNPATH of {asker}") for directory in self._expand(facts.runpath, asker))

    def _expand(self, path: str, origin: str) -> list[str]:
        directory = posixpath.dirname(origin)
        library = _LIB.get((self._machine, self._bits), "lib")
        expanded = []
        for entry in filter(None, path.split(":")):
            text = re.sub(r"\$(?:ORIGIN\b|\{ORIGIN\})", lambda _: directory, entry)
            expanded.append(re.sub(r"\$(?:LIB\b|\{LIB\})", lambda _: library, text))
        return expanded


def _resolved(tree: PlannedTree, path: str) -> str | None:
    try:
        resolved, node = tree.find(posixpath.join("/", path))
    except (PathError, OSError):
        return None
    return None if node is None else resolved


def _cache(tree: PlannedTree, plan: Plan, loader: Loader) -> dict[str, list[str]]:
    """Return the loader cache after the hook: SONAME -> paths. The hook's own entries are in /etc/ld.so.cache alone."""
    rows: dict[str, list[str]] = {}
    for entry in _image_cache(tree, loader):
        rows.setdefault(entry.soname, []).append(entry.path)
    directories = {directory for action in plan.actions if isinstance(action, UpdateLoaderCache) for directory in action.directories}
    if not directories or loader.cache != "/etc/ld.so.cache":
        return rows
    mounted = [path for path in tree.sources if posixpath.dirname(path) in directories]
    for path in [*mounted, *(path for path, _ in plan.links)]:
        paths = rows.setdefault(posixpath.basename(path), [])
        if path not in paths:
            paths.insert(0, path)
    return rows


def _image_cache(tree: PlannedTree, loader: Loader) -> list[CacheEntry]:
    resolved = _resolved(tree, loader.cache)
    if resolved is not None:
        try:
            return parse(tree.read(resolved, SIZE_LIMIT))
        except (OSError, ValueError):
            return []  # the loader ignores a cache that it cannot read
    # The hook makes one, of the directories that the image's configuration names.
    configuration = Configuration(lambda path: _text(tree, path), tree.listdir)
    configuration.load()
    entries = []
    for directory in configuration.directories:
        place = _resolved(tree, directory)
        names = [] if place is None else tree.listdir(place)
        entries += [CacheEntry(name, 0, posixpath.join(directory, name)) for name in names if name.startswith("lib") and ".so" in name]
    return entries


def _text(tree: PlannedTree, path: str) -> bytes:
    resolved = _resolved(tree, path)
    if resolved is None:
        raise FileNotFoundError(2, "no such file or directory", path)
    return tree.read(resolved, FILE_LIMIT)


def _musl_directories(tree: PlannedTree, loader: Loader) -> tuple[str, ...]:
    """Return what /etc/ld-musl-ARCH.path says, or musl's own directories."""
    architecture = posixpath.basename(loader.path).removeprefix("ld-musl-").removesuffix(".so.1")
    try:
        text = _text(tree, f"/etc/ld-musl-{architecture}.path").decode("utf-8", "surrogateescape")
    except OSError:
        return loader.directories
    return tuple(filter(None, re.split("[:\n]", text)))
