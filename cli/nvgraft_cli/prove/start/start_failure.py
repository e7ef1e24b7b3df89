"""Why a program does not start, as the kernel or the runtime says it."""

from enum import Enum, auto
from typing import NamedTuple

from nvgraft.base.errors import printable


class StartCause(Enum):
    """What keeps a program from starting."""

    MISSING = auto()  #: there is no such file
    NOT_EXECUTED = auto()  #: the user may not execute it
    NO_PROGRAM = auto()  #: the kernel does not start such a file
    NOT_PERMITTED = auto()  #: the container lacks a file capability of it
    USER_NOT_CHANGED = auto()  #: the container lacks a capability to change its user
    NOT_MOUNTED = auto()  #: the runtime cannot make a mount of config.json
    ENDED = auto()  #: the script before it ends


class StartFailure(NamedTuple):
    """A program that does not start.

    :ivar words: those of the runtime or the kernel.
    """

    words: str
    cause: StartCause


def failure(words: str, cause: StartCause) -> StartFailure:
    """Return a failure, with its words in printable characters."""
    return StartFailure(printable(words), cause)
