"""Follow programs that change variables and start another one: env, conda, chpst, execline."""

import posixpath

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.user import named_user
from nvgraft_cli.prove.script.conda import activation
from nvgraft_cli.prove.start.options import split_words, take_assignments, without_options
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.tree_files import names_in, text_of

#: Programs that change their process and become the command in their arguments.
CHAINING = {"chpst", "envdir", "s6-envdir", "capsh", "execlineb"}


def started_by_env(words: list[str], start: ProgramStart) -> ProgramStart | None:
    """Return the command of env, with its variables and directory; None if there is none."""
    environment = dict(start.environment)
    directory = ""
    words = list(words)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in {"-i", "-", "--ignore-environment"}:
            environment = {}
        elif option in {"-S", "--split-string"} and words:
            words[:1] = split_words(words[0])
        elif option.startswith("-S"):
            words[:0] = split_words(option[2:])
        elif option in {"-u", "--unset"} and words:
            environment.pop(words.pop(0), None)
        elif option in {"-C", "--chdir"} and words:
            directory = words.pop(0)
        elif option == "--":
            break
    environment |= take_assignments(words)
    following = ProgramStart(words, environment, start)
    following.directory = posixpath.join(start.directory, directory)
    return following if words else None


def started_by_conda(
    tree: PlannedTree, path: str, run: tuple[str, list[str]], start: ProgramStart
) -> ProgramStart | None:
    """Return the command of `conda run` in its environment, as a script of a shell."""
    environment, words = run
    text = activation(environment, path, start.environment, tree.is_there)
    if text is None or not words:
        start.note_not_followed()
        return None
    return ProgramStart(["sh", "-c", f'{text}exec "$@"', "conda", *words], start.environment, start)


def started_by_chaining(tree: PlannedTree, name: str, start: ProgramStart) -> ProgramStart | None:
    """Return the command that execline, chpst, envdir or capsh becomes; None if it is not known."""
    from nvgraft_cli.prove.start import chain_loading as chains

    def read(place: str) -> str | None:
        return text_of(tree, posixpath.join(start.directory, place))

    def names(place: str) -> list[str]:
        return names_in(tree, posixpath.join(start.directory, place))

    words = start.words[1:]
    chained: chains.Chained | None
    if name == "chpst":
        chained = chains.of_chpst(words, read, names)
    elif name == "capsh":
        chained = chains.of_capsh(words)
    elif name == "execlineb":
        options = [word for word in words if word.startswith("-")]
        script = words[len(options) :]
        text = script[0] if "-c" in options else read(script[0]) if script else None
        chained = None if text is None else chains.of_execline(text, start.environment)
    else:
        words = without_options(words, set())
        found = chains.variables_in(words[0], read, names) if words else {}
        chained = chains.Chained(words[1:], found)
    if chained is None or not chained.words:
        return None
    environment = {**start.environment, **chained.changes}
    known = {key: value for key, value in environment.items() if value is not None}
    following = ProgramStart(chained.words, known, start)
    following.directory = posixpath.join(start.directory, chained.directory)
    user = named_user(tree, chained.user, members=name != "chpst") if chained.user else None
    following.become(user)
    return following
