"""The root file system of an image, put together in memory from the tar entries of its layers.

Nothing is unpacked: no name, device or link of an archive reaches a file system of this host.
Contents are read from the archive when they are needed; small files are kept in memory, because
planning reads them.
"""

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from nvgraft.formats import elf
from nvgraft.formats.tree import Bounds, Node, OutOfBounds, PathError, Tree
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
KEPT_TOTAL = 24 << 20
#: The most bytes of one path, as in the kernel.
_PATH = 4096
#: The most bytes of a library that is read as a whole. Of a larger one, parts are read: the first
#: ones, and those that its tables name.
_WHOLE = 16 << 20
_FIRST_PARTS = 16
#: Bytes of a part, and the most times that the layers are read to get all parts. The tables of a
#: library lead from one to the next: program headers, dynamic section, strings, versions.
_PART = 64 << 10
_PASSES = 8

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

_MIB = 1 << 20

OnRead = Callable[[int], None]
"""Called with the number of bytes of each read of a layer as it is stored."""


def ignore(_count: int) -> None:
    """Do nothing, as an :data:`OnRead`."""


class ImageLayer(NamedTuple):
    """One layer of an image: its name, its bytes as it is stored, and a function that opens it,
    decompressed, at its beginning.
    """

    name: str
    size: int
    open: Callable[[OnRead], IO[bytes]]


class _Content:
    """The bytes of a regular file, or their ``offset`` in a decompressed layer."""

    __slots__ = ("data", "layer", "offset")

    def __init__(self, layer: int, offset: int, data: bytes | None) -> None:
        self.layer = layer
        self.offset = offset
        self.data = data


class ImageTree(Tree):
    """The files of an image, before anything is mounted in a container of it."""

    bounds: Bounds

    def __init__(self, label: str, layers: Sequence[ImageLayer], bounds: Bounds) -> None:
        """Read every layer once, lowest first.

        :param label: the image's name in messages.
        :param bounds: limit the entries of all layers and the time of all reading.
        :raises InputError: a layer is not a tar archive, or does not fit onto the lower ones, or
            there is more than the bounds allow.
        """
        self.label = label
        self.bounds = bounds
        self._layers = layers
        self._nodes: dict[str, Node] = {"/": Node("dir", 0o755)}
        self._names: dict[str, set[str]] = {"/": set()}
        self._contents: dict[str, _Content] = {}
        self._changed: dict[str, int] = {}
        self._kept = 0
        total = sum(layer.size for layer in layers) / _MIB
        with Progress(f"reading {os.path.basename(label)}", total, "MiB") as progress:
            for number, layer in enumerate(layers):
                try:
                    self._add_layer(number, lambda count: progress.step(count / _MIB))
                    logs.debug("read", layer=layer.name, files=len(self._nodes))
                except DAMAGE as error:
                    raise InputError(
                        f"{label}: layer {layer.name}: {str(error).lower()}: the archive is"
                        " damaged: save the image again"
                    ) from error
        bounds.next_step()

    def _add_layer(self, layer: int, on_read: OnRead) -> None:
        hidden: set[str] = set()
        emptied: set[str] = set()
        made: set[str] = set()
        with self._open(layer, on_read) as archive:
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
        # Whiteouts hide files of lower layers, but none of this layer, in whatever order the
        # entries are.
        for parent in emptied:
            hidden.update(f"{parent}/{child}" for child in self._names.get(parent or "/", ()))
        self._hide(hidden, made)

    def _count(self, length: int) -> None:
        """Count one more path.

        :raises InputError: there are too many, or they take too long.
        """
        with bounded():
            self.bounds.count_names(self.label, 1, length)

    def _check_time(self) -> None:
        with bounded():
            self.bounds.check_time(self.label)

    @contextmanager
    def _open(self, layer: int, on_read: OnRead = ignore) -> Iterator[Archive]:
        with (
            self._layers[layer].open(on_read) as file,
            Archive.open(
                fileobj=cast("IO[bytes]", Stream(file, self._check_time)), mode="r|", errorlevel=0
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
        node = self._file(path)
        if node.size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        data = b""

        def take(_path: str, parts: _Parts) -> None:
            nonlocal data
            data = parts.read(0, node.size)

        self._visit({path: set(range(-(-node.size // _PART)))}, take)
        return data

    def _file(self, path: str) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if node.type != "file":
            raise OSError(errno.EINVAL, "not a regular file", path)
        return node

    def is_at_hand(self, path: str) -> bool:
        """Tell whether the file at a resolved ``path`` is in memory, or in a layer that is stored
        as it is: a compressed one is read from its beginning.
        """
        content = self._contents.get(path)
        if content is None or content.data is not None:
            return True
        with self._layers[content.layer].open(ignore) as file:
            return isinstance(file, io.BufferedReader | io.BytesIO)

    def _visit(self, wanted: Mapping[str, set[int]], take: Callable[[str, "_Parts"], None]) -> None:
        """Call ``take`` with each path and the numbered parts that are ``wanted`` of it, in the
        order of the archive, each layer read once.

        :raises OSError: as :meth:`read`.
        """
        #: ImageLayer -> offset in it -> names of the file: hard links are one file.
        layers: dict[int, dict[int, list[str]]] = {}
        for path in wanted:
            size = self._file(path).size
            content = self._contents[path]
            if content.data is not None:
                take(path, _Parts(size, {0: content.data}))
            else:
                layers.setdefault(content.layer, {}).setdefault(content.offset, []).append(path)
        for layer, files in sorted(layers.items()):
            with self._layers[layer].open(ignore) as file:
                place = 0
                for offset, paths in sorted(files.items()):
                    parts = _Parts(self._nodes[paths[0]].size, {})
                    for number in sorted(set().union(*(wanted[path] for path in paths))):
                        start = offset + number * _PART
                        length = min(_PART, parts.size - number * _PART)
                        data = self._next(file, start - place, length)
                        if len(data) < length:
                            raise OSError(errno.EIO, "the archive has changed", paths[0])
                        parts.data[number] = data
                        place = start + length
                    for path in paths:
                        take(path, parts)

    def _next(self, file: IO[bytes], skip: int, length: int) -> bytes:
        """Return bytes of a layer behind those that are skipped, fewer at its end."""
        if isinstance(file, io.BufferedReader | io.BytesIO):
            file.seek(skip, os.SEEK_CUR)
            skip = 0
        # A decompressed layer has to be read, and may have any size.
        while skip and (data := self._read(file, min(skip, _PART))):
            skip -= len(data)
        chunks = []
        while length and (data := self._read(file, length)):
            chunks.append(data)
            length -= len(data)
        return b"".join(chunks)

    def _read(self, file: IO[bytes], length: int) -> bytes:
        self._check_time()
        return file.read(length)

    def visit(self, paths: Iterable[str], look: Callable[[str, elf.FileContent], None]) -> None:
        """Call ``look`` with each path and the content of the file, in any order; ``look`` may be
        called again for a large file, with more of it.

        Of a large file only the parts that ``look`` reads are in memory. The layers are read once
        for the first parts of all files, and once more as often as these lead to others.

        :raises OSError: as :meth:`read`, or EFBIG when the parts lead on and on.
        """
        wanted = {path: _first_parts(self._file(path).size) for path in paths}

        def take(path: str, parts: _Parts) -> None:
            try:
                look(path, parts)
            except _MissingParts as error:
                more[path] = wanted[path] | error.numbers

        for _ in range(_PASSES):
            more: dict[str, set[int]] = {}
            self._visit(wanted, take)
            wanted = more
            if not wanted:
                return
        raise OSError(errno.EFBIG, "its tables are too far apart", next(iter(wanted)))

    def elf(self, path: str, *, sections: bool) -> elf.ElfFacts:
        results: list[elf.ElfFacts] = []
        self.visit(
            [path],
            lambda _path, content: results.append(elf.read_facts(content, sections=sections)),
        )
        return results[0]

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""


class _MissingParts(Exception):
    """Parts of a file that were not read."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers


class _Parts(elf.FileContent):
    """A file of which ``data`` has numbered parts. A file that is kept is one part, number 0."""

    def __init__(self, size: int, data: dict[int, bytes]) -> None:
        self.size = size
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer at its end.

        :raises _MissingParts: they were not read.
        """
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        first = self.data.get(0, b"")
        if end <= len(first):
            return first[offset:end]
        numbers = range(offset // _PART, -(-end // _PART))
        missing = {number for number in numbers if number not in self.data}
        if missing:
            raise _MissingParts(missing)
        start = numbers[0] * _PART
        return b"".join([self.data[number] for number in numbers])[offset - start : end - start]


def _first_parts(size: int) -> set[int]:
    return set(range(-(-size // _PART) if size <= _WHOLE else _FIRST_PARTS))


@contextmanager
def bounded() -> Iterator[None]:
    """Turn a bound into an error of the input: the hook has no such bound for a whole image.

    :raises InputError: the bound was met.
    """
    try:
        yield
    except OutOfBounds as error:
        raise InputError(f"{error.text} | {error.hint}") from error


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
