"""Loading one object with all that it needs, as a dynamic loader does it, and what goes wrong first.

Breadth first, each library once, by the name that asked for it or by its SONAME; then the versions. Relocation is not
tried: which symbols an object lacks is not looked at.
"""

import posixpath
from dataclasses import dataclass, field

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.dynamic import BadElf, Dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.search import Asker, Found, Searcher

#: What a loader says of a library that it has not found.
NOT_FOUND = "cannot open shared object file: No such file or directory"

#: What a snapshot may lack of an object, and the fact that it is.
_RECORDED = (("search directories", "search"), ("versions", "versions_needed"))

#: Objects of one load; a large CUDA program has about 200.
_OBJECTS = 5000


@dataclass(slots=True)
class Object:
    """A loaded object: the name that asked for it, where it was found and by which rule, and what it led to.

    :ivar again: where it stands already, if it was loaded before; what it needs stands there too.
    """

    name: str
    path: str
    how: str
    from_host: bool
    facts: Dynamic | None
    needs: list["Object"] = field(default_factory=list)
    again: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a loader would say: who asked for ``name``, its words, and where it has looked."""

    asked_by: str
    name: str
    words: str
    tried: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Load:
    """The outcome: the tree of objects, failures in the loader's order, and what could not be told."""

    root: Object | None
    failures: list[Failure] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def load(name: str, tree: PlannedTree, searcher: Searcher, program: Asker | None) -> Load:
    """Load ``name``: a SONAME or path as dlopen() gets it from ``program``, which has been started before, or a program's path.

    :param program: the program that asks, whose RPATH or RUNPATH counts; None: nothing is known of it.
    """
    walk = _Walk(tree, searcher)
    if program is not None:
        started = walk.start(program)
        walk.follow(started, [])
        walk.check_versions()
        if started.path == name or walk.failures:
            return walk.outcome(started)
        walk.program_is_loaded()
    above = [] if program is None else [program]
    root = walk.known(name)
    if root is None:
        found = walk.find("" if program is None else program.path, name, above)
        if found is None:
            return walk.outcome(None)
        root = walk.enter(name, found)
    if not root.again:
        walk.follow(root, above)
        walk.check_versions()
    return walk.outcome(root)


class _Walk:
    def __init__(self, tree: PlannedTree, searcher: Searcher) -> None:
        self._tree = tree
        self._searcher = searcher
        self.loaded: dict[str, Object] = {}
        self._files: dict[str, Object] = {}
        self._checked: set[str] = set()
        self._loader: Object | None = None
        self._program = ""
        self._started: set[int] = set()
        self.failures: list[Failure] = []
        self._unknown: list[str] = []
        self._enter_loader()

    def outcome(self, root: Object | None) -> Load:
        return Load(root, self.failures, self._unknown + self._searcher.unknown)

    def _enter_loader(self) -> None:
        """The loader is there from the start, under its SONAME; libc.so.6 needs it."""
        path = self._searcher.loader.path
        try:
            resolved = self._tree.resolve(path)
            facts = self._searcher.facts(resolved)
        except (BadElf, OSError, PathError):
            return
        thing = Object(
            facts.soname or posixpath.basename(path),
            path,
            "the loader itself",
            self._tree.from_host(resolved),
            facts,
        )
        self.loaded[thing.name] = thing
        self._files[resolved] = self._loader = thing

    def start(self, program: Asker) -> Object:
        """Enter the program that the kernel has mapped."""
        path = self._tree.resolve(program.path)
        thing = Object(
            program.path, program.path, "by its path", self._tree.from_host(path), program.facts
        )
        self._files[path] = thing
        self._program = program.path
        return thing

    def program_is_loaded(self) -> None:
        """What is loaded by now, nobody needs to look for."""
        self._started = {id(thing) for thing in self._files.values()}

    def follow(self, root: Object, above: list[Asker]) -> None:
        """Load what ``root`` needs, and what that needs."""
        queue = [(root, above)]
        while queue and len(self._files) < _OBJECTS:
            current, chain = queue.pop(0)
            if current.facts is None:
                continue
            below = [*chain, self._asker(current, chain)]
            for needed in current.facts.needed:
                known = self.known(needed)
                if known is not None:
                    current.needs.append(known)
                    continue
                found = self.find(current.path, needed, below)
                if found is None:
                    continue
                child = self.enter(needed, found)
                current.needs.append(child)
                if not child.again:
                    queue.append((child, below))

    def known(self, name: str) -> Object | None:
        """Return what is loaded under a name already; nobody looks for it again."""
        thing = self.loaded.get(name)
        return None if thing is None else self._again(name, thing.path, thing)

    def _again(self, name: str, path: str, known: Object, how: str = "") -> Object:
        where = (
            "the loader itself"
            if known is self._loader
            else "loaded with the program"
            if id(known) in self._started
            else "as above"
        )
        return Object(name, path, how or known.how, known.from_host, known.facts, again=where)

    def _asker(self, thing: Object, chain: list[Asker]) -> Asker:
        assert thing.facts is not None
        # $ORIGIN of a program is where it lies, that of a library the directory under whose name it was found.
        path = (
            posixpath.join(self._searcher.directory, thing.path)
            if chain
            else self._tree.resolve(thing.path)
        )
        return Asker(thing.path, posixpath.dirname(path), thing.facts)

    def find(self, asked_by: str, name: str, chain: list[Asker]) -> Found | None:
        if self._searcher.loader.musl and _musl_is_itself(name):
            path = self._searcher.loader.path
            return Found(path, self._tree.resolve(path), "musl's loader takes itself for it")
        try:
            found = self._searcher.find(name, chain)
            words = f"{name}: {NOT_FOUND}"
        except BadElf as error:
            found, words = None, str(error)
        if found is None:
            if self._searcher.loader.musl:
                words = self._musl_words(asked_by, name, words)
            self.failures.append(Failure(asked_by, name, words, tuple(self._searcher.tried)))
        return found

    def _musl_words(self, asked_by: str, name: str, words: str) -> str:
        """Return what musl says for glibc's ``words``; the program's own dlopen() is not told."""
        directory = words.endswith("Is a directory")
        reason = (
            "No such file or directory"
            if words.endswith(NOT_FOUND)
            else "Is a directory"
            if directory
            else "Exec format error"
        )
        opened = asked_by == self._program and bool(self._started)
        return f"Error loading shared library {name}: {reason}" + (
            "" if opened or not asked_by else f" (needed by {asked_by})"
        )

    def enter(self, name: str, found: Found) -> Object:
        known = self._files.get(found.path)
        if known is not None:
            self.loaded[name] = known
            return self._again(name, found.name, known, found.how)
        try:
            facts: Dynamic | None = self._searcher.facts(found.path)
        except OSError:
            facts = None
            self._not_recorded(f"what {found.name} needs is not recorded")
        thing = Object(name, found.name, found.how, self._tree.from_host(found.path), facts)
        self._files[found.path] = thing
        for key in (name, facts.soname if facts is not None else None):
            if key:
                self.loaded.setdefault(key, thing)
        return thing

    def _not_recorded(self, text: str) -> None:
        if text not in self._unknown:
            self._unknown.append(text)

    def check_versions(self) -> None:
        """Every version that an object needs must be defined by the library that it names; one without any is let through.

        musl does not look at versions.
        """
        for path, thing in self._files.items():
            if thing.facts is None or path in self._checked or self._searcher.loader.musl:
                continue
            self._checked.add(path)
            lacking = [word for word, fact in _RECORDED if getattr(thing.facts, fact) is None]
            if lacking:
                self._not_recorded(
                    f"which {' and '.join(lacking)} {thing.path} names is not recorded"
                )
            for library, version in thing.facts.versions_needed or ():
                provider = self.loaded.get(library)
                if provider is None or provider.facts is None:
                    continue  # said already: it is missing, or not recorded
                defined = provider.facts.versions_defined
                if defined is None:
                    self._not_recorded(f"which versions {provider.path} defines is not recorded")
                elif defined and version not in defined:
                    words = (
                        f"{provider.path}: version `{version}' not found (required by {thing.path})"
                    )
                    self.failures.append(Failure(thing.path, library, words))


def _musl_is_itself(name: str) -> bool:
    """Tell whether musl's loader takes itself for a library: all that is part of its libc, under glibc's names too."""
    stem = posixpath.basename(name).removeprefix("lib").partition(".")[0]
    return name.startswith(("libc.", "ld-musl-")) or (
        name.startswith("lib") and stem in {"pthread", "rt", "m", "dl", "util", "xnet"}
    )
