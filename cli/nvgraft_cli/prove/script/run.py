"""Follow a shell script of an image as far as its files and variables tell, without running it.

What a script's own commands compute is not known, and stands in values as ``UNKNOWN``. Where a
condition is not known, both branches are followed. Programs are taken to succeed if they are there.
"""

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from nvgraft.formats.tree import Tree
from nvgraft_cli.case.file_changes import SCRIPT_LIMIT, UNKNOWN, FileChanges
from nvgraft_cli.prove.script.arithmetic import assigned_names, computed
from nvgraft_cli.prove.script.builtins import change_state, lacks_builtin, next_option, set_options
from nvgraft_cli.prove.script.conda import PROGRAMS, activation
from nvgraft_cli.prove.script.conditions import holds
from nvgraft_cli.prove.script.files import (
    FindProgram,
    IsHidden,
    IsMounted,
    MayRead,
    NotWritten,
    ShellFiles,
)
from nvgraft_cli.prove.script.grammar import parse
from nvgraft_cli.prove.script.patterns import matches
from nvgraft_cli.prove.script.programs import (
    LOOKING,
    array_of_read,
    asks,
    changes_files,
    command_of_xargs,
    is_everywhere,
    makes_no_program,
    names_of_read,
    output_of,
    prepares,
    script_of,
    split_line,
)
from nvgraft_cli.prove.script.state import VALUE_LIMIT, Dialect, ShellEnd, ShellState
from nvgraft_cli.prove.script.syntax import (
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
    Redirected,
    Simple,
    While,
    Word,
    WordPart,
)
from nvgraft_cli.prove.script.words import ShellWords, assignment
from nvgraft_cli.prove.script.written import follow_change

#: The most commands that are followed; a script of an image has a few hundred.
_COMMANDS = 4000
#: The most rounds of a loop, and functions inside one another.
_ROUNDS, _CALLS = 64, 16
#: The most characters of all scripts that are followed together.
_TEXT_LIMIT = 256 << 10
#: The most commands that change files, and that may set any variable, that an outcome names.
_CHANGES, _OPAQUE = 256, 64


_UNCHANGED = FileChanges()


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """The command that a script becomes, or runs last.

    :ivar words: the command with its arguments.
    :ivar environment: its variables; their values may have ``UNKNOWN`` in them.
    :ivar directory: its working directory.
    :ivar changes: the commands before it that change files, each with its arguments.
    :ivar unknown: what is not known of its variables: commands before it may have set any.
    :ivar files: what commands before it have done to files.
    :ivar ended: how the script ends without a command that it becomes or runs; "" if it has one.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    changes: tuple[tuple[str, ...], ...] = ()
    unknown: tuple[str, ...] = ()
    files: FileChanges = _UNCHANGED
    ended: str = ""


class _Jump(Exception):
    """A round of a loop ends, and the loop itself if it ``leaves``; also those ``outside``."""

    def __init__(self, outside: int, *, leaves: bool) -> None:
        super().__init__()
        self.outside, self.leaves = outside, leaves


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
    find: FindProgram,
    before: Sequence[Sequence[str]] = (),
    *,
    own: Mapping[str, str] | None = None,
    machine: str = "",
    hidden: IsHidden = lambda _: False,
    mounted: IsMounted = lambda _: False,
    may_read: MayRead = lambda _: True,
    not_written: NotWritten = lambda _path, _there: None,
    options: Sequence[str] = (),
    dialect: Dialect = "bash",
) -> ScriptOutcome | None:
    """Return what a script becomes, or the last command that it runs; None if that is not known.

    :param arguments: the name of the script, then its arguments.
    :param find: returns the path of a program, from its name, variables and working directory.
    :param before: files that the shell reads first: of each group the first one that is there.
    :param own: variables that the shell sets itself, and does not export.
    :param machine: the kernel's name of the architecture, "" where it is not known.
    :param hidden: tells whether it is not known what is at a path.
    :param mounted: tells whether a path leads to a file of the host.
    :param may_read: tells whether the script's user may read a file.
    :param not_written: returns why a file cannot be written at a path, by what is there.
    :param options: those of the shell.
    """
    state = ShellState(
        {**(own or {}), **environment}, set(environment), directory, list(arguments), uid
    )
    state.dialect = dialect
    shell = _Shell(ShellFiles(tree, find, machine, hidden, mounted, may_read, not_written))
    ended, status = "", None
    try:
        for files in before:
            shell.read_first(files, state)
        set_options(list(options), state)
        status = shell.run_text(text, state)
    except _Return as end:
        status = end.status
    except _Jump:
        pass
    except ShellEnd as end:
        ended = end.words
    except (NotUnderstood, RecursionError):
        return None
    found = shell.became or shell.perhaps or shell.last
    if status is False:
        ended = shell.failure("its last command fails")
    if found is None and ended and not state.opaque:
        return ScriptOutcome((), state.environment(), state.directory, ended=ended)
    return None if found is None or UNKNOWN in found.words[0] else found


class _Shell:
    """One shell with those that it starts."""

    def __init__(self, files: ShellFiles) -> None:
        self._files = files
        self._words = ShellWords(files, self._substituted)
        self._characters = 0
        self._commands = 0
        self._calls = 0
        self._output: list[str] | None = None
        self._substitutes = False
        self._input: str | None = None
        #: Whether the lines that a command writes are sorted afterwards.
        self._sorted = False
        self._changes: list[tuple[str, ...]] = []
        #: How many conditions are followed inside one another: a failure in them ends no shell.
        self._asked = 0
        #: Whether a program was run that may have brought others.
        self._brought = False
        #: Whether the last output of commands that a word has is that of commands that succeed.
        self._output_status: bool | None = True
        self.became: ScriptOutcome | None = None
        self.perhaps: ScriptOutcome | None = None
        self.last: ScriptOutcome | None = None
        #: The states in which rounds of the loop perhaps end, and the function or the file.
        self._jumped: list[ShellState] = []
        self._returned: list[ShellState] = []
        #: Why the last command fails, or "" where that is not known.
        self._reason = ""

    def run_text(self, text: str, state: ShellState) -> bool | None:
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

    def read_first(self, files: Sequence[str], state: ShellState) -> None:
        """Read the first of these files that is there; what it runs is not the program."""
        there = (place for place in files if self._files.exists(place, state))
        place = next((place for place in there if self._files.is_readable(place, state)), None)
        if place is not None:
            self._source([place], state)
            self.perhaps = self.last = None
            self._brought = False

    def failure(self, words: str) -> str:
        """Return why the last command fails, ``words`` where more is not known."""
        return self._reason or words

    # -- commands. Each returns whether it succeeds, None where that is not known.

    def run(self, block: Block, state: ShellState) -> bool | None:
        status: bool | None = True
        for command in block:
            if command.bashism and state.dialect != "bash":
                self._refuse(command.bashism, state)
            status = self._and_or(command, state)
        return status

    def _refuse(self, bashism: str, state: ShellState) -> None:
        """End a shell that does not know a construct of bash."""
        if state.dialect == "dash" or bashism != "function":
            words = f"syntax error: {state.dialect} does not know `{bashism}`"
            raise ShellEnd(status=False, words=words)

    def _and_or(self, command: AndOr, state: ShellState) -> bool | None:
        status: bool | None = True
        self._reason = ""
        for operator, pipeline in command.pipelines:
            if (operator, status) in {("&&", False), ("||", True)}:
                continue
            last = pipeline is command.pipelines[-1][1]
            follow = partial(self._pipeline, pipeline)
            if not last:
                follow = partial(self._condition, follow)
            if operator and status is None:
                self._perhaps(follow, state)
                continue
            status = follow(state)
            ends = last and status is False and state.ends_at_failure
            if ends and not self._asked and not pipeline.negated:
                words = self.failure("a command of it fails, which ends it (set -e)")
                raise ShellEnd(status=False, words=words)
        return status

    def _condition(
        self, follow: Callable[[ShellState], bool | None], state: ShellState
    ) -> bool | None:
        """Follow what may fail without an end of the shell."""
        self._asked += 1
        try:
            return follow(state)
        finally:
            self._asked -= 1

    def _pipeline(self, pipeline: Pipeline, state: ShellState) -> bool | None:
        status: bool | None
        if pipeline.negated:
            self._asked += 1
        try:
            if len(pipeline.commands) == 1:
                status = self._command(pipeline.commands[0], state)
            else:
                status = self._piped(pipeline.commands, state)
        finally:
            self._asked -= pipeline.negated
        return not status if pipeline.negated and status is not None else status

    def _piped(self, commands: Sequence[Command], state: ShellState) -> bool | None:
        read, failed = self._input, False

        def follow(command: Command, state: ShellState) -> None:
            nonlocal failed
            failed |= self._apart(command, state) is False

        for command, following in pairwise(commands):
            self._sorted = _is_sort(following)
            self._input = self._captured(partial(follow, command), state)
        self._sorted = False
        status = self._apart(commands[-1], state)
        self._input = read
        return False if failed and state.fails_in_pipe else status

    def _apart(self, command: Command, state: ShellState) -> bool | None:
        """Follow a command in a shell of its own."""
        became, perhaps = self.became, self.perhaps
        status: bool | None = True
        apart = state.copy()
        try:
            status = self._command(command, apart)
        except (ShellEnd, _Return) as end:
            self.last = self.became or self.last
            status = end.status if self.became is None else True
        self.became, self.perhaps = became, perhaps
        state.take_files(apart)
        return status

    def _captured(self, follow: Callable[[ShellState], object], state: ShellState) -> str | None:
        """Follow what writes to a pipe or file; return the text, None if it is not known."""
        output, self._output = self._output, []
        try:
            follow(state)
        finally:
            texts, self._output = self._output, output
        return "".join(texts) if texts else None

    def _redirected(self, command: Redirected, state: ShellState) -> bool | None:
        read, status = self._input, None
        targets = []
        for redirection in command.redirections:
            word = redirection.word
            if redirection.both and state.dialect == "dash":
                self._apart(command.command, state)  # in the background
                return True
            if redirection.kind == "text":
                text = self._words.text(word, state, limit=SCRIPT_LIMIT)
                self._input = None if len(text) == SCRIPT_LIMIT else text
            elif redirection.kind == "read":
                self._input = self._files.text(self._words.text(word, state), state)
            else:
                place = "" if redirection.kind == "aside" else self._words.text(word, state)
                targets.append((place, redirection.kind == "append"))

        def follow(state: ShellState) -> None:
            nonlocal status
            status = self._command(command.command, state)

        reasons = (self._files.prevents(p, state, replaces=False) for p, _ in targets if p)
        why = "" if self._brought or state.opaque else next(filter(None, reasons), "")
        if why:
            self._input = read
            self._reason = f"it cannot write to a file: {why}"
            return False
        try:
            if not targets:
                inner = command.command
                if isinstance(inner, Simple) and not inner.words and self._output is not None:
                    self._output.append(UNKNOWN if self._input is None else self._input)
                    return True  # $(< file)
                follow(state)
                return status
            silent = isinstance(command.command, Simple) and not command.command.words
            written = "" if silent else self._captured(follow, state)
        finally:
            self._input = read
        for place, append in targets:
            if place:
                self._files.write(place, written, state, append=append)
        return status

    def _perhaps(self, follow: Callable[[ShellState], object], state: ShellState) -> None:
        """Follow what is perhaps run: what it changes is not known afterwards."""
        self._merge(state, [self._branch(follow, state), state.copy()])

    def _branch(
        self, follow: Callable[[ShellState], object], state: ShellState
    ) -> ShellState | None:
        """Follow what is perhaps run; return the state after it, or None if the shell ends."""
        other, became = state.copy(), self.became
        try:
            follow(other)
        except ShellEnd:
            self.perhaps = self.became or self.perhaps
            self.became = became
            return None
        except _Jump:
            self._jumped.append(other)
            return None
        except _Return:
            self._returned.append(other)
            return None
        return other

    def _merge(self, state: ShellState, branches: list[ShellState | None]) -> None:
        """Set a state after branches of which it is not known which one is run."""
        ends = [branch for branch in branches if branch is not None]
        if not ends and self._jumped:
            raise _Jump(0, leaves=False)
        if not ends and self._returned:
            raise _Return(None)
        if not ends:
            raise ShellEnd
        state.become_one_of(ends)

    def _command(self, command: Command, state: ShellState) -> bool | None:
        self._commands += 1
        if self._commands > _COMMANDS:
            raise NotUnderstood("the script runs too many commands")
        if isinstance(command, Simple):
            return self._simple(command, state)
        if isinstance(command, Redirected):
            return self._redirected(command, state)
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

    def _if(self, command: If, state: ShellState) -> bool | None:
        branches: list[ShellState | None] = []
        for condition, body in command.branches:
            status = self._condition(partial(self.run, condition), state)
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

    def _case(self, command: CaseCommand, state: ShellState) -> bool | None:
        word = self._words.text(command.word, state)
        branches: list[ShellState | None] = []
        for patterns, body in command.branches:
            texts = [self._words.text(pattern, state, pattern=True) for pattern in patterns]
            if UNKNOWN not in word and any(matches(word, text) for text in texts):
                if not branches:
                    return self.run(body, state)
            elif UNKNOWN not in word and not any(UNKNOWN in text for text in texts):
                continue
            branches.append(self._branch(partial(self.run, body), state))
        if branches:
            self._merge(state, [*branches, state.copy()])
            return None
        return True

    def _for(self, command: For, state: ShellState) -> bool | None:
        if command.words is None:
            words = state.arguments[1:]
        else:
            words = [text for word in command.words for text in self._words.fields(word, state)]
        with self._loop(state):
            for word in words[:_ROUNDS]:
                state.assign(command.name, word)
                if UNKNOWN in word:
                    self._perhaps(partial(self.run, command.body), state)
                elif self._round(command.body, state):
                    break
        return True

    @contextmanager
    def _loop(self, state: ShellState) -> Iterator[None]:
        """Follow a loop: after it, the state may be that in which a round has perhaps ended."""
        jumped, self._jumped = self._jumped, []
        try:
            yield
            if self._jumped:
                state.become_one_of([*self._jumped, state.copy()])
        finally:
            self._jumped = jumped

    def _until_return(self, follow: Callable[[], bool | None], state: ShellState) -> bool | None:
        """Follow a function or a file: after it, the state may be one in which it has returned."""
        returned, self._returned = self._returned, []
        try:
            try:
                status = follow()
            except _Return as end:
                status = end.status
            if self._returned:
                state.become_one_of([*self._returned, state.copy()])
                status = None
        finally:
            self._returned = returned
        return status

    def _round(self, body: Block, state: ShellState) -> bool:
        """Follow one round of a loop; return whether it leaves the loop."""
        try:
            self.run(body, state)
        except _Jump as jump:
            if jump.outside:
                raise _Jump(jump.outside - 1, leaves=jump.leaves) from None
            return jump.leaves
        return False

    def _while(self, command: While, state: ShellState) -> bool | None:
        with self._loop(state):
            for _ in range(_ROUNDS):
                status = self._condition(partial(self.run, command.condition), state)
                if status is None:
                    self._perhaps(partial(self.run, command.body), state)
                    return None
                if status is command.until or self._round(command.body, state):
                    return True
        return None

    def _simple(self, command: Simple, state: ShellState) -> bool | None:
        words = list(command.words)
        assigned: dict[str, str] = {}
        self._output_status = True
        while words and (found := assignment(words[0])):
            name, joined, value = found
            if joined and state.dialect != "bash":
                self._reason = f"{name}+=: not found"
                return False
            if value[-1].kind == "array":
                state.assign_array(name, self._words.array(value[-1], state), joined=joined)
                words.pop(0)
                continue
            before = state.variables.get(name, "") if joined else ""
            assigned[name] = (before + self._words.text(value, state))[:VALUE_LIMIT]
            words.pop(0)
        if not words:
            for name, text in assigned.items():
                state.assign(name, text)
            return self._output_status
        if element := self._words.element(words[0], state):
            state.assign_element(*element)
            return self._output_status
        texts = [text for word in words for text in self._arguments(word, state)]
        if not texts:
            return True
        if UNKNOWN in texts[0]:
            return None
        return self._call(texts, assigned, state)

    def _arguments(self, word: Word, state: ShellState) -> list[str]:
        """Return the fields of a word; one that assigns is not split, one to an array is done."""
        assigns = assignment(word)
        if assigns is None:
            return self._words.fields(word, state)
        name, joined, value = assigns
        if value[-1].kind == "array":
            state.assign_array(name, self._words.array(value[-1], state), joined=joined)
            return [name]
        return [self._words.text(word, state)]

    def _call(self, words: list[str], assigned: dict[str, str], state: ShellState) -> bool | None:
        name, arguments = words[0], words[1:]
        if name not in state.functions and not self._change_files(words, state):
            return False
        if posixpath.basename(name) in PROGRAMS and arguments[:1] == ["activate"]:
            there = name in state.functions or not self._lacks_program(name, state)
            return self._activate(words, state) if there or not state.ends_at_failure else False
        if name in state.functions:
            return self._function(words, state)
        if lacks_builtin(name, arguments, state):
            self._reason = f"{name}: not found"
            return False
        if name in {"[", "test", "[["}:
            return holds(arguments[: -1 if name != "test" else None], state, self._files)
        if name == "cd" and self._lacks(next((a for a in arguments if a[:1] != "-"), "/"), state):
            return False
        if change_state(name, arguments, state):
            return True
        if name == "getopts" and len(arguments) > 1:
            return next_option(arguments, state)
        if name in {"break", "continue"}:
            levels = arguments[0] if arguments and arguments[0].isdecimal() else "1"
            raise _Jump(max(int(levels[:2]), 1) - 1, leaves=name == "break")
        if name == "printf" and arguments[:1] == ["-v"] and len(arguments) > 2:
            text = output_of(name, arguments[2:], None, state, self._files)
            state.assign(arguments[1], UNKNOWN if text is None else text)
            return True
        if name in {"mapfile", "readarray"}:
            return self._read_lines(arguments, state)
        if name == "((":
            return self._arithmetic(arguments[0], state)
        if name == "read":
            return self._read(arguments, assigned, state)
        if name in {".", "source"} and arguments:
            return self._source(arguments, state)
        if name == "eval":
            text = " ".join(arguments)
            if UNKNOWN not in text:
                return self.run_text(text, state)
            state.opaque.append("what `eval` of a script's output sets")
        elif name in {"command", "builtin"} and arguments[:1] and arguments[0][:1] != "-":
            return self._call(arguments, assigned, state)
        elif name == "xargs" and (command := command_of_xargs(arguments)):
            return self._call(command, assigned, state)
        elif name == "exec":
            return self._exec(arguments, assigned, state)
        elif name == "exit":
            raise ShellEnd(_succeeds(arguments), f"it ends by `{' '.join(words)}`")
        elif name == "return":
            raise _Return(_succeeds(arguments))
        elif name in {"true", ":", "false"}:
            return name != "false"
        elif arguments[:1] in (["activate"], ["load"]):  # conda, mamba; module
            state.opaque.append(f"what `{' '.join(words)}` sets")
        else:
            return self._program(words, assigned, state)
        return True

    def _change_files(self, words: list[str], state: ShellState) -> bool:
        """Follow what a command does to files; return False if it certainly fails."""
        why = follow_change(words, self._input, state, self._files)
        if why and not self._brought and not state.opaque:
            self._reason = f"its `{' '.join(words)}` fails: {why}"
            return False
        if changes_files(words[0]) and len(self._changes) < _CHANGES:
            self._changes.append(tuple(words))
        return True

    def _program(
        self, words: list[str], assigned: dict[str, str], state: ShellState
    ) -> bool | None:
        name, arguments = words[0], words[1:]
        if self._lacks_program(name, state):
            self._reason = f"{name}: not found"
            if self._output is not None:
                self._output.append("")
            return False
        script = script_of(words)
        if script and self._lacks(script, state) and self._reads_scripts(name, state):
            return False
        if not makes_no_program(name):
            self._brought = True
        if self._output is not None or name in LOOKING:
            text = output_of(name, arguments, self._input, state, self._files, ordered=self._sorted)
            if self._output is not None:
                self._output.append(UNKNOWN if text is None else text)
            if text is not None or name in LOOKING:
                return text is not None
            if self._substitutes:
                return None
        if asks(name):
            return None
        if not prepares(name):
            self.last = self._outcome(words, assigned, state)
        return True

    def _lacks(self, path: str, state: ShellState) -> bool:
        """Tell whether it is certain that there is no such file."""
        return not self._brought and not state.opaque and self._files.lacks(path, state)

    def _reads_scripts(self, name: str, state: ShellState) -> bool:
        """Tell whether a program fails without its script: some images have another service(8)."""
        place = self._files.program(name, state) or ""
        return name != "service" or "init.d" in (self._files.text(place, state) or "")

    def _lacks_program(self, name: str, state: ShellState) -> bool:
        """Tell whether it is certain that there is no such program."""
        known = is_everywhere(name) or self._brought or state.opaque
        return not known and self._files.lacks_program(name, state)

    def _arithmetic(self, text: str, state: ShellState) -> bool | None:
        """Follow ``((...))``: it succeeds if its value is not zero."""
        for name in assigned_names(text):
            state.assign(name, UNKNOWN)
        number = computed(text, state)
        return None if number is None else number != 0

    def _read(
        self, arguments: list[str], assigned: dict[str, str], state: ShellState
    ) -> bool | None:
        """Read a line of the input into variables; None if it is not known."""
        names, array = names_of_read(arguments), array_of_read(arguments)
        line, _, rest = (self._input or "").partition("\n")
        separators = assigned.get("IFS", state.variables.get("IFS", " \t"))
        known = self._input is not None and UNKNOWN not in line
        if array:
            fields = split_line(line, separators, _ROUNDS) if known else [UNKNOWN]
            while fields and not fields[-1]:
                fields.pop()
            state.assign_array(array, fields, joined=False)
            return True if known else None
        if names is None or self._input is None or not known:
            for name in names or [word for word in arguments if word[:1] != "-"]:
                state.assign(name, UNKNOWN)
            return None
        at_end = not self._input
        self._input = rest
        for name, value in zip(names, split_line(line, separators, len(names)), strict=True):
            state.assign(name, value)
        return not at_end

    def _read_lines(self, arguments: list[str], state: ShellState) -> bool:
        """Read the lines of the input into an array."""
        name = arguments[-1] if arguments and arguments[-1][:1] != "-" else "MAPFILE"
        lines = (self._input or "").splitlines()
        known = self._input is not None and UNKNOWN not in self._input and arguments[:-1] == ["-t"]
        state.assign_array(name, lines if known else [UNKNOWN], joined=False)
        return True

    def _activate(self, words: list[str], state: ShellState) -> bool | None:
        """Follow `conda activate` as far as the files of the environment tell."""
        environment = next((word for word in words[2:] if not word.startswith("-")), "")
        program = words[0] if words[0].startswith("/") else self._files.program(words[0], state)
        text = None
        if UNKNOWN not in environment:
            text = activation(
                environment, program or "", state.variables, lambda p: self._files.exists(p, state)
            )
        if text is None:
            state.opaque.append(f"what `{' '.join(words)}` sets")
            return True
        self.run_text(text, state)
        return True

    def _function(self, words: list[str], state: ShellState) -> bool | None:
        if self._calls >= _CALLS:
            raise NotUnderstood("functions of the script call one another")
        self._calls += 1
        before = state.arguments
        state.arguments = [before[0], *words[1:]]
        body = state.functions[words[0]]
        try:
            status = self._until_return(partial(self.run, body, state), state)
        finally:
            self._calls -= 1
        state.arguments = before
        return status

    def _source(self, arguments: list[str], state: ShellState) -> bool | None:
        text = self._files.script(arguments[0], state)
        if text is None and "/" in arguments[0] and self._lacks(arguments[0], state):
            if "BASH" in state.variables or "ZSH_VERSION" in state.variables:
                return False
            raise ShellEnd(status=False, words=f"it reads {arguments[0]}, which is missing")
        if text is None and not self._files.is_readable(arguments[0], state):
            if "BASH" in state.variables or "ZSH_VERSION" in state.variables:
                return False
            words = f"it reads {arguments[0]}, which its user may not read"
            raise ShellEnd(status=False, words=words)
        if text is None:
            state.opaque.append(f"what {arguments[0]} sets, which a script reads")
            return None
        before, source = state.arguments, state.source
        if len(arguments) > 1:
            state.arguments = [before[0], *arguments[1:]]
        state.source = arguments[0]
        status: bool | None = True
        try:
            status = self._until_return(partial(self.run_text, text, state), state)
        except NotUnderstood:
            state.opaque.append(f"what {arguments[0]} sets, which a script reads")
        state.source = source
        if len(arguments) > 1:
            state.arguments = before
        return status

    def _exec(
        self, arguments: list[str], assigned: dict[str, str], state: ShellState
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
        raise ShellEnd

    def _outcome(
        self, words: list[str], assigned: dict[str, str], state: ShellState
    ) -> ScriptOutcome:
        environment = state.environment() | assigned
        unknown = tuple(dict.fromkeys(state.opaque[:_OPAQUE]))
        changes = tuple(self._changes)
        files = state.changes()
        return ScriptOutcome(tuple(words), environment, state.directory, changes, unknown, files)

    def _substituted(self, block: Block, state: ShellState) -> str:
        """Return the output of commands, ``UNKNOWN`` where it is not known."""
        substitutes, self._substitutes = self._substitutes, True
        kept = self.became, self.perhaps, self.last
        apart = state.copy()
        apart.ends_at_failure = False
        status: bool | None = True

        def follow(apart: ShellState) -> None:
            nonlocal status
            status = self.run(block, apart)

        try:
            text = self._captured(follow, apart)
        except (ShellEnd, _Return) as end:
            text, status = None, end.status
        self._substitutes, self._output_status = substitutes, status
        self.became, self.perhaps, self.last = kept
        state.take_files(apart)
        return UNKNOWN if text is None else text.rstrip("\n")


def _is_sort(command: Command) -> bool:
    """Tell whether a command sorts what it reads."""
    return isinstance(command, Simple) and command.words[:1] == ((WordPart("text", "sort"),),)


def _succeeds(arguments: list[str]) -> bool | None:
    """Return whether `exit` or `return` with these arguments is a success."""
    number = "".join(arguments[:1])
    return number in {"", "0"} if number.isdecimal() or not number else None


@lru_cache(maxsize=8)
def _parsed(text: str) -> Block | None:
    """Return the commands of a script, None if it is not understood: a case asks many times."""
    try:
        return parse(text)
    except (NotUnderstood, RecursionError):
        return None
