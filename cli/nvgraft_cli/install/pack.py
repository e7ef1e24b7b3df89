"""The byte code of an installation: a .pyc file for each source, and the modules that a start always needs in one file.

:mod:`nvgraft.startup` names the groups of modules, describes the format and loads the files.
Copying the sources and the owners of files belong to :mod:`nvgraft_cli.install.install`.
"""

import ast
import importlib.util
import marshal
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import TypeVar

from nvgraft.startup import DIRECTORY, GROUPS

#: Bytes of one piece of a packed file, unless one module has more: less than what the C library maps anew for each request.
_PIECE = 1 << 16

#: The package whose byte code has nothing that only readers need. Elsewhere annotations may have a meaning (pydantic).
_ENGINE = "hook/nvgraft"

#: Name, whether it is a package, source below the directory, code.
_Module = tuple[str, bool, str, CodeType]

#: For people who look at the packed files, or wonder why an edited module changes nothing.
_README = """\
nvgraft's programs run the byte code in these files, not the sources beside this directory.
Remove this directory before you change a source: the sources count then, and a start takes longer.
./dev install brings the directory back.
"""


def compile_tree(stage: str, final: str) -> None:
    """Write the .pyc file of each source below ``stage``; tracebacks name its place below ``final``.

    The time and the size of the source are in it: an edited source is compiled anew. A source that cannot be compiled has
    none: it is never loaded, or the installer's trial start fails.
    """
    for path in sorted(Path(stage).rglob("*.py")):
        place = str(path.relative_to(stage))
        bare_source = place.startswith(f"{_ENGINE}/")
        with suppress(SyntaxError, ValueError):
            write_pyc(path, compile_source(path, f"{final}/{place}", bare_source=bare_source))


def compile_source(path: Path, shown: str, *, bare_source: bool) -> CodeType:
    """Return the code of a source; tracebacks name it ``shown``.

    :param bare_source: leave out what :func:`bare` leaves out.
    """
    source = path.read_bytes()
    return compile(bare(source) if bare_source else source, shown, "exec", dont_inherit=True)


def write_pyc(path: Path, code: CodeType) -> None:
    """Write ``code`` where the import system looks for the byte code of the source ``path``."""
    target = Path(importlib.util.cache_from_source(path))
    target.parent.mkdir(exist_ok=True)
    info = path.stat()
    # Magic number, flags (0: compare time and size), time and size, four bytes each.
    numbers = (0, int(info.st_mtime), info.st_size)
    head = b"".join((number & 0xFFFFFFFF).to_bytes(4, "little") for number in numbers)
    target.write_bytes(importlib.util.MAGIC_NUMBER + head + marshal.dumps(code))


def pack_groups(directory: str, final: str) -> None:
    """Write the packed file of each group of modules; tracebacks name their places below ``final``."""
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
    path = Path(directory, source)
    code = compile_source(path, f"{final}/{source}", bare_source=True)
    return name, path.name == "__init__.py", source, code


def _pieces(modules: list[_Module]) -> Iterator[bytes]:
    """Yield the pieces of a file, each with its length before it."""
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
    """Add the module ``name`` and its source to ``order``, after all modules of ours that it imports when it is loaded.

    :param seen: names that are passed over; ``name`` becomes one of them.
    """
    place = name.replace(".", "/")
    source = next(
        (
            path
            for path in (f"{place}.py", f"{place}/__init__.py")
            if os.path.isfile(f"{directory}/{path}")
        ),
        None,
    )
    if source is None or name in seen or not name.startswith("nvgraft"):
        return
    seen.add(name)
    if "." in name:
        add_module(directory, name.rpartition(".")[0], order, seen)
    for node in ast.parse(Path(directory, source).read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            add_module(directory, node.module, order, seen)
            for alias in node.names:
                add_module(directory, f"{node.module}.{alias.name}", order, seen)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                add_module(directory, alias.name, order, seen)
    order[name] = source


def bare(source: bytes) -> ast.Module:
    """Return the program ``source`` without what only its readers need: docstrings, annotations, imports for the type checker.

    Lines keep their numbers: a traceback fits the source.
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
        # Without annotations there is nothing to postpone, and a start need not load the module.
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
