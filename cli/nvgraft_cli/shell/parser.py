"""The parser of ``nvgraft``: one for all commands, whose arguments are declared when they are used.

``nvgraft --version`` and ``nvgraft --help`` load no module of a command. A command line that is
wrong is answered with the usage of the command that it names.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from functools import cache, partial
from importlib import import_module
from itertools import islice, pairwise, takewhile

from nvgraft import __version__
from nvgraft.base.errors import printable
from nvgraft_cli.shell import arguments
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

_DESCRIPTION = "Graft a host's NVIDIA driver onto a container, or predict what that will do."

_EXAMPLES = """\
examples:
  nvgraft simulate --list
  nvgraft plan --container ./bundle --host runfile-a10x2"""

#: How much alike a wrong word and the nearest right one are at least, from 0 to 1.
_LIKE = 0.7

#: Columns of help texts: at most, and at least.
_WIDEST, _NARROWEST = 100, 40


def width() -> int:
    """Return the columns for a help text: those of the terminal, within limits."""
    try:
        columns = int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        try:
            columns = os.get_terminal_size(1).columns or 80
        except OSError:
            columns = 80
    return max(_NARROWEST, min(columns, _WIDEST))


class _CommandHelp(argparse.HelpFormatter):
    """Wrap prose to the terminal, and leave examples as they are."""

    def __init__(self, prog: str) -> None:
        # With a width argparse does not import shutil, which takes longer than parsing.
        super().__init__(prog, width=width() - 2)

    #: Actions that the usage leaves out: the options of every command have a section of their own.
    everywhere: frozenset[argparse.Action] = frozenset()

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        own = [action for action in actions if action not in self.everywhere]
        super().add_usage(usage, own, groups, prefix)

    def _format_usage(self, *args: Any, **kwargs: Any) -> str:
        usage = super()._format_usage(*args, **kwargs)
        lines = usage.rstrip("\n").split("\n")
        if all(len(line) <= self._width for line in lines):
            return usage
        # argparse aligns the options behind the name, where a narrow terminal has no room.
        wrapped = [wrap(lines[0], self._width, "", "  ")]
        wrapped += [wrap(line, self._width, "  ", "    ") for line in lines[1:]]
        return "\n".join(wrapped) + "\n\n"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Name the value once, after all names of an option, as Python 3.13 does."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(wrap(block, width, indent) for block in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width).splitlines()


def wrap(block: str, width: int, indent: str = "", later: str | None = None) -> str:
    """Wrap a paragraph to ``width`` columns; words and lists of examples stay whole.

    :param indent: what each line begins with.
    :param later: what each line after the first begins with, if that differs.
    """
    if len(indent + block) <= width and not re.search(r"\s\s|^\s|\n", block):
        return indent + block
    import textwrap

    if "\n  " in block:  # examples: their lines can be copied to a shell
        return textwrap.indent(block, indent)
    return textwrap.fill(
        re.sub(r"\s+", " ", block).strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )


class CommandParser(argparse.ArgumentParser):
    """A parser that shows its own usage on every error, with the nearest name for a wrong one.

    :param declare: called by ``fill``, before the first use; it adds the arguments. Until then the
        parser is no more than a name, since argparse takes 0.1 ms for each command.
    """

    def __init__(
        self,
        *,
        declare: Callable[[CommandParser], None] | None = None,
        add_help: bool = True,
        **kwargs: Any,
    ) -> None:
        self._make = partial(
            super().__init__, add_help=add_help, **{"formatter_class": _CommandHelp, **kwargs}
        )
        self._declare = declare
        self._filled = False
        self._words: list[str] = []
        self.add_help = add_help
        if declare is None:
            self._make()

    def fill(self) -> None:
        """Declare the arguments, unless that has been done."""
        if self._filled:
            return
        self._filled = True
        if self._declare is not None:
            self._make()
            self._declare(self)
        arguments.add_everywhere(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments of this command; none is left for the parser around it."""
        self.fill()
        self._words = list(sys.argv[1:] if args is None else args)
        parsed, rest = super().parse_known_args(self._options_first(), namespace)
        if rest:
            self.error(self.unknown(rest[0]))
        return parsed, rest

    def _options_first(self) -> list[str]:
        """Return the words with all options before the others.

        argparse gives an argument that may be missing its value, or none, at the first word that is
        not an option, and refuses what stands behind the next option.
        """
        places = [action for action in self._actions if not action.option_strings]
        if not any(place.nargs in {"?", "*", "+"} for place in places) or any(
            place.nargs in {argparse.PARSER, argparse.REMAINDER} for place in places
        ):
            return self._words
        options: list[str] = []
        others: list[str] = []
        words = iter(self._words)
        for word in words:
            if word == "--":
                others += words
            elif word == "-" or not word.startswith("-"):
                others.append(word)
            else:
                name, equals, _ = word.partition("=")
                known = self._option_string_actions
                found = known.get(name) or next(
                    (known[option] for option in known if option.startswith(name)), None
                )
                if found is None or found.nargs not in {None, 0}:
                    return self._words  # argparse says what is wrong with it
                options.append(word)
                if found.nargs is None and not equals:
                    options += islice(words, 1)
        return [*options, "--", *others] if others else options

    def _get_formatter(self) -> argparse.HelpFormatter:
        formatter = super()._get_formatter()
        if isinstance(formatter, _CommandHelp):
            formatter.everywhere = frozenset(
                action
                for group in self._action_groups
                if group.title == arguments.EVERYWHERE
                for action in group._group_actions
            )
        return formatter

    def knows(self, word: str) -> bool:
        """Tell whether ``word`` is an option of this parser, or the beginning of one."""
        name = word.partition("=")[0]
        return any(option.startswith(name) for option in self._option_string_actions)

    def unknown(self, word: str) -> str:
        """Return what is wrong with an argument that no parser takes."""
        if not word.startswith("-") or word == "-":
            return f"unexpected argument {word!r}"
        name = word.partition("=")[0]
        return f"unknown option {name}{nearest(name, list(self._option_string_actions))}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            fix = (
                "`nvgraft help` lists the commands"
                if len(names) > 5
                else f"write {' or '.join(names)}"
            )
            text = f"there is no command {value!r}{nearest(str(value), names)} | {fix}"
            self.error(text)
        raise argparse.ArgumentError(
            action,
            f"invalid choice: {value!r}{nearest(str(value), names)} | choose {_or(names)}",
        )

    def error(self, message: str) -> NoReturn:
        """Print the usage of this command and one line, and exit with 2.

        With --format json also print a document: a program gets what a person gets.
        """
        self.fill()
        if message.startswith("the following arguments are required"):
            # A mistyped option is the cause more often than a forgotten argument.
            message = self._first_unknown() or message
        words = list(takewhile(lambda word: word != "--", self._words))
        if "--format=json" in words or ("--format", "json") in pairwise(words):
            from nvgraft_cli.shell import output, refusals

            fix = "" if " | " in message else f" | `{self.prog} --help` shows the usage"
            command = self.prog.partition(" ")[2].partition(" ")[0]
            output.print_document(refusals.document(command, InputError(message + fix), 2))
        self.print_usage(sys.stderr)
        print(printable(f"{self.prog}: error: {message}"), file=sys.stderr)
        raise SystemExit(2)

    def _first_unknown(self) -> str:
        """Return what is wrong with the first long option that is none, or nothing."""
        words = takewhile(lambda word: word != "--", self._words)
        if commands_of(self):  # options behind a command are the command's
            words = takewhile(lambda word: word.startswith("-"), words)
        wrong = (word for word in words if word.startswith("--") and not self.knows(word))
        return next((self.unknown(word) for word in wrong), "")


def _or(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def nearest(word: str, names: Sequence[str]) -> str:
    """Return "; did you mean NAME?" for the name most like ``word``, or nothing."""
    import difflib

    found = difflib.get_close_matches(word, names, 1, _LIKE)
    return f"; did you mean {found[0]}?" if found else ""


class _Program(CommandParser):
    """The parser of the whole program, which shows the commands in their groups."""

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            for action in group._group_actions:
                if isinstance(action, argparse._SubParsersAction):
                    entries = {entry.dest: entry for entry in action._choices_actions}
                    for title, commands in GROUPS.items():
                        formatter.start_section(title)
                        formatter.add_arguments([entries[name] for name in commands])
                        formatter.end_section()
            formatter.start_section(group.title)
            formatter.add_arguments(
                [entry for entry in group._group_actions if entry.dest != "subcommand"]
            )
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def program() -> CommandParser:
    """Return the parser of ``nvgraft``. The module of a command is loaded when it is parsed."""
    parser = _Program(prog="nvgraft", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument(
        "--version", action="version", version=f"nvgraft {__version__}", help="print the version"
    )
    subparsers = parser.add_subparsers(
        metavar="COMMAND", dest="subcommand", parser_class=CommandParser
    )
    for commands in GROUPS.values():
        for name, (module, summary) in commands.items():
            declare = partial(_declare, module) if module else None
            subparsers.add_parser(name, help=summary, declare=declare, add_help=bool(module))
    parser.fill()
    # A command that only reads is confined before it runs, and after its open_first (see confine).
    parser.set_defaults(looks_only=False, many_inputs=False, open_first=None)
    parser.set_defaults(node=None, output=None, output_mode=None, deliver=None)
    parser.set_defaults(debug=False, log_format="text", color="auto", no_pager=False)
    return parser


@cache
def _program() -> CommandParser:
    """Return the parser of all command lines of this process: making it takes longer than them."""
    return program()


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command line of ``nvgraft``; a wrong one ends the program with exit code 2."""
    parser = _program()
    for word in takewhile(lambda word: word.startswith("-"), words):
        if not parser.knows(word):
            parser.error(f"{parser.unknown(word)} | write the options of a command after its name")
    args = parser.parse_args(words)
    if args.subcommand is None:
        parser.error("there is no command | `nvgraft help` lists the commands")
    return args


def whole_program() -> CommandParser:
    """Return the parser of ``nvgraft`` with the arguments of all commands declared."""
    parser = program()
    todo = [parser]
    while todo:
        command = todo.pop()
        command.fill()
        todo += commands_of(command).values()
    return parser


def _declare(module: str, parser: CommandParser) -> None:
    import_module(f"nvgraft_cli.{module}").add_arguments(parser)


def commands_of(parser: CommandParser) -> dict[str, CommandParser]:
    """Return the commands below ``parser``, without those of nvidia-container-cli."""
    return {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
        if command.add_help
    }
