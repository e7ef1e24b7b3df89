"""Parse command lines as GNU argp does, which the original uses; argparse differs in many details.

Long options may be shortened as long as they stay unambiguous, and short options may be joined. An
optional argument has to be attached to its option. Usage errors have argp's words. The callers say
which options there are.
"""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

#: argp's own columns: where descriptions start, and where lines of a usage message go on.
_HELP_COLUMN = 29
_WIDTH = 79


class Option(NamedTuple):
    """One option. ``metavar`` names its argument ("" for none), which may be ``optional``."""

    long: str
    short: str
    metavar: str
    help: str
    optional: bool = False


#: What argp adds to every command.
STANDARD = (
    Option("help", "?", "", "Show this help"),
    Option("usage", "", "", "Show all options in a few lines"),
    Option("version", "V", "", "Show the version"),
)


class Command(NamedTuple):
    """The parts of a command line. ``program`` is its name, ``arguments`` are those after the
    options.
    """

    program: str
    arguments: str
    description: str
    options: tuple[Option, ...]
    notes: str


class UsageFault(Exception):
    """A command line that cannot be parsed. The text is the whole message for stderr."""


def fault(command: Command, text: str) -> UsageFault:
    """Return a fault with argp's line that points to help."""
    return UsageFault(f"{command.program}: {text}\n{_pointer(command)}")


def usage_fault(command: Command) -> UsageFault:
    """Return the fault of a command line with a missing or an extra argument."""
    return UsageFault(f"{_short_usage(command)}\n{_pointer(command)}")


def _pointer(command: Command) -> str:
    return f"Try `{command.program} --help' or `{command.program} --usage' for more information."


def _short_usage(command: Command) -> str:
    return f"Usage: {command.program} [OPTION...] {command.arguments}".rstrip()


def read(
    words: list[str], command: Command, *, in_order: bool = False
) -> Iterator[tuple[str, str | None]]:
    """Yield (long name, argument) for each option of ``words``, then ("", word) for each other
    word.

    With ``in_order`` the first other word ends the options: it and all that follow are other words.

    :raises UsageFault: at the word that is at fault; what stands before it has been yielded.
    """
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            others += rest
            break
        if word.startswith("--"):
            yield _long(word[2:], rest, command)
        elif word.startswith("-") and word != "-":
            yield from _short(word[1:], rest, command)
        else:
            others.append(word)
            if in_order:
                others += rest
                break
    for word in others:
        yield "", word


def _long(text: str, rest: list[str], command: Command) -> tuple[str, str | None]:
    name, equals, attached = text.partition("=")
    known = [*command.options, *STANDARD]
    matches = [option for option in known if option.long.startswith(name)]
    exact = [option for option in matches if option.long == name]
    if exact:
        matches = exact
    if not matches:
        raise fault(command, f"unrecognized option '--{text}'")
    if len(matches) > 1:
        possible = " ".join(f"'--{option.long}'" for option in matches)
        raise fault(command, f"option '--{text}' is ambiguous; possibilities: {possible}")
    option = matches[0]
    if equals:
        if not option.metavar:
            raise fault(command, f"option '--{option.long}' doesn't allow an argument")
        return option.long, attached
    if not option.metavar or option.optional:
        return option.long, None
    if not rest:
        raise fault(command, f"option '--{option.long}' requires an argument")
    return option.long, rest.pop(0)


def _short(letters: str, rest: list[str], command: Command) -> Iterator[tuple[str, str | None]]:
    while letters:
        letter, letters = letters[0], letters[1:]
        option = next(
            (option for option in (*command.options, *STANDARD) if option.short == letter), None
        )
        if option is None:
            raise fault(command, f"invalid option -- '{letter}'")
        if not option.metavar:
            yield option.long, None
            continue
        if not letters and not option.optional:
            if not rest:
                raise fault(command, f"option requires an argument -- '{letter}'")
            letters = rest.pop(0)
            yield option.long, letters
        else:
            yield option.long, letters or None
        return


def help_text(command: Command) -> str:
    """Return the text of ``--help``."""
    rows = [_help_row(option) for option in (*command.options, *STANDARD)]
    parts = [
        f"{_short_usage(command)}\n{textwrap.fill(command.description, _WIDTH)}",
        "\n".join([" Options:", *rows]),
    ]
    return "\n\n".join([*parts, command.notes]) + "\n"


def _help_row(option: Option) -> str:
    short = f"-{option.short}," if option.short else ""
    row = f"  {short:3} --{option.long}{_argument(option)}"
    filler = (
        "\n" + " " * _HELP_COLUMN if len(row) >= _HELP_COLUMN else " " * (_HELP_COLUMN - len(row))
    )
    return (
        row
        + filler
        + textwrap.fill(option.help, _WIDTH - _HELP_COLUMN).replace("\n", "\n" + " " * _HELP_COLUMN)
    )


def _argument(option: Option) -> str:
    if not option.metavar:
        return ""
    return f"[={option.metavar}]" if option.optional else f"={option.metavar}"


def usage_text(command: Command) -> str:
    """Return the text of ``--usage``."""
    options = [*command.options, *STANDARD]
    plain = "".join(option.short for option in options if option.short and not option.metavar)
    words = [f"[-{plain}]"] if plain else []
    for option in (option for option in options if option.short and option.metavar):
        words += [
            f"[-{option.short}[{option.metavar}]]"
            if option.optional
            else f"[-{option.short} {option.metavar}]"
        ]
    words += [f"[--{option.long}{_argument(option)}]" for option in options]
    first = f"Usage: {command.program} "
    # A word such as "[-d ID]" stays on one line.
    text = " ".join(word.replace(" ", "\0") for word in [*words, command.arguments] if word)
    wrapped = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * 12, break_on_hyphens=False
    )
    return "\n".join(wrapped).replace("\0", " ") + "\n"
