"""Files of an image as a script sees them: by names relative to its working directory."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from nvgraft.formats.tree import LOOP, Node, PathError, Tree
from nvgraft_cli.case.file_changes import SCRIPT_LIMIT, UNKNOWN
from nvgraft_cli.prove.script.patterns import is_pattern, matches
from nvgraft_cli.prove.script.state import ShellState
from nvgraft_cli.prove.script.syntax import NotUnderstood

#: Returns the path of a program, from its name, variables and working directory.
FindProgram = Callable[[str, Mapping[str, str], str], str | None]
#: Tells whether it is not known what is at a path: it is on a volume that is not read.
IsHidden = Callable[[str], bool]
#: Tells whether a path leads to a file of the host, into which nothing can be written.
IsMounted = Callable[[str], bool]
#: Tells whether the user of the script may read the file at a path without links.
MayRead = Callable[[str], bool]
#: Returns why a file cannot be written at a path, by the file or directory without links that is
#: there or above it; "" where it can, None where that is not known.
NotWritten = Callable[[str, str], str | None]

#: A line of a written file of which not even the command is known: it may set any variable.
_OPAQUE = re.compile(r"^[ \t]*(?:export[ \t]+)?\0", re.MULTILINE)
#: Where bash has the output of ``<(COMMANDS)``, at numbers from 63 down.
_OPENED = "/dev/fd/"
#: The most files that are read or written, and names of a directory for a pattern.
_FILES, _NAMES = 64, 256
#: The most changes of files, and links that lead to one another.
_CHANGES, _FOLLOWED = 64, 8


class ShellFiles:
    """The files that a script asks for.

    :ivar machine: the kernel's name of the architecture, "" where it is not known.
    """

    def __init__(
        self,
        tree: Tree,
        find: FindProgram,
        machine: str,
        hidden: IsHidden = lambda _: False,
        mounted: IsMounted = lambda _: False,
        may_read: MayRead = lambda _: True,
        not_written: NotWritten = lambda _path, _there: None,
    ) -> None:
        self.machine = machine
        self._hidden = hidden
        self._mounted = mounted
        self._may_read = may_read
        self._not_written = not_written
        self._tree = tree
        self._find = find
        self._read = self._kept = 0

    def place(self, path: str, state: ShellState) -> str:
        """Return where a path leads, without links where that is known."""
        path = posixpath.normpath(posixpath.join("/", state.directory, path))
        directory, name = posixpath.split(path)
        try:
            return path if UNKNOWN in path else posixpath.join(self._tree.resolve(directory), name)
        except (OSError, PathError):
            return path

    def write(
        self, path: str, text: str | None, state: ShellState, *, append: bool = False
    ) -> None:
        """Note what is written to a file; None is what is not known."""
        place = self.place(path, state)
        if UNKNOWN in path or place.startswith(("/dev/", "/proc/", "/sys/")):
            return
        if self.is_mounted(place, state):
            return
        before = (self.text(path, state) if self.exists(path, state) else "") if append else ""
        known = text is not None and before is not None and len(before) + len(text) < SCRIPT_LIMIT
        self._forget(place, state)
        state.written[place] = f"{before}{text}" if known else UNKNOWN

    def keep(self, text: str, state: ShellState) -> str:
        """Keep the output of commands as the file that bash makes of it; return its path."""
        path = f"{_OPENED}{63 - self._kept}"
        self._kept += 1
        place = self.place(path, state)
        self._forget(place, state)
        state.written[place] = text if UNKNOWN in text else f"{text}\n"
        return path

    def prevents(self, path: str, state: ShellState, *, replaces: bool = True) -> str:
        """Return why a file certainly cannot be made or removed at a path, "" otherwise.

        :param replaces: False for what writes into a file that is there.
        """
        return self._prevents(path, state, replaces=replaces) or ""

    def _prevents(self, path: str, state: ShellState, *, replaces: bool) -> str | None:
        """Return the same, and None where it is not known."""
        target = place = self.place(path, state)
        if UNKNOWN in place or place.startswith(("/dev/", "/proc/", "/sys/")):
            return None
        changed = {*state.written, *state.links, *state.copies, *state.directories}
        while True:
            if place in changed or any(f"{place}/".startswith(f"{p}/") for p in state.touched):
                return None
            try:
                resolved, node = self._tree.find(place)
            except (OSError, PathError):
                return None
            if node is not None and not replaces:
                return None if self._hidden(resolved) else self._not_written(target, resolved)
            if place == "/":
                return None
            place, replaces = posixpath.dirname(place), False

    def is_writable(self, path: str, state: ShellState) -> bool | None:
        """Tell whether the script's user may write to what is at a path, None if not known."""
        if self.is_mounted(path, state):
            return None
        why = self._prevents(path, state, replaces=False)
        return None if why is None else not why

    def is_mounted(self, path: str, state: ShellState) -> bool:
        """Tell whether a path leads to a file of the host, which no script changes."""
        place = self.place(path, state)
        changed = place in state.written or place in state.links or place in state.copies
        return not changed and self._mounted(place)

    def _forget(self, place: str, state: ShellState) -> None:
        """Forget what was at a place before it is written, linked or copied to."""
        state.written.pop(place, None)
        state.links.pop(place, None)
        state.copies.pop(place, None)
        if len(state.written) + len(state.links) + len(state.copies) >= _CHANGES:
            raise NotUnderstood("the script changes too many files")

    def copy(self, source: str, path: str, state: ShellState) -> None:
        """Note that a file is copied."""
        if UNKNOWN in source + path:
            return
        source, place = self.followed(source, state), self.place(path, state)
        self._forget(place, state)
        if (text := state.written.get(source)) is not None:
            state.written[place] = text
        else:
            state.copies[place] = state.copies.get(source, source)

    def link(self, target: str, path: str, state: ShellState) -> None:
        """Note that a symbolic link is made."""
        if UNKNOWN not in target + path:
            place = self.place(path, state)
            self._forget(place, state)
            state.links[place] = target

    def followed(self, path: str, state: ShellState) -> str:
        """Return where a path leads, also by links that the script has made."""
        place = self.place(path, state)
        for _ in range(_FOLLOWED):
            if place not in state.links:
                break
            place = self.place(posixpath.join(posixpath.dirname(place), state.links[place]), state)
        return place

    def remove(self, path: str, state: ShellState) -> None:
        """Note that a file or directory is removed."""
        if UNKNOWN not in path:
            place = self.place(path, state)
            self._forget(place, state)
            state.written[place] = None
            state.touched.add(place)

    def make_directory(self, path: str, state: ShellState) -> None:
        """Note that a directory is made, with those above it."""
        place = "" if UNKNOWN in path else self.place(path, state)
        while place not in {"", "/"} and len(state.directories) < _NAMES:
            state.directories.add(place)
            place = posixpath.dirname(place)

    def is_directory(self, path: str, state: ShellState) -> bool:
        """Tell whether a path leads to a directory."""
        try:
            node = self.node(path, state)
        except (OSError, PathError):
            return False
        return node is not None and node.type == "dir"

    def text(self, path: str, state: ShellState) -> str | None:
        """Return the text of a file, None if it is not known."""
        self._read += 1
        if UNKNOWN in path or self._read > _FILES:
            return None
        place = self.followed(path, state)
        if place in state.written:
            return state.written[place]
        place = state.copies.get(place, place)
        try:
            data = self._tree.read(self._tree.resolve(place), SCRIPT_LIMIT)
        except (OSError, PathError):
            return None
        return data.decode("utf-8", "surrogateescape")

    def node(self, path: str, state: ShellState) -> Node | None:
        """Return the file that a path leads to, None if there is none.

        :raises OSError, PathError: it is not known.
        """
        place = self.followed(path, state)
        if UNKNOWN in place:
            raise FileNotFoundError(place)
        if place in state.copies:
            return self._tree.find(state.copies[place])[1]
        if place in state.written:
            text = state.written[place]
            if text == UNKNOWN and place in state.touched:
                raise FileNotFoundError(place)  # a branch that is perhaps run writes it
            return None if text is None else Node("file", 0o755, size=len(text))
        if place in state.directories:
            return Node("dir", 0o755)
        if any(f"{place}/".startswith(f"{touched}/") for touched in state.touched):
            raise FileNotFoundError(place)
        return self._tree.find(place)[1]

    def exists(self, path: str, state: ShellState) -> bool:
        """Tell whether a path leads to a file."""
        try:
            return self.node(path, state) is not None
        except (OSError, PathError):
            return False

    def is_readable(self, path: str, state: ShellState) -> bool:
        """Tell whether the script's user may read a file, also where that is not known."""
        place = self.followed(path, state)
        if UNKNOWN in place or place in state.written or place in state.copies:
            return True
        try:
            return self._may_read(self._tree.resolve(place))
        except (OSError, PathError):
            return True

    def lacks(self, path: str, state: ShellState) -> bool:
        """Tell whether it is certain that a path leads to no file."""
        place = self.followed(path, state)
        if UNKNOWN in path or self._hidden(place):
            return False
        try:
            return self.node(path, state) is None
        except PathError as error:
            return error.cause != LOOP
        except OSError:
            return False

    def lacks_program(self, name: str, state: ShellState) -> bool:
        """Tell whether it is certain that there is no program of a name."""
        if "/" in name:
            return self.lacks(name, state)
        path = state.value("PATH") or ""
        places = [posixpath.join(place, name) for place in path.split(":") if place]
        return bool(places) and all(self.lacks(place, state) for place in places)

    def resolved(self, path: str, state: ShellState) -> str | None:
        """Return a path without links, None if it is not known."""
        path = posixpath.join(state.directory, path)
        try:
            return None if UNKNOWN in path else self._tree.resolve(path)
        except (OSError, PathError):
            return None

    def program(self, name: str, state: ShellState) -> str | None:
        """Return the path of a program, None if there is none."""
        return self._find(name, state.variables, state.directory)

    def script(self, name: str, state: ShellState) -> str | None:
        """Return the text of a file that a script reads as a part of itself, or None."""
        path = posixpath.join(state.directory, name)
        if UNKNOWN not in name and "/" not in name and not self.exists(name, state):
            path = self.program(name, state) or path
        text = self.text(path, state) if self.is_readable(path, state) else None
        return None if text is None or _OPAQUE.search(text) else text

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
                    for name in self.names(path, state)[:_NAMES]
                    if matches(name, part) and (part[0] == "." or name[0] != ".")
                ]
            found = following[:_NAMES]
        yield from (path for path in found if self.exists(path, state))

    def kind(self, path: str, state: ShellState, *, follow: bool) -> str | None:
        """Return the type of the file at a path, None if there is none.

        :raises OSError, PathError: it is not known.
        """
        place = self.place(path, state)
        if self._hidden(place):
            raise FileNotFoundError(place)
        there = None if place in {"/", *state.links} else self._tree.lstat(place)
        linked = place in state.links or (there is not None and there.type == "symlink")
        changed = place in state.written or place in state.copies
        if linked and not follow and not changed:
            return "symlink"
        node = self.node(path, state)
        return None if node is None else node.type

    def names(self, path: str, state: ShellState) -> list[str]:
        """Return the names in a directory, in order."""
        place = self.place(path, state)
        made = [*state.written, *state.links, *state.copies, *state.directories]
        names = {posixpath.basename(one) for one in made if posixpath.dirname(one) == place}
        with suppress(OSError, PathError):
            names |= set(self._tree.listdir(self._tree.resolve(place)))
        return sorted(names)
