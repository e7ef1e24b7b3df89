"""What is measured: one case for each start of the hook that is timed, and what comes back for it. Plain data, sent as JSON
from :mod:`bench.command` to :mod:`bench.node` and back."""

from typing import NamedTuple

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


class Outcome(NamedTuple):
    """One case measured: seconds by round, of the hook and of the bare interpreter (and the reference hook, where there is one)
    beside it; ``processor`` and ``bare_processor`` are their seconds of processor time, children included; ``phases`` in
    nanoseconds by round; ``memory`` is the peak in bytes, 0 where it was not looked at; ``syscalls`` and ``executed`` (programs,
    the hook itself left out) are None where strace is not installed."""

    name: str
    seconds: list[float]
    bare: list[float]
    reference: list[float]
    processor: list[float]
    bare_processor: list[float]
    phases: list[dict[str, int]]
    memory: int
    modules: int
    syscalls: int | None
    executed: int | None
