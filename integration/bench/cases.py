"""The measured cases, one for each kind of start, and their outcomes.

They are plain data, sent as JSON from :mod:`bench.command` to :mod:`bench.node` and back.
"""

from typing import Any, NamedTuple

#: The request of a container without GPU, and of one that requests everything.
NOTHING: tuple[str, ...] = ()
EVERYTHING = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")


class Case(NamedTuple):
    """One kind of start.

    :ivar cached: whether there is the inventory of an earlier start.
    :ivar image: a directory that becomes the root file system; empty for a nearly empty one.
    :ivar entries: number of libraries that the image's loader cache names.
    :ivar names: number of other files in the image's library directory.
    :ivar phases: also measure the phases by clock.
    :ivar calls: also count the system calls by strace.
    """

    name: str
    variables: tuple[str, ...] = EVERYTHING
    cached: bool = True
    image: str = ""
    entries: int = 0
    phases: bool = False
    calls: bool = False
    names: int = 0


class Times(NamedTuple):
    """Starts of one program, by round: seconds, and seconds of processor time, children
    included.
    """

    seconds: list[float]
    processor: list[float]


class Outcome(NamedTuple):
    """One measured case.

    ``hook``, ``bare`` (the interpreter alone), ``beside`` (the hook of another installation) and
    ``reference`` (NVIDIA's hook) were started in the same rounds; the last two are empty where
    there is none. ``phases`` is in nanoseconds by round; ``memory`` is the peak in bytes, or 0 if
    not measured; ``syscalls`` and ``executed`` (programs, without the hook itself) are None without
    strace.
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
        """Return the outcome of a case before its measurement."""
        hook, bare, beside, reference = (Times([], []) for _ in range(4))
        return cls(name, hook, bare, beside, reference, [], 0, 0, None, None)

    @classmethod
    def from_json(cls, row: list[Any]) -> "Outcome":
        """Return the outcome that was sent as JSON."""
        hook, bare, beside, reference = (Times(*times) for times in row[1:5])
        return cls(row[0], hook, bare, beside, reference, *row[5:])
