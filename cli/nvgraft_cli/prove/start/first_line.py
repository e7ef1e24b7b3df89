"""Read the first line of a script: the interpreter that the kernel starts for it."""

import re

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.dynamic import BadElf, NotRecorded, read_dynamic
from nvgraft_cli.case.file_changes import SCRIPT_LIMIT
from nvgraft_cli.case.planned_tree import PlannedTree


def interpreter_of(tree: PlannedTree, path: str) -> list[str] | None:
    """Return the interpreter in the first line of a script, and its argument if there is one.

    The list is empty for a file that the kernel does not start, None for a program and where it is
    not known. The kernel separates words by blanks alone, and passes all behind the first as one.
    """
    try:
        resolved = tree.resolve(path)
        read_dynamic(tree, resolved)
    except NotRecorded:
        return None
    except BadElf:
        pass
    except (OSError, PathError):
        return None
    else:
        return None
    try:
        text = tree.read(resolved, SCRIPT_LIMIT)
    except OSError:
        return None
    return _first_line(text.decode("utf-8", "surrogateescape"))


def _first_line(text: str) -> list[str]:
    """Return the words of the first line of a script."""
    line = text.split("\n", 1)[0]
    words = line[2:].strip(" \t") if line.startswith("#!") else ""
    return [word for word in re.split("[ \t]+", words, maxsplit=1) if word]
