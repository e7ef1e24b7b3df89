"""What a shell script consists of: commands, words and their parts.

Some of bash's own expansions are parts whose value is not known.
"""

from dataclasses import dataclass
from typing import Literal


class NotUnderstood(ValueError):
    """A script uses what this parser does not know, or it is damaged."""


@dataclass(frozen=True, slots=True)
class WordPart:
    """A part of a word.

    :ivar kind: text, variable, indirect (the variable that another one names), command (substituted
        by its output), process (by a file with its output), array (``words`` in parentheses),
        elements (of the array ``text``), keys (of these), element (with the key ``operator``),
        arithmetic (the expression ``text``), or unknown.
    :ivar text: the text, or the name of the variable.
    :ivar operator: of ``${NAME:-WORD}``, with ``argument``; of elements @, or * that joins them.
    :ivar body: the commands of a command substitution.
    :ivar replacement: of ``${NAME/ARGUMENT/REPLACEMENT}``.
    """

    kind: Literal[
        "text",
        "variable",
        "indirect",
        "command",
        "process",
        "array",
        "elements",
        "keys",
        "element",
        "arithmetic",
        "unknown",
    ]
    text: str = ""
    quoted: bool = False
    operator: str = ""
    argument: "Word" = ()
    body: "Block" = ()
    words: "tuple[Word, ...]" = ()
    replacement: "Word" = ()


Word = tuple[WordPart, ...]


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments and a command with its arguments."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions, each with the commands that follow it; the last condition may be empty."""

    branches: tuple[tuple["Block", "Block"], ...]


@dataclass(frozen=True, slots=True)
class For:
    """A loop over words; None stands for the arguments of the script."""

    name: str
    words: tuple[Word, ...] | None
    body: "Block"


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition."""

    condition: "Block"
    body: "Block"
    until: bool


@dataclass(frozen=True, slots=True)
class CaseCommand:
    """A choice by patterns."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces, or in parentheses (``subshell``)."""

    body: "Block"
    subshell: bool


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """The definition of a function."""

    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands of which each reads what the one before writes."""

    commands: tuple["Command", ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AndOr:
    """Pipelines; each but the first with the operator before it.

    :ivar bashism: a construct in them that is an error in a POSIX shell, "" if there is none.
    """

    pipelines: tuple[tuple[str, Pipeline], ...]
    bashism: str = ""


@dataclass(slots=True)
class Redirection:
    """Where a command reads its input, or writes its output.

    :ivar kind: write and append (to the file ``word``), read (the file ``word``), text (``word``
        itself is the input), or aside (to standard error).
    :ivar both: it is &>, which a POSIX shell reads as & and >.
    """

    kind: Literal["write", "append", "read", "text", "aside"]
    word: Word = ()
    both: bool = False


@dataclass(frozen=True, slots=True)
class Redirected:
    """A command with its redirections."""

    command: "Command"
    redirections: tuple[Redirection, ...]


Command = Simple | If | For | While | CaseCommand | Group | FunctionDefinition | Redirected
Block = tuple[AndOr, ...]

#: A part whose value is not known.
UNKNOWN_PART = WordPart("unknown")


def text_of(word: Word) -> str | None:
    """Return the text of a word that is neither quoted nor expanded, or None."""
    if len(word) == 1 and word[0].kind == "text" and not word[0].quoted:
        return word[0].text
    return None
