"""Read documents that save this hook some work: JSON files of root's under /run/nvgraft/cache.

Nothing depends on them. A file that is not as expected (another owner, cut short, changed, of
another version of nvgraft) counts as missing. If none can be kept (rootless, a full or read-only
/run), everything works without. :mod:`nvgraft.system.keep` writes them. The callers decide what a
document contains and how long it is valid: the kept configuration (:mod:`nvgraft.request.config`)
and the kept inventory (:mod:`nvgraft.host.kept_inventory`).
"""

from __future__ import annotations

import zlib

from nvgraft import __version__
from nvgraft.base import files, jsontext
from nvgraft.base._os import os
from nvgraft.system.rundir import open_private, unlike_ours

DIRECTORY = "/run/nvgraft/cache"

#: Bytes of one document. The inventory of 64 GPUs with eight MIG devices each has about 300 KiB.
LIMIT = 4 << 20

_MAGIC = b"nvgraft-cache/2"

#: The packed byte code of an installation (nvgraft.startup), which each installation writes again.
_PACKED = __file__.rpartition("/nvgraft/")[0] + "/bytecode"


def code(*sources: str) -> list[object]:
    """Return the identity of nvgraft's code: the part of a key that an upgrade changes.

    For an installation it is that of the packed byte code, since its programs do not read the
    sources.

    :param sources: files of the modules that make a document's value.
    """
    identity: list[object] = [__version__]
    try:
        packed = os.stat(_PACKED)
    except OSError:
        pass
    else:
        return [*identity, packed.st_dev, packed.st_ino, packed.st_mtime_ns]
    for path in sources:
        try:
            status = os.stat(path)
        except OSError:
            identity.append(path)
        else:
            identity += [status.st_size, status.st_mtime_ns]
    return identity


def name_of(kind: str, key: object) -> str:
    """Return the file name of the document of ``kind`` and ``key``."""
    return f"{kind}-{zlib.crc32(jsontext.dumps(key).encode()):08x}"


def read(kind: str, key: object) -> object | None:
    """Return the JSON value that is kept under ``key``, or None if there is none that can be
    trusted.
    """
    directory = open_private(DIRECTORY, create=False)
    if directory is None:
        return None
    try:
        data = _read(directory, name_of(kind, key))
    except OSError:
        return None
    finally:
        os.close(directory)
    return parse(data, key)


def parse(data: bytes, key: object) -> object | None:
    """Return the value of a document, or None if :func:`nvgraft.system.keep.write` has not written
    these bytes for ``key``.
    """
    first, _, body = data.partition(b"\n")
    if first != head(body):
        return None
    try:
        # The check shows that these bytes were written here, so they need none of a stranger's.
        document, _ = jsontext.value_at(body.decode(), 0)
    except (RecursionError, StopIteration, ValueError):
        return None
    # Another key can have the same file name by chance.
    if isinstance(document, dict) and document.get("key") == key:
        return document.get("value")
    return None


def _read(directory: int, name: str) -> bytes:
    """Return the bytes of a file that nvgraft can have made; b"" for another file.

    A file without any name is accepted: a newer one has replaced it after it was opened.
    """
    fd = os.open(
        name,
        os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
        dir_fd=directory,
    )
    try:
        if unlike_ours(os.fstat(fd), LIMIT, 0o077):
            return b""
        return files.read_fd(fd, LIMIT)
    finally:
        os.close(fd)


def head(body: bytes) -> bytes:
    """Return the first line of a document: its format, and the check of the rest."""
    return b"%b %08x" % (_MAGIC, zlib.crc32(body))
