"""The command line of ``nvgraft``: what it loads, its help texts, and answers to wrong words."""

import argparse
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nvgraft_cli.shell.arguments import EVERYWHERE
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.main import main
from nvgraft_cli.shell.parser import CommandParser, commands_of, parse, whole_program

Captured = pytest.CaptureFixture[str]


def parsers(parser: CommandParser) -> Iterator[CommandParser]:
    """Yield a parser and those of its commands, without those of nvidia-container-cli."""
    yield parser
    for command in commands_of(parser).values():
        yield from parsers(command)


def refused(capsys: Captured, *words: str) -> tuple[str, str]:
    """Run a wrong command line; return the program of the usage, and the line about the fault."""
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    usage, *_, line = captured.err.splitlines()
    return usage.removeprefix("usage: ").partition(" [")[0], line


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["plam"]])
def test_no_command_is_loaded_without_need(words: list[str]) -> None:
    """--version, --help and an unknown command load no module of a command, and no engine."""
    program = (
        "import sys; from nvgraft_cli.shell.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*[name for name in sys.modules if name.startswith('nvgraft')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    rooms = {".".join(name.split(".")[:2]) for name in done.stderr.splitlines()[-1].split()}
    assert rooms == {
        "nvgraft",
        "nvgraft.base",
        "nvgraft_cli",
        "nvgraft_cli.container_cli",
        "nvgraft_cli.shell",
    }


def test_commands_stand_in_groups(capsys: Captured) -> None:
    """--help lists every command once, below the title of its group."""
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed: dict[str, list[str]] = {}
    title = ""
    for line in lines:
        if line.endswith(":"):
            title = line.removesuffix(":")
        elif line.startswith("  ") and line[2] not in " -":
            listed.setdefault(title, []).append(line.split()[0])
    assert listed.pop("examples") == ["nvgraft", "nvgraft"]
    assert listed == {group: list(commands) for group, commands in GROUPS.items()}


@pytest.mark.parametrize(
    ("words", "program", "line"),
    [
        (
            ("plan", "--bundel", "x"),
            "nvgraft plan",
            "nvgraft plan: error: unknown option --bundel; did you mean --bundle?",
        ),
        (
            ("inventory", "show", "--fromat=json"),
            "nvgraft inventory show",
            "nvgraft inventory show: error: unknown option --fromat; did you mean --format?",
        ),
        (
            ("matrix", "--host", "eks-t4", "--bundels", "x"),
            "nvgraft matrix",
            "nvgraft matrix: error: unknown option --bundels; did you mean --bundles?",
        ),
        (
            ("inventory", "--zzz"),
            "nvgraft inventory",
            "nvgraft inventory: error: unknown option --zzz",
        ),
        (
            ("plan", "--zzz"),
            "nvgraft plan",
            "nvgraft plan: error: unknown option --zzz",
        ),
        (
            ("plan", "--co", "x"),
            "nvgraft plan",
            "nvgraft plan: error: ambiguous option: --co could match --container, --config, --color",
        ),
        (
            ("plan", "here"),
            "nvgraft plan",
            "nvgraft plan: error: unexpected argument 'here'",
        ),
        (
            ("plan", "--format", "jsn"),
            "nvgraft plan",
            (
                "nvgraft plan: error: argument --format: invalid choice: 'jsn'; did you mean json?"
                " | choose text, json or cdi"
            ),
        ),
        (
            ("plam",),
            "nvgraft",
            (
                "nvgraft: error: there is no command 'plam'; did you mean plan?"
                " | `nvgraft help` lists the commands"
            ),
        ),
        (
            ("--host", "eks-t4", "plan"),
            "nvgraft",
            "nvgraft: error: unknown option --host | write the options of a command after its name",
        ),
        (
            ("matrix", "eks-t4", "--containers", "b", "--jobs", "0"),
            "nvgraft matrix",
            "nvgraft matrix: error: argument --jobs: '0' is not a number from 1 up",
        ),
        (
            ("watch", "--check", "often"),
            "nvgraft watch",
            "nvgraft watch: error: argument --check: 'often' is not a number of seconds | write 10 or 0.5",
        ),
        (
            (),
            "nvgraft",
            "nvgraft: error: there is no command | `nvgraft help` lists the commands",
        ),
        (
            ("plan", "--\x1b[2J"),
            "nvgraft plan",
            r"nvgraft plan: error: unknown option --\x1b[2J",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_word_shows_the_usage_of_its_command(
    words: tuple[str, ...], program: str, line: str, capsys: Captured
) -> None:
    """A wrong word prints the usage of the command that it belongs to, and one line with the
    nearest right word, if there is one.
    """
    assert refused(capsys, *words) == (program, line)


@pytest.mark.parametrize("columns", ["40", "100", "10", "wide"])
def test_help_fits_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of every command fits a terminal of 40 to 100 columns, except its examples, whose
    lines stay whole. Without a number it has 80 columns.
    """
    monkeypatch.setenv("COLUMNS", columns)
    limit = max(40, int(columns)) if columns.isdecimal() else 80
    for parser in parsers(whole_program()):
        text, _, _ = parser.format_help().partition("\nexample")
        long = [line for line in text.splitlines() if len(line) > limit and " " in line.strip()]
        assert long == [], parser.prog


def test_every_argument_has_a_sentence() -> None:
    """Every argument of every command has a help text."""
    without = [
        (parser.prog, action.dest)
        for parser in parsers(whole_program())
        for action in parser._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert without == []


def test_options_of_every_command_stand_before_and_after_it() -> None:
    """The options of every command have the same effect before and after the command's name."""
    parser = whole_program()
    for words in (["--debug", "plan"], ["plan", "--debug"], ["--debug", "inventory", "show"]):
        assert parser.parse_args(words).debug is True
    assert parser.parse_args(["plan"]).debug is False
    for command in parsers(parser):
        titles = [group.title for group in command._action_groups]
        assert titles.count(EVERYWHERE) == 1


@pytest.mark.parametrize("option", ["--debug", "--no-pager", "--color=never"])
def test_an_argument_named_like_a_command_of_the_original(option: str, capsys: Captured) -> None:
    """A word of an argument, such as list, is not taken for nvidia-container-cli's command."""
    assert main([option, "explain-error", "list"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("this text contains no known error")


def test_the_usage_has_the_options_of_the_command_alone() -> None:
    """A usage leaves out the options of every command, which the help lists once below."""
    for parser in parsers(whole_program()):
        assert "--debug" not in parser.format_usage(), parser.prog
        assert parser.format_help().count("\n  --debug ") == 1, parser.prog


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diff", "a", "--mode", "legacy", "-"], {"b": "/dev/stdin", "mode": "legacy"}),
        (["diff", "a", "--all", "b"], {"a": "a", "b": "b", "all": True}),
        (["diff", "--bundle=c", "a", "--host", "h", "b"], {"b": "b", "host": "h"}),
        (["diff", "a", "-o", "f", "--", "--b"], {"b": "--b", "output": "f"}),
        (["prove", "x", "--host", "h", "y", "--form", "json"], {"what": ["x", "y"]}),
    ],
)
def test_options_stand_between_arguments(words: list[str], expected: dict[str, object]) -> None:
    """An argument behind an option is taken, also standard input, where it may be left out."""
    parsed = vars(parse(words))
    assert {name: parsed[name] for name in expected} == expected
