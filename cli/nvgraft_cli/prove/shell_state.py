"""The state of a shell: what its commands change, and what is known of its variables."""

from dataclasses import dataclass, field, replace

from nvgraft_cli.prove.shell_syntax import Block

#: A part of a value that is not known. No value of a process has this character.
UNKNOWN = "\0"
#: The most characters of a value, and elements of an array.
VALUE_LIMIT = 4096
_ELEMENTS = 256
#: Variables that the shell sets by itself, to what is not known here.
_SET_BY_SHELL = {"?", "$", "!", "-", "RANDOM", "SECONDS", "HOSTNAME"}


@dataclass(slots=True)
class ShellState:
    """What commands change.

    :ivar arguments: the name of the script, then its arguments.
    :ivar export_all: each variable that is set is exported too.
    :ivar opaque: what was run that may have set any variable; one list for all copies.
    """

    variables: dict[str, str]
    exported: set[str]
    directory: str
    arguments: list[str]
    uid: int
    functions: dict[str, Block] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    export_all: bool = False
    opaque: list[str] = field(default_factory=list)

    def copy(self) -> "ShellState":
        """Return the state of another shell that begins as this one."""
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
        self.variables[name] = value[:VALUE_LIMIT]
        if self.export_all:
            self.exported.add(name)

    def assign_array(self, name: str, values: list[str], *, joined: bool) -> None:
        """Set an array, or join values to it."""
        before = self.arrays.get(name, []) if joined else []
        self.arrays[name] = [*before, *values][:_ELEMENTS]

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
        special = {"PWD": self.directory, "UID": str(self.uid), "EUID": str(self.uid)}
        if name == "BASH_SOURCE":
            return self.arguments[0]
        unset = UNKNOWN if self.opaque else None
        return self.variables.get(name, special.get(name, unset))

    def elements(self, name: str) -> list[str]:
        """Return the elements of an array."""
        return self.arrays.get(name, [UNKNOWN] if self.opaque else [])

    def become_one_of(self, ends: list["ShellState"]) -> None:
        """Become the state after branches of which it is not known which one is run."""
        first = ends[-1]
        for name in {name for end in ends for name in end.variables}:
            values = [end.variables.get(name) for end in ends]
            if any(value != values[0] for value in values):
                shortest = min((value or "" for value in values), key=len)
                shortest = shortest.removeprefix(f"{UNKNOWN}:")
                first.variables[name] = f"{UNKNOWN}:{shortest}" if shortest else UNKNOWN
        self.variables, self.functions = first.variables, first.functions
        self.arrays, self.export_all = first.arrays, first.export_all
        self.exported = set().union(*(end.exported for end in ends))
        self.directory, self.arguments = first.directory, first.arguments
