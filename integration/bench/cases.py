"""What is measured: one case for each start of the hook that is timed, and what comes back for it. Plain data, sent as JSON
from :mod:`bench.command` to :mod:`bench.node` and back."""

from typing import Any, NamedTuple

#: The request of a container that wants no GPU, and of one that wants all that there is.
NOTHING: tuple[str, ...] = ()
EVERYTHING = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


class Case(NamedTuple):
    """One kind of start.

    ``cached``: with the inventory of an earlier start. ``image``: a directory that becomes the root file system, empty for one
    with hardly anything in it. ``entries``: libraries that the image's loader cache names. ``phases`` and ``calls``: look inside
    as well, by clock and by strace.
    """

    name: str
    variables: tuple[str, ...] = EVERYTHING
    cached: bool = True
    image: str = ""
    entries: int = 0
    phases: bool = False
    calls: bool = False


class Times(NamedTuple):
    """Starts of one program, by round: their seconds, and their seconds of processor time, children included."""

    seconds: list[float]
    processor: list[float]


class Outcome(NamedTuple):
    """One case measured.

    ``hook``, ``bare`` (the interpreter alone), ``beside`` (the hook of another installation) and ``reference`` (NVIDIA's hook)
    were started in the same rounds; the last two are empty where there is none. ``phases`` is in nanoseconds by round;
    ``memory`` is the peak in bytes, 0 where it was not measured; ``syscalls`` and ``executed`` (programs, the hook itself left
    out) are None where strace is not installed.
    """

    name: str
    hook: Times
    bare: Times
    beside: Times
    reference: Times
    phases: list[dict[str, int]]
    memory: int
    modules: int
    syscalls: int | None
    executed: int | None

    @classmethod
    def begun(cls, name: str) -> "Outcome":
        """Return the outcome of a case that is yet to be measured."""
        hook, bare, beside, reference = (Times([], []) for _ in range(4))
        return cls(name, hook, bare, beside, reference, [], 0, 0, None, None)

    @classmethod
    def from_json(cls, row: list[Any]) -> "Outcome":
        """Return the outcome that was sent as JSON."""
        hook, bare, beside, reference = (Times(*times) for times in row[1:5])
        return cls(row[0], hook, bare, beside, reference, *row[5:])
