"""Follow a shell script of an image as far as its files and variables tell, without running it.

What a script's own commands compute is not known, and stands in values as ``UNKNOWN``. Where a
condition is not known, both branches are followed. Commands are taken to succeed.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache, partial

from nvgraft.formats.tree import PathError, Tree
from nvgraft_cli.prove.shell_syntax import (
    AndOr,
    Block,
    CaseCommand,
    Command,
    For,
    FunctionDefinition,
    Group,
    If,
    NotUnderstood,
    Pipeline,
    Simple,
    While,
    Word,
    WordPart,
    parse,
)

#: A part of a value that is not known. No value of a process has this character.
UNKNOWN = "\0"

#: The most commands that are followed, characters of a value and files that are read; a script of
#: an image has a few hundred.
_COMMANDS, _VALUE_LIMIT, _FILES = 4000, 4096, 64
#: The most characters of a value from which a pattern is taken away.
_STRIPPED_LIMIT = 512
#: The most rounds of a loop, names of a directory for a pattern, and functions inside one another.
_ROUNDS, _NAMES, _CALLS = 64, 256, 16
#: Bytes of a script, and characters of all scripts that are followed together.
SCRIPT_LIMIT = 128 << 10
_TEXT_LIMIT = 256 << 10

#: Programs that prepare a start. None of them uses a GPU.
_PREPARING = {
    *("basename", "cat", "chmod", "chown", "clear", "cp", "curl", "cut", "date", "df", "dirname"),
    *("du", "free", "head", "hostname", "install", "ldconfig"),
    *("ln", "mkdir", "mkfifo", "mktemp", "mount", "mv", "nproc", "pwd", "readlink"),
    *("realpath", "rm", "rmdir", "sed", "sleep", "sort", "sync", "tail", "tar", "tee"),
    *("touch", "tr", "uname", "uniq", "useradd", "usermod", "groupadd", "groupmod", "wc", "wget"),
    *("whoami", "awk", "adduser", "addgroup", "envsubst", "kill"),
}
#: Of these and others, the programs that change files.
_CHANGING = {
    *("chmod", "chown", "cp", "install", "ldconfig", "ln", "mount", "mv", "rm", "rmdir", "sed"),
    *("tar", "tee", "touch", "truncate", "unlink", "unzip", "wget", "curl", "dpkg", "apt-get"),
}
#: The most commands that change files of which a script's outcome tells.
_MOST_CHANGES = 256
#: Programs that ask something: whether they succeed is not known.
_ASKING = {"cmp", "diff", "egrep", "find", "getent", "grep", "id", "lspci", "ls", "pgrep", "stat"}
#: Programs and words of the shell that tell where a program is.
_LOOKING = {"command", "hash", "type", "which"}
_IGNORED = {
    *("trap", "umask", "ulimit", "shopt", "alias", "unalias", "wait", "jobs", "hash", "let"),
    *("printf", "echo", "read", "getopts", "times", "pushd", "popd", "enable", "bind", "disown"),
}
#: Options of xargs that take a value as a word of its own.
_XARGS_VALUES = {"-I", "-n", "-P", "-L", "-d", "-s", "-a", "-E"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_HOME = re.compile(r"((?:[A-Za-z_]\w*\+?=)?)~(?=/|$)")
_PATTERN = re.compile(r"[*?\[]|[@+]\(")
#: A pattern of bash: one of several texts, once or as often as the character before says.
_CHOICE = re.compile(r"([@?*+])\(([^()]*)\)")
_OFTEN = {"@": "", "?": "?", "*": "*", "+": "+"}


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """The command that a script becomes, or runs last.

    :ivar words: the command with its arguments.
    :ivar environment: its variables; their values may have ``UNKNOWN`` in them.
    :ivar directory: its working directory.
    :ivar changes: the commands before it that change files, each with its arguments.
    :ivar unknown: what is not known of its variables: commands before it may have set any.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    changes: tuple[tuple[str, ...], ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(slots=True)
class _ShellState:
    """What commands change."""

    variables: dict[str, str]
    exported: set[str]
    directory: str
    arguments: list[str]
    functions: dict[str, Block] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    export_all: bool = False

    def copy(self) -> "_ShellState":
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            arguments=list(self.arguments),
            functions=dict(self.functions),
            arrays=dict(self.arrays),
        )

    def assign(self, name: str, value: str) -> None:
        """Set a variable."""
        self.variables[name] = value[:_VALUE_LIMIT]
        if self.export_all:
            self.exported.add(name)

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if name in self.exported}


class _End(Exception):
    """The shell ends: it becomes a program, or exits."""


class _Return(Exception):
    """A function or a file that was read ends, with this status."""

    def __init__(self, status: bool | None) -> None:
        super().__init__()
        self.status = status


def run_script(
    text: str,
    arguments: list[str],
    environment: Mapping[str, str],
    directory: str,
    tree: Tree,
    uid: int,
    find: Callable[[str, Mapping[str, str], str], str | None],
    before: Sequence[Sequence[str]] = (),
) -> ScriptOutcome | None:
    """Return what a script becomes, or the last command that it runs; None if that is not known.

    :param arguments: the name of the script, then its arguments.
    :param find: returns the path of a program, from its name, variables and working directory.
    :param before: files that the shell reads first: of each group the first one that is there.
    """
    state = _ShellState(dict(environment), set(environment), directory, list(arguments))
    shell = _Shell(tree, uid, find)
    try:
        for files in before:
            shell.read_first(files, state)
        shell.run_text(text, state)
    except (_End, _Return):
        pass
    except (NotUnderstood, RecursionError):
        return None
    found = shell.became or shell.perhaps or shell.last
    return None if found is None or UNKNOWN in found.words[0] else found


class _Shell:
    """One shell with those that it starts."""

    def __init__(
        self, tree: Tree, uid: int, find: Callable[[str, Mapping[str, str], str], str | None]
    ) -> None:
        self._tree = tree
        self._uid = uid
        self._find = find
        self._characters = 0
        self._commands = 0
        self._files = 0
        self._calls = 0
        #: What was run that may have set any variable.
        self._opaque: list[str] = []
        self._output: list[str] | None = None
        self._changes: list[tuple[str, ...]] = []
        self.became: ScriptOutcome | None = None
        self.perhaps: ScriptOutcome | None = None
        self.last: ScriptOutcome | None = None

    def run_text(self, text: str, state: _ShellState) -> bool | None:
        """Follow a text of commands.

        :raises NotUnderstood: it is not understood, or there is too much of it.
        """
        self._characters += len(text)
        if self._characters > _TEXT_LIMIT:
            raise NotUnderstood("the scripts are too long")
        block = _parsed(text)
        if block is None or self._calls >= _CALLS:
            raise NotUnderstood("the script is not understood, or reads itself")
        self._calls += 1
        try:
            return self.run(block, state)
        finally:
            self._calls -= 1

    def read_first(self, files: Sequence[str], state: _ShellState) -> None:
        """Read the first of these files that is there; what it runs is not the program."""
        place = next((place for place in files if self._exists(place)), None)
        if place is not None:
            self._source([place], state)
            self.perhaps = self.last = None

    # -- commands. Each returns whether it succeeds, None where that is not known.

    def run(self, block: Block, state: _ShellState) -> bool | None:
        status: bool | None = True
        for command in block:
            status = self._and_or(command, state)
        return status

    def _and_or(self, command: AndOr, state: _ShellState) -> bool | None:
        status: bool | None = True
        for operator, pipeline in command.pipelines:
            if (operator, status) in {("&&", False), ("||", True)}:
                continue
            if operator and status is None:
                self._perhaps(partial(self._pipeline, pipeline), state)
            else:
                status = self._pipeline(pipeline, state)
        return status

    def _pipeline(self, pipeline: Pipeline, state: _ShellState) -> bool | None:
        status: bool | None
        if len(pipeline.commands) == 1:
            status = self._command(pipeline.commands[0], state)
        else:
            for command in pipeline.commands:
                status = self._apart(command, state)
        return not status if pipeline.negated and status is not None else status

    def _apart(self, command: Command, state: _ShellState) -> bool | None:
        """Follow a command in a shell of its own."""
        became, perhaps = self.became, self.perhaps
        status: bool | None = True
        try:
            status = self._command(command, state.copy())
        except (_End, _Return):
            self.last = self.became or self.last
        self.became, self.perhaps = became, perhaps
        return status

    def _perhaps(self, follow: Callable[[_ShellState], object], state: _ShellState) -> None:
        """Follow what is perhaps run: what it changes is not known afterwards."""
        self._merge(state, [self._branch(follow, state), state.copy()])

    def _branch(
        self, follow: Callable[[_ShellState], object], state: _ShellState
    ) -> _ShellState | None:
        """Follow what is perhaps run; return the state after it, or None if the shell ends."""
        other, became = state.copy(), self.became
        try:
            follow(other)
        except _End:
            self.perhaps = self.became or self.perhaps
            self.became = became
            return None
        return other

    def _merge(self, state: _ShellState, branches: list[_ShellState | None]) -> None:
        """Set a state after branches of which it is not known which one is run."""
        ends = [branch for branch in branches if branch is not None]
        if not ends:
            raise _End
        first = ends[-1]
        for name in {name for end in ends for name in end.variables}:
            values = [end.variables.get(name) for end in ends]
            if any(value != values[0] for value in values):
                shortest = min((value or "" for value in values), key=len)
                shortest = shortest.removeprefix(f"{UNKNOWN}:")
                first.variables[name] = f"{UNKNOWN}:{shortest}" if shortest else UNKNOWN
        state.variables, state.functions = first.variables, first.functions
        state.arrays, state.export_all = first.arrays, first.export_all
        state.exported = set().union(*(end.exported for end in ends))
        state.directory, state.arguments = first.directory, first.arguments

    def _command(self, command: Command, state: _ShellState) -> bool | None:
        self._commands += 1
        if self._commands > _COMMANDS:
            raise NotUnderstood("the script runs too many commands")
        if isinstance(command, Simple):
            return self._simple(command, state)
        if isinstance(command, Group):
            if command.subshell:
                group = Group(command.body, subshell=False)
                return self._apart(group, state)
            return self.run(command.body, state)
        if isinstance(command, FunctionDefinition):
            state.functions[command.name] = command.body
            return True
        if isinstance(command, If):
            return self._if(command, state)
        if isinstance(command, CaseCommand):
            return self._case(command, state)
        if isinstance(command, For):
            return self._for(command, state)
        return self._while(command, state)

    def _if(self, command: If, state: _ShellState) -> bool | None:
        branches: list[_ShellState | None] = []
        for condition, body in command.branches:
            status = self.run(condition, state)
            if status is False:
                continue
            if status is True and not branches:
                return self.run(body, state)
            branches.append(self._branch(partial(self.run, body), state))
            if status is True:
                break
        else:
            if not branches:
                return True
            branches.append(state.copy())
        self._merge(state, branches)
        return None

    def _case(self, command: CaseCommand, state: _ShellState) -> bool | None:
        word = self._text(command.word, state)
        branches: list[_ShellState | None] = []
        for patterns, body in command.branches:
            texts = [self._text(pattern, state, pattern=True) for pattern in patterns]
            if UNKNOWN not in word and any(_matches(word, text) for text in texts):
                if not branches:
                    return self.run(body, state)
            elif UNKNOWN not in word and not any(UNKNOWN in text for text in texts):
                continue
            branches.append(self._branch(partial(self.run, body), state))
        if branches:
            self._merge(state, [*branches, state.copy()])
            return None
        return True

    def _for(self, command: For, state: _ShellState) -> bool | None:
        if command.words is None:
            words = state.arguments[1:]
        else:
            words = [text for word in command.words for text in self._fields(word, state)]
        for word in words[:_ROUNDS]:
            state.assign(command.name, word)
            if UNKNOWN in word:
                self._perhaps(partial(self.run, command.body), state)
            else:
                self.run(command.body, state)
        return True

    def _while(self, command: While, state: _ShellState) -> bool | None:
        for _ in range(_ROUNDS):
            status = self.run(command.condition, state)
            if status is None:
                self._perhaps(partial(self.run, command.body), state)
                return None
            if status is command.until:
                return True
            self.run(command.body, state)
        return None

    def _simple(self, command: Simple, state: _ShellState) -> bool | None:
        words = list(command.words)
        assigned: dict[str, str] = {}
        while words and (found := _assignment(words[0])):
            name, joined, value = found
            if value[-1].kind == "array":
                self._set_array(name, joined, value[-1], state)
                words.pop(0)
                continue
            before = state.variables.get(name, "") if joined else ""
            assigned[name] = (before + self._text(value, state))[:_VALUE_LIMIT]
            words.pop(0)
        if not words:
            for name, text in assigned.items():
                state.assign(name, text)
            return True
        texts = [text for word in words for text in self._arguments(word, state)]
        if not texts:
            return True
        if UNKNOWN in texts[0]:
            return None
        return self._call(texts, assigned, state)

    def _set_array(self, name: str, joined: str, part: WordPart, state: _ShellState) -> None:
        before = state.arrays.get(name, []) if joined else []
        fields = [text for word in part.words for text in self._fields(word, state)]
        state.arrays[name] = [*before, *fields][:_NAMES]

    def _arguments(self, word: Word, state: _ShellState) -> list[str]:
        """Return the fields of a word; one that assigns is not split, one to an array is done."""
        found = _assignment(word)
        if found is not None and found[2][-1].kind == "array":
            self._set_array(found[0], found[1], found[2][-1], state)
            return []
        return [self._text(word, state)] if _assignment(word) else self._fields(word, state)

    def _call(self, words: list[str], assigned: dict[str, str], state: _ShellState) -> bool | None:
        name, arguments = words[0], words[1:]
        if posixpath.basename(name) in _CHANGING and len(self._changes) < _MOST_CHANGES:
            self._changes.append(tuple(words))
        if name in state.functions:
            return self._function(words, state)
        if name in {"[", "test", "[["}:
            return self._test(arguments[: -1 if name != "test" else None], state)
        if name in {"export", "declare", "typeset", "readonly", "local"}:
            self._declare(name, arguments, state)
        elif name == "unset":
            for argument in arguments:
                state.variables.pop(argument, None)
                state.exported.discard(argument)
        elif name == "set":
            self._set(arguments, state)
        elif name == "shift":
            count = int(arguments[0]) if arguments and arguments[0].isdecimal() else 1
            del state.arguments[1 : 1 + count]
        elif name == "cd":
            place = next((word for word in arguments if not word.startswith("-")), "")
            state.directory = posixpath.join(state.directory, place or "/")
        elif name in {".", "source"} and arguments:
            return self._source(arguments, state)
        elif name == "eval":
            text = " ".join(arguments)
            if UNKNOWN not in text:
                return self.run_text(text, state)
            self._opaque.append("what `eval` of a script's output sets")
        elif name in {"command", "builtin"} and arguments[:1] and arguments[0][:1] != "-":
            return self._call(arguments, assigned, state)
        elif name == "xargs":
            command = list(arguments)
            while command and command[0].startswith("-"):
                del command[: 2 if command[0] in _XARGS_VALUES else 1]
            if command:
                return self._call(command, assigned, state)
        elif name == "exec":
            return self._exec(arguments, assigned, state)
        elif name == "exit":
            raise _End
        elif name == "return":
            raise _Return({"0": True, "": True}.get("".join(arguments[:1])))
        elif name in {"true", ":", "false"}:
            return name != "false"
        elif arguments[:1] in (["activate"], ["load"]):  # conda, mamba; module
            self._opaque.append(f"what `{' '.join(words)}` sets")
        elif self._output is not None:
            return self._write(words, state)
        elif name in _LOOKING:
            return self._written(name, arguments, state) is not None
        elif posixpath.basename(name) in _ASKING:
            return None
        elif name not in _IGNORED and posixpath.basename(name) not in _PREPARING:
            self.last = self._outcome(words, assigned, state)
        return True

    def _function(self, words: list[str], state: _ShellState) -> bool | None:
        if self._calls >= _CALLS:
            raise NotUnderstood("functions of the script call one another")
        self._calls += 1
        before = state.arguments
        state.arguments = [before[0], *words[1:]]
        status: bool | None = True
        try:
            status = self.run(state.functions[words[0]], state)
        except _Return as end:
            status = end.status
        finally:
            self._calls -= 1
        state.arguments = before
        return status

    def _declare(self, name: str, arguments: list[str], state: _ShellState) -> None:
        flags = "".join(word[1:] for word in arguments if word.startswith("-"))
        exports = (name == "export" and "n" not in flags) or "x" in flags
        for argument in arguments:
            match = _ASSIGNMENT.match(argument)
            variable = match[1] if match else argument
            if match:
                before = state.variables.get(variable, "") if match[2] else ""
                state.assign(variable, before + argument[match.end() :])
            if exports and not argument.startswith("-"):
                state.exported.add(variable)

    def _set(self, arguments: list[str], state: _ShellState) -> None:
        for number, argument in enumerate(arguments):
            if argument == "--" or argument[:1] not in {"-", "+"}:
                option = arguments[number - 1] if number else ""
                if argument != "--" and option[:1] in {"-", "+"} and option.endswith("o"):
                    continue
                rest = arguments[number + 1 if argument == "--" else number :]
                state.arguments[1:] = rest
                return
            if argument in {"-a", "+a"} or (argument.startswith("-") and "a" in argument):
                state.export_all = argument.startswith("-")

    def _source(self, arguments: list[str], state: _ShellState) -> bool | None:
        text = self._sourced(arguments[0], state)
        if text is None:
            self._opaque.append(f"what {arguments[0]} sets, which a script reads")
            return None
        before = state.arguments
        if len(arguments) > 1:
            state.arguments = [before[0], *arguments[1:]]
        try:
            self.run_text(text, state)
        except _Return:
            pass
        except NotUnderstood:
            self._opaque.append(f"what {arguments[0]} sets, which a script reads")
        if len(arguments) > 1:
            state.arguments = before
        return True

    def _sourced(self, place: str, state: _ShellState) -> str | None:
        """Return the text of a file that a script reads as a part of itself, or None."""
        self._files += 1
        if UNKNOWN in place or self._files > _FILES:
            return None
        path = posixpath.join(state.directory, place)
        if "/" not in place and not self._exists(path):
            path = self._find(place, state.variables, state.directory) or path
        try:
            data = self._tree.read(self._tree.resolve(path), SCRIPT_LIMIT)
        except (OSError, PathError):
            return None
        return data.decode("utf-8", "surrogateescape")

    def _exec(
        self, arguments: list[str], assigned: dict[str, str], state: _ShellState
    ) -> bool | None:
        while arguments and arguments[0].startswith("-"):
            option = arguments.pop(0)
            if option == "-a" and arguments:
                arguments.pop(0)
            elif option == "-c":
                state.exported.clear()
            elif option == "--":
                break
        if not arguments:
            state.variables |= assigned
            return True
        self.became = self._outcome(arguments, assigned, state)
        raise _End

    def _outcome(
        self, words: list[str], assigned: dict[str, str], state: _ShellState
    ) -> ScriptOutcome:
        environment = state.environment() | assigned
        unknown = tuple(dict.fromkeys(self._opaque[:_FILES]))
        changes = tuple(self._changes)
        return ScriptOutcome(tuple(words), environment, state.directory, changes, unknown)

    # -- outputs of commands

    def _write(self, words: list[str], state: _ShellState) -> bool | None:
        """Follow a command whose output is a part of a word."""
        assert self._output is not None
        text = self._written(words[0], words[1:], state)
        self._output.append(UNKNOWN if text is None else text)
        return True if text is not None else None

    def _written(self, name: str, arguments: list[str], state: _ShellState) -> str | None:
        plain = [word for word in arguments if not word.startswith("-")]
        if name == "pwd":
            return "/" + posixpath.normpath(state.directory).lstrip("/")
        if name == "id":
            return str(self._uid) if arguments == ["-u"] else None
        if name == "echo" and len(plain) == len(arguments):
            return " ".join(arguments)
        if not plain or any(UNKNOWN in word for word in plain):
            return None
        if name == "dirname":
            return posixpath.dirname(plain[0]) or "."
        if name == "basename" and len(plain) == 1:
            return posixpath.basename(plain[0])
        if name in {"which", "command", "type"}:
            return self._find(plain[0], state.variables, state.directory)
        if name in {"readlink", "realpath"} and (name == "realpath" or "-f" in arguments):
            try:
                return self._tree.resolve(posixpath.join(state.directory, plain[0]))
            except (OSError, PathError):
                return None
        return None

    def _substituted(self, block: Block, state: _ShellState) -> str:
        """Return the output of commands, ``UNKNOWN`` where it is not known."""
        output, self._output = self._output, []
        kept = self.became, self.perhaps, self.last
        try:
            self.run(block, state.copy())
        except (_End, _Return):
            self._output = [UNKNOWN]
        texts, self._output = self._output, output
        self.became, self.perhaps, self.last = kept
        return "\n".join(texts) if texts else UNKNOWN

    # -- conditions

    def _test(self, words: list[str], state: _ShellState) -> bool | None:
        """Return whether a test holds, None where that is not known."""
        for operator, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
            if operator in words[1:]:
                at = words.index(operator, 1)
                sides = [self._test(words[:at], state), self._test(words[at + 1 :], state)]
                if decides in sides:
                    return decides
                return None if None in sides else not decides
        if words[:1] == ["!"]:
            status = self._test(words[1:], state)
            return None if status is None else not status
        if any(UNKNOWN in word for word in words):
            return None
        if len(words) == 1:
            return bool(words[0])
        if len(words) == 2:
            return self._test_one(words[0], words[1], state)
        return _compare(*words) if len(words) == 3 else False if not words else None

    def _test_one(self, operator: str, word: str, state: _ShellState) -> bool | None:
        if operator in {"-n", "-z"}:
            return bool(word) is (operator == "-n")
        if operator == "-v":
            return word in state.variables
        if operator not in {"-e", "-f", "-d", "-r", "-s", "-x", "-L", "-h"}:
            return None
        path = posixpath.join(state.directory, word)
        try:
            node = self._tree.find(path)[1]
        except (OSError, PathError):
            return None
        if operator in {"-d", "-f"}:
            return node is not None and (node.type == "dir") is (operator == "-d")
        return node is not None if operator in {"-e", "-r"} or node is None else None

    def _exists(self, path: str) -> bool:
        try:
            return self._tree.find(path)[1] is not None
        except (OSError, PathError):
            return False

    # -- words

    def _text(self, word: Word, state: _ShellState, *, pattern: bool = False) -> str:
        """Return a word as one text, without splitting."""
        texts = []
        for part in _at_home(word, state):
            text = " ".join(self._values(part, state))
            if pattern and part.quoted:
                text = re.sub(r"([*?\[])", r"[\1]", text)
            texts.append(text)
        return "".join(texts)[:_VALUE_LIMIT]

    def _fields(self, word: Word, state: _ShellState) -> list[str]:
        """Return the arguments that a word becomes."""
        fields: list[str] = []
        current: str | None = None
        pattern = False
        for part in _at_home(word, state):
            values = self._values(part, state)
            if part.kind == "text" or (
                part.quoted and part.kind != "elements" and part.text != "@"
            ):
                current = (current or "") + "".join(values)
                pattern |= not part.quoted and _PATTERN.search(part.text) is not None
                continue
            if not part.quoted:
                values = [one for value in values for one in value.split()]
            if values:
                fields += [(current or "") + values[0], *values[1:]]
                current = fields.pop()
        if current is not None:
            fields.append(current[:_VALUE_LIMIT])
        if pattern and len(fields) == 1 and UNKNOWN not in fields[0]:
            return list(self._names(fields[0], state)) or fields
        return fields

    def _names(self, pattern: str, state: _ShellState) -> Iterator[str]:
        """Yield the paths that match a pattern with wildcards."""
        found = ["/" if pattern.startswith("/") else ""]
        for part in filter(None, pattern.split("/")):
            following = []
            for path in found:
                if not _PATTERN.search(part):
                    following.append(posixpath.join(path, part))
                    continue
                place = posixpath.join(state.directory, path)
                try:
                    names = self._tree.listdir(self._tree.resolve(place))[:_NAMES]
                except (OSError, PathError):
                    continue
                following += [
                    posixpath.join(path, name)
                    for name in sorted(names)
                    if _matches(name, part) and (part[0] == "." or name[0] != ".")
                ]
            found = following[:_NAMES]
        yield from (path for path in found if self._exists(posixpath.join(state.directory, path)))

    def _values(self, part: WordPart, state: _ShellState) -> list[str]:
        """Return the values of a part: more than one of $@ only."""
        if part.kind == "text":
            return [part.text]
        if part.kind in {"unknown", "array"}:
            return [UNKNOWN]
        if part.kind == "elements":
            return state.arrays.get(part.text, [UNKNOWN] if self._opaque else [])
        if part.kind == "command":
            return [self._substituted(part.body, state)]
        if part.text in {"@", "*"} and not part.operator:
            return state.arguments[1:]
        return [self._variable(part, state)[:_VALUE_LIMIT]]

    def _variable(self, part: WordPart, state: _ShellState) -> str:
        value = self._looked_up(part.text, state)
        operator = part.operator.removeprefix(":")
        if operator in {"-", "=", "+", "?"}:
            missing = value is None or (part.operator.startswith(":") and value == "")
            if operator == "+":
                return "" if missing else self._text(part.argument, state)
            if operator in {"-", "="} and missing:
                value = self._text(part.argument, state)
                if operator == "=":
                    state.variables[part.text] = value
        elif operator == "piece" and value and UNKNOWN not in value:
            start, _, count = part.argument[0].text.partition(":")
            return value[int(start) :][: int(count) if count else None]
        elif operator and value and UNKNOWN not in value:
            pattern = self._text(part.argument, state, pattern=True)
            if UNKNOWN in pattern or len(value) + len(pattern) > _STRIPPED_LIMIT:
                return UNKNOWN
            return _stripped(value, operator, pattern)
        return value or ""

    def _looked_up(self, name: str, state: _ShellState) -> str | None:
        if name.isdecimal():
            number = int(name)
            return state.arguments[number] if number < len(state.arguments) else None
        if name == "#":
            return str(len(state.arguments) - 1)
        if name in {"@", "*"}:
            return " ".join(state.arguments[1:]) if state.arguments[1:] else None
        if name in {"?", "$", "!", "-", "RANDOM", "SECONDS", "HOSTNAME"}:
            return UNKNOWN
        special = {"PWD": state.directory, "UID": str(self._uid), "EUID": str(self._uid)}
        if name == "BASH_SOURCE":
            return state.arguments[0]
        unset = UNKNOWN if self._opaque else None
        return state.variables.get(name, special.get(name, unset))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Block | None:
    """Return the commands of a script, None if it is not understood: a case asks many times."""
    try:
        return parse(text)
    except (NotUnderstood, RecursionError):
        return None


def _at_home(word: Word, state: _ShellState) -> Word:
    """Return a word, or an assignment, with the path of HOME for an unquoted ~ that begins it."""
    first = word[0] if word else None
    if first is None or first.kind != "text" or first.quoted:
        return word
    match = _HOME.match(first.text)
    if match is None:
        return word
    text = match[1] + state.variables.get("HOME", "/root") + first.text[match.end() :]
    return (replace(first, text=text), *word[1:])


def _assignment(word: Word) -> tuple[str, str, Word] | None:
    """Return the name, "+" or "", and the value of an assignment; None if it is not one."""
    if not word or word[0].kind != "text" or word[0].quoted:
        return None
    match = _ASSIGNMENT.match(word[0].text)
    if match is None:
        return None
    rest = WordPart("text", word[0].text[match.end() :])
    return match[1], match[2], (rest, *word[1:])


def _matches(text: str, pattern: str) -> bool:
    """Tell whether a text matches a pattern, of which bash knows more than others."""
    if not _CHOICE.search(pattern) or len(pattern) + len(text) > _STRIPPED_LIMIT:
        return fnmatchcase(text, pattern)
    pieces = _CHOICE.split(pattern)
    expression = _translated(pieces[0])
    for often, choices, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        # Possessive: nothing is tried twice, so that no pattern takes long.
        one = "|".join(map(_translated, choices.split("|")))
        expression += f"(?:{one}){_OFTEN[often] and _OFTEN[often] + '+'}{_translated(rest)}"
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _translated(pattern: str) -> str:
    return translate(pattern).removeprefix("(?s:").rpartition(")")[0]


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in {"=", "=="}:
        return _matches(left, right) if _PATTERN.search(right) else left == right
    if operator == "!=":
        return not (_matches(left, right) if _PATTERN.search(right) else left == right)
    order = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
    if operator not in order:
        return None
    try:
        difference = int(left) - int(right)
    except ValueError:
        return None
    return (difference > 0) - (difference < 0) in order[operator]


def _stripped(value: str, operator: str, pattern: str) -> str:
    """Return a value without the beginning (#) or the end (%) that matches a pattern."""
    lengths = range(len(value) + 1)
    for length in lengths if len(operator) == 1 else reversed(lengths):
        at = length if operator[0] == "#" else len(value) - length
        piece, rest = (value[:at], value[at:]) if operator[0] == "#" else (value[at:], value[:at])
        if fnmatchcase(piece, pattern):
            return rest
    return value
