"""Fuzz targets for the contents of images. Part of ``fuzzing.TARGETS``."""

import io
import posixpath
import tarfile
from functools import partial

from fuzz_checks import as_file, check_text
from nvgraft.base.errors import Refusal
from nvgraft.formats import ldcache_table
from nvgraft.formats.tree import Bounds, PathError
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.image.tree import ImageLayer, ImageTree
from nvgraft_cli.prove.loader import search
from nvgraft_cli.shell.errors import InputError


def archive(data: bytes) -> None:
    """Open an archive of ``docker save`` or an OCI layout.

    The checksums are made right first, because mutations never get them right by chance.
    """
    with as_file(_with_checksums(data)) as fd:
        try:
            with open_container(f"/proc/self/fd/{fd}") as container:
                assert all(isinstance(word, str) for word in container.arguments)
                rootfs = container.rootfs
                assert isinstance(rootfs, ImageTree)
                _check_tree(rootfs)
        except InputError as error:
            check_text(str(error), one_line=False)
        except Refusal as refusal:
            check_text(refusal.line())


def _with_checksums(data: bytes) -> bytes:
    blocks = bytearray(data)
    for start in range(0, len(data) - 511, 512):
        if data[start + 257 : start + 262] == b"ustar":
            block = data[start : start + 148] + b" " * 8 + data[start + 156 : start + 512]
            blocks[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(blocks)


def _opened(part: bytes, _on_read: object) -> io.BytesIO:
    return io.BytesIO(part)


def layers(data: bytes) -> None:
    """Stack layers that are written line by line as ``TYPE NAME [TARGET]``.

    An empty line begins the next layer.
    """
    made = [_layer(part) for part in data.split(b"\n\n")[:4]]
    try:
        tree = ImageTree(
            "image",
            [
                ImageLayer(str(number), len(part), partial(_opened, part))
                for number, part in enumerate(made)
            ],
            Bounds(),
        )
    except InputError as error:
        check_text(str(error), one_line=False)
        return
    _check_tree(tree)


_TYPES = {
    b"d": tarfile.DIRTYPE,
    b"l": tarfile.SYMTYPE,
    b"h": tarfile.LNKTYPE,
    b"c": tarfile.CHRTYPE,
    b"p": tarfile.FIFOTYPE,
}


def _layer(lines: bytes) -> bytes:
    blocks = []
    for line in lines.split(b"\n")[:64]:
        kind, _, rest = line.partition(b" ")
        name, _, target = rest.partition(b" ")
        content = target[:512] if kind not in _TYPES else b""
        info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
        info.type = _TYPES.get(kind, tarfile.REGTYPE)
        info.linkname = target.decode("utf-8", "surrogateescape") if kind in _TYPES else ""
        info.size = len(content)
        blocks.append(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        if content:
            blocks.append(content.ljust(512, b"\0"))
    return b"".join(blocks) + bytes(1024)


def _check_tree(tree: ImageTree) -> None:
    """Every path leads to a node, only directories have children, every file can be read."""
    count = 0
    for path, node in tree._nodes.items():
        count += 1
        assert path == "/" or (posixpath.normpath(path) == path and path.startswith("/")), path
        if path != "/":
            parent, name = posixpath.split(path)
            assert name in tree._names[parent], path
            above = tree.lstat(parent)
            assert above is not None
            assert above.type == "dir", path
        assert (path in tree._names) == (node.type == "dir"), path
        assert (path in tree._contents) == (node.type == "file"), path
        if node.type == "file" and count < 8:
            assert len(tree.read(path, 1 << 20)) == node.size
        if node.type == "symlink" and count < 50:
            try:
                resolved = tree.resolve(path)
            except PathError:
                continue
            assert ".." not in resolved.split("/")
    assert sum(map(len, tree._names.values())) == count - 1


_ADDED = [
    ldcache_table.Row(b"libcuda.so.1", 0x303, b"/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ldcache_table.Row(b"libnvidia-ml.so.1", 0x303, b"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
]
_PLACES = ldcache_table.Places({b"/usr/lib/x86_64-linux-gnu": 0, b"/usr/lib": 1})


def loader_cache(data: bytes) -> None:
    """Add the driver's libraries to an image's loader cache."""
    try:
        table = ldcache_table.Table.parse(data)
    except ValueError:
        return
    rows = _rows(table)
    table.has_file_of(b"/usr/lib")
    for _, row in table.below([b"/usr/lib"]):
        assert row.path.startswith(b"/usr/lib/")
    again = ldcache_table.Table.parse(table.with_rows(_ADDED, _PLACES).data())
    kept = _rows(again)
    assert set(rows) <= set(kept), "a row of the image was lost"
    assert len(kept) - len(rows) <= len(_ADDED)
    for added in _ADDED:
        assert any(row[0] == added.soname and _PLACES.same(row[2], added.path) for row in kept)
        again.lookup(added.soname)
    assert len(table.without({0})) == max(0, len(rows) - 1)


def _rows(table: ldcache_table.Table) -> list[tuple[bytes, int, bytes]]:
    return [(item.soname, item.flags, item.path) for item in map(table._item, range(len(table)))]


def loader(data: bytes) -> None:
    """Look for the built-in directories in an image's dynamic loader."""
    directories, cache, levels = search.built_in(data)
    assert all(path.startswith("/") for path in (*directories, cache or "/"))
    assert all(level.startswith("x86-64-v") for level in levels if level)
