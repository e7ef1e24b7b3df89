"""Programs that change their process and become the command in their arguments: execline, runit's
chpst, envdir and capsh.
"""

import posixpath
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: Returns the text of a file of the image, None if there is none.
ReadText = Callable[[str], str | None]
#: Returns the names in a directory of the image; none if there is no such directory.
ListNames = Callable[[str], list[str]]

#: Options of chpst with a value.
_CHPST_VALUES = set("uUe/nlLmdopfcrt")
#: Programs of execline that run a block before the rest, and those that take so many words.
_WITH_BLOCK = {"foreground", "if", "background", "ifte", "loopwhilex"}
_WITH_WORDS = {"umask": 1, "fdclose": 1, "with-contenv": 0, "emptyenv": 0, "exec": 0}


@dataclass(slots=True)
class Chained:
    """A command with what it gets.

    :ivar changes: variables that are set, or with None removed.
    :ivar user: the name of its user; "" for the one before.
    """

    words: list[str]
    changes: dict[str, str | None] = field(default_factory=dict)
    user: str = ""
    directory: str = ""


def variables_in(directory: str, read: ReadText, names: ListNames) -> dict[str, str | None]:
    """Return the variables that a directory of envdir sets: a file each, with its first line."""
    found: dict[str, str | None] = {}
    for name in names(directory):
        text = read(posixpath.join(directory, name))
        if text is not None and name[:1] != ".":
            found[name] = text.split("\n", 1)[0].rstrip(" \t") if text else None
    return found


def of_chpst(words: list[str], read: ReadText, names: ListNames) -> Chained:
    """Return the command of chpst, from its arguments."""
    chained = Chained(list(words))
    while chained.words and chained.words[0].startswith("-") and len(chained.words[0]) > 1:
        option = chained.words.pop(0)
        if option == "--":
            break
        if option[1] not in _CHPST_VALUES:
            continue
        value = option[2:] or (chained.words.pop(0) if chained.words else "")
        if option[1] == "u":
            chained.user = value
        elif option[1] == "e":
            chained.changes |= variables_in(value, read, names)
    return chained


def of_capsh(words: list[str]) -> Chained | None:
    """Return the shell that capsh becomes; None if it becomes none."""
    if "--" not in words:
        return None
    at = words.index("--")
    users = [word.partition("=")[2] for word in words[:at] if word.startswith("--user=")]
    return Chained(["/bin/bash", *words[at + 1 :]], user="".join(users[-1:]))


def of_execline(text: str, environment: Mapping[str, str]) -> Chained | None:
    """Return the command of an execline script; None where it is not plain."""
    try:
        chained = Chained(shlex.split(text, comments=True))
    except ValueError:
        return None
    words = chained.words
    while words:
        name = posixpath.basename(words[0])
        if name == "export" and len(words) > 3:
            chained.changes[words[1]] = words[2]
            del words[:3]
        elif name == "unexport" and len(words) > 2:
            chained.changes[words[1]] = None
            del words[:2]
        elif name == "cd" and len(words) > 2:
            chained.directory = words[1]
            del words[:2]
        elif name in _WITH_BLOCK and words[1:2] == ["{"]:
            depth, at = 0, 1
            while at < len(words):
                depth += (words[at] == "{") - (words[at] == "}")
                at += 1
                if depth == 0:
                    break
            del words[:at]
        elif name in {"fdmove", "fdswap", "redirfd"}:
            flags = 1 + len([word for word in words[1:2] if word.startswith("-")])
            del words[: flags + 2]
        elif name in _WITH_WORDS:
            if name == "emptyenv":
                chained.changes = dict.fromkeys(environment)
            del words[: 1 + _WITH_WORDS[name]]
        else:
            break
    known = [*words, *(value for value in chained.changes.values() if value is not None)]
    return chained if words and not any("$" in word or word in "{}" for word in known) else None
