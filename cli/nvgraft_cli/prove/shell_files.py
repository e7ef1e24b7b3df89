"""Files of an image as a script sees them: by names relative to its working directory."""

import posixpath
from collections.abc import Callable, Iterator, Mapping

from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft_cli.prove.shell_patterns import is_pattern, matches
from nvgraft_cli.prove.shell_state import UNKNOWN, ShellState

#: Returns the path of a program, from its name, variables and working directory.
FindProgram = Callable[[str, Mapping[str, str], str], str | None]

#: Bytes of a script that are read.
SCRIPT_LIMIT = 128 << 10
#: The most files that are read, and names of a directory for a pattern.
_FILES, _NAMES = 64, 256


class ShellFiles:
    """The files that a script asks for."""

    def __init__(self, tree: Tree, find: FindProgram) -> None:
        self._tree = tree
        self._find = find
        self._read = 0

    def node(self, path: str, state: ShellState) -> Node | None:
        """Return the file that a path leads to, None if there is none.

        :raises OSError, PathError: it is not known.
        """
        return self._tree.find(posixpath.join(state.directory, path))[1]

    def exists(self, path: str, state: ShellState) -> bool:
        """Tell whether a path leads to a file."""
        try:
            return self.node(path, state) is not None
        except (OSError, PathError):
            return False

    def resolved(self, path: str, state: ShellState) -> str | None:
        """Return a path without links, None if it is not known."""
        try:
            return self._tree.resolve(posixpath.join(state.directory, path))
        except (OSError, PathError):
            return None

    def program(self, name: str, state: ShellState) -> str | None:
        """Return the path of a program, None if there is none."""
        return self._find(name, state.variables, state.directory)

    def script(self, name: str, state: ShellState) -> str | None:
        """Return the text of a file that a script reads as a part of itself, or None."""
        self._read += 1
        if UNKNOWN in name or self._read > _FILES:
            return None
        path = posixpath.join(state.directory, name)
        if "/" not in name and not self.exists(name, state):
            path = self.program(name, state) or path
        try:
            data = self._tree.read(self._tree.resolve(path), SCRIPT_LIMIT)
        except (OSError, PathError):
            return None
        return data.decode("utf-8", "surrogateescape")

    def matching(self, pattern: str, state: ShellState) -> Iterator[str]:
        """Yield the paths that match a pattern with wildcards."""
        found = ["/" if pattern.startswith("/") else ""]
        for part in filter(None, pattern.split("/")):
            following = []
            for path in found:
                if not is_pattern(part):
                    following.append(posixpath.join(path, part))
                    continue
                following += [
                    posixpath.join(path, name)
                    for name in sorted(self._names(path, state))
                    if matches(name, part) and (part[0] == "." or name[0] != ".")
                ]
            found = following[:_NAMES]
        yield from (path for path in found if self.exists(path, state))

    def _names(self, path: str, state: ShellState) -> list[str]:
        place = posixpath.join(state.directory, path)
        try:
            return self._tree.listdir(self._tree.resolve(place))[:_NAMES]
        except (OSError, PathError):
            return []
