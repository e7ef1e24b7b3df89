"""Keep documents that save the next hook some work: JSON files of root's under /run/nvgraft/cache.

Nothing depends on them. A file that is not as expected (another owner, cut short, changed, of
another version of nvgraft) counts as missing. If none can be kept (rootless, a full or read-only
/run), everything works without. The callers decide what a document contains and how long it is
valid: the kept configuration (:mod:`nvgraft.request.config`) and the kept inventory
(:mod:`nvgraft.host.kept_inventory`).
"""

from __future__ import annotations

import time
import zlib

from nvgraft import __version__
from nvgraft.base import files, jsontext
from nvgraft.base._os import os
from nvgraft.system.rundir import open_private, unlike_ours

DIRECTORY = "/run/nvgraft/cache"

#: Bytes of one document. The inventory of 64 GPUs with eight MIG devices each has about 300 KiB.
LIMIT = 4 << 20

#: Documents of one kind. Older ones are removed. A host has one for each config.toml that is in
#: use.
KEPT = 16

#: Seconds after which an unfinished file counts as abandoned: its writer was killed.
_ABANDONED = 60

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
    """Return the value of a document, or None if :func:`write` has not written these bytes for
    ``key``.
    """
    head, _, body = data.partition(b"\n")
    if head != _head(body):
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


def write(kind: str, key: object, value: object) -> bool:
    """Keep ``value`` under ``key``, replacing an older value in one step, and tell whether that
    succeeded.
    """
    body = jsontext.dumps({"key": key, "value": value}).encode()
    directory = open_private(DIRECTORY)
    if directory is None:
        return False
    try:
        _write(directory, name_of(kind, key), _head(body) + b"\n" + body)
        _tidy(directory, kind)
    except OSError:
        return False
    finally:
        os.close(directory)
    return True


def drop(prefix: str = "") -> int:
    """Remove every document whose name begins with ``prefix`` (without one, also unfinished files),
    and return their number.

    :raises OSError: a file cannot be removed.
    """
    directory = open_private(DIRECTORY, create=False)
    if directory is None:
        return 0
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefix)]
        for name in names:
            _unlink(directory, name)
        return len(names)
    finally:
        os.close(directory)


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


def _write(directory: int, name: str, data: bytes) -> None:
    if len(data) > LIMIT:
        raise OSError(f"a document of {len(data)} bytes")
    draft = f".{os.getpid()}-{time.monotonic_ns():x}"
    fd = os.open(
        draft,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=directory,
    )
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        _unlink(directory, draft)
        raise


def _tidy(directory: int, kind: str) -> None:
    """Remove unfinished files of killed hooks, and the oldest documents of a kind beyond KEPT. What
    cannot be removed, such as a directory, was not made by nvgraft and stays.
    """
    ages = []
    for name in os.listdir(directory):
        try:
            changed = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            continue  # another hook has removed it at the same time
        if name.startswith(f"{kind}-"):
            ages.append((changed, name))
        elif name.startswith(".") and changed < time.time_ns() - _ABANDONED * 10**9:
            _try_to_unlink(directory, name)
    for _, name in sorted(ages)[:-KEPT]:
        _try_to_unlink(directory, name)


def _try_to_unlink(directory: int, name: str) -> None:
    try:
        _unlink(directory, name)
    except OSError:
        return


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _head(body: bytes) -> bytes:
    return b"%b %08x" % (_MAGIC, zlib.crc32(body))
