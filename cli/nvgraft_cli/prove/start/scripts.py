"""Follow scripts: to the interpreter of their first line, and those of Python and Perl to what
they start.
"""

import posixpath
import re

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.start.first_line import interpreter_of
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.tree_files import text_of

#: Interpreters whose scripts are followed, and options of Python that take a value.
INTERPRETERS = re.compile(r"python[\d.]*|pypy[\d.]*|perl")
_PYTHON_VALUES = {"-W", "-X"}


def started_by_first_line(tree: PlannedTree, path: str, start: ProgramStart) -> ProgramStart | None:
    """Return the interpreter of a script with its arguments; None for what is not a script."""
    interpreter = interpreter_of(tree, path)
    if interpreter == [] and start.usual_path:
        interpreter = ["/bin/sh"]  # a shell and execvp(3) start it so, the kernel does not
    if not interpreter:
        return None
    return ProgramStart([*interpreter, path, *start.words[1:]], start.environment, start)


def started_by_interpreted(
    tree: PlannedTree, path: str, name: str, start: ProgramStart
) -> ProgramStart | None:
    """Return what a script of Python or Perl becomes; None if it runs itself.

    What is not known of it is noted.

    :param path: that of the interpreter.
    """
    words = start.words[1:]
    while words and words[0].startswith("-") and words[0] not in {"-c", "-e", "-", "-m"}:
        words = words[2 if words[0] in _PYTHON_VALUES else 1 :]
    if not words or words[0] in {"-", "-m"}:
        return None
    inline = words[0] in {"-c", "-e"}
    place = posixpath.join(start.directory, words[0])
    text = "".join(words[1:2]) if inline else text_of(tree, place)
    if text is None:
        return None
    arguments = ["-c", *words[2:]] if inline else words
    from nvgraft_cli.prove.script.exec_calls import ScriptCommand, perl_starts, python_starts

    if name == "perl":
        started = perl_starts(text, arguments, start.environment)
    else:
        started = python_starts(
            text,
            arguments,
            start.environment,
            lambda path: tree.is_there(posixpath.join(start.directory, path)),
            path,
        )
    if isinstance(started, str):
        start.note_unknown(started if inline else f"{started} ({words[0]})")
    if not isinstance(started, ScriptCommand):
        return None
    return ProgramStart(started.words, dict(started.environment), start)
