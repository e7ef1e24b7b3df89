"""``nvgraft help``: commands, terms of the glossary, and failures."""

import pytest

from nvgraft_cli.container_cli import COMMANDS as ORIGINAL_COMMANDS
from nvgraft_cli.shell.commands import GROUPS
from nvgraft_cli.shell.main import main
from nvgraft_specs.checks import FAILURES, Failure

Captured = pytest.CaptureFixture[str]


def said(capsys: Captured, *words: str) -> str:
    """Return what a command line prints; its exit code is 0."""
    try:
        code = main(list(words))
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def test_help_alone_is_the_help_option(capsys: Captured) -> None:
    """`nvgraft help` prints what `nvgraft --help` prints."""
    assert said(capsys, "help") == said(capsys, "--help")


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name in (*(name for group in GROUPS.values() for name in group),)),
        ["cdi", "generate"],
        ["inventory", "show"],
    ],
    ids=" ".join,
)
def test_help_of_a_command(words: list[str], capsys: Captured) -> None:
    """`nvgraft help COMMAND` prints what `nvgraft COMMAND --help` prints, and what the glossary
    says about the same word.
    """
    own = said(capsys, *words, "--help")
    assert own.casefold().startswith("usage: nvgraft " + " ".join(words))
    assert said(capsys, "help", *words).startswith(own)
    assert words[0] not in ORIGINAL_COMMANDS or said(capsys, "help", *words) == own


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (["driver", "root"], ["driver root"]),
        (["driver-root"], ["driver root"]),
        (["rootfs"], ["root file system, rootfs"]),
        (["Capability"], ["capability (driver)", "capability (Linux)"]),
        (["imex channel"], ["IMEX channel"]),
    ],
    ids=" ".join,
)
def test_help_of_a_term(words: list[str], titles: list[str], capsys: Captured) -> None:
    """A term is found in any case, with blanks or hyphens; all its meanings are printed."""
    lines = said(capsys, "help", *words).splitlines()
    assert [line for line in lines if line and not line.startswith("  ")] == titles
    assert len([line for line in lines if line.startswith("  see ")]) == len(titles)


def test_a_term_that_is_a_command_too_follows_it(capsys: Captured) -> None:
    """`nvgraft help plan` explains the command first, and then the term."""
    text = said(capsys, "help", "plan")
    assert text.startswith("usage: nvgraft plan")
    assert "\nplan\n  The ordered list of actions" in text


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_help_of_a_failure(
    failure: Failure, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of a failure leads to its section in docs/failures.md, wrapped to the terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    lines = said(capsys, "help", failure.id).splitlines()
    assert failure.id in lines
    assert not [line for line in lines if line.startswith(("#", "```"))]
    assert not [
        line for line in lines if len(line) > 60 and " " in line.strip() and line[:6].strip()
    ]
    assert lines[-1].startswith("  ")


def test_help_lists_terms_and_failures(capsys: Captured) -> None:
    """`nvgraft help terms` lists every word that help explains; each is explained."""
    words = [line.strip() for line in said(capsys, "help", "terms").splitlines() if line[:1] == " "]
    assert {"driver root", "SONAME link", "rootfs", "nvml-slow"} <= set(words)
    for word in words:
        assert said(capsys, "help", word)


def test_an_unknown_word_names_the_nearest(capsys: Captured) -> None:
    """A word that is unknown is one line with the nearest command, term or failure."""
    assert main(["help", "findng"]) == 2
    assert capsys.readouterr().err == (
        "nvgraft help: there is no command, term or failure 'findng'; did you mean finding?"
        " | `nvgraft help` lists the commands, `nvgraft help terms` the terms and failures\n"
    )
