"""Changes of files that scripts of a container make before its program."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nvgraft.formats.elf import ElfFacts
from nvgraft.formats.tree import Node, Tree

#: A part of a text that is not known. No file that a script reads has this character.
UNKNOWN = "\0"
#: Bytes of a script that are read, and of a text that is written.
SCRIPT_LIMIT = 128 << 10


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What is changed, under paths without links.

    :ivar texts: what is written to files; a part that is not known is ``UNKNOWN``.
    :ivar links: targets of symbolic links.
    :ivar copies: the files that are copied to a path.
    :ivar directories: those that are made.
    :ivar removed: files and directories.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    def only_texts(self) -> "FileChanges":
        """Return the texts and directories alone."""
        return FileChanges(texts=self.texts, directories=self.directories)

    def where(self, writable: Callable[[str], bool]) -> "FileChanges":
        """Return the changes at paths that are writable."""
        return FileChanges(
            {path: text for path, text in self.texts.items() if writable(path)},
            {path: target for path, target in self.links.items() if writable(path)},
            {path: source for path, source in self.copies.items() if writable(path)},
            frozenset(filter(writable, self.directories)),
            frozenset(filter(writable, self.removed)),
        )


class TextTree(Tree):
    """Texts that scripts have written, each under its path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.label = "the container's scripts"
        self._texts = texts

    def lstat(self, path: str) -> Node | None:
        text = self._texts.get(path)
        return None if text is None else Node("file", 0o755, size=len(text))

    def listdir(self, path: str) -> list[str]:
        return []

    def read(self, path: str, limit: int) -> bytes:
        data = self._texts[path].encode("utf-8", "surrogateescape")
        if len(data) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return data

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        raise ValueError("it is a text")

    def close(self) -> None:
        """Nothing was opened."""
