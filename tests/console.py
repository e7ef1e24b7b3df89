"""Run the commands in the console blocks of docs, and compare their output with the page.

A block starts with ```` ```console ````. A line ``$ nvgraft ...`` is a command, or two with a pipe
between them, which is run in docs/examples; the lines below it are its output, stdout before
stderr. A line ``...`` stands for any lines. ``python tests/console.py PAGE ...`` (with PYTHONPATH as for the tests) writes the
outputs of pages; lines to leave out must be replaced by ``...`` again by hand.
"""

import contextlib
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nvgraft_cli.shell.main import main

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = DOCS / "examples"
_START, _END = "```console", "```"


class Command(NamedTuple):
    """One command of a page: its line number, its words, and its output on the page."""

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
    """Run ``nvgraft`` with ``words`` in docs/examples; return the lines that it prints.

    Behind ``| nvgraft`` another command reads what the first one prints on stdout. Paths of this
    checkout are replaced by /examples and docs.
    """
    if "|" in words:
        end = words.index("|")
        assert words[end + 1] == "nvgraft"
        with tempfile.TemporaryFile("w+") as between:
            between.write(_printed(words[:end])[0])
            between.seek(0)
            kept = os.dup(0)
            os.dup2(between.fileno(), 0)
            try:
                return run(words[end + 2 :])
            finally:
                os.dup2(kept, 0)
                os.close(kept)
    printed = "".join(_printed(words))
    return printed.replace(str(EXAMPLES), "/examples").replace(str(DOCS), "docs").splitlines()


def _printed(words: list[str]) -> tuple[str, str]:
    """Return what a command prints on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    directory = os.getcwd()
    os.chdir(EXAMPLES)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.suppress(SystemExit),
        ):
            main(words)
    finally:
        os.chdir(directory)
    return out.getvalue(), err.getvalue()


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Tell whether the printed lines are the expected ones, where ``...`` stands for any lines."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(agrees(expected[1:], printed[start:]) for start in range(len(printed) + 1))
    if not printed or expected[0] != printed[0].rstrip():
        return False
    return agrees(expected[1:], printed[1:])


def rewrite(page: Path) -> None:
    """Write the outputs of a page."""
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
