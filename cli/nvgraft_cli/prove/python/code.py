"""Follow the code of one module of a Python program: what it imports, and which libraries it opens.

Statements are followed in their order, as far as literals, __file__, os.path, pathlib, sys.argv and
the like tell. What stands behind a condition that is not known is perhaps run.
"""

import ast
import builtins
import fnmatch
import posixpath
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nvgraft_cli.prove.script.python import (
    FAULTS,
    NOT_KNOWN,
    FollowedPython,
    FunctionNode,
    Returned,
    ScriptEnd,
    dotted_name,
    source_of,
)

#: Functions that open a library, and those that import a module.
OPENS = {
    *("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary"),
    *("_ctypes.dlopen", "cffi.FFI().dlopen"),
}
IMPORTS = {"importlib.import_module", "__import__"}
#: Exceptions whose handlers catch that of a library that does not load, and of a missing module.
_CATCHING = {"OSError", "ImportError", "Exception", "BaseException", "ModuleNotFoundError"}
_PATHS = {"pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "os.fspath"}
#: Functions of Python that call no others, and its modules that run other code.
_BUILTINS = set(dir(builtins)) - {"exec", "eval", "map", "filter", "getattr", "compile"}
_OTHER_CODE = {"atexit", "concurrent", "functools", "importlib", "pkgutil", "runpy", "threading"}
#: In the variables of a function: the names that are those of its module.
_GLOBAL = "global "
#: Where files come and go while a container runs.
_CHANGING = ("/proc/", "/sys/", "/dev/", "/run/", "/var/run/", "/tmp/")  # noqa: S108
#: Expressions in which calls are followed.
_FOLLOWED = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.List, ast.Tuple, ast.Dict, ast.JoinedStr),
    *(ast.FormattedValue, ast.BinOp, ast.Subscript, ast.IfExp, ast.BoolOp, ast.UnaryOp),
    *(ast.Compare, ast.Call, ast.Lambda),
)
_SAME_PATH = {"os.path.abspath", "os.path.normpath", "os.path.expanduser"}


class CodeRaised(Exception):
    """Code raises an exception.

    :ivar by_statement: whether a statement raises it, of any class; else an import or a library.
    """

    def __init__(self, *, by_statement: bool = False) -> None:
        super().__init__()
        self.by_statement = by_statement


class _LoopEnds(Exception):
    """A round of a loop ends, and the loop itself if it ``leaves``."""

    def __init__(self, *, leaves: bool) -> None:
        super().__init__()
        self.leaves = leaves


class PythonProcess(Protocol):
    """The process in which a module is followed: its modules, files and libraries.

    ``machine`` is the kernel's name of the architecture, ``version`` that of the interpreter, and
    ``directory`` the working directory, None where it is not known; ``left`` is the number of
    statements that may still be followed.
    ``uncertain`` is above 0 while it is not known whether code is run, and ``guarded`` while
    exceptions of imports are caught. ``doubts`` counts what is not followed, and ``risks`` what may
    raise an exception.
    """

    machine: str
    left: int
    uncertain: int
    guarded: int
    doubts: int
    risks: int
    version: list[int]
    sys_path: list[str]
    directory: str | None

    def import_module(self, name: str, by: str) -> bool:
        """Import a module with the packages above; tell whether it is there.

        :param by: the code that imports it.
        """

    def open_library(self, name: str, by: str) -> bool | None:
        """Open a library as :class:`OpensLibraries` does."""

    def open_unknown(self, by: str, text: str) -> None:
        """Open a library whose name is not known, in a module with this text."""

    def doubt(self, *, of_main: bool) -> None:
        """Note that something is not followed, and may raise an exception.

        :param of_main: whether it is of the program itself.
        """

    def use(self, dotted: str) -> None:
        """Note that a module uses what another one has, which is not followed."""

    def function(self, dotted: str) -> "tuple[FollowedModule, FunctionNode] | None":
        """Return a function of a module that is followed, with the module."""

    def at(self, path: str) -> str | None:
        """Return a path in the working directory; None where that is not known."""

    def resolve(self, path: str) -> str:
        """Return a path with symbolic links followed."""

    def names_in(self, directory: str) -> list[str]:
        """Return the names in a directory."""

    def exists(self, path: str) -> bool:
        """Tell whether there is a file at a path."""


class FollowedModule(FollowedPython):
    """The code of a module.

    :param name: ``__name__``; ``package`` is the package of its relative imports.
    :param path: ``__file__``, and ``text`` what is in it.
    """

    def __init__(
        self,
        process: PythonProcess,
        name: str,
        package: str,
        path: str,
        text: str,
        names: Mapping[str, str],
        arguments: list[Any],
        environment: dict[str, Any],
        executable: str,
    ) -> None:
        super().__init__(names, arguments, {}, process.exists, executable)
        self.environment = environment  # all modules have the same
        self._process = process
        self._package = package
        self._text = text
        self._ran: set[int] = set()
        #: The modules of which all names are imported.
        self._stars: list[str] = []
        self._methods: list[list[FunctionNode]] = []
        self.globals |= {"__name__": name, "__file__": path, "__package__": package}
        if package == name:
            self.globals["__path__"] = [posixpath.dirname(path)]

    # -- statements

    def run(self, body: Sequence[ast.stmt], variables: dict[str, Any]) -> None:
        for statement in body:
            self._left -= 1
            self._process.left -= 1
            if min(self._left, self._process.left) < 0:
                self._doubt()
                return
            try:
                self._statement(statement, variables)
            except FAULTS:
                self._doubt()

    def run_rest(self) -> None:
        """Follow the functions and methods that were not called, which are perhaps run."""
        bodies = [node.body for node in self._functions.values() if id(node) not in self._ran]
        for methods in self._methods:
            bodies += [node.body for node in methods]
        for body in bodies:
            self._perhaps(body, {**self.globals})

    def function(self, name: str) -> FunctionNode | None:
        """Return a function of the module; None if it has none of that name."""
        return self._functions.get(name)

    def stands_for(self, name: str) -> str:
        """Return what a name that the module imports stands for, or ""."""
        return self._names.get(name, "")

    def _statement(self, node: ast.stmt, variables: dict[str, Any]) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._import(alias.name, node)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._try(node, variables)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._with(node, variables)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._for(node, variables)
        elif isinstance(node, FunctionNode):
            self._functions[node.name] = node
            for decorator in node.decorator_list:
                self._value(decorator, variables)
        elif isinstance(node, ast.Global):
            variables.setdefault(_GLOBAL, set()).update(node.names)
        elif isinstance(node, ast.Continue | ast.Break):
            raise _LoopEnds(leaves=isinstance(node, ast.Break))
        elif isinstance(node, ast.Raise):
            raise CodeRaised(by_statement=True)
        elif isinstance(node, ast.While):
            self._perhaps(node.body, variables)
        elif isinstance(node, ast.Match):
            self._perhaps([line for case in node.cases for line in case.body], variables)
        elif isinstance(node, ast.ClassDef):
            self._methods.append([line for line in node.body if isinstance(line, FunctionNode)])
            body = [line for line in node.body if not isinstance(line, FunctionNode)]
            self.run(body, dict(variables))
        elif isinstance(node, ast.Assert | ast.Delete):
            return
        else:
            super()._statement(node, variables)

    def _by(self, node: ast.stmt | ast.expr, does: str) -> str:
        return f"{self.globals['__file__']}, line {node.lineno}, {does}"

    def _import(self, name: str, node: ast.stmt | ast.expr) -> bool:
        there = self._process.import_module(name, self._by(node, "imports"))
        self._doubt(not there)
        return there

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = source_of(node, self._package)
        if self._import(base, node):
            self._stars += [base for alias in node.names if alias.name == "*"]
            for alias in node.names:
                name = f"{base}.{alias.name}"
                there = self._process.import_module(name, self._by(node, "imports"))
                if not there and self._process.function(f"{base}.__getattr__"):
                    self._process.use(name)

    def _assign(self, target: ast.expr, value: Any, variables: dict[str, Any]) -> None:
        outside = isinstance(target, ast.Subscript)
        if isinstance(target, ast.Name) and target.id in variables.get(_GLOBAL, ()):
            variables, outside = self.globals, True
        known = not (outside and self._process.uncertain)
        super()._assign(target, value if known else NOT_KNOWN, variables)

    def _try(self, node: ast.Try | ast.TryStar, variables: dict[str, Any]) -> None:
        risks = self._process.risks
        handlers = list(filter(_catches, node.handlers))
        try:
            self._run_guarded([*node.body, *node.orelse], variables, caught=bool(handlers))
        except CodeRaised as error:
            caught = node.handlers if error.by_statement else handlers
            if len(caught) == 1:
                self.run(caught[0].body, variables)
            for handler in caught if len(caught) > 1 else ():
                self._perhaps(handler.body, variables)
            if not caught:
                self.run(node.finalbody, variables)
                raise
        else:
            if self._process.risks != risks:
                for handler in handlers:
                    self._perhaps(handler.body, variables)
        if handlers:
            self._process.risks = risks
        self.run(node.finalbody, variables)

    def _run_guarded(
        self, body: Sequence[ast.stmt], variables: dict[str, Any], *, caught: bool
    ) -> None:
        self._process.guarded += caught
        try:
            self.run(body, variables)
        finally:
            self._process.guarded -= caught

    def _with(self, node: ast.With | ast.AsyncWith, variables: dict[str, Any]) -> None:
        for item in node.items:
            self._value(item.context_expr, variables)
        caught = "suppress" in ast.dump(node.items[0].context_expr)
        try:
            self._run_guarded(node.body, variables, caught=caught)
        except CodeRaised:
            if not caught:
                raise

    def _for(self, node: ast.For | ast.AsyncFor, variables: dict[str, Any]) -> None:
        values = self._value(node.iter, variables)
        if not isinstance(values, list) or len(values) > 64:
            self._assign(node.target, NOT_KNOWN, variables)
            self._perhaps(node.body, variables)
            return
        uncertain = self._process.uncertain
        try:
            for value in values:
                self._assign(node.target, value, variables)
                try:
                    self.run(node.body, variables)
                except _LoopEnds as end:
                    if end.leaves:
                        return
            self.run(node.orelse, variables)
        finally:
            self._process.uncertain = uncertain

    def _perhaps(self, body: Sequence[ast.AST], variables: dict[str, Any]) -> None:
        """Follow what is perhaps run; what it assigns is not known then."""
        inside, uncertain = dict(variables), self._process.uncertain
        self._process.uncertain += 1
        try:
            for node in body:
                if isinstance(node, ast.stmt):
                    self.run([node], inside)
                elif isinstance(node, ast.expr):
                    self._value(node, inside)
        except (Returned, _LoopEnds):
            uncertain += 1  # the rest of the function or of the loop is perhaps not reached
        except (ScriptEnd, CodeRaised):
            self._doubt()
        finally:
            self._process.uncertain = uncertain
        for name, value in inside.items():
            if variables.get(name, NOT_KNOWN) is not value:
                variables[name] = NOT_KNOWN

    def _function(
        self, function: FunctionNode, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        uncertain = self._process.uncertain
        self._ran.add(id(function))
        try:
            value = super()._function(function, arguments, keywords)
            return value if self._process.uncertain == uncertain else NOT_KNOWN
        finally:
            self._process.uncertain = uncertain

    # -- values

    def _known(self) -> dict[str, Any]:
        return super()._known() | {
            "sys.path": self._process.sys_path,
            "sys.platform": "linux",
            "sys.maxsize": (1 << 63) - 1,
            "os.name": "posix",
            "os.curdir": ".",
            "os.pardir": "..",
            "sys.version_info": self._process.version or NOT_KNOWN,
            "typing.TYPE_CHECKING": False,
        }

    def _doubt(self, count: bool | int = 1) -> None:
        if count:
            self._process.doubt(of_main=self.globals["__name__"] == "__main__")

    def _computed(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left, right = self._value(node.left, variables), self._value(node.right, variables)
            texts = isinstance(left, str) and isinstance(right, str)
            return posixpath.join(left, right) if texts else NOT_KNOWN
        if isinstance(node, ast.Await):
            return self._value(node.value, variables)
        if not isinstance(node, _FOLLOWED):
            self._doubt(any(isinstance(inside, ast.Call) for inside in ast.walk(node)))
        return super()._computed(node, variables)

    def _named(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        if isinstance(node, ast.Attribute) and not dotted_name(node, self._names):
            value = self._value(node.value, variables)
            if isinstance(value, str):
                return {
                    "parent": posixpath.dirname(value),
                    "name": posixpath.basename(value),
                    "suffix": posixpath.splitext(value)[1],
                    "stem": posixpath.splitext(posixpath.basename(value))[0],
                }.get(node.attr, NOT_KNOWN)
            return NOT_KNOWN
        dotted = dotted_name(node, self._names)
        # What opens libraries may be called later, and a package's attributes may be code.
        self._doubt(dotted in OPENS or (isinstance(node, ast.Name) and node.id in self._functions))
        self._process.use(dotted)
        return super()._named(node, variables)

    def _element(self, node: ast.Subscript, variables: dict[str, Any]) -> Any:
        value = self._value(node.value, variables)
        if value is self.environment and not isinstance(node.slice, ast.Slice):
            key = self._value(node.slice, variables)
            if isinstance(key, str) and key not in value:
                raise CodeRaised(by_statement=True)  # KeyError
        try:
            return super()._element(node, variables)
        except ScriptEnd:
            raise CodeRaised(by_statement=True) from None  # IndexError

    # -- calls

    def follows(self, dotted: str) -> bool:
        return dotted in OPENS or dotted in IMPORTS

    def call(self, dotted: str, arguments: Any, node: ast.Call, variables: dict[str, Any]) -> Any:
        given = self._keywords(node, variables)
        values = arguments if isinstance(arguments, list) else []
        value = values[0] if values else given.get("name", NOT_KNOWN)
        if dotted in OPENS:
            self._open(value, node)
            return NOT_KNOWN
        if isinstance(value, str):
            base = values[1] if len(values) > 1 else given.get("package", self._package)
            level = len(value) - len(value.lstrip("."))
            relative = ast.ImportFrom(value[level:] or None, [], level)
            self._import(source_of(relative, base if isinstance(base, str) else ""), node)
        return NOT_KNOWN

    def _called(self, node: ast.Call, variables: dict[str, Any]) -> Any:
        dotted = dotted_name(node.func, self._names)
        if isinstance(node.func, ast.Name) and node.func.id == "__import__":
            return self.call("__import__", self._elements(node.args, variables), node, variables)
        named = isinstance(node.func, ast.Name) and node.func.id in self._functions
        other = None if named else self._function_elsewhere(node.func, dotted)
        if other is not None:
            module, function = other
            arguments = self._elements(node.args, variables)
            if isinstance(arguments, list):
                return module._function(function, arguments, self._keywords(node, variables))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "dlopen" and node.args:
            self._open(self._value(node.args[0], variables), node)
            return NOT_KNOWN
        self._process.use(dotted)
        builtin = isinstance(node.func, ast.Name) and node.func.id in _BUILTINS
        top = dotted.partition(".")[0]
        own = top in sys.stdlib_module_names - _OTHER_CODE if dotted else named or builtin
        self._doubt(not own)
        if not named:
            for keyword in node.keywords:
                self._value(keyword.value, variables)
        return super()._called(node, variables)

    def _function_elsewhere(
        self, node: ast.expr, dotted: str
    ) -> "tuple[FollowedModule, FunctionNode] | None":
        """Return the function of another module that a call names, with the module."""
        places = [dotted] if dotted else []
        if not dotted and isinstance(node, ast.Name):
            places = [f"{module}.{node.id}" for module in self._stars]
        return next(filter(None, map(self._process.function, places)), None)

    def _open(self, name: Any, node: ast.Call) -> None:
        """Open a library."""
        by = self._by(node, "opens")
        opened: bool | None = True
        if isinstance(name, str):
            opened = self._process.open_library(name, by)
        elif name is NOT_KNOWN:
            self._process.open_unknown(by, self._text)
            opened = None
        if opened is False:
            raise CodeRaised
        self._doubt(opened is None)

    def _library(self, dotted: str, arguments: list[Any]) -> Any:
        if dotted == "os.chdir":
            known = arguments and isinstance(arguments[0], str) and not self._process.uncertain
            self._process.directory = self._process.at(arguments[0]) if known else None
            return None
        if dotted in {"os.putenv", "os.setuid", "os.setgid"}:
            return None
        if dotted == "os.getcwd":
            return self._process.directory or NOT_KNOWN
        if dotted in {"platform.system", "platform.machine"}:
            machine = self._process.machine or NOT_KNOWN
            return "Linux" if dotted == "platform.system" else machine
        if not arguments or not all(isinstance(value, str) for value in arguments):
            return super()._library(dotted, arguments)
        first = arguments[0]
        if dotted in _PATHS:
            return posixpath.join(*arguments)
        if dotted in _SAME_PATH:
            place = self._process.at(first)
            return NOT_KNOWN if place is None else posixpath.normpath(place)
        if dotted == "os.path.realpath":
            return self._process.resolve(first)
        if dotted == "os.path.basename":
            return posixpath.basename(first)
        if dotted == "os.listdir":
            return self._process.names_in(first)
        if dotted == "glob.glob":
            return self._matching(posixpath.dirname(first), posixpath.basename(first))
        return super()._library(dotted, arguments)

    def _there(self, path: str) -> Any:
        there = super()._there(path)
        return NOT_KNOWN if not there and path.startswith(_CHANGING) else there

    def _matching(self, directory: str, pattern: str) -> Any:
        """Return the paths in a directory that match a pattern."""
        if any(sign in directory for sign in "*?["):
            return NOT_KNOWN
        names = fnmatch.filter(self._process.names_in(directory), pattern)
        return [posixpath.join(directory, name) for name in names]

    def _method(
        self, value: Any, name: str, arguments: list[Any], node: ast.Call, variables: dict[str, Any]
    ) -> Any:
        if isinstance(value, str) and all(isinstance(one, str) for one in arguments):
            if name == "resolve":
                return self._process.resolve(value)
            if name in {"absolute", "expanduser", "as_posix", "__str__"}:
                return value
            if name == "joinpath":
                return posixpath.join(value, *arguments)
            if name == "with_name" and arguments:
                return posixpath.join(posixpath.dirname(value), arguments[0])
            if name in {"exists", "is_file", "is_dir"}:
                return self._there(value)
            if name == "glob" and arguments:
                return self._matching(value, arguments[0])
            if name == "iterdir":
                return [posixpath.join(value, one) for one in self._process.names_in(value)]
        return super()._method(value, name, arguments, node, variables)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler may catch the exception of a library or module that is not there."""
    if handler.type is None:
        return True
    named = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(named & _CATCHING)
