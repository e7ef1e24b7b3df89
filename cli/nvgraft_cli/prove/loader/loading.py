"""Load one object with all that it needs, as a dynamic loader does, and tell what goes wrong first.

The order is breadth first. Each library is loaded once, under the name that requested it or its
SONAME; versions are checked at the end, and then symbols without a version that the image's
program and libraries need. What is opened binds all its functions at once, as CUDA's runtime and
Python ask dlopen() to; what comes with the program binds them when they are called, if it does not
say more.
"""

import posixpath
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import PathError
from nvgraft_cli.case.dynamic import BadElf, Dynamic, calls_dlopen
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.symbols import PRIVATE, read_symbols
from nvgraft_cli.prove.loader.code_opens import Code, OpenedByCode
from nvgraft_cli.prove.loader.search import (
    BUILT_IN,
    CACHED,
    LoadFault,
    Located,
    Rejected,
    Requester,
    Searcher,
    Tried,
    count_paths,
)

#: A loader's words for a library that it did not find.
NOT_FOUND = "cannot open shared object file: No such file or directory"

_MUSL_REASONS = {
    LoadFault.NOT_FOUND: "No such file or directory",
    LoadFault.DIRECTORY: "Is a directory",
}

#: Beginnings of the names of those that ask dlopen() to bind all functions at once.
_BIND_AT_ONCE = ("python", "libpython", "libcudart", "pypy")

#: How names of symbols are written.
_NAMES = ("utf-8", "surrogateescape")

#: The name of CUDA's runtime, and what it opens.
_CUDA_RUNTIME, _OF_RUNTIME = "libcudart.so", "libcuda.so.1"

#: The beginnings of the names of glibc's and musl's libraries, which define dlopen().
_DEFINES_DLOPEN = ("ld-", "libc.", "libdl.")

#: What a snapshot may not record of an object, and the attribute of Dynamic that holds it.
_RECORDED = (("search directories", "search"), ("versions", "versions_needed"))

#: Bytes for thread-local storage of opened libraries beside the program's that glibc reserves
#: (_dl_tls_static_surplus): the first are always free, more than the second never.
_SURE_TLS, _MOST_TLS = 1536, 1792

#: Rules by which the program finds the same file itself, whatever its code has opened before.
_OF_EVERY_SEARCH = ("LD_LIBRARY_PATH", CACHED, BUILT_IN)

#: The most objects of one load, and of those the most of which each was found because the one
#: before needs it; a large CUDA program has about 200, and 10 levels.
_OBJECTS, _LEVELS = 5000, 100


@dataclass(slots=True)
class Object:
    """A loaded object.

    :ivar name: the name that requested it.
    :ivar path: its path as the loader names it.
    :ivar file: its file, symbolic links followed.
    :ivar how: the rule by which it was found.
    :ivar facts: None where they are not recorded.
    :ivar needs: the objects that it needs, in order; empty where ``already_loaded`` is set.
    :ivar already_loaded: how it had been loaded before, or "" if it was not.
    :ivar tried: the paths that the loader tried before this one.
    :ivar brought_by: how the program's own code has brought it before, or "" if it has not.
    """

    name: str
    path: str
    file: str
    how: str
    from_host: bool
    facts: Dynamic | None
    needs: list["Object"] = field(default_factory=list)
    already_loaded: str = ""
    tried: tuple[Tried, ...] = ()
    brought_by: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the loader.

    :ivar needed_by: the object that needs ``name``, or "".
    :ivar words: the loader's message.
    :ivar file: the file that the message names first, or "".
    :ivar tried: the paths that the loader tried.
    """

    needed_by: str
    name: str
    words: str
    fault: LoadFault = LoadFault.OTHER
    file: str = ""
    tried: tuple[Tried, ...] = ()


@dataclass(slots=True)
class Load:
    """The outcome of a load.

    :ivar root: the requested object with all that it needs; None if it was not found.
    :ivar failures: in the loader's order.
    :ivar unknown: facts that a snapshot does not record and that may change the outcome.
    :ivar perhaps: of these facts, each that decides between the result and another file, under the
        path of that file.
    :ivar ignored: the loader's messages about libraries that it does not preload.
    :ivar opened_by: the library that opens it; "" if the program does.
    :ivar computed: of the facts in ``unknown``, what sets the program's variables, or "".
    :ivar scripted: of the facts in ``unknown``, that a script changes such files, or "".
    :ivar unfit: of the facts in ``unknown``, that the driver may not fit the C library, or "".
    :ivar perhaps_opened: of these facts, each by which code of the program has opened another file
        before, under the path of that file; "" where it is not known.
    """

    root: Object | None
    failures: list[Failure] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    perhaps: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    opened_by: str = ""
    computed: str = ""
    scripted: str = ""
    unfit: str = ""
    perhaps_opened: dict[str, str] = field(default_factory=dict)


class RunningProgram:
    """A program that loads libraries with dlopen(). It is started when it loads the first one.

    :param started: the program, whose RPATH or RUNPATH counts; None if it is not known.
    :param code: what opens libraries before the program opens the one in question; None for
        nothing.
    """

    def __init__(
        self,
        tree: PlannedTree,
        searcher: Searcher,
        started: Requester | None,
        code: Code | None = None,
    ) -> None:
        self._tree = tree
        self._searcher = searcher
        self._started = started
        self._code = code

    @cached_property
    def _start(self) -> tuple["LoadedObjects", Object | None, list[str], dict[str, str]]:
        """Objects of the start, that of the program, and what the search does not know then."""
        loading, root = LoadedObjects(self._tree, self._searcher), None
        if self._started is not None:
            root = loading.start(self._started)
            preloaded = loading.preload(self._started)
            loading.load_needed([(root, []), *preloaded])
            loading.check_versions()
            loading.check_symbols([root, *(entry for entry, _chain in preloaded)])
            loading.program_is_running()
        return loading, root, self._searcher.unknown, self._searcher.perhaps

    @cached_property
    def _opener(self) -> Object | None:
        """The library that opens others for the program; None if the program does."""
        loading, started, *_ = self._start
        return None if started is None else loading.first_with_dlopen(started)

    @cached_property
    def _running(self) -> "OpenedByCode":
        """What is loaded when the program's own code has opened libraries."""
        start, started, unknown, perhaps = self._start
        self._searcher.unknown, self._searcher.perhaps = list(unknown), dict(perhaps)
        chain = [] if self._started is None else [self._started]
        if self._opener is not None:
            chain = start.chain_of(self._opener, chain)
        opened = OpenedByCode(start, chain)
        if self._code is not None and started is not None and not start.failures:
            with suppress(Refusal):  # an image beyond a bound: what is known so far counts
                self._code(opened)
        return opened

    def load(self, name: str, after: str = "", opened: Sequence[str] = ()) -> Load:
        """Load a library, or start the program.

        :param name: the SONAME or path that dlopen() gets, or the program's own path.
        :param after: the path of a library that the program opens before. CUDA's runtime among its
            objects, or else the library itself, then opens ``name``: its RPATH and RUNPATH count.
        :param opened: paths of libraries that the program has opened itself before.
        """
        start, started, unknown, perhaps = self._start
        running = self._running
        self._searcher.unknown, self._searcher.perhaps = list(unknown), dict(perhaps)
        brought = running.loading.brought(name)
        loading = (
            start if brought and brought.how.startswith(_OF_EVERY_SEARCH) else running.loading
        ).copy()
        if started is not None and (started.path == name or loading.failures):
            return loading.outcome(started)
        chain = [] if self._started is None else [self._started]
        if opened:
            own = loading.opened_by(self._opener, chain) if self._opener else chain
            for path in opened:
                loading.bring(path, own)
        if after:
            chain = loading.opened_before(after, chain)
        elif opener := (name == _OF_RUNTIME and start.runtime()) or self._opener:
            chain = loading.opened_by(opener, chain)
        root = loading.brought(name) or loading.loaded(name)
        if root is None:
            located = loading.find("" if started is None else started.path, name, chain)
            if located is None:
                return running.noted(name, loading.outcome(None))
            root = loading.enter(name, located)
        if not root.already_loaded:
            if not root.brought_by:
                loading.load_needed([(root, chain)])
            loading.check_versions()
            loading.check_symbols([root], opened=True)
        return running.noted(name, loading.outcome(root))


class _Definers:
    """What all loads of a program know of the symbols of libraries.

    :ivar files: a library, and whether its functions are bound at once -> the files that together
        define all its symbols.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, bool], frozenset[str]] = {}


class LoadedObjects:
    def __init__(self, tree: PlannedTree, searcher: Searcher) -> None:
        self._tree = tree
        self._searcher = searcher
        self._by_name: dict[str, Object] = {}
        self._by_file: dict[str, Object] = {}
        self._versions_checked: set[str] = set()
        self._defined: dict[str, frozenset[str]] = {}
        self._definers = _Definers()
        self._loader: Object | None = None
        self._program = ""
        self._loaded_at_start: set[int] = set()
        self._chains: dict[int, list[Requester]] = {}
        self._opened_by = ""
        self.failures: list[Failure] = []
        self._unknown: list[str] = []
        self._ignored: list[str] = []
        self._enter_loader()

    def copy(self) -> "LoadedObjects":
        """Return the same objects, to which others can be added."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        return other

    def outcome(self, root: Object | None) -> Load:
        return Load(
            root,
            self.failures,
            self._unknown + self._searcher.unknown,
            self._searcher.perhaps,
            self._ignored,
            self._opened_by,
        )

    def opened_before(self, path: str, chain: list[Requester]) -> list[Requester]:
        """Load a library that the program opens first; return what led to what opens more."""
        opened = self.bring(path, chain)
        return chain if opened is None else self.opened_by(self.runtime() or opened, chain)

    def bring(self, path: str, chain: list[Requester]) -> Object | None:
        """Load a library with its needs. Its failures do not count: they are another question's."""
        located = self.find("" if not chain else chain[-1].path, path, chain)
        if located is not None:
            opened = self.enter(path, located)
            if not opened.already_loaded:
                self.load_needed([(opened, chain)])
            self._unknown.clear()
        self.failures.clear()
        return None if located is None else self._by_file[located.file]

    def bring_for_code(self, name: str, chain: list[Requester], by: str) -> bool | None:
        """Load a library that code of the program opens, with its needs. Tell whether it loads;
        None if that is not known.

        Its versions are looked at once more where somebody asks for what it brings.

        :param by: the code, and what it does.
        """
        known = set(self._by_file)
        opened = self.loaded(name)
        located = None
        if opened is None:
            located = self.find("" if not chain else chain[-1].path, name, chain)
        if located is not None:
            opened = self.enter(name, located)
            if not opened.already_loaded:
                self.load_needed([(opened, chain)])
        undecided = self._searcher.undecided and opened is None
        checked = self.copy()
        checked.check_versions()
        failed = bool(checked.failures)
        self.failures.clear()
        self._unknown.clear()
        for file in self._by_file.keys() - known:
            brought = self._by_file[file]
            itself = opened is not None and brought.file == opened.file
            brought.brought_by = f"{by} {'it' if itself else name} first"
        return None if undecided else opened is not None and not failed

    def brought(self, name: str) -> Object | None:
        """Return the object that code has brought and that answers for a name, or None."""
        loaded = self._by_name.get(name)
        return replace(loaded, name=name) if loaded is not None and loaded.brought_by else None

    @property
    def names(self) -> Collection[str]:
        """The names that objects answer for."""
        return self._by_name.keys()

    def names_brought(self, before: "LoadedObjects") -> Iterator[tuple[str, Object]]:
        """Yield the names that objects answer for and did not ``before``, each with its object."""
        for name, loaded in self._by_name.items():
            if name not in before._by_name:
                yield name, loaded

    def chain_of(self, opener: Object, chain: list[Requester]) -> list[Requester]:
        """Return what led to a library that opens more."""
        return self._chains.get(id(opener), chain)

    def opened_by(self, opener: Object, chain: list[Requester]) -> list[Requester]:
        """Return what led to a library that opens more; note that it does."""
        self._opened_by = opener.file
        return self.chain_of(opener, chain)

    def runtime(self) -> Object | None:
        """Return CUDA's runtime, which opens the driver, if it is loaded."""
        named = self._by_name.items()
        return next((entry for name, entry in named if name.startswith(_CUDA_RUNTIME)), None)

    def first_with_dlopen(self, program: Object) -> Object | None:
        """Return the library that opens others for a program that does not call dlopen().

        It is the first in the order of loading: of many a Python, libpython. It is None where the
        program calls dlopen() itself, or no library is known that does.
        """
        if calls_dlopen(self._tree, program.file):
            return None
        for loaded in self._by_file.values():
            name = posixpath.basename(loaded.name)
            if loaded is program or name.startswith(_DEFINES_DLOPEN):
                continue
            if calls_dlopen(self._tree, loaded.file):
                return loaded
        return None

    def _enter_loader(self) -> None:
        """Enter the loader under its SONAME: it is always loaded, and libc.so.6 needs it."""
        path = self._searcher.loader.file
        try:
            resolved = self._tree.resolve(path)
            facts = self._searcher.facts(resolved)
        except (BadElf, OSError, PathError):
            return
        name = facts.soname or posixpath.basename(path)
        loader = Object(
            name, path, resolved, "the loader itself", self._tree.from_host(resolved), facts
        )
        self._by_name[name] = loader
        self._by_file[resolved] = self._loader = loader

    def start(self, program: Requester) -> Object:
        """Enter the program that the kernel has mapped."""
        path = self._tree.resolve(program.path)
        started = Object(
            program.path,
            program.path,
            path,
            "by its path",
            self._tree.from_host(path),
            program.facts,
        )
        self._by_file[path] = started
        self._program = program.path
        return started

    def program_is_running(self) -> None:
        """Note that all objects entered so far belong to the start of the program."""
        self._loaded_at_start = {id(loaded) for loaded in self._by_file.values()}

    def preload(self, program: Requester) -> list[tuple[Object, list[Requester]]]:
        """Load the libraries to preload; return each with the objects that led to it.

        One that cannot be loaded is ignored by the loader, with a message on stderr. The loader
        inside a statically linked program preloads nothing.
        """
        preloaded = []
        for name, rule in self._searcher.preloads() if program.facts.interp is not None else ():
            self._tree.count_library(name)
            if self.loaded(name) is not None:
                continue
            try:
                located = self._searcher.find(name, [program])
                words = NOT_FOUND
            except Rejected as error:
                located, words = None, str(error)
            if located is None:
                self._ignored.append(f"{rule} names {name}, which is ignored: {words}")
                continue
            entered = self.enter(name, Located(located.path, located.file, rule))
            if not entered.already_loaded:
                preloaded.append((entered, [program]))
        return preloaded

    def load_needed(self, roots: list[tuple[Object, list[Requester]]]) -> None:
        """Load the objects that ``roots`` need, and those that they need.

        :param roots: each with the objects that led to it.
        :raises Refusal: they are too many.
        """
        queue = deque(roots)
        while queue:
            current, current_chain = queue.popleft()
            if current.facts is None:
                continue
            needed_chain = [*current_chain, self._requester(current, current_chain)]
            self._chains[id(current)] = needed_chain
            if len(self._by_file) > _OBJECTS or len(needed_chain) > _LEVELS:
                raise Refusal(
                    "container",
                    f"{current.path}: it is loaded with more than {_OBJECTS} libraries, or is the"
                    f" last of more than {_LEVELS} that need one another",
                    "use another image: this one is damaged or malicious",
                )
            count_paths(self._tree, current.path, ":".join(current.facts.needed))
            for name in current.facts.needed:
                needed = self.loaded(name)
                if needed is None:
                    located = self.find(current.path, name, needed_chain)
                    if located is None:
                        continue
                    needed = self.enter(name, located)
                    if not needed.already_loaded:
                        queue.append((needed, needed_chain))
                current.needs.append(needed)

    def loaded(self, name: str) -> Object | None:
        """Return the object that is loaded under a name already, or None."""
        loaded = self._by_name.get(name)
        return None if loaded is None else self._again(name, loaded.path, loaded.how, loaded)

    def _again(self, name: str, path: str, how: str, loaded: Object) -> Object:
        """Return an entry for an object that is loaded already."""
        if loaded is self._loader:
            already_loaded = "the loader itself"
        elif id(loaded) in self._loaded_at_start:
            already_loaded = "loaded with the program"
        elif loaded.brought_by:
            already_loaded = "loaded before"
        else:
            already_loaded = "as above"
        return Object(
            name,
            path,
            loaded.file,
            how,
            loaded.from_host,
            loaded.facts,
            already_loaded=already_loaded,
        )

    def _requester(self, current: Object, chain: list[Requester]) -> Requester:
        assert current.facts is not None
        # $ORIGIN of a program is the directory of its file; that of a library is the directory in
        # the path under which it was found.
        path = (
            posixpath.join(self._searcher.directory, current.path)
            if chain
            else self._tree.resolve(current.path)
        )
        return Requester(current.path, posixpath.dirname(path), current.facts)

    def find(self, needed_by: str, name: str, chain: list[Requester]) -> Located | None:
        """Search a library; a failure is noted."""
        if self._searcher.loader.musl and _is_part_of_musl(name):
            path = self._searcher.loader.file
            return Located(path, self._tree.resolve(path), "musl's loader itself")
        try:
            located = self._searcher.find(name, chain)
            words, fault, file = f"{name}: {NOT_FOUND}", LoadFault.NOT_FOUND, name
        except Rejected as error:
            located, words, fault, file = None, str(error), error.fault, error.file
        if located is None and not self._searcher.undecided:
            if self._searcher.loader.musl:
                words = self._musl_words(needed_by, name, fault)
            tried = tuple(self._searcher.tried)
            self.failures.append(Failure(needed_by, name, words, fault, file, tried))
        return located

    def _musl_words(self, needed_by: str, name: str, fault: LoadFault) -> str:
        """Return musl's message for a fault."""
        reason = _MUSL_REASONS.get(fault, "Exec format error")
        message = f"Error loading shared library {name}: {reason}"
        # musl does not name the program where the program itself called dlopen().
        by_dlopen = needed_by == self._program and bool(self._loaded_at_start)
        return message if by_dlopen or not needed_by else f"{message} (needed by {needed_by})"

    def enter(self, name: str, located: Located) -> Object:
        """Enter a file under a name. A file that is loaded already is not loaded again."""
        loaded = self._by_file.get(located.file)
        if loaded is not None:
            self._by_name[name] = loaded
            return self._again(name, located.path, located.how, loaded)
        try:
            facts: Dynamic | None = self._searcher.facts(located.file)
        except OSError:
            facts = None
            self._not_recorded(f"the libraries that {located.path} needs")
        entered = Object(
            name,
            located.path,
            located.file,
            located.how,
            self._tree.from_host(located.file),
            facts,
            tried=located.tried,
        )
        self._by_file[located.file] = entered
        self._by_name.setdefault(name, entered)
        # musl knows a library by the name for which it searched alone, and not by its SONAME.
        if facts is not None and facts.soname and not self._searcher.loader.musl:
            self._by_name.setdefault(facts.soname, entered)
        return entered

    def _not_recorded(self, fact: str) -> None:
        if fact not in self._unknown:
            self._unknown.append(fact)

    def check_versions(self) -> None:
        """Check that libraries define the versions that objects need of them.

        A library without any versions passes, and musl does not check versions.
        """
        for path, loaded in self._by_file.items():
            if loaded.facts is None or path in self._versions_checked or self._searcher.loader.musl:
                continue
            self._versions_checked.add(path)
            missing = [word for word, fact in _RECORDED if getattr(loaded.facts, fact) is None]
            if missing:
                self._not_recorded(f"the {' and '.join(missing)} that {loaded.path} names")
            for library, version in loaded.facts.versions_needed or ():
                self._check_version(loaded, library, version)

    def _check_version(self, loaded: Object, library: str, version: str) -> None:
        provider = self._by_name.get(library)
        if provider is None or provider.facts is None:
            return  # reported already: it is missing, or its facts are not recorded
        defined = provider.facts.versions_defined
        if defined is None:
            self._not_recorded(f"the versions that {provider.path} defines")
            return
        known = self._defined.get(provider.path)
        if known is None:
            known = self._defined[provider.path] = frozenset(defined)
        if known and version not in known:
            self._tree.count_library(loaded.path)
            words = f"{provider.path}: version `{version}' not found (required by {loaded.path})"
            fault = LoadFault.VERSION
            self.failures.append(Failure(loaded.path, library, words, fault, provider.path))

    def check_symbols(self, roots: list[Object], *, opened: bool = False) -> None:
        """Check that the symbols are there which objects of the image and their needs bind.

        :param opened: whether they are opened by a running program.
        """
        reserved = 0
        entered = [] if self.failures else list(_with_needs(roots))
        for loaded in reversed(entered):  # what others need is bound before them
            symbols = None if loaded.from_host else read_symbols(self._tree, loaded.file)
            if symbols is None:
                continue
            if opened and not self._searcher.loader.musl:
                reserved += symbols.static_tls
                self._check_reserve(loaded, reserved)
            at_once = opened or self._searcher.binds_at_start
            known = self._definers.files.get((loaded.file, at_once))
            if known is not None and known <= self._by_file.keys():
                continue
            names = symbols.needed if at_once else symbols.needed_at_once
            missing, definers = self._undefined(names, symbols.private)
            if not missing:
                self._definers.files[loaded.file, at_once] = frozenset(definers)
                continue
            words, fault = f"{loaded.path}: undefined symbol: {missing}", LoadFault.RELOCATION
            if missing.encode(*_NAMES) in symbols.private:
                words, fault = f"{words}, version {PRIVATE}", LoadFault.OTHER_GLIBC
            if self._searcher.loader.musl:
                words = f"Error relocating {loaded.path}: {missing}: symbol not found"
            elif not opened:
                words = f"{self._program}: symbol lookup error: {words}"
            self.failures.append(Failure("", loaded.name, words, fault, loaded.path))
            if opened and missing.encode(*_NAMES) not in symbols.needed_at_once:
                self._note_lazy(loaded, missing)
            return

    def _note_lazy(self, loaded: Object, missing: str) -> None:
        """Note that a library whose functions are bound late loads without one of them."""
        opener = posixpath.basename(self._opened_by or self._program)
        if not opener.startswith(_BIND_AT_ONCE):
            self._not_recorded(
                f"whether the program opens {loaded.path} with RTLD_LAZY: then it loads, and fails"
                f" where it calls {missing}"
            )

    def _undefined(
        self, names: tuple[bytes, ...], private: frozenset[bytes]
    ) -> tuple[str, list[str]]:
        """Return the first of the names that no loaded object defines, or "", and the files of
        those that define the others.

        An object whose symbols are not known may define all of them; the driver's define none that
        are private to glibc.
        """
        missing = dict.fromkeys(names)
        definers: list[str] = []
        for loaded in self._by_file.values():
            if not missing:
                break
            symbols = read_symbols(self._tree, loaded.file)
            if symbols is None:
                definers.append(loaded.file)
                kept = private if loaded.from_host else frozenset[bytes]()
                missing = dict.fromkeys(name for name in missing if name in kept)
                continue
            defined = symbols.defined & missing.keys()
            if defined:
                definers.append(loaded.file)
            for name in defined:
                del missing[name]
        return next(iter(missing), b"").decode(*_NAMES), definers

    def _check_reserve(self, loaded: Object, reserved: int) -> None:
        if reserved > _MOST_TLS and not self._searcher.other_tls_reserve:
            words = f"{loaded.path}: cannot allocate memory in static TLS block"
            self.failures.append(Failure("", loaded.name, words, LoadFault.RELOCATION, loaded.path))
        elif reserved > _SURE_TLS:
            self._not_recorded(
                f"whether the loader has {reserved} bytes of thread-local storage left, which "
                f"{loaded.path} reserves"
            )


def _with_needs(roots: list[Object]) -> Iterator[Object]:
    """Yield objects that are loaded newly, each before those that it needs."""
    for loaded in roots:
        if not loaded.already_loaded:
            yield loaded
            yield from _with_needs(loaded.needs)


def _is_part_of_musl(name: str) -> bool:
    """Tell whether musl's loader stands for a library: for every part of a libc, also glibc's."""
    stem = posixpath.basename(name).removeprefix("lib").partition(".")[0]
    return name.startswith(("libc.", "ld-musl-")) or (
        name.startswith("lib") and stem in {"pthread", "rt", "m", "dl", "util", "xnet"}
    )
