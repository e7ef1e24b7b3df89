"""Tell which extension modules Python may import with a module, from the statements of its sources.

Statements at the level of a module are followed, those inside functions are not: these run when the
functions are called. Only the files of one package are read.
"""

import ast
import posixpath
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.script.python import parse_statements, source_of
from nvgraft_cli.prove.start.tree_files import names_in

#: The most sources that are read, bytes of each, and of all. numba has 300 with 5 MB.
_SOURCES, _SOURCE_LIMIT, _ALL = 500, 1 << 20, 8 << 20
#: Exceptions whose handlers catch the one for a library that does not load.
_CATCHING = {"ImportError", "Exception", "BaseException"}

_Import = ast.Import | ast.ImportFrom


@dataclass(slots=True)
class Imports:
    """What may be imported with a module.

    :ivar extensions: its package's extension modules that may be imported, by their names.
    :ivar packages: the other packages.
    :ivar complete: whether all statements were read.
    """

    extensions: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    complete: bool = True


def imports_of(tree: PlannedTree, entry: str, module: str, extensions: Collection[str]) -> Imports:
    """Return what may be imported with a module, whatever its conditions are.

    What a statement imports whose error is caught does not count.

    :param entry: the directory of sys.path that has its package.
    :param extensions: the names of the package's extension modules.
    """
    reader = _Reader(tree, entry)
    top = module.partition(".")[0]
    found, waiting, seen = reader.found, [module], {module}
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] != top:
            found.packages.add(name.partition(".")[0])
        elif name in extensions:
            found.extensions.add(name)
        else:
            above = name.rpartition(".")[0]
            named = {*reader.imported_by(name), *filter(None, [above])} - seen
            seen |= named
            waiting += filter(reader.may_be_module, named)
    return found


class _Reader:
    def __init__(self, tree: PlannedTree, entry: str) -> None:
        self._tree = tree
        self._entry = entry
        self._sources = self._bytes = 0
        self._listed: dict[str, set[str]] = {}
        self.found = Imports()

    def may_be_module(self, name: str) -> bool:
        """Tell whether a name may be that of a module: most are of functions and classes."""
        above, _, last = name.rpartition(".")
        if not above:
            return True
        if above not in self._listed:
            place = posixpath.join(self._entry, *above.split("."))
            self._listed[above] = {entry.partition(".")[0] for entry in names_in(self._tree, place)}
        return last in self._listed[above]

    def imported_by(self, module: str) -> Iterator[str]:
        """Yield the names of modules, or of what is in them, that a module imports."""
        place = posixpath.join(self._entry, *module.split("."))
        source, package = self._source(f"{place}/__init__.py"), module
        if source is None:
            source, package = self._source(f"{place}.py"), module.rpartition(".")[0]
        if source is None:  # an attribute, a package without a file of its own, or a compiled one
            if any(map(self._is_there, (f"{place}/__init__.pyc", f"{place}.pyc"))):
                self.found.complete = False
            return
        try:
            for statement in _imports(parse_statements(source)):
                yield from _modules(statement, package)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.found.complete = False

    def _is_there(self, path: str) -> bool:
        with suppress(OSError, PathError):
            return self._tree.lstat(self._tree.resolve(path)) is not None
        return False

    def _source(self, path: str) -> str | None:
        try:
            source = self._tree.read(self._tree.resolve(path), _SOURCE_LIMIT)
        except (FileNotFoundError, NotADirectoryError, PathError):
            return None
        except OSError:
            self.found.complete = False
            return None
        self._sources += 1
        self._bytes += len(source)
        if self._sources > _SOURCES or self._bytes > _ALL:
            self.found.complete = False
            return None
        return source.decode("utf-8", "replace")


def _modules(statement: _Import, package: str) -> Iterator[str]:
    """Yield the names in an import statement of a module in a package."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    base = source_of(statement, package)
    if base:
        yield base
        yield from (f"{base}.{alias.name}" for alias in statement.names)


def _imports(body: list[ast.stmt]) -> Iterator[_Import]:
    """Yield the import statements of a module that may make its own import fail."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.If() if "TYPE_CHECKING" in ast.dump(node.test):
                yield from _imports(node.orelse)
            case ast.If() | ast.For() | ast.While():
                yield from _imports([*node.body, *node.orelse])
            case ast.Try() | ast.TryStar():
                if not any(map(_catches, node.handlers)):
                    yield from _imports(node.body)
                others = [handler.body for handler in node.handlers]
                for statements in (*others, node.orelse, node.finalbody):
                    yield from _imports(statements)
            case ast.With() if "suppress" not in ast.dump(node.items[0]):
                yield from _imports(node.body)
            case ast.ClassDef():
                yield from _imports(node.body)
            case ast.Match():
                yield from _imports([line for case in node.cases for line in case.body])


def _catches(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler keeps the error for a library that does not load from its caller."""
    if isinstance(handler.body[-1], ast.Raise):
        return False
    if handler.type is None:
        return True
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(named & _CATCHING)
