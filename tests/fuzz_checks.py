"""What every fuzzed parser's answers are held against: texts for people steer no terminal."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

#: All but newline and tab.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def controls(shown: str) -> str:
    """Return the characters of a text that would steer a terminal."""
    return "".join(_CONTROLS.findall(shown))


def check_text(line: str, *, one_line: bool = True) -> None:
    """Messages of the engine arrive escaped; the CLI escapes its own when it prints them, in one place."""
    assert line
    assert not one_line or not controls(line), line


@contextmanager
def as_file(data: bytes) -> Iterator[int]:
    """A context with an open file that holds ``data``."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
