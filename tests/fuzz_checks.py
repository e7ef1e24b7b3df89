"""Checks on the answers of fuzzed parsers: text for people has printable characters only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


def controls(text: str) -> str:
    """Return the characters of a text that change how it is shown, but for newline and tab."""
    return "".join(char for char in text if not char.isprintable() and char not in "\n\t")


def check_text(line: str, *, one_line: bool = True) -> None:
    """Check that a message is not empty and, if it is one line, that it has no control characters.

    The engine escapes its messages itself; the CLI escapes its own in one place, when it prints
    them.
    """
    assert line
    assert not one_line or not controls(line), line


@contextmanager
def as_file(data: bytes) -> Iterator[int]:
    """Yield a descriptor of a file that holds ``data``."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
