"""Find the command that a Python or Perl script becomes, where its text says that plainly.

Nothing is run.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nvgraft_cli.prove.script.python import (
    FAULTS,
    NOT_KNOWN,
    FollowedPython,
    Returned,
    ScriptEnd,
    Undecided,
    dotted_name,
    imported_names,
    parse_whole,
)

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
        statements = parse_whole(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = dict(imported_names(statements))
    calls = [
        (dotted, node.lineno)
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and (dotted := dotted_name(node.func, names)) in _EXECS | _RUNS
    ]
    launcher = {dotted.partition(".")[0] for dotted in names.values()} <= _OF_LAUNCHERS
    counted = _EXECS | _RUNS if launcher else _EXECS
    first = next(((dotted, line) for dotted, line in calls if dotted in counted), None)
    if first is None:
        return None
    script = _Launcher(names, arguments, environment, exists, executable)
    script.counted = counted
    try:
        script.run(statements, script.globals)
    except ScriptEnd:
        pass
    except (*FAULTS, Returned):
        return f"what the script becomes by {first[0]} in line {first[1]}"
    return script.started


class _Launcher(FollowedPython):
    """A script that starts a program by os.exec*() or subprocess."""

    counted: set[str] = _EXECS
    started: ScriptCommand | None = None

    def follows(self, dotted: str) -> bool:
        return dotted in self.counted

    def call(self, dotted: str, arguments: Any, node: ast.Call, variables: dict[str, Any]) -> Any:
        """Start the program of os.exec*() or subprocess."""
        if arguments is NOT_KNOWN or not arguments:
            raise Undecided
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
            raise Undecided
        known = [*words, *environment.values()]
        if not all(isinstance(text, str) for text in known):
            raise Undecided
        self.started = ScriptCommand(list(words), dict(environment))
        if kind:
            raise ScriptEnd
        return NOT_KNOWN


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
