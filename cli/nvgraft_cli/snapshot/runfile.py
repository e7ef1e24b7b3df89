"""The files of a driver that ``NVIDIA-Linux-*.run --extract-only`` has unpacked, where its
installer puts them.

The archive is flat: 64-bit libraries and programs at its top, 32-bit libraries in ``32``, firmware
in ``firmware``.
"""

import posixpath
import re
from collections.abc import Callable

from nvgraft.formats.tree import Node, Tree
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_specs import catalogue

#: The list of its files, which every archive has.
MANIFEST = "/.manifest"

_CUDA = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)")


def is_runfile(tree: Tree) -> bool:
    """Tell whether a tree is an unpacked archive."""
    return _cuda(tree) is not None


def _cuda(tree: Tree) -> re.Match[str] | None:
    return next(filter(None, map(_CUDA.fullmatch, tree.listdir("/"))), None)


class RunfileTree(LayeredTree):
    """An unpacked archive as its installer installs it.

    :param archive: a tree for which :func:`is_runfile` holds.
    :param directories: of the host's libraries, and of those for 32-bit programs, for a machine.
    """

    def __init__(self, archive: Tree, directories: Callable[[str], tuple[str, str]]) -> None:
        self._archive = archive
        self.bounds = archive.bounds
        self._files: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        cuda = _cuda(archive)
        version = cuda[1] if cuda else ""
        wide, narrow = directories(_machine(archive, f"/{cuda[0] if cuda else ''}"))
        programs = {row.name for row in catalogue.BINARIES}
        for name in archive.listdir("/"):
            if ".so" in name:
                self._add(f"{wide}/{name}", f"/{name}")
            elif name in programs:
                self._add(f"/usr/bin/{name}", f"/{name}")
        for name in archive.listdir("/32"):
            if ".so" in name:
                self._add(f"{narrow}/{name}", f"/32/{name}")
        firmware = f"/usr/lib/firmware/nvidia/{version}"
        for name in archive.listdir("/firmware"):
            self._add(f"{firmware}/{name}", f"/firmware/{name}")

    def _add(self, path: str, inside: str) -> None:
        node = self._archive.lstat(inside)
        if node is None or node.type != "file":
            return
        self._files[path] = inside
        while path != "/":
            parent, name = posixpath.split(path)
            self._names.setdefault(parent, set()).add(name)
            path = parent

    def lstat(self, path: str) -> Node | None:
        if path in self._files:
            return self._archive.lstat(self._files[path])
        return Node("dir", 0o755) if path in self._names or path == "/" else None

    def listdir(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def side(self, path: str) -> tuple[Tree, str]:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._archive, self._files[path]


def _machine(archive: Tree, library: str) -> str:
    """Return the ELF machine of a library, such as EM_X86_64; "" if it cannot be read."""
    try:
        return archive.elf(library, sections=False).machine
    except (ValueError, OSError):
        return ""
