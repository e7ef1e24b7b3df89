"""Follow scripts: to the interpreter of their first line, and those of Python and Perl to what
they start.
"""

import posixpath
import re

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.script.python_words import InterpreterWords, read_words
from nvgraft_cli.prove.start.first_line import interpreter_of
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.tree_files import text_of

#: Interpreters whose scripts are followed.
INTERPRETERS = re.compile(r"python[\d.]*|pypy[\d.]*|perl")


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
    given = read_words(start.words[1:]) if name != "perl" else _words_of_perl(start.words[1:])
    if given.kind == "m" or not given.what:
        return None
    inline = given.kind == "c"
    text = given.what if inline else text_of(tree, posixpath.join(start.directory, given.what))
    if text is None:
        return None
    arguments = ["-c" if inline else given.what, *given.arguments]
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
        start.note_unknown(started if inline else f"{started} ({given.what})")
    if not isinstance(started, ScriptCommand):
        return None
    return ProgramStart(started.words, dict(started.environment), start)


def _words_of_perl(words: list[str]) -> InterpreterWords:
    """Return what perl runs, from its arguments."""
    options = next((at for at, word in enumerate(words) if word[:1] != "-"), len(words))
    if "-e" in words[:options]:
        at = words.index("-e") + 1
        return InterpreterWords("c", "".join(words[at : at + 1]), tuple(words[at + 1 :]))
    return InterpreterWords("", "".join(words[options : options + 1]), tuple(words[options + 1 :]))
