"""The console blocks of docs: each command is run, and what stands below it is what it prints.

A block starts with ```` ```console ````; a line ``$ nvgraft ...`` is a command, run in docs/examples, the lines up to the next
one its output, stdout before stderr. A line ``...`` stands for any lines. ``python tests/console.py`` (with PYTHONPATH as
for the tests) writes the outputs of all pages anew; what a page wants to leave out has to be taken out again by hand.
"""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nvgraft_cli.shell.main import main

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = DOCS / "examples"
_START, _END = "```console", "```"


class Command(NamedTuple):
    """One command of a page: the line it stands on, its words, and the lines that are said to follow."""

    line: int
    words: list[str]
    output: list[str]


def pages() -> list[Path]:
    """Return every page with console blocks."""
    return sorted(path for path in DOCS.rglob("*.md") if _START in path.read_text())


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands of a page."""
    inside = False
    current: Command | None = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line == (_END if inside else _START):
            if current is not None:
                yield current
            inside, current = not inside, None
        elif inside and line.startswith("$ "):
            if current is not None:
                yield current
            current = Command(number, shlex.split(line[2:]), [])
        elif inside and current is not None:
            current.output.append(line)


def run(words: list[str]) -> list[str]:
    """Run ``nvgraft`` with the words after it, in docs/examples; return what it prints, without the names of this machine's directories."""
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd()
    os.chdir(EXAMPLES)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.suppress(SystemExit),
        ):
            main(words)
    finally:
        os.chdir(before)
    printed = out.getvalue() + err.getvalue()
    return printed.replace(str(EXAMPLES), "/examples").replace(str(DOCS), "docs").splitlines()


def agrees(said: list[str], printed: list[str]) -> bool:
    """Tell whether what a page says is what was printed, ``...`` standing for any lines."""
    if not said:
        return not printed
    if said[0] == "...":
        return any(agrees(said[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and said[0] == printed[0].rstrip() and agrees(said[1:], printed[1:])


def rewrite(page: Path) -> None:
    """Write the outputs of a page anew."""
    lines: list[str] = []
    inside = False
    for line in page.read_text().splitlines():
        if line == (_END if inside else _START):
            inside = not inside
            lines.append(line)
        elif not inside:
            lines.append(line)
        elif line.startswith("$ "):
            lines.append(line)
            lines += [text.rstrip() for text in run(shlex.split(line[2:])[1:])]
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
