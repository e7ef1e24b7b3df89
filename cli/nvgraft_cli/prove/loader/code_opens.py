"""Open libraries for the code of a program, before the program opens the one in question.

A library that is loaded already answers for its SONAME, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nvgraft_cli.prove.loader.loading import Load, LoadedObjects
    from nvgraft_cli.prove.loader.search import Requester

#: The most libraries that are opened for the code of a program.
_OPENED = 64
#: The most facts of any library that are told.
_FACTS = 4


class OpensLibraries(Protocol):
    """What opens libraries for the code of a program, in its order.

    ``by`` names the code and what it does, as in "/app/main.py, line 2, opens".
    """

    def open(self, name: str, by: str) -> bool | None:
        """Open a library. Tell whether it loads; None if that is not known."""

    def perhaps(self, name: str, by: str) -> None:
        """Note that a library is perhaps opened now."""

    def unknown(self, fact: str, names: Collection[str] = ()) -> None:
        """Note a fact that is not known, by which a library is perhaps opened now.

        :param names: those that it may have, such as libcuda; none where it may be any.
        """

    def mark(self) -> None:
        """Note that code is perhaps run from now on at any time; the first time counts."""

    def return_to_mark(self) -> None:
        """Go on with this code: what it perhaps opens is opened at any time since the mark."""


#: Code of a program that opens libraries.
Code = Callable[[OpensLibraries], None]


class OpenedByCode:
    """The libraries that the code of a running program opens, one after the other.

    It is what :class:`OpensLibraries` describes.

    :ivar loading: the objects that are loaded now.
    """

    def __init__(self, start: LoadedObjects, chain: list[Requester]) -> None:
        self.loading = start
        self._marked: LoadedObjects | None = None
        #: The objects that are loaded when a library is perhaps opened.
        self._moment: LoadedObjects | None = None
        self._chain = chain
        self._left = _OPENED
        #: SONAME -> the path and the file of another library that perhaps answers for it, and the
        #: fact that decides.
        self._perhaps: dict[str, tuple[str, str, str]] = {}
        #: Name without ".so" -> the fact by which a library of that name is perhaps loaded.
        self._unknown: dict[str, str] = {}
        #: Facts by which any library is, each with the names that are loaded then.
        self._any: list[tuple[str, frozenset[str]]] = []

    def open(self, name: str, by: str) -> bool | None:
        loading, opened = self._after(name, by)
        if opened:
            self.loading = loading
        return opened

    def perhaps(self, name: str, by: str) -> None:
        before = self._moment or self.loading
        loading, opened = self._after(name, by)
        for soname, loaded in loading.names_brought(before) if opened else ():
            fact = f"whether {by} {name} first"
            if loaded.path != name:
                fact += f", with which {loaded.path} comes"
            self._perhaps.setdefault(soname, (loaded.path, loaded.file, fact))

    def unknown(self, fact: str, names: Collection[str] = ()) -> None:
        there = (self._moment or self.loading).names
        if not names and len(self._any) < _FACTS:
            self._any.append((fact, frozenset(there)))
        for name in names:
            if not any(soname.startswith(f"{name}.so") for soname in there):
                self._unknown.setdefault(name, fact)

    def mark(self) -> None:
        self._marked = self._marked or self.loading

    def return_to_mark(self) -> None:
        self._moment = self._marked

    def _after(self, name: str, by: str) -> tuple[LoadedObjects, bool | None]:
        """Return the objects after a library is opened, and whether it is; None if that is not
        known.
        """
        self._left -= 1
        loading = (self._moment or self.loading).copy()
        if self._left < 0:
            return loading, None
        return loading, loading.bring_for_code(name, self._chain, by)

    def noted(self, name: str, outcome: Load) -> Load:
        """Return the outcome of a load with what is not known of code that has opened another file
        of that name before.
        """
        unknown = self._unknown.get(name.partition(".so")[0], "")
        path, file, fact = self._perhaps.get(name, ("", "", unknown))
        if fact and (outcome.root is None or outcome.root.file != file):
            outcome.perhaps_opened[path] = fact
            outcome.unknown.append(fact)
        outcome.unknown += [fact for fact, there in self._any if name not in there]
        return outcome
