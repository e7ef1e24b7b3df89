"""Where the dynamic loader of an image looks for libraries: its own directories, its cache, and what the container says.

A loader is built with its directories and the path of its cache: a Nix image's are in the store, Debian's are the multiarch
ones. They are read from the loader's own file. Source: ld.so(8), and glibc's elf/dl-load.c for the order.
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.ldcache_table import Row, Table
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.dynamic import BadElf, Dynamic, SearchPaths, read_dynamic
from nvgraft_cli.case.planned_cache import CACHE, image_cache
from nvgraft_cli.case.planned_tree import PlannedTree

#: Bytes of a loader; glibc's has about 250 KiB.
_LOADER_LIMIT = 16 << 20
#: Bytes of musl's list of directories.
_TEXT_LIMIT = 64 << 10

_GLIBC_LOADERS = {
    ("EM_X86_64", 64): "/lib64/ld-linux-x86-64.so.2",
    ("EM_386", 32): "/lib/ld-linux.so.2",
    ("EM_AARCH64", 64): "/lib/ld-linux-aarch64.so.1",
    ("EM_ARM", 32): "/lib/ld-linux-armhf.so.3",
    ("EM_PPC64", 64): "/lib64/ld64.so.2",
}
#: (machine, bits) -> uname -m of the machine, and which of its two kinds of library that is.
_KINDS = {
    ("EM_X86_64", 64): ("x86_64", 0),
    ("EM_386", 32): ("x86_64", 1),
    ("EM_AARCH64", 64): ("aarch64", 0),
    ("EM_ARM", 32): ("aarch64", 1),
    ("EM_PPC64", 64): ("ppc64le", 0),
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
#: (They begin where a text does: to begin at each of its slashes would take the square of its length.)
_SYSTEM_DIRECTORIES = re.compile(rb"(?<![\x21-\x7e])(?:/[\x21-\x7e]*/\0){2,}")
#: Subdirectories of glibc-hwcaps that a loader (2.33 and later, on x86-64) knows, best first.
_HWCAPS = re.compile(rb"\0((?:x86-64-v[2-9]:?)+)\0")
#: Flags of a row of no known libc: ldconfig writes them for a 32-bit library that needs none. Every loader takes it, at last.
_ELF = 1
#: Dynamic string tokens: $ORIGIN or ${ORIGIN}, and not $ORIGINAL.
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_MUSL_ORIGIN = re.compile(r"\$ORIGIN|\$\{ORIGIN\}")
_CACHE_PATH = re.compile(rb"(?<![\x21-\x7e])(/[\x21-\x7e]*/ld\.so\.cache)\0")


@dataclass(frozen=True, slots=True)
class Loader:
    """A dynamic loader: its path, whether it is musl's, and what it was built with.

    :ivar hwcaps: names of glibc-hwcaps subdirectories, best first.
    """

    path: str
    musl: bool
    directories: tuple[str, ...]
    cache: str
    hwcaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
    """An object that asks for others: its path as the loader names it, what $ORIGIN stands for in it, and what it says."""

    path: str
    origin: str
    facts: Dynamic

    @property
    def search(self) -> SearchPaths:
        """Its search paths; none where they are not recorded."""
        return self.facts.search or SearchPaths()


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
    directories, cache, hwcaps = built_in(tree.read(resolved, _LOADER_LIMIT))
    return Loader(
        path, False, directories or _usual_directories(tree, machine, bits), cache, hwcaps
    )


def built_in(data: bytes) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return what a loader of glibc was built with: directories, none if they cannot be told, its cache, and its hwcaps."""
    cache = _CACHE_PATH.search(data)
    array = _SYSTEM_DIRECTORIES.search(data)
    hwcaps = _HWCAPS.search(data)
    directories = (
        tuple(part.decode().rstrip("/") or "/" for part in array[0].split(b"\0") if part)
        if array is not None
        else ()
    )
    names = () if hwcaps is None else tuple(hwcaps[1].decode().split(":"))
    return directories, cache[1].decode() if cache else CACHE, names


def _usual_directories(tree: PlannedTree, machine: str, bits: int) -> tuple[str, ...]:
    multiarch = _MULTIARCH.get((machine, bits))
    if multiarch and _resolved(tree, "/etc/debian_version") is not None:
        return (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib", "/usr/lib")
    name = _LIB.get((machine, bits), "lib")
    return (f"/{name}", f"/usr/{name}")


class Searcher:
    """Finds libraries as one loader does, in one container.

    :param program: the program that runs; None: one that says nothing about libraries.
    :param environment: the container's, of which LD_LIBRARY_PATH counts; ``directory`` is what relative paths count from.
    :param isa_level: the host's processor; None: it is not known.

    :ivar tried: the paths that were passed over for the library that was searched last, in order, and why.
    :ivar unknown: what could not be told on the way.
    """

    def __init__(
        self,
        tree: PlannedTree,
        loader: Loader,
        machine: str,
        bits: int,
        program: Asker | None,
        library_path: str,
        directory: str,
        isa_level: str | None,
    ) -> None:
        self._tree = tree
        self._machine = machine
        self._bits = bits
        self._program = program
        self.directory = directory
        self._facts: dict[str, Dynamic | BadElf | OSError] = {}
        self.loader = loader
        self.unknown: list[str] = []
        self.tried: list[tuple[str, str]] = []
        entries = re.split("[:\n]" if loader.musl else "[:;]", library_path) if library_path else []
        self._library_path = entries if loader.musl else self._expand(entries, program)
        # What better processors take, only to say what is not known.
        self._unsure = loader.hwcaps if isa_level is None else ()
        self._hwcaps = (
            () if isa_level is None else tuple(name for name in loader.hwcaps if name <= isa_level)
        )
        self._level = 0 if isa_level is None else int(isa_level.removeprefix("x86-64-v")) - 1
        self._directories = _musl_directories(tree, loader) if loader.musl else loader.directories

    def facts(self, path: str) -> Dynamic:
        """Return what the loader reads of the file at a resolved ``path``; read once.

        :raises BadElf: and OSError, as :func:`nvgraft_cli.case.dynamic.read_dynamic`.
        """
        known = self._facts.get(path)
        if known is None:
            try:
                known = read_dynamic(self._tree, path)
            except (BadElf, OSError) as error:
                known = error
            self._facts[path] = known
        if isinstance(known, Dynamic):
            return known
        raise known

    def find(self, name: str, chain: list[Asker]) -> Found | None:
        """Return what the loader takes for ``name``, asked for by the last of ``chain``, which the others led to.

        :raises BadElf: when it stops at a file that is none, or finds libraries of the other class alone.
        """
        self.tried = []
        other_class = 0
        for path, how in self._candidates(name, chain):
            found, bits = self._open(path, how)
            if found is not None:
                return found
            other_class = bits or other_class
        if other_class:
            raise BadElf(f"{name}: wrong ELF class: ELFCLASS{other_class}")
        return None

    def _open(self, path: str, how: str) -> tuple[Found | None, int]:
        """Return what is at ``path`` if the loader takes it, and otherwise its class if that is the other one."""
        resolved = self._resolved(path)
        if resolved is None:
            self.tried.append((path, "not there"))
            return None, 0
        node = self._tree.lstat(resolved)
        if node is not None and node.type == "dir":
            raise BadElf(f"{path}: cannot read file data: Is a directory")
        try:
            facts = self.facts(resolved)
        except BadElf as error:
            raise BadElf(f"{path}: {error}") from error
        except OSError:
            return Found(path, resolved, how), 0  # it is there; what it needs is not recorded
        if self.loader.musl and (facts.machine, facts.bits) != (self._machine, self._bits):
            raise BadElf(
                f"{path}: for another machine: {facts.machine}, {facts.bits} bits"
            )  # it takes the first file, whatever it is
        if (facts.machine, facts.bits) != (self._machine, self._bits):
            self.tried.append((path, f"for another machine: {facts.machine}, {facts.bits} bits"))
            return None, facts.bits if facts.bits != self._bits else 0
        return Found(path, resolved, how), 0

    def _resolved(self, path: str) -> str | None:
        return _resolved(self._tree, posixpath.join(self.directory, path))

    def _candidates(self, name: str, chain: list[Asker]) -> Iterator[tuple[str, str]]:
        """Return every path at which the loader would look, in its order (ld.so(8); for musl ldso/dynlink.c's)."""
        asker = chain[-1] if chain else self._program
        if "/" in name:
            paths = [name] if self.loader.musl else self._expand([name], asker)
            yield from ((path, "by its path") for path in paths)
            return
        if self.loader.musl:
            yield from self._musl_candidates(name, chain)
            return
        for directory, how in self._first_directories(chain):
            yield from self._in_directory(directory, name, how)
        no_defaults = asker is not None and asker.search.no_default_directories
        cached = self._cached(name)
        if cached is not None and not (
            no_defaults and cached.startswith(tuple(f"{path}/" for path in self._directories))
        ):
            yield cached, "loader cache"
        if not no_defaults:
            for directory in self._directories:
                yield from self._in_directory(
                    directory, name, "directory that the loader is built with"
                )

    def _in_directory(self, directory: str, name: str, how: str) -> Iterator[tuple[str, str]]:
        """Return the name in a directory, before that in those of its glibc-hwcaps subdirectories that count and exist."""
        for level in self._hwcaps:
            better = posixpath.join(directory, "glibc-hwcaps", level)
            if self._resolved(better) is not None:
                yield posixpath.join(better, name), f"{how}, for processors of level {level}"
        for level in self._unsure:
            path = posixpath.join(directory, "glibc-hwcaps", level, name)
            if self._resolved(path) is not None:
                self._not_recorded(path, level)
        yield posixpath.join(directory, name), how

    def _not_recorded(self, path: str, level: str) -> None:
        text = f"whether the host's processor is of level {level}, so that {path} is taken, is not recorded"
        if text not in self.unknown:
            self.unknown.append(text)

    def _first_directories(self, chain: list[Asker]) -> Iterator[tuple[str, str]]:
        asker = chain[-1] if chain else None
        if asker is None or asker.search.runpath is None:
            # The RPATH of whoever led here counts as well, unless it has a RUNPATH itself; at last the program's.
            program = (
                [self._program] if self._program is not None and self._program not in chain else []
            )
            for other in [*reversed(chain), *program]:
                if other.search.rpath and other.search.runpath is None:
                    for directory in self._expand(other.search.rpath.split(":"), other):
                        yield directory, f"RPATH of {other.path}"
        yield from ((directory, "LD_LIBRARY_PATH") for directory in self._library_path)
        if asker is not None and asker.search.runpath:
            for directory in self._expand(asker.search.runpath.split(":"), asker):
                yield directory, f"RUNPATH of {asker.path}"

    def _musl_candidates(self, name: str, chain: list[Asker]) -> Iterator[tuple[str, str]]:
        yield from (
            (f"{directory}/{name}", "LD_LIBRARY_PATH")
            for directory in filter(None, self._library_path)
        )
        for asker in reversed(chain):
            path = asker.search.rpath if asker.search.runpath is None else asker.search.runpath
            # It knows $ORIGIN alone, whatever follows; with another token the whole path counts for nothing.
            parts = _MUSL_ORIGIN.split(path or "")
            if not any("$" in part for part in parts):
                for directory in filter(None, asker.origin.join(parts).split(":")):
                    yield f"{directory}/{name}", f"RPATH of {asker.path}"
        for directory in self._directories:
            yield f"{directory}/{name}", "directory that the loader is built with"

    def _expand(self, entries: list[str], asker: Asker | None) -> list[str]:
        """Return paths without $ORIGIN and $LIB; what cannot be expanded is left out, as the loader does."""
        values = {"LIB": self._lib}
        if asker is not None:
            values["ORIGIN"] = asker.origin
        expanded = []
        for entry in entries:
            names = {braced or bare for braced, bare in _TOKEN.findall(entry)}
            if "PLATFORM" in names:
                self.unknown.append(f"what $PLATFORM stands for in {entry} is not recorded")
            elif names <= values.keys():
                text = _TOKEN.sub(lambda match: values[match[1] or match[2]], entry)
                expanded.append(text.rstrip("/") or text[:1])
        return expanded

    @cached_property
    def _lib(self) -> str:
        """What the loader puts for $LIB: Debian's is built with lib/x86_64-linux-gnu, as its first directory shows."""
        first = self.loader.directories[0].strip("/") if self.loader.directories else ""
        return first if first.startswith("lib") else _LIB.get((self._machine, self._bits), "lib")

    def _cached(self, name: str) -> str | None:
        """Return the one path that the loader takes from its cache (_dl_load_cache_lookup): it tries no second one."""
        if self._table is None:
            return None
        rows = [
            row
            for row in self._table.lookup(name.encode("utf-8", "surrogateescape"))
            if row.flags in {self._cache_flags, _ELF}
        ]
        named = [row for row in rows if row.hwcaps is not None]
        for row in named:
            if (
                row.hwcaps is not None
                and row.hwcaps.decode("utf-8", "surrogateescape") in self._unsure
            ):
                self._not_recorded(_text_of(row), row.hwcaps.decode())
        for level in self._hwcaps:
            for row in named:
                if row.hwcaps == level.encode() and row.isa_level <= self._level:
                    return _text_of(row)
        plain = [row for row in rows if row.hwcaps is None]
        return next(
            (_text_of(row) for row in sorted(plain, key=lambda row: row.flags == _ELF)), None
        )

    @cached_property
    def _table(self) -> Table | None:
        return (
            self._tree.loader_cache
            if self.loader.cache == CACHE
            else image_cache(self._tree, self.loader.cache)
        )

    @cached_property
    def _cache_flags(self) -> int:
        machine, kind = _KINDS.get((self._machine, self._bits), ("x86_64", 0))
        return loader_flags(machine)[kind]


def _text_of(row: Row) -> str:
    return row.path.decode("utf-8", "surrogateescape")


def _resolved(tree: PlannedTree, path: str) -> str | None:
    try:
        resolved, node = tree.find(posixpath.join("/", path))
    except (PathError, OSError):
        return None
    return None if node is None else resolved


def _musl_directories(tree: PlannedTree, loader: Loader) -> tuple[str, ...]:
    """Return what /etc/ld-musl-ARCH.path says, or musl's own directories."""
    architecture = posixpath.basename(loader.path).removeprefix("ld-musl-").removesuffix(".so.1")
    resolved = _resolved(tree, f"/etc/ld-musl-{architecture}.path")
    if resolved is None:
        return loader.directories
    try:
        text = tree.read(resolved, _TEXT_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return loader.directories
    return tuple(filter(None, re.split("[:\n]", text)))
