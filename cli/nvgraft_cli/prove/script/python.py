"""Follow the statements of Python code in order, with values of literals and what is made of them.

Nothing is run. Subclasses say which calls and statements they follow: those that start a program,
or those that open libraries.
"""

import ast
import posixpath
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

#: How lines of a module begin that define functions and classes.
_DEFINITIONS = ("def ", "async def ", "class ", "@")
#: The most statements that are followed, and calls inside one another; characters of a value.
_STATEMENTS, _CALLS, _VALUE_LIMIT = 2000, 16, 4096


#: A function, which is followed where it is called.
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Undecided(Exception):
    """What a script does is not known."""


#: What stops the following of code: what is undecided, and operations of values that fail.
FAULTS = (
    *(Undecided, RecursionError, TypeError, ValueError, LookupError, AttributeError),
    *(OverflowError, MemoryError),
)


class ScriptEnd(Exception):
    """The script ends, or becomes another program."""


class Returned(Exception):
    """A function ends."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _NotKnown:
    """A value that is not known."""


NOT_KNOWN = _NotKnown()


def parse_whole(text: str) -> list[ast.stmt]:
    """Return the statements of a module.

    :raises SyntaxError: also ValueError, RecursionError or MemoryError: it is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escape sequences in the image's sources
        return ast.parse(text).body


def parse_statements(text: str) -> list[ast.stmt]:
    """Return the statements of a module, without functions and classes if that is possible.

    To leave these out before takes a fifth of the time. Errors are those of :func:`parse_whole`.
    """
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        if line[0].isidentifier() or line[0] == "@":
            inside = line.startswith(_DEFINITIONS)
        if not inside:
            kept.append(line)
    try:
        return parse_whole("".join(kept))
    except SyntaxError:  # a text of several lines looks like a definition
        return parse_whole(text)


def imported_names(statements: Iterable[ast.stmt], package: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, each with what it stands for.

    :param package: that of the module, to which its imports may be relative.
    """
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    yield alias.name.partition(".")[0], alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{source_of(node, package) or '.'}.{alias.name}"


def source_of(node: ast.ImportFrom, package: str) -> str:
    """Return the name of the module from which a module in a package imports; "" for none."""
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        above = parts[: max(0, len(parts) - node.level + 1)]
        base = ".".join(filter(None, [*above, base]))
    return base


def dotted_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return what a chain of names stands for, such as os.path.join, or ""."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = dotted_name(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


class FollowedPython:
    """A module that is followed.

    :param names: what the names that it imports stand for.
    :param arguments: sys.argv.
    :param exists: tells whether there is a file at a path.
    :param executable: the path of the interpreter.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        arguments: list[str],
        environment: Mapping[str, str],
        exists: Callable[[str], bool],
        executable: str,
    ) -> None:
        self._names = names
        self._arguments = arguments
        self._exists = exists
        self._executable = executable
        self._left = _STATEMENTS
        self._calls = 0
        self._functions: dict[str, FunctionNode] = {}
        self.environment: dict[str, Any] = dict(environment)
        self.globals: dict[str, Any] = {"__name__": "__main__", "__file__": arguments[0]}

    def follows(self, dotted: str) -> bool:
        """Tell whether the calls of a function, such as os.execv, are what is followed."""
        raise NotImplementedError

    def call(self, dotted: str, arguments: Any, node: ast.Call, variables: dict[str, Any]) -> Any:
        """Follow such a call; return its value.

        :param arguments: a list of values; NOT_KNOWN where they are not known.
        """
        raise NotImplementedError

    # -- statements

    def run(self, body: Sequence[ast.stmt], variables: dict[str, Any]) -> None:
        for statement in body:
            self._left -= 1
            if self._left < 0:
                raise Undecided
            self._statement(statement, variables)

    def _statement(self, node: ast.stmt, variables: dict[str, Any]) -> None:
        if isinstance(node, ast.Expr):
            self._value(node.value, variables)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value, variables)
            for target in node.targets:
                self._assign(target, value, variables)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._value(node.value, variables), variables)
        elif isinstance(node, ast.AugAssign):
            self._augment(node, variables)
        elif isinstance(node, ast.If):
            holds = self._value(node.test, variables)
            if holds is not NOT_KNOWN:
                self.run(node.body if holds else node.orelse, variables)
            else:
                self._perhaps([*node.body, *node.orelse], variables)
        elif isinstance(node, ast.For):
            values = self._value(node.iter, variables)
            if not isinstance(values, list) or len(values) > 64:
                self._perhaps(node.body, variables)
                return
            for value in values:
                self._assign(node.target, value, variables)
                self.run(node.body, variables)
        elif isinstance(node, ast.Try):
            self.run([*node.body, *node.orelse, *node.finalbody], variables)
        elif isinstance(node, ast.With):
            self.run(node.body, variables)
        elif isinstance(node, ast.FunctionDef):
            self._functions[node.name] = node
        elif isinstance(node, ast.Return):
            raise Returned(None if node.value is None else self._value(node.value, variables))
        elif isinstance(node, ast.Raise):
            raise ScriptEnd
        elif isinstance(node, ast.While | ast.Delete | ast.Match):
            self._perhaps([node], variables)

    def _perhaps(self, body: Sequence[ast.AST], variables: dict[str, Any]) -> None:
        """Pass over what is perhaps run, unless that decides what is started."""
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    dotted = dotted_name(node.func, self._names)
                    own = isinstance(node.func, ast.Name) and node.func.id in self._functions
                    if self.follows(dotted) or dotted.startswith("os.environ") or own:
                        raise Undecided
                elif isinstance(node, ast.Return):
                    raise Undecided
                elif isinstance(node, ast.Subscript | ast.Name) and isinstance(
                    node.ctx, ast.Store | ast.Del
                ):
                    self._assign(node, NOT_KNOWN, variables)

    def _assign(self, target: ast.expr, value: Any, variables: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            variables[target.id] = value
        elif isinstance(target, ast.Subscript):
            place = self._value(target.value, variables)
            key = self._value(target.slice, variables)
            if place is self.environment and not isinstance(key, str):
                raise Undecided
            if isinstance(place, dict) and isinstance(key, str):
                place[key] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, NOT_KNOWN, variables)

    def _augment(self, node: ast.AugAssign, variables: dict[str, Any]) -> None:
        target = _loaded(node.target)
        place = self._value(target, variables)
        if not isinstance(place, dict):
            added = ast.BinOp(target, node.op, node.value)
            self._assign(node.target, self._value(added, variables), variables)
            return
        more = self._value(node.value, variables)
        if not isinstance(more, dict):
            raise Undecided
        place |= more

    # -- values

    def _value(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        value = self._computed(node, variables)
        if isinstance(value, str | list) and len(value) > _VALUE_LIMIT:
            raise Undecided
        return value

    def _computed(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute):
            return self._named(node, variables)
        if isinstance(node, ast.List | ast.Tuple):
            return self._elements(node.elts, variables)
        if isinstance(node, ast.Dict):
            return self._dictionary(node, variables)
        if isinstance(node, ast.JoinedStr):
            return _joined([self._value(value, variables) for value in node.values])
        if isinstance(node, ast.FormattedValue):
            plain = node.conversion == -1 and node.format_spec is None
            return self._value(node.value, variables) if plain else NOT_KNOWN
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, variables), self._value(node.right, variables)
            texts = isinstance(left, str) and isinstance(right, str)
            lists = isinstance(left, list) and isinstance(right, list)
            if isinstance(node.op, ast.BitOr) and isinstance(left, dict):
                return left | right if isinstance(right, dict) else NOT_KNOWN
            return left + right if isinstance(node.op, ast.Add) and (texts or lists) else NOT_KNOWN
        if isinstance(node, ast.Subscript):
            return self._element(node, variables)
        if isinstance(node, ast.IfExp):
            holds = self._value(node.test, variables)
            if holds is NOT_KNOWN:
                return NOT_KNOWN
            return self._value(node.body if holds else node.orelse, variables)
        if isinstance(node, ast.BoolOp):
            return self._of_booleans(node, variables)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand, variables)
            return value if value is NOT_KNOWN else not value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, variables)
        if isinstance(node, ast.Call):
            return self._called(node, variables)
        return NOT_KNOWN

    def _named(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        if isinstance(node, ast.Name):
            for scope in (variables, self.globals):
                if node.id in scope:
                    return scope[node.id]
        dotted = dotted_name(node, self._names)
        if isinstance(node, ast.Attribute) and not dotted:
            self._value(node.value, variables)
            return NOT_KNOWN
        return self._known().get(dotted, NOT_KNOWN)

    def _known(self) -> dict[str, Any]:
        """Return what has a value in Python's own modules."""
        return {
            "os.environ": self.environment,
            "sys.argv": self._arguments,
            "sys.executable": self._executable,
            "os.pathsep": ":",
            "os.sep": "/",
        }

    def _elements(self, nodes: Sequence[ast.expr], variables: dict[str, Any]) -> Any:
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._value(node.value, variables)
                if not isinstance(more, list):
                    return NOT_KNOWN
                values += more
            else:
                values.append(self._value(node, variables))
        return values

    def _dictionary(self, node: ast.Dict, variables: dict[str, Any]) -> Any:
        made: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            content = self._value(value, variables)
            name = None if key is None else self._value(key, variables)
            if key is None and isinstance(content, dict):
                made |= content
            elif isinstance(name, str):
                made[name] = content
            else:
                return NOT_KNOWN
        return made

    def _element(self, node: ast.Subscript, variables: dict[str, Any]) -> Any:
        value = self._value(node.value, variables)
        if isinstance(node.slice, ast.Slice):
            ends = [
                None if end is None else self._value(end, variables)
                for end in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            if isinstance(value, str | list) and all(isinstance(e, int | None) for e in ends):
                return value[slice(*ends)]
            return NOT_KNOWN
        key = self._value(node.slice, variables)
        if isinstance(value, dict) and isinstance(key, str):
            return value.get(key, NOT_KNOWN)
        if isinstance(value, str | list) and isinstance(key, int):
            if not -len(value) <= key < len(value):
                raise ScriptEnd  # IndexError
            return value[key]
        return NOT_KNOWN

    def _of_booleans(self, node: ast.BoolOp, variables: dict[str, Any]) -> Any:
        decides = isinstance(node.op, ast.Or)
        value: Any = NOT_KNOWN
        for number, operand in enumerate(node.values):
            value = self._value(operand, variables)
            if value is NOT_KNOWN:
                self._perhaps(node.values[number + 1 :], variables)
            if value is NOT_KNOWN or bool(value) is decides:
                return value
        return value

    def _compared(self, node: ast.Compare, variables: dict[str, Any]) -> Any:
        left = self._value(node.left, variables)
        right = self._value(node.comparators[0], variables)
        if not (_is_known(left) and _is_known(right)):
            return NOT_KNOWN
        operator = node.ops[0]
        if isinstance(operator, ast.Eq | ast.NotEq):
            return (left == right) is isinstance(operator, ast.Eq)
        if isinstance(operator, ast.Is | ast.IsNot):
            return (left is right) is isinstance(operator, ast.Is)
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, str | list | dict):
            if isinstance(right, str) and not isinstance(left, str):
                return NOT_KNOWN
            return (left in right) is isinstance(operator, ast.In)
        if isinstance(left, list) and isinstance(right, list):
            # As far as both are known: of a version, the first numbers.
            numbers = [[one for one in both if isinstance(one, int)] for both in (left, right)]
            if numbers != [left, right] or left == right[: len(left)] != right:
                return NOT_KNOWN
            left, right = (left > right) - (left < right), 0
        if isinstance(left, int) and isinstance(right, int):
            if isinstance(operator, ast.Lt | ast.LtE):
                return left < right or (isinstance(operator, ast.LtE) and left == right)
            if isinstance(operator, ast.Gt | ast.GtE):
                return left > right or (isinstance(operator, ast.GtE) and left == right)
        return NOT_KNOWN

    # -- calls

    def _called(self, node: ast.Call, variables: dict[str, Any]) -> Any:
        dotted = dotted_name(node.func, self._names)
        arguments = self._elements(node.args, variables)
        if self.follows(dotted):
            return self.call(dotted, arguments, node, variables)
        if dotted in {"sys.exit", "os._exit"}:
            raise ScriptEnd
        if arguments is NOT_KNOWN:
            return NOT_KNOWN
        if isinstance(node.func, ast.Name) and not dotted:
            function = self._functions.get(node.func.id)
            if function is not None:
                return self._function(function, arguments, self._keywords(node, variables))
            return self._builtin(node.func.id, arguments, node, variables)
        if isinstance(node.func, ast.Attribute):
            value = self._value(node.func.value, variables)
            if isinstance(value, str | list | dict):
                return self._method(value, node.func.attr, arguments, node, variables)
        return self._library(dotted, arguments)

    def _keywords(self, node: ast.Call, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        given: dict[str, Any] = {}
        for one in node.keywords:
            value = self._value(one.value, variables)
            if one.arg is not None:
                given[one.arg] = value
            elif isinstance(value, dict):
                given |= value
            else:
                raise Undecided
        return given

    def _builtin(
        self, name: str, arguments: list[Any], node: ast.Call, variables: dict[str, Any]
    ) -> Any:
        if name in {"exit", "quit"}:
            raise ScriptEnd
        if name == "dict":
            first = arguments[0] if arguments else {}
            plain = isinstance(first, dict)
            return first | self._keywords(node, variables) if plain else NOT_KNOWN
        if len(arguments) != 1:
            return NOT_KNOWN
        (value,) = arguments
        if name == "len" and isinstance(value, str | list | dict):
            return len(value)
        if name in {"list", "tuple", "sorted"} and isinstance(value, list):
            texts = all(isinstance(one, str) for one in value)
            if name == "sorted":
                return sorted(value) if texts and not node.keywords else NOT_KNOWN
            return list(value)
        return str(value) if name == "str" and isinstance(value, str | int) else NOT_KNOWN

    def _library(self, dotted: str, arguments: list[Any]) -> Any:
        if dotted == "os.getenv" and arguments and isinstance(arguments[0], str):
            return self.environment.get(*arguments[:2])
        texts = bool(arguments) and all(isinstance(value, str) for value in arguments)
        if dotted == "os.path.join" and texts:
            return posixpath.join(*arguments)
        if dotted in {"os.path.exists", "os.path.isfile", "os.path.isdir"} and texts:
            return self._there(arguments[0])
        if dotted == "os.path.dirname" and texts:
            return posixpath.dirname(arguments[0])
        if dotted in {"os.putenv", "os.chdir", "os.setuid", "os.setgid"}:
            raise Undecided
        return NOT_KNOWN

    def _there(self, path: str) -> Any:
        """Tell whether there is a file at a path, NOT_KNOWN where that is not known."""
        return self._exists(path)

    def _method(
        self, value: Any, name: str, arguments: list[Any], node: ast.Call, variables: dict[str, Any]
    ) -> Any:
        if isinstance(value, dict):
            return self._of_dictionary(value, name, arguments, node, variables)
        if isinstance(value, list):
            if name in {"append", "insert"} and arguments:
                value.insert(arguments[0] if name == "insert" else len(value), arguments[-1])
            elif name == "extend" and isinstance(arguments[0], list):
                value += arguments[0]
            else:
                return NOT_KNOWN
            if len(value) > _VALUE_LIMIT:
                raise Undecided
            return None
        texts = all(isinstance(one, str) for one in arguments)
        if name == "join" and len(arguments) == 1 and isinstance(arguments[0], list):
            return _joined(arguments[0], value)
        if name in {"split", "strip", "startswith", "endswith", "replace", "lower"} and texts:
            return getattr(value, name)(*arguments)
        return NOT_KNOWN

    def _of_dictionary(
        self,
        value: dict[str, Any],
        name: str,
        arguments: list[Any],
        node: ast.Call,
        variables: dict[str, Any],
    ) -> Any:
        if name == "copy":
            return dict(value)
        if name == "update":
            for more in [*arguments, self._keywords(node, variables)]:
                if not isinstance(more, dict):
                    raise Undecided
                value |= more
            return None
        if not arguments or not isinstance(arguments[0], str):
            return NOT_KNOWN
        if name == "get":
            return value.get(*arguments[:2])
        if name == "setdefault":
            return value.setdefault(*arguments[:2])
        return value.pop(arguments[0], None) if name == "pop" else NOT_KNOWN

    def _function(
        self, function: FunctionNode, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        if self._calls >= _CALLS:
            raise Undecided
        names = [argument.arg for argument in function.args.args]
        local: dict[str, Any] = dict.fromkeys(names, NOT_KNOWN)
        defaults = function.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            local[name] = self._value(default, self.globals)
        local |= dict(zip(names, arguments, strict=False))
        local |= keywords
        if function.args.vararg is not None:
            local[function.args.vararg.arg] = arguments[len(names) :]
        self._calls += 1
        try:
            self.run(function.body, local)
        except Returned as end:
            return end.value
        finally:
            self._calls -= 1
        return None


def _loaded(target: ast.expr) -> ast.expr:
    """Return an expression for the value of a target of an assignment."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _is_known(value: Any) -> bool:
    """Tell whether a value is known, and of a list all that is in it."""
    inside = value if isinstance(value, list) else [value]
    return not any(one is NOT_KNOWN for one in inside)


def _joined(values: list[Any], between: str = "") -> Any:
    if not all(isinstance(value, str | int) for value in values):
        return NOT_KNOWN
    return between.join(map(str, values))
