"""Find and read lessons: nvgraft's own, and files of others."""

import json
import os
from pathlib import Path

from nvgraft.base import tomltext
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.parser import nearest
from nvgraft_specs.documents import DocumentError, read_bytes
from nvgraft_specs.models import parse
from nvgraft_specs.models.lesson import SCHEMA, SIZE_LIMIT, Lesson

DATA = Path(__file__).with_name("data")


def names() -> list[str]:
    """Return the names of nvgraft's own lessons, in the order in which they build on each other."""
    return (DATA / "order.txt").read_text(encoding="ascii").split()


def find(name: str) -> Lesson:
    """Return the lesson of a name, or of the path of a file.

    :raises InputError: there is none, or the file cannot be used.
    """
    known = names()
    path = str(DATA / f"{name}.toml") if name in known else name
    if path == name and not os.path.exists(path):
        raise InputError(
            f"there is no lesson and no file {name!r}{nearest(name, known)} | name one of"
            " `nvgraft lab lessons`, or the path of a lesson's file"
        )
    try:
        return parse_lesson(read_bytes(path), path)
    except DocumentError as error:
        raise InputError(str(error)) from error


def parse_lesson(raw: bytes, path: str) -> Lesson:
    """Parse the text of a lesson.

    :param path: the path to name in errors.
    :raises DocumentError: it is not TOML, too large, or a member is wrong.
    """
    if len(raw) > SIZE_LIMIT:
        raise DocumentError(
            path, "", f"larger than {SIZE_LIMIT >> 10} KiB", "shorten it, or split it in two"
        )
    try:
        tables = tomltext.loads(raw.decode())
    except ValueError as error:
        cause = " ".join(str(error).split())
        raise DocumentError(path, "", f"not TOML: {cause}", "correct the file") from None
    # TOML has dates, JSON has not: one counts as its text.
    return parse(Lesson, SCHEMA, json.dumps(tables, default=str).encode(), path)
