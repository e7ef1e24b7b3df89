"""``nvgraft help``: explain a command, a term of the glossary, or a failure that doctor names."""

import argparse
import posixpath
import re
from collections.abc import Iterator

from nvgraft_cli.container_cli import COMMANDS as ORIGINAL_COMMANDS
from nvgraft_cli.shell import documentation
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.parser import CommandParser, commands_of, nearest, program, width, wrap
from nvgraft_specs.checks import FAILURES

_EXAMPLES = """\
examples:
  nvgraft help
  nvgraft help plan
  nvgraft help driver root
  nvgraft help nvml-slow

exit code: 0 explained, 2 there is no such command, term or failure"""

#: A line of docs/glossary.md: term, meaning, and the address of the file or page that defines it.
_ENTRY = re.compile(r"- \*\*(.+?)\*\*: (.+) \[[^]]+\]\(([^)]+)\)")

_EMPHASIS = re.compile(r"(?<!\S)\*(\w[\w ]*)\*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``help``."""
    parser.description = (
        "Explain a command, a term of the glossary, or a failure that `nvgraft doctor` names."
        " Without a word, list the commands; `nvgraft help terms` lists the words."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="a command, a term such as driver root, the id of a failure, or `terms`",
    )
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; return the exit code.

    :raises InputError: there is no such word.
    """
    word = " ".join(args.words)
    if word in ORIGINAL_COMMANDS:
        from nvgraft_cli.container_cli import command

        return command.main("nvgraft", [word, "--help"])
    texts = list(_terms() if word == "terms" else _explanations(args.words))
    if not texts:
        fix = "`nvgraft help` lists the commands, `nvgraft help terms` the terms and failures"
        near = nearest(word, [*_command_names(), *_names_of_terms(), *_failures()])
        raise InputError(f"there is no command, term or failure {word!r}{near} | {fix}")
    print("\n\n".join(text.strip("\n") for text in texts))
    return 0


def _explanations(words: list[str]) -> Iterator[str]:
    """Yield what there is about a command, and about a term or a failure of the same name."""
    parser: CommandParser | None = program()
    for word in words:
        parser = commands_of(parser).get(word) if parser else None
        if parser:
            parser.fill()
    if parser:
        yield parser.format_help()
    yield from _meanings(" ".join(words))


def _key(term: str) -> str:
    return term.casefold().replace("-", " ")


def _glossary() -> Iterator[tuple[str, list[str], str, str]]:
    """Yield each entry: its title, the names by which it is found, meaning and address."""
    for title, meaning, address in _ENTRY.findall(documentation.read("glossary.md")):
        names = re.sub(r" \(.*\)", "", title).split(", ")
        yield title, names, meaning, posixpath.normpath(posixpath.join("docs", address))


def topics() -> list[str]:
    """Return every single word that ``nvgraft help`` explains; blanks of terms are hyphens."""
    terms = [re.sub(r"\W+", "-", name) for name in _names_of_terms()]
    return list(dict.fromkeys([*_command_names(), *terms, *_failures()]))


def _command_names() -> list[str]:
    return [name for group in GROUPS.values() for name in group]


def _names_of_terms() -> list[str]:
    return list(dict.fromkeys(name for _, names, _, _ in _glossary() for name in names))


def _failures() -> list[str]:
    return [failure.id for failure in FAILURES]


def _meanings(word: str) -> Iterator[str]:
    columns = width()
    for title, names, meaning, place in _glossary():
        if _key(word) in {_key(title), *map(_key, names)}:
            text = wrap(_EMPHASIS.sub(r"\1", meaning), columns, "  ")
            yield f"{title}\n{text}\n  see {place}"
    if word in _failures():
        _, _, rest = documentation.read("failures.md").partition(f"\n## {word}\n")
        section, _, _ = rest.partition("\n## ")
        yield "\n".join([word, *_plain(_EMPHASIS.sub(r"\1", section.strip("\n")), columns)])


def _plain(markdown: str, columns: int) -> Iterator[str]:
    """Yield the lines of a section of markdown: paragraphs, items, and blocks of code."""
    for block in markdown.split("\n\n"):
        if block.startswith("```"):
            yield from (f"      {line}" for line in block.splitlines()[1:-1])
        else:
            for line in block.splitlines():
                yield wrap(line, columns, "  ", "    " if line.startswith("- ") else "  ")
        yield ""


def _terms() -> Iterator[str]:
    for title, names in ("terms", _names_of_terms()), ("failures", _failures()):
        yield "\n".join([f"{title}:", *(f"  {name}" for name in names)])
