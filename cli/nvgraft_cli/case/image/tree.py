"""The root file system of an image, put together in memory from the tar entries of its layers.

Nothing is unpacked: no name, device or link of an archive reaches a file system of this host.
Contents are read from the archive when they are needed; small files are kept in memory, because
planning reads them.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from nvgraft.formats.elf import ElfFacts, read_facts
from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft_cli.case.image.tar import DAMAGE, Archive, Stream
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.progress import Progress

if TYPE_CHECKING:
    import tarfile

#: The most bytes of a file that is kept in memory: configuration, and the loader cache of most
#: images.
KEPT = 64 << 10
#: The most bytes of all files that are kept.
KEPT_TOTAL = 64 << 20
#: The most entries of all layers, and bytes of their paths. A CUDA development image has about
#: 60,000 entries with 80 bytes each.
ENTRIES = 2_000_000
PATHS = 256 << 20
#: The most bytes of one path, as in the kernel.
_PATH = 4096
#: The most bytes that are read from one file; the largest libraries of CUDA have fewer.
FILE_LIMIT = 1 << 30

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

Opener = Callable[[], IO[bytes]]
"""Opens one layer, decompressed, at its beginning."""


class _Content:
    """The bytes of a regular file, or their ``offset`` in a decompressed layer."""

    __slots__ = ("data", "layer", "offset")

    def __init__(self, layer: int, offset: int, data: bytes | None) -> None:
        self.layer = layer
        self.offset = offset
        self.data = data


class ImageTree(Tree):
    """The files of an image, before anything is mounted in a container of it."""

    def __init__(self, label: str, layers: Sequence[tuple[str, Opener]]) -> None:
        """Read every layer once, lowest first.

        :param label: the image's name in messages.
        :param layers: name and opener of each layer.
        :raises InputError: a layer is not a tar archive, or does not fit onto the lower ones.
        """
        self.label = label
        self._layers = layers
        self._nodes: dict[str, Node] = {"/": Node("dir", 0o755)}
        self._names: dict[str, set[str]] = {"/": set()}
        self._contents: dict[str, _Content] = {}
        self._changed: dict[str, int] = {}
        self._kept = 0
        self._entries = 0
        self._paths = 0
        with Progress(f"reading {os.path.basename(label)}", 0, "entries") as progress:
            for number, (name, _) in enumerate(layers):
                try:
                    for _ in self._add_layer(number):
                        progress.step()
                    logs.debug("read", layer=name, entries=self._entries)
                except DAMAGE as error:
                    raise InputError(
                        f"{label}: layer {name}: {str(error).lower()}: the archive is"
                        " damaged: save the image again"
                    ) from error

    def _add_layer(self, layer: int) -> Iterator[None]:
        hidden: set[str] = set()
        emptied: set[str] = set()
        made: set[str] = set()
        with self._open(layer) as archive:
            for member in archive.entries():
                self._count(len(member.name))
                path = self._place(member.name)
                parent, _, name = path.rpartition("/")
                if name == _OPAQUE:
                    emptied.add(parent)
                elif name.startswith(_WHITEOUT):
                    gone = name.removeprefix(_WHITEOUT)
                    if gone in {"", ".", ".."}:
                        raise InputError(
                            f"{self.label}: the whiteout {path} names no file: save the image again"
                        )
                    hidden.add(f"{parent}/{gone}")
                elif path != "/":
                    self._add(path, member, layer, archive)
                    made.add(path)
                yield
        # Whiteouts hide files of lower layers, but none of this layer, in whatever order the
        # entries are.
        for parent in emptied:
            hidden.update(f"{parent}/{child}" for child in self._names.get(parent or "/", ()))
        self._hide(hidden, made)

    def _count(self, length: int) -> None:
        """Count one more path.

        :raises InputError: there are too many.
        """
        self._entries += 1
        self._paths += length
        if self._entries > ENTRIES or self._paths > PATHS:
            raise InputError(
                f"{self.label}: more than {ENTRIES:,} entries, or {PATHS >> 20} MiB of names:"
                " this image is damaged or malicious"
            )

    @contextmanager
    def _open(self, layer: int) -> Iterator[Archive]:
        with (
            self._layers[layer][1]() as file,
            Archive.open(
                fileobj=cast("IO[bytes]", Stream(file)), mode="r|", errorlevel=0
            ) as archive,
        ):
            yield archive

    def _place(self, name: str) -> str:
        """Return the path of an entry, with symbolic links in its directory followed inside the
        image.

        :raises InputError: the name leads out of the image, or through a file.
        """
        if len(name) > _PATH:
            raise InputError(
                f"{self.label}: an entry whose name has {len(name)} characters:"
                " this image is damaged or malicious"
            )
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if not parts:
            return "/"
        if ".." in parts:
            raise InputError(
                f"{self.label}: the entry {name} leads out of its directory:"
                " this image is malicious, use another one"
            )
        parent = "/" + "/".join(parts[:-1])
        try:
            resolved = self.resolve(parent)
        except PathError as error:
            raise InputError(
                f"{self.label}: the entry {name}: {error.text}:"
                " this image is malicious, use another one"
            ) from error
        above = self._nodes.get(resolved)
        if above is not None and above.type != "dir":
            raise InputError(
                f"{self.label}: the entry {name}: {resolved} is not a directory: save the"
                " image again"
            )
        return resolved.rstrip("/") + "/" + parts[-1]

    def _add(self, path: str, member: "tarfile.TarInfo", layer: int, archive: Archive) -> None:
        if member.islnk():
            source = self._place(member.linkname)
            node, content, changed = (
                self._nodes.get(source),
                self._contents.get(source),
                self.changed(source),
            )
            if node is None or node.type == "dir":
                lacks = "which the image does not have" if node is None else "which is a directory"
                raise InputError(
                    f"{self.label}: {member.name} is a hard link to {member.linkname}, {lacks}:"
                    " save the image again"
                )
            self._remove(path)
            self._put(path, node)
            self._changed[path] = changed
            if content is not None:
                self._contents[path] = content
            return
        kind = _kind(member)
        before = self._nodes.get(path)
        if before is not None and (before.type != "dir" or kind != "dir"):
            self._remove(path)
        rdev = (member.devmajor, member.devminor) if kind in {"char", "block"} else None
        target = member.linkname if kind == "symlink" else ""
        self._put(
            path,
            Node(
                kind,
                member.mode & 0o7777,
                member.uid,
                member.gid,
                target,
                rdev,
                member.size if kind == "file" else 0,
            ),
        )
        self._changed[path] = int(member.mtime * 10**9)
        if kind == "file":
            data = None
            if member.size <= KEPT and self._kept + member.size <= KEPT_TOTAL:
                source_file = archive.extractfile(member)
                data = source_file.read() if source_file is not None else b""
                self._kept += len(data)
            self._contents[path] = _Content(layer, member.offset_data, data)

    def _put(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        if node.type == "dir":
            self._names.setdefault(path, set())
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            known = parent in self._nodes
            self._names.setdefault(parent, set()).add(name)
            if known:
                return
            self._count(len(parent))
            # A layer need not have entries for the directories above its files.
            self._nodes[parent] = Node("dir", 0o755)
            path = parent

    def _hide(self, hidden: set[str], made: set[str]) -> None:
        """Remove the files of lower layers at and below ``hidden`` paths, but not those in
        ``made``.
        """
        above = "//"
        for path in sorted(path + "/" for path in hidden):
            if path.startswith(above):
                continue  # its directory is hidden
            above = path
            top = path.removesuffix("/")
            node = self._nodes.get(top)
            if node is None or (top in made and node.type != "dir"):
                continue
            # The deepest first: a directory that is not empty stays.
            for below in reversed(self._walk(top)):
                if below not in made and not self._names.get(below):
                    self._forget(below)

    def _remove(self, path: str) -> None:
        for below in reversed(self._walk(path)):
            self._forget(below)

    def _walk(self, path: str) -> list[str]:
        """Return ``path`` and all paths below it, each after its directory."""
        paths = [path]
        for parent in paths:  # the list grows meanwhile
            paths += [f"{parent}/{name}" for name in self._names.get(parent, ())]
        return paths

    def _forget(self, path: str) -> None:
        if self._nodes.pop(path, None) is None:
            return
        self._names.pop(path, None)
        self._changed.pop(path, None)
        self._contents.pop(path, None)
        parent, _, name = path.rpartition("/")
        self._names.get(parent or "/", set()).discard(name)

    def lstat(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def changed(self, path: str) -> int:
        """Return the modification time of a resolved ``path`` in nanoseconds.

        A directory without an entry in any layer is made when an engine unpacks the image, so it is
        newer than everything else.
        """
        return self._changed.get(path, 1 << 63)

    def read(self, path: str, limit: int) -> bytes:
        data = b""

        def take(_path: str, content: bytes) -> None:
            nonlocal data
            data = content

        self._visit([path], limit, take)
        return data

    def _visit(self, paths: Iterable[str], limit: int, take: Callable[[str, bytes], None]) -> None:
        """Call ``take`` with each path and its content, in the order of the archive, each layer
        read once.

        :raises OSError: as :meth:`read`.
        """
        layers: dict[int, list[tuple[int, str]]] = {}
        for path in paths:
            node = self._nodes.get(path)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if node.type != "file":
                raise OSError(errno.EINVAL, "not a regular file", path)
            if node.size > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
            content = self._contents[path]
            if content.data is not None:
                take(path, content.data)
            else:
                layers.setdefault(content.layer, []).append((content.offset, path))
        for layer, places in sorted(layers.items()):
            with self._layers[layer][1]() as file:
                for offset, path in sorted(places):
                    file.seek(offset)
                    data = _exactly(file, self._nodes[path].size)
                    if data is None:
                        raise OSError(errno.EIO, "the archive has changed", path)
                    take(path, data)

    def open(self, path: str) -> int:
        """Return a descriptor of a copy of the regular file at a resolved ``path``; close it after
        use.

        :raises OSError: as :meth:`read`.
        """
        return _in_memory(self.read(path, FILE_LIMIT))

    def visit(self, paths: Iterable[str], look: Callable[[str, int], None]) -> None:
        """Call ``look`` with each path and a descriptor of a copy of the file, which stays ours to
        close.

        :raises OSError: as :meth:`read`.
        """

        def take(path: str, data: bytes) -> None:
            fd = _in_memory(data)
            try:
                look(path, fd)
            finally:
                os.close(fd)

        self._visit(paths, FILE_LIMIT, take)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        fd = self.open(path)
        try:
            return read_facts(fd, sections=sections)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""


def _exactly(file: IO[bytes], size: int) -> bytes | None:
    """Read ``size`` bytes, or return None if the file ends before."""
    chunks = []
    while size:
        chunk = file.read(min(size, 1 << 24))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _kind(member: "tarfile.TarInfo") -> str:
    if member.isdir():
        return "dir"
    if member.issym():
        return "symlink"
    if member.ischr():
        return "char"
    if member.isblk():
        return "block"
    return "fifo" if member.isfifo() else "file"
