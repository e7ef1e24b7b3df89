"""The state of a shell: what its commands change, and what is known of its variables."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from nvgraft_cli.case.file_changes import UNKNOWN, FileChanges
from nvgraft_cli.prove.script.syntax import Block

#: The most characters of a value, and elements of an array.
VALUE_LIMIT = 4096
_ELEMENTS = 256
#: An element of an array with its key.
_KEYED = re.compile(r"\[([^]]+)\]=(.*)", re.DOTALL)
#: Variables that the shell sets by itself, to what is not known here.
_SET_BY_SHELL = {"?", "$", "!", "RANDOM", "SECONDS", "HOSTNAME"}


#: The languages of shells: that of bash, which zsh and ksh understand too, dash, and busybox.
Dialect = Literal["bash", "dash", "busybox"]
#: What may be set though no command of a script sets it.
_PERHAPS_SET = re.compile(
    r"BASH\w*|LC_\w+|COLUMNS|DIRSTACK|FUNCNAME|GROUPS|HOME|HOST\w+|IFS|LANG|LINENO|LINES|LOGNAME"
    r"|MACHTYPE|MAIL|OLDPWD|OPTARG|OPTIND|OSTYPE|PATH|PIPESTATUS|PPID|PS\d|REPLY|SHELL\w*|SHLVL"
    r"|TERM|USER|_|ZSH\w*"
)


class ShellEnd(Exception):
    """The shell ends: it becomes a program, or exits.

    :ivar status: whether it succeeds, None where that is not known.
    :ivar words: why it ends, "" where it becomes a program.
    """

    def __init__(self, status: bool | None = None, words: str = "") -> None:
        super().__init__()
        self.status = status
        self.words = words


@dataclass(slots=True)
class ShellState:
    """What commands change.

    :ivar arguments: the name of the script, then its arguments.
    :ivar associative: the arrays of which the keys are texts.
    :ivar export_all: each variable that is set is exported too.
    :ivar ends_at_failure: a command that fails ends the shell (set -e).
    :ivar fails_in_pipe: a pipeline fails with any of its commands (set -o pipefail).
    :ivar ends_at_unset: a variable that is not set ends the shell (set -u).
    :ivar source: the file that is read; "" for the script itself.
    :ivar written: the texts of files that commands have written, under paths without links; None
        for a file that they have removed.
    :ivar links: the targets of symbolic links that they have made.
    :ivar copies: the files that they have copied to a path.
    :ivar directories: those that commands have made.
    :ivar touched: paths below which commands have brought or removed what is not known.
    :ivar opaque: what was run that may have set any variable; one list for all copies.
    """

    variables: dict[str, str]
    exported: set[str]
    directory: str
    arguments: list[str]
    uid: int
    functions: dict[str, Block] = field(default_factory=dict)
    arrays: dict[str, dict[str, str]] = field(default_factory=dict)
    associative: set[str] = field(default_factory=set)
    export_all: bool = False
    ends_at_failure: bool = False
    fails_in_pipe: bool = False
    ends_at_unset: bool = False
    dialect: Dialect = "bash"
    source: str = ""
    written: dict[str, str | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    opaque: list[str] = field(default_factory=list)

    def copy(self) -> "ShellState":
        """Return the state of another shell that begins as this one."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            arguments=list(self.arguments),
            functions=dict(self.functions),
            arrays={name: dict(values) for name, values in self.arrays.items()},
            associative=set(self.associative),
            written=dict(self.written),
            links=dict(self.links),
            copies=dict(self.copies),
            directories=set(self.directories),
            touched=set(self.touched),
        )

    def take_files(self, other: "ShellState") -> None:
        """Take what another shell has done to files."""
        self.written, self.links, self.copies = other.written, other.links, other.copies
        self.directories, self.touched = other.directories, other.touched

    def changes(self) -> FileChanges:
        """Return what has been done to files."""
        removed = {path for path, text in self.written.items() if text is None}
        texts = {path: text for path, text in self.written.items() if text is not None}
        return FileChanges(
            texts, self.links, self.copies, frozenset(self.directories), frozenset(removed)
        )

    def assign(self, name: str, value: str) -> None:
        """Set a variable."""
        self.variables[name] = value[:VALUE_LIMIT]
        if self.export_all:
            self.exported.add(name)

    def assign_array(self, name: str, values: list[str], *, joined: bool) -> None:
        """Set an array, or join values to it."""
        if not joined:
            self.arrays[name] = {}
        for value in values:
            match = _KEYED.fullmatch(value)
            count = str(len(self.arrays.get(name, ())))
            self.assign_element(name, match[1] if match else count, match[2] if match else value)

    def assign_element(self, name: str, key: str, value: str) -> None:
        """Set one element of an array."""
        elements = self.arrays.setdefault(name, {})
        if len(elements) < _ELEMENTS:
            elements[key] = value[:VALUE_LIMIT]

    def is_unset(self, name: str) -> bool:
        """Tell whether it is certain that a variable or argument is not set."""
        return (
            self.value(name) is None
            and name not in {"@", "*"}
            and not (_PERHAPS_SET.fullmatch(name) or name in self.arrays)
        )

    def environment(self) -> dict[str, str]:
        """Return the variables that a program gets."""
        return {name: value for name, value in self.variables.items() if name in self.exported}

    def value(self, name: str) -> str | None:
        """Return the value of a variable or of an argument, None if it is not set."""
        if name.isdecimal():
            number = int(name)
            return self.arguments[number] if number < len(self.arguments) else None
        if name == "#":
            return str(len(self.arguments) - 1)
        if name in {"@", "*"}:
            return " ".join(self.arguments[1:]) if self.arguments[1:] else None
        if name in _SET_BY_SHELL:
            return UNKNOWN
        special = {"PWD": self.directory}
        if self.dialect == "bash":
            special |= {"UID": str(self.uid), "EUID": str(self.uid)}
        if name == "BASH_SOURCE":
            return self.source or self.arguments[0]
        if name in self.arrays:
            return self.arrays[name].get("0", "")
        unset = UNKNOWN if self.opaque else None
        return self.variables.get(name, special.get(name, unset))

    def elements(self, name: str) -> dict[str, str]:
        """Return the elements of an array."""
        return self.arrays.get(name, {"0": UNKNOWN} if self.opaque else {})

    def become_one_of(self, ends: list["ShellState"]) -> None:
        """Become the state after branches of which it is not known which one is run."""
        first = ends[-1]
        for name in {name for end in ends for name in end.variables}:
            values = [end.variables.get(name) for end in ends]
            if any(value != values[0] for value in values):
                shortest = min((value or "" for value in values), key=len)
                shortest = shortest.removeprefix(f"{UNKNOWN}:")
                first.variables[name] = f"{UNKNOWN}:{shortest}" if shortest else UNKNOWN
        for path in {path for end in ends for path in end.written}:
            texts = [end.written.get(path, UNKNOWN) for end in ends]
            if texts.count(texts[0]) != len(texts):
                first.written[path] = UNKNOWN
                first.touched.add(path)
        for kept, others in (
            (first.links, [end.links for end in ends]),
            (first.copies, [end.copies for end in ends]),
        ):
            for path in {path for other in others for path in other}:
                if any(other.get(path) != others[0].get(path) for other in others):
                    kept.pop(path, None)
                    first.touched.add(path)
        made = set().union(*(end.directories for end in ends))
        sure = {path for path in made if all(path in end.directories for end in ends)}
        first.directories = sure
        first.touched = (made - sure).union(*(end.touched for end in ends))
        self.take_files(first)
        self.variables, self.functions = first.variables, first.functions
        self.arrays, self.associative = first.arrays, first.associative
        self.export_all = first.export_all
        self.ends_at_failure = all(end.ends_at_failure for end in ends)
        self.fails_in_pipe = all(end.fails_in_pipe for end in ends)
        self.ends_at_unset = all(end.ends_at_unset for end in ends)
        self.exported = set().union(*(end.exported for end in ends))
        self.directory, self.arguments = first.directory, first.arguments
