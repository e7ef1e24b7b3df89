"""Write the causes and next steps of ``nvgraft explain-error`` into docs/failures.md.

    PYTHONPATH=hook:cli:specs:tests .venv/bin/python tests/failures_page.py

Headings, phrases, reports and all other paragraphs of a section are written by hand and stay.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from nvgraft_specs import errors

PAGE = Path(__file__).parent.parent / "docs/failures.md"

_SECTION = re.compile(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ANCHOR = "#how-a-gpu-is-given"
_SURROUNDINGS = re.compile(r"(?<=^## How a GPU is given\n\n)(?:- .*\n)*", re.MULTILINE)
_WRITTEN = re.compile(r"^At the stage \*.*?\n\n(?:- .*\n)+\n?", re.MULTILINE)


def rewritten(page: str) -> str:
    """Return ``page`` with the present causes and next steps."""
    given = "".join(f"- {text}\n" for text in _table("surroundings").values())
    page = _SURROUNDINGS.sub(lambda _: given, page)
    return _SECTION.sub(lambda section: f"## {section[1]}\n{_body(section[1], section[2])}", page)


def _body(failure: str, body: str) -> str:
    head, fence, tail = _WRITTEN.sub("", body).partition("\n```\n\n")
    return head + fence + "".join(_rows(failure)) + tail


def _rows(failure: str) -> Iterator[str]:
    shared = _table("steps")
    for row in (row for file in _data() for row in file.get("error", ())):
        if row.get("failure") != failure:
            continue
        yield f"At the stage *{row['stage']}*: {_named(row['cause'])}.\n\n"
        for other in row.get("otherwise", ()):
            if other == "=surroundings":
                yield f"- [the surroundings]({_ANCHOR}) decide how the GPU is given\n"
            else:
                yield f"- {_named(other if isinstance(other, str) else other['text'])}\n"
        if "rarer" in row:
            yield f"- rarer: {_named('; '.join(row['rarer']))}\n"
        for step in row["next"]:
            yield f"- {_named(shared[step[1:]] if step.startswith('=') else step)}\n"
        yield "\n"


@cache
def _data() -> tuple[dict[str, Any], ...]:
    folder = Path(errors.__file__).parent
    return tuple(
        tomllib.loads((folder / f"{name}.toml").read_text("utf-8")) for name in errors.FILES
    )


def _table(name: str) -> dict[str, str]:
    found: dict[str, str] = next(file[name] for file in _data() if name in file)
    return found


def _named(text: str) -> str:
    """Return ``text`` with words in capitals for the names that an error contains."""
    text = re.sub(r"\{\d:\w+\}", "what that is", text)
    for group, word in (("{1}", "NAME"), ("{2}", "VALUE"), ("{3}", "VALUE")):
        text = text.replace(group, word)
    return text


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8")), "utf-8")
