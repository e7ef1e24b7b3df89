"""Write the byte code of an installation: a .pyc file for each source, and packed files for starts.

:mod:`nvgraft.startup` names the groups of modules, describes the format and loads the files.
Copying the sources and the owners of files belong to :mod:`nvgraft_cli.install.install`.
"""

import ast
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, PathFinder
from pathlib import Path
from types import CodeType
from typing import TypeVar

from nvgraft.startup import DIRECTORY, GROUPS

#: The most bytes of one piece of a packed file, unless one module has more. The C library maps new
#: memory for larger requests.
_PIECE = 120 << 10

#: The package whose byte code is made without docstrings and annotations; pydantic needs them
#: elsewhere.
_ENGINE = "hook/nvgraft"

#: A packed module: name, whether it is a package, source below the directory, code. One of compiled
#: C has the path of its shared library and no code; one of the interpreter's program has neither.
_Module = tuple[str, bool, str, CodeType | None]

#: The text for people who find the packed files, or wonder why an edited module has no effect.
_README = """\
nvgraft's programs run the byte code in these files, not the sources beside this directory.
Remove this directory before you change a source: the sources are used then, and a start takes
longer.
./dev install brings the directory back.
"""


def compile_tree(stage: str, final: str) -> None:
    """Write the .pyc file of each source below ``stage``; tracebacks name its path below ``final``.

    It has the time and size of the source, so that an edited source is compiled again. A source
    that cannot be compiled gets none: it is never loaded, or the installer's trial start fails.
    """
    for path in sorted(Path(stage).rglob("*.py")):
        place = str(path.relative_to(stage))
        bare_source = place.startswith(f"{_ENGINE}/")
        with suppress(SyntaxError, ValueError):
            write_pyc(path, compile_source(path, f"{final}/{place}", bare_source=bare_source))


def compile_source(path: Path, shown: str, *, bare_source: bool) -> CodeType:
    """Return the code of a source; tracebacks name it ``shown``.

    :param bare_source: compile the result of :func:`bare`, and make it :func:`plain`.
    """
    source = path.read_bytes()
    if bare_source:
        return plain(compile(bare(source), shown, "exec", dont_inherit=True))
    return compile(source, shown, "exec", dont_inherit=True)


def plain(code: CodeType) -> CodeType:
    """Return ``code`` with the name of each function in the place of its qualified name, which is a
    text of its own and tells nothing to a program that runs.
    """
    constants = [plain(item) if isinstance(item, CodeType) else item for item in code.co_consts]
    return code.replace(co_consts=tuple(constants), co_qualname=code.co_name)


def write_pyc(path: Path, code: CodeType) -> None:
    """Write ``code`` to the path where the import system expects the byte code of ``path``."""
    target = Path(importlib.util.cache_from_source(path))
    target.parent.mkdir(exist_ok=True)
    info = path.stat()
    # Magic number, flags (0: compare time and size), time and size, four bytes each.
    numbers = (0, int(info.st_mtime), info.st_size)
    head = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in numbers)
    target.write_bytes(importlib.util.MAGIC_NUMBER + head + marshal.dumps(code))


def pack_groups(directory: str, final: str) -> None:
    """Write the packed file of each group of modules; tracebacks name their paths below
    ``final``.
    """
    os.mkdir(f"{directory}/{DIRECTORY}")
    Path(directory, DIRECTORY, "README").write_text(_README, encoding="ascii")
    groups: dict[str, dict[str, str]] = {}
    for group, (before, names) in GROUPS.items():
        order = groups[group] = {}
        seen = {"nvgraft", "nvgraft.startup"}
        while before:
            seen |= set(groups[before])
            before = GROUPS[before][0]
        for name in names:
            add_module(directory, name, order, seen)
        modules = [_module(directory, final, name, source) for name, source in order.items()]
        Path(directory, DIRECTORY, group).write_bytes(
            importlib.util.MAGIC_NUMBER + b"".join(_pieces(modules))
        )


def _module(directory: str, final: str, name: str, source: str) -> _Module:
    if not source.endswith(".py"):
        return name, False, source, None
    path = Path(directory, source)
    code = compile_source(path, f"{final}/{source}", bare_source=True)
    return name, path.name == "__init__.py", source, code


def _pieces(modules: list[_Module]) -> Iterator[bytes]:
    """Yield the pieces of a file, each after its length."""
    pieces: list[list[_Module]] = [[]]
    size = 0
    for module in modules:
        own = len(marshal.dumps(module))
        if pieces[-1] and size + own > _PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(module)
        size += own
    for data in map(marshal.dumps, pieces):
        yield len(data).to_bytes(4, "little") + data


def add_module(directory: str, name: str, order: dict[str, str], seen: set[str]) -> None:
    """Add the module ``name`` with its source to ``order``, after our modules that it imports at
    the top, and those of compiled C.

    :param seen: names that are skipped; ``name`` is added to them.
    """
    if name in seen:
        return
    library = _library(directory, name)
    if library is not None:
        seen.add(name)
        order[name] = library
        return
    place = name.replace(".", "/")
    source = next(
        (
            path
            for path in (f"{place}.py", f"{place}/__init__.py")
            if os.path.isfile(f"{directory}/{path}")
        ),
        None,
    )
    if source is None or not name.startswith("nvgraft"):
        return
    seen.add(name)
    if "." in name:
        add_module(directory, name.rpartition(".")[0], order, seen)
    for node in _statements(ast.parse(Path(directory, source).read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            add_module(directory, node.module, order, seen)
            for alias in node.names:
                add_module(directory, f"{node.module}.{alias.name}", order, seen)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                add_module(directory, alias.name, order, seen)
    order[name] = source


def _statements(program: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements at the top of a program, and those that it tries there."""
    for node in program.body:
        yield from node.body if isinstance(node, ast.Try) else (node,)


def _library(directory: str, name: str) -> str | None:
    """Return the path of the module ``name`` of the standard library or of python-prctl if that is
    compiled C, empty for one of the interpreter's program; otherwise None.

    It is the file that an import statement would take, relative if it is in ``directory``.
    """
    if name in sys.builtin_module_names:
        return ""
    places = [directory, *(place for place in sys.path if place.endswith("/lib-dynload"))]
    found = PathFinder.find_spec(name, places) if "." not in name else None
    if found is None or not isinstance(found.loader, ExtensionFileLoader):
        return None
    return str(found.origin).removeprefix(f"{directory}/")


def bare(source: bytes) -> ast.Module:
    """Parse ``source`` without docstrings, annotations and imports for the type checker.

    Line numbers stay, so that tracebacks fit the source.
    """
    program: ast.Module = _Bare().visit(ast.parse(source))
    return ast.fix_missing_locations(program)


_Documented = TypeVar("_Documented", ast.Module, ast.ClassDef, ast.FunctionDef)


class _Bare(ast.NodeTransformer):
    def visit_Module(self, node: ast.Module) -> ast.Module:
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        return self._without_docstring(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        return ast.copy_location(
            ast.Assign([node.target], node.value) if node.value else ast.Pass(), node
        )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        # Only annotations need this import, and they are removed.
        return ast.copy_location(ast.Pass(), node) if node.module == "__future__" else node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node

    def _without_docstring(self, node: _Documented) -> _Documented:
        self.generic_visit(node)
        if ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.copy_location(ast.Pass(), node.body[0])
        return node
