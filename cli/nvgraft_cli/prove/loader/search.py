"""Find a library as the dynamic loader of an image does.

A loader searches RPATH or RUNPATH, LD_LIBRARY_PATH, its cache, and directories built into it. Its
own file tells these directories and the path of its cache: in a Nix image they are in the store, in
Debian the multiarch ones. Sources: ld.so(8), and for the order glibc's elf/dl-load.c.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import NamedTuple

from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.ldcache_table import Row, Table
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.dynamic import BadElf, Dynamic, SearchPaths, read_dynamic
from nvgraft_cli.case.planned_cache import CACHE, image_cache, searched_by_ldconfig
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.access import Access
from nvgraft_cli.shell import logs

#: Bytes of a loader; glibc's has about 250 KiB.
_LOADER_LIMIT = 4 << 20
#: The most directories, and names of glibc-hwcaps subdirectories, that are built into a loader;
#: glibc's has four of each.
_MOST_BUILT_IN = 64
#: Bytes of a statically linked program, whose own loader is a part of it.
STATIC_LIMIT = 32 << 20
#: What musl's dlopen() says in such a program: it can load nothing.
NO_DLOPEN_WORDS = "Dynamic loading not supported"
#: Bytes of musl's list of directories, and of glibc's list of libraries to preload.
_TEXT_LIMIT = 64 << 10
#: glibc's list of libraries to preload.
_PRELOAD_LIST = "/etc/ld.so.preload"
#: The level of an x86-64 processor whose level is not recorded: servers have had it since 2014.
_USUAL_LEVEL = "x86-64-v3"
#: The least level of servers that drivers of today run on; it is not worth a remark.
_SURE_LEVEL = "x86-64-v2"

#: (machine, bits) -> the usual path of glibc's loader.
GLIBC_LOADERS = {
    ("EM_X86_64", 64): "/lib64/ld-linux-x86-64.so.2",
    ("EM_386", 32): "/lib/ld-linux.so.2",
    ("EM_AARCH64", 64): "/lib/ld-linux-aarch64.so.1",
    ("EM_ARM", 32): "/lib/ld-linux-armhf.so.3",
    ("EM_PPC64", 64): "/lib64/ld64.so.2",
}
#: (machine, bits) -> the name in uname -m, and 0 for native libraries or 1 for compat32.
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

#: The array of directories built into glibc's loader: two or more in a row, each with "/" and NUL.
_SYSTEM_DIRECTORIES = re.compile(rb"(?:/[\x21-\x7e]*/\0){2,}")
#: Subdirectories of glibc-hwcaps that a loader (2.33 and later, on x86-64) knows, best first.
_HWCAPS = re.compile(rb"\0((?:x86-64-v[2-9]:?)+)\0")
#: Subdirectories for x86-64 processors in which a loader before 2.37 searches, in its order: those
#: with the name of an architecture, and with that of a platform, which Intel's processors have.
#: ($PLATFORM is the same name.) It also has one for AVX-512, which nobody uses.
_PLATFORM = "haswell"
_OLDER = (
    *(f"tls/{_PLATFORM}/x86_64", f"tls/{_PLATFORM}", "tls/x86_64/x86_64", "tls/x86_64", "tls"),
    *(f"{_PLATFORM}/x86_64", _PLATFORM, "x86_64/x86_64", "x86_64"),
)
#: The same for 32-bit programs; each processor of a node with a GPU has these.
_OLDER_32 = ("tls/i686/sse2", "tls/i686", "tls/sse2", "tls", "i686/sse2", "i686", "sse2")
_OLDER_OF = {("EM_X86_64", 64): _OLDER, ("EM_386", 32): _OLDER_32}
_OLDER_LOADER = b"\0tls\0"
#: Flags of a cache row without a libc: ldconfig writes them for a 32-bit library that needs no
#: libc. Every loader takes such a row if there is no better one.
_ELF = 1
#: The directories built into musl's loader.
_OF_MUSL = ("/lib", "/usr/local/lib", "/usr/lib")
#: What is in the program of Alpine's gcompat: it stands in the place of glibc's loader and starts
#: musl's, which preloads functions that glibc alone has.
_STARTS_MUSL = re.compile(rb"\0(/lib/ld-musl-[\w-]+\.so\.1)\0")
_GCOMPAT = re.compile(rb"\0(/[\x21-\x7e]*libgcompat\.so\.0)\0")
#: Dynamic string tokens: $ORIGIN or ${ORIGIN}, but not $ORIGINAL.
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
_MUSL_ORIGIN = re.compile(r"\$ORIGIN|\$\{ORIGIN\}")
_CACHE_PATH = re.compile(rb"(/[\x21-\x7e]*/ld\.so\.cache)\0")
#: The names of architectures in $PLATFORM (AT_PLATFORM).
_ARCHITECTURES = {("EM_X86_64", 64): "x86_64", ("EM_AARCH64", 64): "aarch64"}
#: What in GLIBC_TUNABLES takes features, and with them levels, from a processor.
_TAKES_FEATURES = "glibc.cpu.hwcaps="
#: What in GLIBC_TUNABLES changes the reserve for thread-local storage.
_RESERVES_TLS = "glibc.rtld."
#: What is in these, and is found faster than they are.
_IN_DIRECTORIES, _IN_CACHE_PATH, _IN_HWCAPS = b"/\0/", b"/ld.so.cache\0", b"\0x86-64-v"
#: The most bytes of a path before what is in it.
_PATH_LIMIT = 4096

#: The rules "how" of a library in one of the loader's own directories, and in its cache.
BUILT_IN = "directory built into the loader"
CACHED = "loader cache"


@dataclass(frozen=True, slots=True)
class Loader:
    """A dynamic loader.

    :ivar path: where programs name it.
    :ivar musl: whether it is musl's.
    :ivar directories: the directories built into it; none where they are not known.
    :ivar cache: the path of its cache; "" if it reads none, None if it is not known.
    :ivar hwcaps: names of glibc-hwcaps subdirectories that it knows, best first.
    :ivar older: subdirectories for processors in which glibc before 2.37 searches, in its order.
    :ivar preloads: libraries that it preloads by itself.
    :ivar starts: the loader that it starts in its place; "" for none.
    """

    path: str
    musl: bool
    directories: tuple[str, ...]
    cache: str | None
    hwcaps: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    preloads: tuple[str, ...] = ()
    starts: str = ""

    @property
    def file(self) -> str:
        """The path of the loader that loads the libraries."""
        return self.starts or self.path


@dataclass(frozen=True, slots=True)
class Requester:
    """An object that needs others.

    :ivar path: its path as the loader names it.
    :ivar origin: the value of $ORIGIN in its search paths.
    """

    path: str
    origin: str
    facts: Dynamic

    @property
    def search(self) -> SearchPaths:
        """Its search paths; none where they are not recorded."""
        return self.facts.search or SearchPaths()

    @property
    def inherited(self) -> str:
        """Its RPATH, if it counts for the objects that it has led to, else ""."""
        return self.search.rpath or "" if self.search.runpath is None else ""


class Tried(NamedTuple):
    """A path that the loader tried and did not take.

    :ivar how: the rule by which it came to it.
    :ivar there: whether a file is there, which it passed over.
    """

    path: str
    reason: str
    how: str = ""
    there: bool = False


@dataclass(frozen=True, slots=True)
class Located:
    """A library that the loader has found.

    :ivar path: its path as the loader names it.
    :ivar file: its file, symbolic links followed.
    :ivar how: the rule by which it was found.
    :ivar tried: the paths that the loader tried before.
    """

    path: str
    file: str
    how: str
    tried: tuple[Tried, ...] = ()


def default_loader(machine: str, bits: int) -> str:
    """Return the path of the loader that glibc's programs name."""
    return GLIBC_LOADERS.get((machine, bits), "/lib64/ld-linux-x86-64.so.2")


def read_loader(tree: PlannedTree, path: str, machine: str, bits: int) -> Loader:
    """Return the loader at ``path``.

    :raises OSError: the loader is missing.
    """
    resolved = _resolved(tree, path)
    if resolved is None:
        raise FileNotFoundError(2, "no such file or directory", path)
    if "ld-musl" in posixpath.basename(path):
        return Loader(path, True, _OF_MUSL, "")
    if "ld-musl" in posixpath.basename(resolved):
        return Loader(resolved, True, _OF_MUSL, "")  # a link of Alpine's libc6-compat
    data = tree.read(resolved, _LOADER_LIMIT)
    if started := _STARTS_MUSL.search(data):
        preloaded = _GCOMPAT.search(data)
        preloads = (preloaded[1].decode(),) if preloaded else ()
        return Loader(path, True, _OF_MUSL, "", preloads=preloads, starts=started[1].decode())
    directories, cache, hwcaps = _built_in_loader(data)
    older = _OLDER_OF.get((machine, bits), ()) if _OLDER_LOADER in data else ()
    directories = directories or _usual_directories(tree, machine, bits)
    return Loader(path, False, directories, cache, hwcaps, older)


def read_static_loader(tree: PlannedTree, path: str) -> Loader | None:
    """Return the loader inside a statically linked program that can call dlopen(), or None.

    glibc's dlopen() brings its own copy of the loader's directories and of the cache's path.

    :param path: the resolved path of the program.
    """
    try:
        directories, cache, hwcaps = built_in(tree.read(path, STATIC_LIMIT))
    except OSError:
        return None
    return Loader(path, False, directories, cache, hwcaps) if directories and cache else None


def refuses_dlopen(tree: PlannedTree, path: str) -> bool:
    """Tell whether a statically linked program has the dlopen() of musl that always fails.

    Source: musl's src/ldso/dlopen.c, stub_dlopen().

    :param path: the resolved path of the program.
    """
    try:
        return NO_DLOPEN_WORDS.encode() in tree.read(path, STATIC_LIMIT)
    except OSError:
        return False


def built_in(data: bytes) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """Return the directories, the path of the cache, and the hwcaps built into glibc's loader.

    What is not recognised is empty, or None for the path of the cache.

    :param data: the loader's file.
    """
    directories: tuple[str, ...] = ()
    array = _text_with(data, _IN_DIRECTORIES, _SYSTEM_DIRECTORIES)
    if array is not None:
        parts = [part.decode() for part in array[0].split(b"\0", _MOST_BUILT_IN)[:-1] if part]
        directories = tuple(part.rstrip("/") or "/" for part in parts)
    cache = _text_with(data, _IN_CACHE_PATH, _CACHE_PATH)
    hwcaps = _HWCAPS.search(data, max(data.find(_IN_HWCAPS), 0)) if _IN_HWCAPS in data else None
    names = () if hwcaps is None else tuple(hwcaps[1].decode().split(":")[:_MOST_BUILT_IN])
    return directories, cache[1].decode() if cache else None, names


def _text_with(data: bytes, part: bytes, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Return the first match of a pattern at the beginning of a text that has ``part`` in it."""
    at = data.find(part)
    while at >= 0:
        start = at
        while start > max(at - _PATH_LIMIT, 0) and 0x21 <= data[start - 1] <= 0x7E:
            start -= 1
        match = pattern.match(data, start)
        if match is not None:
            return match
        at = data.find(part, at + 1)
    return None


#: The same, remembered: one case asks for the same loader many times.
_built_in_loader = lru_cache(maxsize=2)(built_in)


def _usual_directories(tree: PlannedTree, machine: str, bits: int) -> tuple[str, ...]:
    multiarch = _MULTIARCH.get((machine, bits))
    if multiarch and _resolved(tree, "/etc/debian_version") is not None:
        return (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib", "/usr/lib")
    name = _LIB.get((machine, bits), "lib")
    return (f"/{name}", f"/usr/{name}")


class LoadFault(Enum):
    """Why a loader does not load a library."""

    NOT_FOUND = auto()
    WRONG_CLASS = auto()  #: only files of the other ELF class were found
    DIRECTORY = auto()
    VERSION = auto()  #: another library lacks a version that it needs
    RELOCATION = auto()  #: it lacks a symbol of others, or room for its thread-local storage
    OTHER_GLIBC = auto()  #: it lacks a symbol that is private to its own release of glibc
    NOT_MAPPED = auto()  #: its file is on a volume with noexec
    NO_DLOPEN = auto()  #: the program is linked with a dlopen() that always fails
    OTHER = auto()


class Rejected(Exception):
    """A library at which the loader stops; the text is its message, which names ``file`` first."""

    def __init__(self, file: str, words: str, fault: LoadFault = LoadFault.OTHER) -> None:
        super().__init__(f"{file}: {words}")
        self.file = file
        self.fault = fault


class Searcher:
    """Finds libraries as one loader does, in one container.

    :param program: the running program; None if it is not known.
    :param environment: the variables of the container's process.
    :param directory: the working directory, to which relative paths are relative.
    :param isa_level: the level of the host's processor; None if it is not known.
    :param access: the files that the container's process may read.
    :param rebuilt: the directories that a script of the container has given to ldconfig, which
        writes the cache anew; None if none has run it.
    :param secure: whether the program has more rights than its user: the loader then expands
        $ORIGIN to its own directories alone.

    :ivar tried: the paths that the last search did not take, in order.
    :ivar undecided: whether the last search may find the library by a fact in ``unknown``.
    :ivar unknown: facts that are not known and that may change the result.
    :ivar perhaps: of these facts, each that decides between the result and another file, under the
        path of that file.
    """

    def __init__(
        self,
        tree: PlannedTree,
        loader: Loader,
        machine: str,
        bits: int,
        program: Requester | None,
        environment: Mapping[str, str],
        directory: str,
        isa_level: str | None,
        access: Access,
        *,
        secure: bool = False,
        rebuilt: Sequence[str] | None = None,
    ) -> None:
        self._tree = tree
        self._rebuilt = rebuilt
        self._secure = secure and not loader.musl
        self._access = access
        self._machine = machine
        self._bits = bits
        self._program = program
        self.directory = directory
        self._facts: dict[str, Dynamic | BadElf | OSError] = {}
        #: Library, requester and the objects whose RPATH counts -> what was found without a doubt,
        #: and what was tried before.
        self._found: dict[tuple[str, ...], tuple[Located | None, tuple[Tried, ...]]] = {}
        #: Directory -> its subdirectories for processors.
        self._there: dict[str, list[str]] = {}
        self.loader = loader
        self.unknown: list[str] = []
        self.perhaps: dict[str, str] = {}
        self.undecided = False
        self.tried: list[Tried] = []
        self._preload = environment.get("LD_PRELOAD", "")
        #: Whether the loader binds all symbols of the program and its libraries at the start.
        self.binds_at_start = loader.musl or bool(environment.get("LD_BIND_NOW"))
        #: Whether a variable changes the loader's reserve for thread-local storage.
        self.other_tls_reserve = _RESERVES_TLS in environment.get("GLIBC_TUNABLES", "")
        #: Directory with $PLATFORM -> its entry, and the directory on other processors.
        self._by_platform: dict[str, tuple[str, str]] = {}
        library_path = environment.get("LD_LIBRARY_PATH", "")
        count_paths(tree, "LD_LIBRARY_PATH", library_path)
        entries = re.split("[:\n]" if loader.musl else "[:;]", library_path) if library_path else []
        self._library_path = entries if loader.musl else self._expand(entries, program)
        level = isa_level or _USUAL_LEVEL
        self._hwcaps = tuple(name for name in loader.hwcaps if name <= level)
        # Subdirectories that the host's processor may or may not support.
        self._undecided_hwcaps = (
            tuple(name for name in loader.hwcaps if name > level) if isa_level is None else ()
        )
        if _TAKES_FEATURES in environment.get("GLIBC_TUNABLES", ""):
            self._hwcaps, self._undecided_hwcaps = (), loader.hwcaps
        self._assumed_hwcaps = (
            {name for name in self._hwcaps if name > _SURE_LEVEL} if isa_level is None else set()
        )
        self._level = int(level.removeprefix("x86-64-v")) - 1
        # Processors of a lower level than the usual one have no platform of their own.
        self._older = tuple(
            name for name in loader.older if level >= _USUAL_LEVEL or _PLATFORM not in name
        )
        self._directories = _musl_directories(tree, loader) if loader.musl else loader.directories

    def facts(self, path: str) -> Dynamic:
        """Return what the loader reads in the file at a resolved ``path``; it is read once.

        :raises BadElf: as :func:`nvgraft_cli.case.dynamic.read_dynamic` does, like OSError.
        """
        facts = self._facts.get(path)
        if facts is None:
            self._tree.count_library(path)
            try:
                facts = read_dynamic(self._tree, path)
            except (BadElf, OSError) as error:
                facts = error
            self._facts[path] = facts
        if isinstance(facts, Dynamic):
            return facts
        raise facts

    def preloads(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the libraries that are loaded before all others, each with the rule.

        Source: ld.so(8), LD_PRELOAD and /etc/ld.so.preload; musl has no such file.
        """
        if self._preload:
            count_paths(self._tree, "LD_PRELOAD", self._preload.replace(" ", ":"))
        yield from ((name, "gcompat") for name in self.loader.preloads)
        for name in re.split("[ :\n]" if self.loader.musl else "[ :]", self._preload):
            if name:
                yield name, "LD_PRELOAD"
        resolved = None if self.loader.musl else _resolved(self._tree, _PRELOAD_LIST)
        volume = self._tree.volumes.over(resolved or _PRELOAD_LIST)
        if not self.loader.musl and volume is not None and volume.tree is None:
            if not volume.empty:
                self.unknown.append(f"which libraries {_PRELOAD_LIST} names, on a volume")
            return
        if resolved is None or not self._access.may_read(resolved):
            return
        node = self._tree.lstat(resolved)
        if node is not None and node.type == "char":
            return  # /dev/null, bound over the list
        try:
            text = self._tree.read(resolved, _TEXT_LIMIT).decode("utf-8", "surrogateescape")
        except OSError as error:
            self.unknown.append(f"which libraries {_PRELOAD_LIST} names: {error.strerror}")
            return
        count_paths(self._tree, _PRELOAD_LIST, text.replace("\n", ":"))
        for line in text.splitlines():
            for name in re.split(r"[\s:]+", line.partition("#")[0]):
                if name:
                    yield name, _PRELOAD_LIST

    def find(self, name: str, chain: list[Requester]) -> Located | None:
        """Return the library that the loader takes for ``name``, or None.

        :param chain: the objects that led to this search, in order; the last one needs the library.
        :raises Rejected: when the loader stops at a file that is not an ELF library, or finds only
            libraries of the other ELF class.
        """
        if "/" in name or not chain or self.loader.musl:
            return self._search(name, chain)
        key = name, chain[-1].path, *(one.path for one in chain if one.inherited)
        if key in self._found:
            located, tried = self._found[key]
            self.tried, self.undecided = list(tried), False
            return located
        doubts = list(self.unknown), dict(self.perhaps)
        located = self._search(name, chain)
        if doubts == (self.unknown, self.perhaps) and not self.undecided:
            self._found[key] = located, tuple(self.tried)
        return located

    def _search(self, name: str, chain: list[Requester]) -> Located | None:
        """Search for a library without what earlier searches have found."""
        self.tried = []
        self.undecided = False
        other_class = 0
        for path, how in self._candidates(name, chain):
            located, bits = self._open(path, how)
            if located is not None:
                logs.debug("found", library=name, file=path, how=how)
                self._forget_equal(located)
                return located
            logs.debug("skipped", name=path, reason=self.tried[-1].reason)
            other_class = bits or other_class
        if other_class:
            words = f"wrong ELF class: ELFCLASS{other_class}"
            raise Rejected(name, words, LoadFault.WRONG_CLASS)
        return None

    def _open(self, path: str, how: str) -> tuple[Located | None, int]:
        """Return the library at ``path`` if the loader takes it.

        The second value is the bits of a library that is passed over for its ELF class, else 0.
        """
        count_paths(self._tree, path, path)
        resolved = self._resolved(path)
        if self._hidden(path, resolved) or resolved is None:
            self.tried.append(Tried(path, "does not exist", how))
            return None, 0
        node = self._tree.lstat(resolved)
        if node is not None and node.type == "dir":
            raise Rejected(path, "cannot read file data: Is a directory", LoadFault.DIRECTORY)
        if not self._access.may_read(resolved):
            self.tried.append(Tried(path, "the container's user may not read it", how, there=True))
            return None, 0
        if node is not None and node.type in {"char", "block", "fifo"}:
            raise Rejected(path, "file too short")  # /dev/null and the like
        try:
            facts = self.facts(resolved)
        except BadElf as error:
            raise Rejected(path, str(error)) from error
        except OSError:
            return Located(
                path, resolved, how, tuple(self.tried)
            ), 0  # what it needs is not recorded
        if (facts.machine, facts.bits) != (self._machine, self._bits):
            reason = f"for another machine: {facts.machine}, {facts.bits} bits"
            if self.loader.musl:
                raise Rejected(path, reason)  # musl stops at the first file
            self.tried.append(Tried(path, reason, how, there=True))
            return None, facts.bits if facts.bits != self._bits else 0
        if not self.loader.musl and facts.refused_as_library:
            raise Rejected(path, facts.refused_as_library)
        if not self._access.maps(resolved):
            words = "failed to map segment from shared object (noexec)"
            raise Rejected(path, words, LoadFault.NOT_MAPPED)
        return Located(path, resolved, how, tuple(self.tried)), 0

    def _hidden(self, path: str, resolved: str | None) -> bool:
        """Tell whether a volume that is not read covers a path."""
        place = resolved or posixpath.normpath(posixpath.join(self.directory, path))
        volume = None if self._tree.from_host(place) else self._tree.volumes.over(place)
        if volume is None or volume.tree is not None or self._tree.is_written(place):
            return False
        fact = f"which libraries the volume {volume.path} has, which comes first in the search"
        if not volume.empty and fact not in self.unknown:
            self.unknown.append(fact)
        return True

    def _resolved(self, path: str) -> str | None:
        return _resolved(self._tree, posixpath.join(self.directory, path))

    def _candidates(self, name: str, chain: list[Requester]) -> Iterator[tuple[str, str]]:
        """Yield the paths that the loader would try, in its order, each with the rule.

        Sources: ld.so(8); for musl ldso/dynlink.c.
        """
        requester = chain[-1] if chain else self._program
        if "/" in name:
            paths = [name] if self.loader.musl else self._expand([name], requester)
            yield from ((path, "by its path") for path in paths)
            return
        if self.loader.musl:
            yield from self._musl_candidates(name, chain)
            return
        for directory, how in self._first_directories(chain):
            yield from self._in_directory(directory, name, how)
        no_defaults = requester is not None and requester.search.no_default_directories
        cached = self._cached(name)
        if cached is not None and not (
            no_defaults and cached[0].startswith(tuple(f"{path}/" for path in self._directories))
        ):
            yield cached
        if not no_defaults:
            for directory in self._directories:
                yield from self._in_directory(directory, name, BUILT_IN)

    def _in_directory(self, directory: str, name: str, how: str) -> Iterator[tuple[str, str]]:
        """Yield the paths to try in a directory, first those in subdirectories for processors."""
        if directory in self._by_platform:
            self._note_platform(directory, name)
        if there := self._subdirectories(directory):
            yield from self._for_processors(directory, name, how, there)
        yield posixpath.join(directory, name), how

    def _for_processors(
        self, directory: str, name: str, how: str, there: list[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the paths to try in those subdirectories of a directory that are there."""
        for level in self._undecided_hwcaps:
            path = posixpath.join(directory, "glibc-hwcaps", level, name)
            if self._may_be_taken(path):
                self._not_recorded(path, level)
        for level in self._hwcaps:
            if f"glibc-hwcaps/{level}" in there:
                path = posixpath.join(directory, "glibc-hwcaps", level, name)
                if self._may_be_taken(path):
                    self._assumed(path, level)
                yield path, _for_level(how, level)
        for subdirectory in self._older:
            path = posixpath.join(directory, subdirectory, name)
            if self._resolved(path) is not None:
                if _PLATFORM in subdirectory and self._may_be_taken(path):
                    self._assume_intel(path)
                yield path, f"{how}, in a subdirectory for processors"

    def _may_be_taken(self, path: str) -> bool:
        """Tell whether a file is there that the container's user may read."""
        resolved = self._resolved(path)
        return resolved is not None and self._access.may_read(resolved)

    def _subdirectories(self, directory: str) -> list[str]:
        """Return the subdirectories for processors that a directory has."""
        if directory not in self._there:
            names = (*(f"glibc-hwcaps/{level}" for level in self.loader.hwcaps), *self._older)
            self._there[directory] = [
                name
                for name in names
                if self._resolved(posixpath.join(directory, name)) is not None
            ]
        return self._there[directory]

    def _not_recorded(self, path: str, level: str) -> None:
        fact = f"whether the host's processor has level {level}; if it has, {path} is loaded"
        self._note_unknown(fact)
        self.perhaps[path] = fact

    def _assume_intel(self, path: str) -> None:
        self._note_unknown(f"whether the host's processor is Intel's; if not, {path} is not loaded")

    def _note_unknown(self, fact: str) -> None:
        if fact not in self.unknown:
            self.unknown.append(fact)

    def _forget_equal(self, located: Located) -> None:
        """Forget each fact that decides between ways to the same file."""
        for path in [path for path in self.perhaps if self._resolved(path) == located.file]:
            fact = self.perhaps.pop(path)
            self.unknown = [other for other in self.unknown if other != fact]

    def _assumed(self, path: str, level: str) -> None:
        if level in self._assumed_hwcaps:
            self._note_unknown(
                f"whether the host's processor has level {level}, as servers have; if not, {path} "
                "is not loaded"
            )

    def _first_directories(self, chain: list[Requester]) -> Iterator[tuple[str, str]]:
        """Yield the directories that come before the loader's cache, each with the rule."""
        requester = chain[-1] if chain else None
        if requester is None or requester.search.runpath is None:
            # RPATH is inherited along the chain, and from the program last. It does not count in
            # an object that has a RUNPATH.
            inherited_from = list(reversed(chain))
            if self._program is not None and self._program not in chain:
                inherited_from.append(self._program)
            for ancestor in inherited_from:
                if ancestor.inherited:
                    for directory in self._expand(ancestor.inherited.split(":"), ancestor):
                        yield directory, f"RPATH of {ancestor.path}"
        yield from ((directory, "LD_LIBRARY_PATH") for directory in self._library_path)
        if requester is not None and requester.search.runpath:
            for directory in self._expand(requester.search.runpath.split(":"), requester):
                yield directory, f"RUNPATH of {requester.path}"

    def _musl_candidates(self, name: str, chain: list[Requester]) -> Iterator[tuple[str, str]]:
        yield from (
            (f"{directory}/{name}", "LD_LIBRARY_PATH")
            for directory in filter(None, self._library_path)
        )
        for requester in reversed(chain):
            search = requester.search
            path = search.rpath if search.runpath is None else search.runpath
            # musl knows only $ORIGIN, whatever follows it; a path with another token is ignored.
            parts = _MUSL_ORIGIN.split(path or "")
            if not any("$" in part for part in parts):
                for directory in filter(None, requester.origin.join(parts).split(":")):
                    yield f"{directory}/{name}", f"RPATH of {requester.path}"
        for directory in self._directories:
            yield f"{directory}/{name}", BUILT_IN

    def _expand(self, entries: list[str], requester: Requester | None) -> list[str]:
        """Expand $ORIGIN and $LIB; like the loader, leave out entries that cannot be expanded."""
        values = {"LIB": self._lib}
        if requester is not None:
            values["ORIGIN"] = requester.origin
        architecture = _ARCHITECTURES.get((self._machine, self._bits))
        if architecture is not None:
            values["PLATFORM"] = architecture
        expanded = []
        for entry in entries:
            names = {braced or bare for braced, bare in _TOKEN.findall(entry)}
            if "PLATFORM" in names and "PLATFORM" not in values:
                self.unknown.append(f"the value of $PLATFORM in {entry}")
            if names <= values.keys():
                text = _filled(entry, values)
                text = text.rstrip("/") or text[:1]
                if "PLATFORM" in names and self._machine == "EM_X86_64":
                    other = _filled(entry, values | {"PLATFORM": _PLATFORM})
                    self._by_platform[text] = entry, other
                trusted = posixpath.normpath(text) in self.loader.directories
                if not self._secure or "ORIGIN" not in names or trusted:
                    expanded.append(text)
        return expanded

    def _note_platform(self, directory: str, name: str) -> None:
        """Note that $PLATFORM has another value on some processors, if another file is there."""
        entry, other = self._by_platform[directory]
        here, there = (self._resolved(posixpath.join(place, name)) for place in (directory, other))
        fact = f"the value of $PLATFORM in {entry}: with some processors of Intel {_PLATFORM}"
        if here != there:
            self._note_unknown(fact)

    @cached_property
    def _lib(self) -> str:
        """The value of $LIB: in Debian's loader lib/x86_64-linux-gnu, its first directory."""
        first = self.loader.directories[0].strip("/") if self.loader.directories else ""
        return first if first.startswith("lib") else _LIB.get((self._machine, self._bits), "lib")

    def _cached(self, name: str) -> tuple[str, str] | None:
        """Return the path that the loader takes from its cache with the rule, or None.

        Source: glibc's _dl_load_cache_lookup.

        The loader tries only one path of its cache.
        """
        if self._rebuilt is not None and self.loader.cache == CACHE:
            return self._found_by_ldconfig(name)
        if self._table is None:
            return None
        found = self._row(self._table, name)
        if found is not None and self.loader.cache is None:
            self.undecided = True
            self.unknown.append(
                f"which cache {self.loader.path} reads; if it is {CACHE}, {found[0]} is loaded"
            )
            return None
        return found

    def _found_by_ldconfig(self, name: str) -> tuple[str, str] | None:
        """Return the path that ldconfig in the container enters first, with the rule, or None."""
        given = tuple(self._rebuilt or ())
        for directory in searched_by_ldconfig(self._tree, self._tree.machine, given):
            path = posixpath.join(directory, name)
            resolved = self._resolved(path)
            try:
                facts = None if resolved is None else self.facts(resolved)
            except (BadElf, OSError):
                continue
            if facts is not None and (facts.machine, facts.bits) == (self._machine, self._bits):
                return path, f"{CACHED}, which ldconfig in the container writes anew"
        return None

    def _row(self, table: Table, name: str) -> tuple[str, str] | None:
        """Return the path of the row that the loader takes with the rule, or None."""
        by_level: dict[str, list[Row]] = {}
        plain = []
        for row in table.lookup(name.encode("utf-8", "surrogateescape")):
            if row.flags not in {self._cache_flags, _ELF}:
                continue
            if row.older and not self._searches_older(_path_of(row)):
                continue
            if row.hwcaps is None:
                plain.append(row)
            else:
                level = row.hwcaps.decode("utf-8", "surrogateescape")
                by_level.setdefault(level, []).append(row)
        for level, rows in by_level.items():
            if level in self._undecided_hwcaps:
                for row in rows:
                    self._not_recorded(_path_of(row), level)
        for level in self._hwcaps:
            for row in by_level.get(level, ()):
                if row.isa_level <= self._level:
                    self._assumed(_path_of(row), level)
                    return _path_of(row), _for_level(CACHED, level)
        plain.sort(key=lambda row: row.flags == _ELF)
        return (_path_of(plain[0]), CACHED) if plain else None

    def _searches_older(self, path: str) -> bool:
        """Tell whether a loader takes a library of its cache in a subdirectory for processors."""
        directory = posixpath.dirname(path)
        found = next((one for one in self._older if directory.endswith(f"/{one}")), "")
        if _PLATFORM in found and self._may_be_taken(path):
            self._assume_intel(path)
        return bool(found)

    @cached_property
    def _table(self) -> Table | None:
        return (
            self._tree.loader_cache
            if self.loader.cache in {CACHE, None}
            else image_cache(self._tree, self.loader.cache)
        )

    @cached_property
    def _cache_flags(self) -> int:
        machine, kind = _KINDS.get((self._machine, self._bits), ("x86_64", 0))
        return loader_flags(machine)[kind]


def _filled(entry: str, values: Mapping[str, str]) -> str:
    """Return an entry of a search path with the values of its tokens."""
    return _TOKEN.sub(lambda match: values.get(match[1] or match[2], ""), entry)


def count_paths(tree: PlannedTree, where: str, paths: str) -> None:
    """Count paths that are tried, separated by colons.

    :raises OutOfBounds: there were too many.
    """
    if tree.bounds is not None:
        tree.bounds.count_names(where, paths.count(":") + 1, len(paths))


def _for_level(how: str, level: str) -> str:
    return f"{how}, for processors of level {level}"


def _path_of(row: Row) -> str:
    return row.path.decode("utf-8", "surrogateescape")


def _resolved(tree: PlannedTree, path: str) -> str | None:
    try:
        resolved, node = tree.find(posixpath.join("/", path))
    except (PathError, OSError):
        return None
    return None if node is None else resolved


def _musl_directories(tree: PlannedTree, loader: Loader) -> tuple[str, ...]:
    """Return the directories of /etc/ld-musl-ARCH.path, or musl's own if it does not exist."""
    architecture = posixpath.basename(loader.file).removeprefix("ld-musl-").removesuffix(".so.1")
    resolved = _resolved(tree, f"/etc/ld-musl-{architecture}.path")
    if resolved is None:
        return loader.directories
    try:
        text = tree.read(resolved, _TEXT_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return loader.directories
    return tuple(filter(None, re.split("[:\n]", text)))
