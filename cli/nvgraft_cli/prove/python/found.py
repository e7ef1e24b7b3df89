"""Find the file of a module in the directories of sys.path, as Python's importlib does.

Modules of the standard library are not looked for: they open nothing of a driver.
"""

import posixpath
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.at_hand import is_at_hand
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.start.tree_files import names_in

#: Directories of packages without libraries that code opens.
_WITHOUT_LIBRARIES = {"__pycache__", "include", "stubs", "test", "tests"}


@dataclass(frozen=True, slots=True)
class FoundModule:
    """A module.

    :ivar path: its source or shared object; "" for a package without a source.
    :ivar directory: that of a package; "" for another module.
    :ivar is_shared: whether it is an extension module.
    """

    path: str
    directory: str = ""
    is_shared: bool = False


class ModuleFinder:
    """Finds modules.

    :param path: sys.path, which code may change.
    :param standard: those of its directories that have the standard library.
    :param tag: that of the interpreter in the names of extension modules; "" if it is not known.
    :param may_read: tells whether the program's user may read the file at a resolved path.
    """

    def __init__(
        self,
        tree: PlannedTree,
        path: list[str],
        standard: Sequence[str],
        tag: str,
        may_read: Callable[[str], bool],
    ) -> None:
        self._tree = tree
        self.path = path
        self._standard = frozenset(standard)
        self._tag = tag
        self._may_read = may_read
        self._listed: dict[str, frozenset[str]] = {}

    def find(self, name: str, *, also_standard: bool = False) -> FoundModule | None:
        """Return a module of the top level, None if there is none outside of the standard library.

        :param also_standard: whether one in the directories of the standard library counts.
        """
        if name in sys.builtin_module_names:
            return None
        spread = None
        for entry in self.path:
            if entry in self._standard and not also_standard:
                if name in sys.stdlib_module_names:
                    return None
                continue
            found = self.find_in(entry, name)
            if found is not None and found.path:
                return found
            spread = spread or found
        return None if name in sys.stdlib_module_names else spread

    def find_in(self, directory: str, name: str) -> FoundModule | None:
        """Return the module of a name in a directory of sys.path, or of a package."""
        names = self._names(directory)
        place = f"{directory}/{name}"
        if name in names:
            inside = self._names(place)
            for file in self._files_of("__init__", inside):
                return FoundModule(f"{place}/{file}", place, file.endswith(".so"))
        for file in self._files_of(name, names):
            return FoundModule(f"{directory}/{file}", "", file.endswith(".so"))
        return FoundModule("", place) if name in names and self._names(place) else None

    def _files_of(self, name: str, names: frozenset[str]) -> list[str]:
        """Return the file of a module among names, the first that Python takes."""
        shared = [
            file
            for file in sorted(names)
            if file.startswith(f"{name}.") and file.endswith(".so") and self._fits(file)
        ]
        other = [f"{name}{ending}" for ending in (".py", ".pyc") if f"{name}{ending}" in names]
        return [*shared, *other][:1]

    def _fits(self, file: str) -> bool:
        """Tell whether an extension module is for this interpreter: of another one it has the tag,
        of any version abi3 or none.
        """
        middle = file.split(".")[1:-1]
        if not middle or middle == ["abi3"]:
            return True
        return len(middle) == 1 and (not self._tag or middle[0].startswith(f"{self._tag}-"))

    def _names(self, directory: str) -> frozenset[str]:
        known = self._listed.get(directory)
        if known is None:
            known = self._listed[directory] = frozenset(names_in(self._tree, directory))
        return known

    def source(self, path: str, limit: int) -> str | None:
        """Return the text of a source; None if it cannot be read at once, or is larger than
        ``limit``.
        """
        try:
            resolved = self._tree.resolve(path)
            if not (self._may_read(resolved) and is_at_hand(self._tree, resolved)):
                return None
            return self._tree.read(resolved, limit).decode("utf-8", "replace")
        except (OSError, PathError):
            return None

    def files_below(self, place: str, directories: int) -> list[str]:
        """Return the paths of shared objects of a package, in its first directories.

        Directories of stubs are left out: no code opens what they are for linkers.
        """
        queue, found = [place, f"{place}.libs"], list[str]()
        while queue and directories:
            directory = queue.pop(0)
            directories -= 1
            for name in sorted(self._names(directory)):
                path = posixpath.join(directory, name)
                if ".so" in name:
                    found.append(path)
                elif "." not in name and name not in _WITHOUT_LIBRARIES:
                    queue.append(path)
        return found
