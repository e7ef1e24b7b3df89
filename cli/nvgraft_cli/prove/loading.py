"""Loading one object with all that it needs, as a dynamic loader does it, and what goes wrong first.

Breadth first, each library once, by the name that asked for it or by its SONAME; then the versions. Relocation is not
tried: which symbols an object lacks is not looked at.
"""

import posixpath
from dataclasses import dataclass, field

from nvgraft.tree import PathError
from nvgraft_cli.planned_tree import PlannedTree
from nvgraft_cli.prove.dynamic import BadElf, Dynamic, read_dynamic
from nvgraft_cli.prove.search import Found, Searcher

#: Objects of one load; a large CUDA program has about 200.
_OBJECTS = 5000


@dataclass(slots=True)
class Object:
    """A loaded object: the name that asked for it, where it was found and by which rule, and what it led to."""

    name: str
    path: str
    how: str
    from_host: bool
    facts: Dynamic | None
    needs: list["Object"] = field(default_factory=list)
    again: bool = False


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


def load(name: str, tree: PlannedTree, searcher: Searcher, caller: tuple[str, Dynamic] | None) -> Load:
    """Load ``name``: a SONAME as dlopen() gets it, or a path.

    :param caller: the program that asks, whose RPATH or RUNPATH counts.
    """
    walk = _Walk(tree, searcher)
    above = [] if caller is None else [caller]
    found = walk.find("" if caller is None else caller[0], name, above)
    if found is None:
        return Load(None, walk.failures, walk.unknown)
    root = walk.enter(name, found)
    queue: list[tuple[Object, list[tuple[str, Dynamic]]]] = [(root, above)]
    while queue and len(walk.loaded) < _OBJECTS:
        current, chain = queue.pop(0)
        if current.facts is None:
            continue
        below = [*chain, (current.path, current.facts)]
        for needed in current.facts.needed:
            known = walk.loaded.get(needed)
            if known is not None:
                current.needs.append(Object(needed, known.path, known.how, known.from_host, known.facts, again=True))
                continue
            found = walk.find(current.path, needed, below)
            if found is None:
                continue
            child = walk.enter(needed, found)
            current.needs.append(child)
            if not child.again:
                queue.append((child, below))
    walk.check_versions()
    return Load(root, walk.failures, walk.unknown)


class _Walk:
    def __init__(self, tree: PlannedTree, searcher: Searcher) -> None:
        self._tree = tree
        self._searcher = searcher
        self.loaded: dict[str, Object] = {}
        self._files: dict[str, Object] = {}
        self.failures: list[Failure] = []
        self.unknown: list[str] = []
        self._enter_loader()

    def _enter_loader(self) -> None:
        """The loader is there from the start, under its SONAME; libc.so.6 needs it."""
        path = self._searcher.loader.path
        try:
            facts = read_dynamic(self._tree, self._tree.resolve(path))
        except (BadElf, OSError, PathError):
            return
        thing = Object(facts.soname or posixpath.basename(path), path, "the loader itself", self._tree.from_host(path), facts)
        self.loaded[thing.name] = thing
        self._files[self._tree.resolve(path)] = thing

    def find(self, asked_by: str, name: str, chain: list[tuple[str, Dynamic]]) -> Found | None:
        if self._searcher.loader.musl and _musl_is_itself(name):
            path = self._searcher.loader.path
            return Found(path, self._tree.resolve(path), "musl's loader takes itself for it")
        try:
            found = self._searcher.find(name, chain)
        except BadElf as error:
            self.failures.append(Failure(asked_by, name, str(error), tuple(self._searcher.tried)))
            return None
        if found is None:
            words = f"{name}: cannot open shared object file: No such file or directory"
            self.failures.append(Failure(asked_by, name, words, tuple(self._searcher.tried)))
        return found

    def enter(self, name: str, found: Found) -> Object:
        known = self._files.get(found.path)
        if known is not None:
            self.loaded[name] = known
            return Object(name, found.name, found.how, known.from_host, known.facts, again=True)
        try:
            facts: Dynamic | None = read_dynamic(self._tree, found.path)
        except OSError:
            facts = None
            self.unknown.append(f"what {found.name} needs is not recorded")
        thing = Object(name, found.name, found.how, self._tree.from_host(found.path), facts)
        self._files[found.path] = thing
        for key in (name, facts.soname if facts is not None else None):
            if key:
                self.loaded.setdefault(key, thing)
        return thing

    def check_versions(self) -> None:
        """Every version that an object needs must be defined by the library that it names; one without any is let through."""
        for thing in self._files.values():
            if thing.facts is None:
                continue
            if thing.facts.versions_needed is None:
                self.unknown.append(f"which versions {thing.path} needs is not recorded")
                continue
            for library, version in thing.facts.versions_needed:
                provider = self.loaded.get(library)
                defined = provider.facts.versions_defined if provider is not None and provider.facts is not None else None
                if provider is not None and defined and version not in defined:
                    words = f"{provider.path}: version `{version}' not found (required by {thing.path})"
                    self.failures.append(Failure(thing.path, library, words))


def _musl_is_itself(name: str) -> bool:
    """Tell whether musl's loader takes itself for a library: all that is part of its libc, under glibc's names too."""
    stem = posixpath.basename(name).removeprefix("lib").partition(".")[0]
    return name.startswith(("libc.", "ld-musl-")) or (name.startswith("lib") and stem in {"pthread", "rt", "m", "dl", "util", "xnet"})
