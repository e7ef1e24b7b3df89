"""Fold the lines of an answer to the width of a terminal, with rich.

The renderers write for files: one fact a line, columns parted by two spaces or more. A line that is
too long goes on below the last column that has a margin before it, or four columns further in.
"""

import re
from collections.abc import Iterator
from io import StringIO

from rich.console import Console
from rich.text import Text

_INDENT = 4
#: Columns that a line keeps at least beside its margin.
_LEAST = 24


def fit(text: str, columns: int) -> str:
    """Return ``text`` with its lines folded to ``columns``. Colours in it are kept."""
    console = Console(
        file=StringIO(),
        width=columns,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for line in text.split("\n"):
        for part in _folded(Text.from_ansi(line), console, columns):
            console.print(part, soft_wrap=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    return str(shown).removesuffix("\n")


def _folded(line: Text, console: Console, columns: int) -> Iterator[Text]:
    if line.cell_len <= columns:
        yield line
        return
    margin = _margin(line.plain, columns)
    first = line.wrap(console, columns, tab_size=8)[0]
    rest = line[len(first.plain) :]
    first.rstrip()
    yield first
    rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
    for part in rest.wrap(console, columns - margin, tab_size=8):
        part.rstrip()
        yield Text(" " * margin) + part


def _margin(line: str, columns: int) -> int:
    """Return the column at which the parts after the first one begin."""
    indent = len(line) - len(line.lstrip(" "))
    last = 0
    for gap in re.finditer(r"(?<=\S)  +(?=\S)", line[:columns]):
        last = gap.end()
    for margin in (last, indent + _INDENT, indent):
        if margin and columns - margin >= min(_LEAST, columns // 2):
            return margin
    return 0
