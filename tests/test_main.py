"""The command ``nvgraft``: which subcommand runs, and the exit code."""

import argparse

import pytest

from nvgraft import __version__
from nvgraft_cli.container_cli import COMMANDS
from nvgraft_cli.pods import opening
from nvgraft_cli.shell.main import main
from nvgraft_cli.shell.parser import whole_program

Captured = pytest.CaptureFixture[str]


def test_the_version_is_printed(capsys: Captured) -> None:
    """--version prints the version on stdout and exits with 0."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"nvgraft {__version__}\n"


def test_help_lists_the_commands(capsys: Captured) -> None:
    """--help lists the commands and has an example."""
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "nvgraft plan --container ./bundle --host runfile-a10x2" in out
    for name in ("plan", "simulate"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["--no-such-option"]])
def test_bad_usage_is_exit_2(arguments: list[str], capsys: Captured) -> None:
    """A missing or unknown command or option exits with 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: nvgraft")


def test_an_interrupt_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """An interrupt exits with 130, the shell's code, without a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "opened_case", interrupted)
    assert main(["plan"]) == 130
    assert capsys.readouterr() == ("", "")


def test_every_command_has_an_example() -> None:
    """Every command has an example in its --help, except those with nvidia-container-cli's own
    text.
    """
    parser = whole_program()
    subparsers = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    assert "example" in (parser.epilog or "")
    without_example = [
        name
        for name, command in subparsers.choices.items()
        if "example" not in (command.epilog or "") and name not in COMMANDS
    ]
    assert without_example == []
