"""Find the command that a Python or Perl script becomes, where its text says that plainly.

Python is read as a syntax tree: statements are followed in order, with the values of literals,
os.environ, sys.argv and what is made of them. Nothing is run.
"""

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The most statements that are followed, and calls inside one another; characters of a value.
_STATEMENTS, _CALLS, _VALUE_LIMIT = 2000, 16, 4096
_EXECS = {f"os.exec{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
_RUNS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}
#: Modules of scripts that do nothing but start another program.
_OF_LAUNCHERS = {
    *("argparse", "json", "logging", "os", "pathlib", "re", "shlex", "shutil", "signal"),
    *("subprocess", "sys", "time", "typing", "__future__"),
}


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A command that a script becomes or runs, with its variables."""

    words: list[str]
    environment: Mapping[str, str]


class _Undecided(Exception):
    """What a script does is not known."""


class _ScriptEnd(Exception):
    """The script ends, or becomes another program."""


class _Returned(Exception):
    """A function ends."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _NotKnown:
    """A value that is not known."""


_NOT_KNOWN = _NotKnown()


def python_starts(
    text: str,
    arguments: list[str],
    environment: Mapping[str, str],
    exists: Callable[[str], bool],
    executable: str,
) -> ScriptCommand | str | None:
    """Return what a Python script becomes, words for what is not known of it, or None if it runs
    itself.

    :param arguments: sys.argv.
    :param exists: tells whether there is a file at a path.
    :param executable: the path of the interpreter.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = dict(_imported(module))
    calls = [
        (dotted, node.lineno)
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and (dotted := _dotted(node.func, names)) in _EXECS | _RUNS
    ]
    launcher = {dotted.partition(".")[0] for dotted in names.values()} <= _OF_LAUNCHERS
    counted = _EXECS | _RUNS if launcher else _EXECS
    first = next(((dotted, line) for dotted, line in calls if dotted in counted), None)
    if first is None:
        return None
    script = _FollowedPython(names, arguments, environment, exists, counted, executable)
    try:
        script.run(module.body, script.globals)
    except _ScriptEnd:
        pass
    except (_Undecided, _Returned, RecursionError):
        return f"what the script becomes by {first[0]} in line {first[1]}"
    return script.started


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, each with what it stands for."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    yield alias.name.partition(".")[0], alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or '.'}.{alias.name}"


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return what a chain of names stands for, such as os.path.join, or ""."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


class _FollowedPython:
    """A script that is followed."""

    def __init__(
        self,
        names: Mapping[str, str],
        arguments: list[str],
        environment: Mapping[str, str],
        exists: Callable[[str], bool],
        counted: set[str],
        executable: str,
    ) -> None:
        self._names = names
        self._arguments = arguments
        self._exists = exists
        self._counted = counted
        self._executable = executable
        self._left = _STATEMENTS
        self._calls = 0
        self._functions: dict[str, ast.FunctionDef] = {}
        self.environment: dict[str, Any] = dict(environment)
        self.globals: dict[str, Any] = {"__name__": "__main__", "__file__": arguments[0]}
        self.started: ScriptCommand | None = None

    # -- statements

    def run(self, body: Sequence[ast.stmt], variables: dict[str, Any]) -> None:
        for statement in body:
            self._left -= 1
            if self._left < 0:
                raise _Undecided
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
            if holds is not _NOT_KNOWN:
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
            raise _Returned(None if node.value is None else self._value(node.value, variables))
        elif isinstance(node, ast.Raise):
            raise _ScriptEnd
        elif isinstance(node, ast.While | ast.Delete | ast.Match):
            self._perhaps([node], variables)

    def _perhaps(self, body: Sequence[ast.AST], variables: dict[str, Any]) -> None:
        """Pass over what is perhaps run, unless that decides what is started."""
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    dotted = _dotted(node.func, self._names)
                    own = isinstance(node.func, ast.Name) and node.func.id in self._functions
                    if dotted in self._counted or dotted.startswith("os.environ") or own:
                        raise _Undecided
                elif isinstance(node, ast.Return):
                    raise _Undecided
                elif isinstance(node, ast.Subscript | ast.Name) and isinstance(
                    node.ctx, ast.Store | ast.Del
                ):
                    self._assign(node, _NOT_KNOWN, variables)

    def _assign(self, target: ast.expr, value: Any, variables: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            variables[target.id] = value
        elif isinstance(target, ast.Subscript):
            place = self._value(target.value, variables)
            key = self._value(target.slice, variables)
            if place is self.environment and not isinstance(key, str):
                raise _Undecided
            if isinstance(place, dict) and isinstance(key, str):
                place[key] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, _NOT_KNOWN, variables)

    def _augment(self, node: ast.AugAssign, variables: dict[str, Any]) -> None:
        target = _loaded(node.target)
        place = self._value(target, variables)
        if not isinstance(place, dict):
            added = ast.BinOp(target, node.op, node.value)
            self._assign(node.target, self._value(added, variables), variables)
            return
        more = self._value(node.value, variables)
        if not isinstance(more, dict):
            raise _Undecided
        place |= more

    # -- values

    def _value(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        value = self._computed(node, variables)
        if isinstance(value, str | list) and len(value) > _VALUE_LIMIT:
            raise _Undecided
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
            return self._value(node.value, variables) if plain else _NOT_KNOWN
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, variables), self._value(node.right, variables)
            texts = isinstance(left, str) and isinstance(right, str)
            lists = isinstance(left, list) and isinstance(right, list)
            if isinstance(node.op, ast.BitOr) and isinstance(left, dict):
                return left | right if isinstance(right, dict) else _NOT_KNOWN
            return left + right if isinstance(node.op, ast.Add) and (texts or lists) else _NOT_KNOWN
        if isinstance(node, ast.Subscript):
            return self._element(node, variables)
        if isinstance(node, ast.IfExp):
            holds = self._value(node.test, variables)
            if holds is _NOT_KNOWN:
                return _NOT_KNOWN
            return self._value(node.body if holds else node.orelse, variables)
        if isinstance(node, ast.BoolOp):
            return self._of_booleans(node, variables)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand, variables)
            return value if value is _NOT_KNOWN else not value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node, variables)
        if isinstance(node, ast.Call):
            return self._called(node, variables)
        return _NOT_KNOWN

    def _named(self, node: ast.expr, variables: dict[str, Any]) -> Any:
        if isinstance(node, ast.Name):
            for scope in (variables, self.globals):
                if node.id in scope:
                    return scope[node.id]
        dotted = _dotted(node, self._names)
        if isinstance(node, ast.Attribute) and not dotted:
            self._value(node.value, variables)
            return _NOT_KNOWN
        known = {
            "os.environ": self.environment,
            "sys.argv": self._arguments,
            "sys.executable": self._executable,
            "os.pathsep": ":",
            "os.sep": "/",
        }
        return known.get(dotted, _NOT_KNOWN)

    def _elements(self, nodes: Sequence[ast.expr], variables: dict[str, Any]) -> Any:
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._value(node.value, variables)
                if not isinstance(more, list):
                    return _NOT_KNOWN
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
                return _NOT_KNOWN
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
            return _NOT_KNOWN
        key = self._value(node.slice, variables)
        if isinstance(value, dict) and isinstance(key, str):
            return value.get(key, _NOT_KNOWN)
        if isinstance(value, str | list) and isinstance(key, int):
            if not -len(value) <= key < len(value):
                raise _ScriptEnd  # IndexError
            return value[key]
        return _NOT_KNOWN

    def _of_booleans(self, node: ast.BoolOp, variables: dict[str, Any]) -> Any:
        decides = isinstance(node.op, ast.Or)
        value: Any = _NOT_KNOWN
        for number, operand in enumerate(node.values):
            value = self._value(operand, variables)
            if value is _NOT_KNOWN:
                self._perhaps(node.values[number + 1 :], variables)
            if value is _NOT_KNOWN or bool(value) is decides:
                return value
        return value

    def _compared(self, node: ast.Compare, variables: dict[str, Any]) -> Any:
        left = self._value(node.left, variables)
        right = self._value(node.comparators[0], variables)
        if left is _NOT_KNOWN or right is _NOT_KNOWN:
            return _NOT_KNOWN
        operator = node.ops[0]
        if isinstance(operator, ast.Eq | ast.NotEq):
            return (left == right) is isinstance(operator, ast.Eq)
        if isinstance(operator, ast.Is | ast.IsNot):
            return (left is right) is isinstance(operator, ast.Is)
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, str | list | dict):
            if isinstance(right, str) and not isinstance(left, str):
                return _NOT_KNOWN
            return (left in right) is isinstance(operator, ast.In)
        if isinstance(left, int) and isinstance(right, int):
            if isinstance(operator, ast.Lt | ast.LtE):
                return left < right or (isinstance(operator, ast.LtE) and left == right)
            if isinstance(operator, ast.Gt | ast.GtE):
                return left > right or (isinstance(operator, ast.GtE) and left == right)
        return _NOT_KNOWN

    # -- calls

    def _called(self, node: ast.Call, variables: dict[str, Any]) -> Any:
        dotted = _dotted(node.func, self._names)
        arguments = self._elements(node.args, variables)
        if dotted in self._counted:
            self._start(dotted, arguments, node, variables)
            return _NOT_KNOWN
        if dotted in {"sys.exit", "os._exit"}:
            raise _ScriptEnd
        if arguments is _NOT_KNOWN:
            return _NOT_KNOWN
        if isinstance(node.func, ast.Name):
            if node.func.id in self._functions and not dotted:
                return self._function(self._functions[node.func.id], arguments, node, variables)
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
                raise _Undecided
        return given

    def _builtin(
        self, name: str, arguments: list[Any], node: ast.Call, variables: dict[str, Any]
    ) -> Any:
        if name in {"exit", "quit"}:
            raise _ScriptEnd
        if name == "dict":
            first = arguments[0] if arguments else {}
            plain = isinstance(first, dict)
            return first | self._keywords(node, variables) if plain else _NOT_KNOWN
        if len(arguments) != 1:
            return _NOT_KNOWN
        (value,) = arguments
        if name == "len" and isinstance(value, str | list | dict):
            return len(value)
        if name == "list" and isinstance(value, list):
            return list(value)
        return str(value) if name == "str" and isinstance(value, str | int) else _NOT_KNOWN

    def _library(self, dotted: str, arguments: list[Any]) -> Any:
        if dotted == "os.getenv" and arguments and isinstance(arguments[0], str):
            return self.environment.get(*arguments[:2])
        texts = bool(arguments) and all(isinstance(value, str) for value in arguments)
        if dotted == "os.path.join" and texts:
            return posixpath.join(*arguments)
        if dotted in {"os.path.exists", "os.path.isfile", "os.path.isdir"} and texts:
            return self._exists(arguments[0])
        if dotted == "os.path.dirname" and texts:
            return posixpath.dirname(arguments[0])
        if dotted in {"os.putenv", "os.chdir", "os.setuid", "os.setgid"}:
            raise _Undecided
        return _NOT_KNOWN

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
                return _NOT_KNOWN
            if len(value) > _VALUE_LIMIT:
                raise _Undecided
            return None
        texts = all(isinstance(one, str) for one in arguments)
        if name == "join" and len(arguments) == 1 and isinstance(arguments[0], list):
            return _joined(arguments[0], value)
        if name in {"split", "strip", "startswith", "endswith", "replace", "lower"} and texts:
            return getattr(value, name)(*arguments)
        return _NOT_KNOWN

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
                    raise _Undecided
                value |= more
            return None
        if not arguments or not isinstance(arguments[0], str):
            return _NOT_KNOWN
        if name == "get":
            return value.get(*arguments[:2])
        if name == "setdefault":
            return value.setdefault(*arguments[:2])
        return value.pop(arguments[0], None) if name == "pop" else _NOT_KNOWN

    def _function(
        self,
        function: ast.FunctionDef,
        arguments: list[Any],
        node: ast.Call,
        variables: dict[str, Any],
    ) -> Any:
        if self._calls >= _CALLS:
            raise _Undecided
        names = [argument.arg for argument in function.args.args]
        local: dict[str, Any] = dict.fromkeys(names, _NOT_KNOWN)
        defaults = function.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            local[name] = self._value(default, self.globals)
        local |= dict(zip(names, arguments, strict=False))
        local |= self._keywords(node, variables)
        if function.args.vararg is not None:
            local[function.args.vararg.arg] = arguments[len(names) :]
        self._calls += 1
        try:
            self.run(function.body, local)
        except _Returned as end:
            return end.value
        finally:
            self._calls -= 1
        return None

    def _start(
        self, dotted: str, arguments: Any, node: ast.Call, variables: dict[str, Any]
    ) -> None:
        """Start the program of os.exec*() or subprocess."""
        if arguments is _NOT_KNOWN or not arguments:
            raise _Undecided
        environment: Any = self.environment
        kind = dotted.removeprefix("os.exec") if dotted in _EXECS else ""
        if kind:
            if kind.endswith("e"):
                environment = arguments.pop()
            words = arguments[1:] if kind.startswith("l") else arguments[1]
            words = [arguments[0], *words[1:]] if isinstance(words, list) else words
        else:
            words = arguments[0]
            given = self._keywords(node, variables)
            environment = given.get("env") or environment
            if given.get("shell") is True and isinstance(words, str):
                words = ["/bin/sh", "-c", words]
            words = [words] if isinstance(words, str) else words
        if not isinstance(environment, dict) or not isinstance(words, list) or not words:
            raise _Undecided
        known = [*words, *environment.values()]
        if not all(isinstance(text, str) for text in known):
            raise _Undecided
        self.started = ScriptCommand(list(words), dict(environment))
        if kind:
            raise _ScriptEnd


def _loaded(target: ast.expr) -> ast.expr:
    """Return an expression for the value of a target of an assignment."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _joined(values: list[Any], between: str = "") -> Any:
    if not all(isinstance(value, str | int) for value in values):
        return _NOT_KNOWN
    return between.join(map(str, values))


# -- Perl

_PERL_SET = re.compile(r"\$ENV\{['\"]?(\w+)['\"]?\}\s*=\s*(['\"])([^'\"$@\\]*)\2\s*")
_PERL_EXEC = re.compile(r"exec\s*(.*)", re.DOTALL)
_PERL_PASSED = re.compile(r"(?:use|no|package|my|our|print|warn|local)\b|1$|$|\$\||\$0")
_PERL_WORD = re.compile(r"\s*(?:'([^']*)'|\"([^\"$@\\]*)\"|(@ARGV))\s*(,|$)")


def perl_starts(
    text: str, arguments: list[str], environment: Mapping[str, str]
) -> ScriptCommand | str | None:
    """Return what a Perl script becomes by exec, as :func:`python_starts` does."""
    lines = [line for line in text.partition("\n__END__")[0].splitlines() if line[:1] != "#"]
    if not any(re.search(r"\bexec\b", line.partition("#")[0]) for line in lines):
        return None
    fact = "what the script becomes by exec"
    variables = dict(environment)
    for statement in "\n".join(line.partition(" #")[0] for line in lines).split(";"):
        statement = statement.strip()
        if match := _PERL_SET.fullmatch(statement):
            variables[match[1]] = match[3]
        elif match := _PERL_EXEC.fullmatch(statement):
            words = _perl_words(match[1].strip(), arguments[1:])
            return ScriptCommand(words, variables) if words else fact
        elif not _PERL_PASSED.match(statement):
            return fact
    return fact


def _perl_words(text: str, arguments: list[str]) -> list[str]:
    """Return the words of a list in Perl; none if they are not known."""
    text = text.removeprefix("(").removesuffix(")") if text.startswith("(") else text
    words: list[str] = []
    at = 0
    while at < len(text):
        match = _PERL_WORD.match(text, at)
        if match is None:
            return []
        words += arguments if match[3] else [match[1] or match[2] or ""]
        at = match.end()
    if len(words) == 1 and re.search(r"\s", words[0]):
        return ["/bin/sh", "-c", words[0]]
    return words
