"""Open image archives of ``docker save`` and ``podman save``, and OCI layouts (archive or
directory).

An archive must have one image. It has a configuration and layers, which
:mod:`nvgraft_cli.case.image.tree` puts together.
"""

import errno
import gzip
import io
import os
from collections.abc import Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from nvgraft.formats.tree import Bounds
from nvgraft_cli.case.image.tar import DAMAGE, Archive
from nvgraft_cli.case.image.tree import ImageLayer, ImageTree, OnRead, bounded, ignore
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs.documents import DocumentError, load_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: The most bytes of a manifest or configuration.
_DOCUMENT_LIMIT = 8 << 20

#: The most files of an archive; one image has its layers and a handful of documents.
_FILES = 10_000

#: Bytes of an archive, as it lies on the disk, for which a second more is allowed than for an image
#: that is a directory. A layer is decompressed three times as fast.
_BYTES_PER_SECOND = 20 << 20

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}

#: The most layers of one image. A layer that is named twice is read twice.
_LAYERS = 500

#: The members of an image's configuration that are used, and their types; each may be null.
_CONFIG = {"Env": list, "Entrypoint": list, "Cmd": list, "WorkingDir": str}

_FIX = "give an archive of `docker save IMAGE` or `podman save IMAGE`, or an OCI layout"


class _ArchiveFiles:
    """The files of an archive or of a layout directory, by name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._bounds = Bounds()
        self._members: dict[str, tuple[int, int]] | None = None
        if os.path.isdir(path):
            self._root = os.path.realpath(path)
            return
        self._members = {}
        try:
            # Only uncompressed archives: layers are read by their offset in the file.
            with Archive.open(path, "r:") as archive:
                for number, member in enumerate(archive.entries()):
                    if number == _FILES:
                        raise InputError(
                            f"{path}: more than {_FILES:,} files: this is not an image"
                        )
                    with bounded():
                        self._bounds.check_time(path)
                    if member.isreg():
                        self._members[os.path.normpath(member.name)] = (
                            member.offset_data,
                            member.size,
                        )
        except DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            hint = "decompress it first" if _magic(path) else _FIX
            raise InputError(f"{path}: not a tar archive: {str(error).lower()}: {hint}") from error

    def has(self, name: str) -> bool:
        if self._members is not None:
            return os.path.normpath(name) in self._members
        # Names and links in a directory may lead out of it, to files of this host.
        place = os.path.realpath(os.path.join(self._root, name))
        return place.startswith(f"{self._root}/") and os.path.isfile(place)

    def size(self, name: str) -> int:
        """Return the bytes of a file.

        :raises InputError: the archive does not have it.
        """
        with self.open(name) as file:
            return file.seek(0, os.SEEK_END)

    def open(self, name: str, on_read: OnRead = ignore) -> IO[bytes]:
        """Open a file for reading.

        :param on_read: called with the number of bytes of each read.
        :raises InputError: the archive does not have it.
        """
        if not self.has(name):
            raise InputError(
                f"{self._path}: {name} is missing: the archive is incomplete: save the image again"
            )
        if self._members is None:
            path = os.path.join(self._path, name)
            part = _FileRange(path, 0, os.path.getsize(path), on_read)
        else:
            part = _FileRange(self._path, *self._members[os.path.normpath(name)], on_read)
        return io.BufferedReader(part, 1 << 18)

    def document(self, name: str) -> Any:
        """Return a JSON document.

        :raises InputError: the document is missing, too large, or not JSON.
        """
        with self.open(name) as file:
            raw = file.read(_DOCUMENT_LIMIT + 1)
        if len(raw) > _DOCUMENT_LIMIT:
            raise InputError(
                f"{self._path}: {name}: larger than {_DOCUMENT_LIMIT >> 20} MiB: {_FIX}"
            )
        try:
            return load_json(raw, f"{self._path}: {name}")
        except DocumentError as error:
            raise InputError(f"{error}: save the image again") from error

    def reading_seconds(self, names: Sequence[str]) -> float:
        """Return the seconds that reading the named files may take, from their size on the disk."""
        paths = {self._path}
        if self._members is None:
            paths = {os.path.join(self._path, name) for name in names}
        return sum(os.stat(path).st_blocks * 512 for path in paths) / _BYTES_PER_SECOND


class _FileRange(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path: str, offset: int, size: int, on_read: OnRead) -> None:
        self._on_read = on_read
        self._file = open(path, "rb")
        self._file.seek(offset)
        self._start = offset
        self._size = self._rest = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = (
            offset
            + {os.SEEK_SET: 0, os.SEEK_CUR: self._size - self._rest, os.SEEK_END: self._size}[
                whence
            ]
        )
        if not 0 <= place <= self._size:
            raise OSError(errno.EINVAL, "outside of this part of the archive")
        self._file.seek(self._start + place)
        self._rest = self._size - place
        return place

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)[: self._rest]
        count = self._file.readinto(view)
        self._rest -= count
        self._on_read(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Zstandard(io.RawIOBase):
    """The decompressed content of a file."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._damage = zstandard.ZstdError
        self._reader: Any = zstandard.ZstdDecompressor().stream_reader(raw, closefd=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        try:
            count: int = self._reader.readinto(buffer)
        except self._damage as error:
            raise ValueError(str(error)) from error
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move forward to a position."""
        try:
            place: int = self._reader.seek(offset, whence)
        except self._damage as error:
            raise ValueError(str(error)) from error
        return place

    def close(self) -> None:
        self._reader.close()
        super().close()


class Image:
    """One image. ``config`` is the member of this name of its configuration document.

    ``reading_seconds`` is the time to allow for reading it, in proportion to the archive.
    """

    def __init__(
        self,
        label: str,
        machine: str,
        config: dict[str, Any],
        layers: Sequence[ImageLayer],
        reading_seconds: float,
    ) -> None:
        self.label = label
        self.reading_seconds = reading_seconds
        self.machine = machine
        self.config = config
        self._layers = layers

    def tree(self, bounds: Bounds | None = None) -> ImageTree:
        """Return the image's root file system, read within ``bounds``.

        :raises InputError: a layer cannot be read.
        """
        return ImageTree(self.label, self._layers, bounds or Bounds())


def is_image(path: str) -> bool:
    """Tell whether ``path`` looks like an image archive or an OCI layout directory."""
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "oci-layout")) and os.path.isfile(
            os.path.join(path, "index.json")
        )
    return os.path.isfile(path) and not path.endswith((".json", ".JSON"))


def open_image(path: str) -> Image:
    """Open the image in the archive or layout at ``path``.

    :raises InputError: ``path`` is not an archive, has several images, or is damaged.
    """
    try:
        files = _ArchiveFiles(path)
        if files.has("manifest.json"):
            return _saved(path, files)
        if files.has("index.json"):
            return _layout(path, files)
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}: {_FIX}") from error
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(f"{path}: its manifest lacks {error}: save the image again") from error
    raise InputError(f"{path}: has neither manifest.json nor index.json: {_FIX}")


def _saved(path: str, files: _ArchiveFiles) -> Image:
    manifests = files.document("manifest.json")
    if len(manifests) != 1:
        names = ", ".join(str((entry.get("RepoTags") or ["untagged"])[0]) for entry in manifests)
        raise InputError(f"{path}: it has {len(manifests)} images ({names}): save one image alone")
    entry = manifests[0]
    return _image(
        path, files, files.document(str(entry["Config"])), [str(name) for name in entry["Layers"]]
    )


def _layout(path: str, files: _ArchiveFiles) -> Image:
    wanted = _MACHINES.get(os.uname().machine, "amd64")
    index = files.document("index.json")
    for _ in range(4):  # indexes may be nested, but nobody nests them deeper
        manifests = [
            entry
            for entry in index["manifests"]
            if (entry.get("platform") or {}).get("os") != "unknown"
        ]
        fitting = [
            entry
            for entry in manifests
            if (entry.get("platform") or {}).get("architecture", wanted) == wanted
        ]
        chosen = fitting or manifests
        if len(chosen) != 1:
            raise InputError(f"{path}: it has {len(chosen)} images: save one image alone")
        document = files.document(_blob(chosen[0]["digest"]))
        if "layers" in document:
            return _image(
                path,
                files,
                files.document(_blob(document["config"]["digest"])),
                [_blob(layer["digest"]) for layer in document["layers"]],
            )
        index = document
    raise InputError(f"{path}: its index leads to no image: save the image again")


def _blob(digest: object) -> str:
    algorithm, _, value = str(digest).partition(":")
    if not algorithm.isalnum() or not value.isalnum():
        raise KeyError(f"a digest (found {digest!r})")
    return f"blobs/{algorithm}/{value}"


def _image(
    path: str, files: _ArchiveFiles, configuration: dict[str, Any], names: list[str]
) -> Image:
    machine = next(
        (
            machine
            for machine, name in _MACHINES.items()
            if name == configuration.get("architecture")
        ),
        "x86_64",
    )
    if len(names) > _LAYERS:
        raise InputError(
            f"{path}: it has {len(names)} layers, but engines take at most 127: this image"
            " cannot run"
        )
    # A missing layer is reported here, before the long reading begins.
    layers = [
        ImageLayer(name, files.size(name), partial(_decompressed, path, files, name))
        for name in names
    ]
    config = configuration.get("config") or {}
    for name, kind in _CONFIG.items():
        if not isinstance(config.get(name) or kind(), kind):
            raise InputError(
                f"{path}: {name} of its configuration has the wrong type: save the image again"
            )
    return Image(path, machine, config, layers, files.reading_seconds(names))


def _decompressed(path: str, files: _ArchiveFiles, name: str, on_read: OnRead) -> IO[bytes]:
    with files.open(name) as file:
        magic = file.read(6)
    raw = files.open(name, on_read)
    kind = compression(magic)
    if kind == "gzip":
        unzipped = gzip.GzipFile(fileobj=raw)
        unzipped.myfileobj = raw  # type: ignore[assignment]  # closed with it
        return unzipped  # type: ignore[return-value]
    if kind == "zstd":
        return _Zstandard(raw)  # type: ignore[return-value]
    if kind:
        raise InputError(f"{path}: {name} is compressed with {kind}: only gzip and zstd are read")
    return raw


def compression(magic: bytes) -> str:
    """Return the name of the compression of a file that starts with ``magic``, or ""."""
    kinds = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
    return next((name for start, name in kinds.items() if magic.startswith(start)), "")


def _magic(path: str) -> str:
    with open(path, "rb") as file:
        return compression(file.read(6))
