"""One figure of the safety report, and the sizes at which it is measured."""

from typing import NamedTuple

#: ``small`` is for every run of the tests (seconds); ``full`` is for the report (minutes).
SIZES = ("small", "full")


class Figure(NamedTuple):
    """A measured figure: what was counted, what came out, what had to come out, and whether it did."""

    name: str
    value: str
    target: str
    ok: bool
