"""The lines of a tree of files, which the macro ``tree`` of ``parts.html.j2`` shows."""

from typing import NamedTuple


class TreeLine(NamedTuple):
    """A line of a tree: a directory that opens or closes ("open", "close"), or a "leaf".

    :ivar marks: words beside the name, each with its class; ``others`` stands at a closing line.
    :ivar number: that of its path among those of the switches, or -1.
    """

    kind: str
    name: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    size: int | None = None
    reasons: tuple[tuple[str, str], ...] = ()
    others: str = ""
    number: int = -1
    shown: bool = True
