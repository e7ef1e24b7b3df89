"""One figure of the safety report, and the sizes at which it is measured."""

from typing import NamedTuple

#: ``small`` is for every run of the tests (seconds); ``full`` is for the report (minutes).
SIZES = ("small", "full")


class Figure(NamedTuple):
    """A measured figure: its name, the result, what it has to be, and whether it is that."""

    name: str
    value: str
    target: str
    ok: bool
