"""Answers on a terminal: folded to its width, coloured as asked, and through the user's pager."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft_cli.shell.fitting import fit
from terminals import on_terminal

MAIN = [sys.executable, "-m", "nvgraft_cli.shell.main"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "TERM": "xterm"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command line for a plan with long lines."""
    bundle = make_bundle(tmp_path_factory.mktemp("t") / "b", *EVERYTHING)
    return ["plan", "--bundle", str(bundle), "--host", "debian-a100x8"]


def piped(words: list[str], **variables: str) -> str:
    """Return the output of ``nvgraft`` into a pipe."""
    done = subprocess.run(
        [*MAIN, *words], capture_output=True, text=True, env={**ENVIRONMENT, **variables}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def words_of(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("columns", [40, 80, 132])
def test_lines_fit_the_terminal(columns: int, plan: list[str]) -> None:
    """Lines are folded to the terminal's columns, and no character of the plain text is lost."""
    seen = on_terminal(plan, columns)
    assert seen.code == 0
    assert max(map(len, seen.lines)) <= columns
    assert words_of(seen.text) == words_of(piped(plan))


def test_a_pipe_gets_the_same_bytes_whatever_the_terminal_is(plan: list[str]) -> None:
    """A pipe gets plain text without folds, although COLUMNS is set and stderr is a terminal."""
    plain = piped(plan)
    assert max(map(len, plain.splitlines())) > 80
    assert plain == piped(plan, COLUMNS="40", PAGER="false")
    assert "\x1b" not in plain


@pytest.mark.parametrize(
    ("options", "variables", "on_a_terminal", "in_a_pipe"),
    [
        ([], {}, True, False),
        ([], {"NO_COLOR": "1"}, False, False),
        ([], {"NO_COLOR": ""}, True, False),
        ([], {"FORCE_COLOR": "1"}, True, True),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ([], {"TERM": "dumb"}, False, False),
        ([], {"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        (["--color", "always"], {"NO_COLOR": "1", "TERM": "dumb"}, True, True),
        (["--color=never"], {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_colour(
    options: list[str],
    variables: dict[str, str],
    on_a_terminal: bool,
    in_a_pipe: bool,
    plan: list[str],
) -> None:
    """--color decides, then NO_COLOR, FORCE_COLOR and TERM, then whether it is a terminal."""
    assert ("\x1b[1m" in on_terminal([*plan, *options], env=variables).raw) is on_a_terminal
    assert ("\x1b[1m" in piped([*options, *plan], **variables)) is in_a_pipe


def test_rich_is_loaded_for_a_terminal_alone(plan: list[str]) -> None:
    """A pipe does not pay for rich."""
    program = (
        f"import sys; from nvgraft_cli.shell.main import main; main({plan!r});"
        " print('rich' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.stdout.endswith("\nFalse\n")


def pager(path: Path, text: str) -> str:
    """Write a pager, a program of Python, and return its path."""
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_pager_gets_the_answer(plan: list[str], tmp_path: Path) -> None:
    """NVGRAFT_PAGER, else PAGER, gets the folded answer, with git's settings for less."""
    text = (
        "print('<pager', *sys.argv[1:], os.environ['LESS'], os.environ['LV'], '>');"
        "print(sys.stdin.read())"
    )
    chosen = pager(tmp_path / "chosen", text)
    answer = on_terminal(plan).raw
    seen = on_terminal(plan, env={"PAGER": f"{chosen} --all"})
    assert (seen.code, seen.raw) == (0, f"<pager --all FRX -c >\n{answer}\n")
    seen = on_terminal(plan, env={"NVGRAFT_PAGER": chosen, "PAGER": "false", "LESS": "S"})
    assert seen.raw == f"<pager S -c >\n{answer}\n"


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--no-pager"], {}),
        ([], {"NVGRAFT_PAGER": "cat"}),
        ([], {"NVGRAFT_PAGER": ""}),
        ([], {"NVGRAFT_PAGER": "/no/such/program"}),
        ([], {"TERM": "dumb"}),
    ],
)
def test_no_pager(
    options: list[str], variables: dict[str, str], plan: list[str], tmp_path: Path
) -> None:
    """There is no pager if the user wants none, has none, or has a dumb terminal."""
    env = {"PAGER": pager(tmp_path / "pager", "print('paged')"), **variables}
    seen = on_terminal([*plan, *options], env=env)
    assert seen.code == 0
    assert "paged" not in seen.text
    assert "libcuda.so" in seen.text


def test_an_error_starts_no_pager(tmp_path: Path) -> None:
    """A command that answers with an error alone does not start the pager."""
    env = {"PAGER": pager(tmp_path / "pager", "print('paged')")}
    seen = on_terminal(["plan", "--host", "nowhere"], 200, env)
    assert seen.code == 2
    assert seen.text.startswith("nvgraft plan: ")
    assert "paged" not in seen.text


def test_a_pager_that_ends_early_is_a_closed_pipe(plan: list[str], tmp_path: Path) -> None:
    """`q` in the pager ends a command that has more to say by SIGPIPE, as it ends git."""
    quits = pager(tmp_path / "quits", "sys.stdin.buffer.raw.read(1); print('left', flush=True)")
    seen = on_terminal(["explain", *plan[1:]], env={"PAGER": quits, "COLUMNS": "40"})
    assert seen.text == "left\n"
    assert seen.code in (0, -13)  # 0: all of the answer was in the pipe


@pytest.mark.requires("less")
def test_less_shows_colours_and_leaves_short_answers(plan: list[str]) -> None:
    """The default pager is less as git runs it: a short answer stays on the screen, a long one
    waits for the user.
    """
    env = {"PAGER": "less"}
    short = on_terminal(["simulate", "--list"], 200, env)
    assert short.code == 0
    assert "eks-t4" in short.text
    long = on_terminal(plan, 80, env, typed="q")
    assert "\x1b[1m" in long.raw
    assert len(long.lines) < 80


def test_the_margin_follows_the_columns_of_a_line() -> None:
    """A folded line goes on below its last column, or a little further in."""
    assert fit("  cause      one two three four five six seven", 30).splitlines() == [
        "  cause      one two three",
        "             four five six",
        "             seven",
    ]
    assert fit("  a sentence that is longer than the line", 30).splitlines() == [
        "  a sentence that is longer",
        "      than the line",
    ]
    assert fit("x" * 40, 20).splitlines() == ["x" * 20, "    " + "x" * 16, "    " + "x" * 4]


def test_wide_characters_take_two_columns() -> None:
    """Characters that take two columns are counted as two."""
    assert fit("\u6f22" * 11, 20).splitlines() == ["\u6f22" * 10, "    \u6f22"]


def test_colours_survive_a_fold() -> None:
    """Colour goes on behind a fold, and short lines are as the renderers wrote them."""
    assert fit("\x1b[1mhead\x1b[0m  rest", 40) == "\x1b[1mhead\x1b[0m  rest"
    assert fit("\x1b[31mone two\x1b[0m", 4) == "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m"
