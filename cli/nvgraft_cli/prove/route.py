"""The way of a loader's search for one library: its rules in order, with the one that it took."""

from dataclasses import dataclass

from nvgraft_cli.prove.loader.loading import Load
from nvgraft_cli.prove.loader.search import BUILT_IN, CACHED, Tried
from nvgraft_cli.prove.proof import Proof

#: The rules in the order of glibc's loader (ld.so(8)) and of musl's. The cache is glibc's alone.
_GLIBC = ("RPATH", "LD_LIBRARY_PATH", "RUNPATH", CACHED, BUILT_IN)
_MUSL = ("LD_LIBRARY_PATH", "RPATH", BUILT_IN)


@dataclass(frozen=True, slots=True)
class Station:
    """A rule of the search.

    :ivar rule: its name, with the object whose RPATH or RUNPATH it is.
    :ivar state: ``taken``, ``passed`` (paths were tried in vain), ``empty`` (it leads to no path)
        or ``beyond`` (the search had ended).
    :ivar tried: the paths that were tried in vain by it.
    :ivar path: the path that was taken, or "".
    """

    rule: str
    state: str
    tried: tuple[Tried, ...] = ()
    path: str = ""


def route(proof: Proof) -> tuple[Station, ...]:
    """Return the stations of the search for the library of a proof.

    Nothing where the search is not known. A library that is found by no search, such as one that
    the program itself needs, has one station.
    """
    load = proof.load
    tried, how = _search(proof.what, load)
    if not how and not tried:
        return ()
    order = _MUSL if "ld-musl" in proof.loader else _GLIBC
    last = next((number for number, rule in enumerate(order) if how.startswith(rule)), None)
    path = "" if load.root is None else load.root.path
    if load.root is not None and last is None:
        return (Station(how, "taken", tried, path),)
    stations = []
    for number, rule in enumerate(order):
        here = tuple(one for one in tried if one.how.startswith(rule))
        if number == last:
            stations.append(Station(how, "taken", here, path))
        elif last is not None and number > last:
            stations.append(Station(rule, "beyond"))
        elif here:
            stations.append(Station(here[0].how, "passed", here))
        else:
            stations.append(Station(rule, "empty"))
    return tuple(stations)


def _search(what: str, load: Load) -> tuple[tuple[Tried, ...], str]:
    """Return the paths that were tried in vain, and the rule that led to the library, or ""."""
    if load.root is not None:
        return load.root.tried, load.root.already_loaded or load.root.how
    failed = next((failure for failure in load.failures if failure.name == what), None)
    return (() if failed is None else failed.tried), ""
