"""Documents that spare the next hook some work: JSON under /run/nvgraft/cache, root's own, gone with the next start of the machine.

Nothing depends on them. Whatever is odd about a file (somebody else's, cut short, changed, of another version of nvgraft) means that
there is none, and where none can be kept (rootless, a full or read-only /run) everything works as if there were none yet. What is in
a document and when it is still true is the business of who keeps it: the settings of config.toml (:mod:`nvgraft.request.config`) and what
was found on the host (:mod:`nvgraft.host.kept_inventory`).
"""

from __future__ import annotations

import time
import zlib

from nvgraft import __version__
from nvgraft.base import files, jsontext
from nvgraft.base._os import os, stat
from nvgraft.system.rundir import open_private

DIRECTORY = "/run/nvgraft/cache"

#: Bytes of one document; that of a host with 64 GPUs, each with eight MIG devices, has about 300 KiB.
LIMIT = 4 << 20

#: Documents of one kind that are kept; the oldest go first. A host has one for each config.toml that is in use.
KEPT = 16

#: Seconds after which an unfinished file is one that its writer, ended by SIGKILL, will not finish.
_ABANDONED = 60

_MAGIC = b"nvgraft-cache/2"

#: The packed byte code of an installation (nvgraft.startup), which each installation makes anew.
_PACKED = __file__.rpartition("/nvgraft/")[0] + "/bytecode"


def code(*sources: str) -> list[object]:
    """Return what tells one state of nvgraft's own code from another: the part of a key that an upgrade changes.

    Of an installation that is its packed byte code: its programs look at no source while that is there.

    :param sources: files of the modules that make a document's value.
    """
    found: list[object] = [__version__]
    try:
        packed = os.stat(_PACKED)
    except OSError:
        pass
    else:
        return [*found, packed.st_dev, packed.st_ino, packed.st_mtime_ns]
    for path in sources:
        try:
            status = os.stat(path)
        except OSError:
            found.append(path)
        else:
            found += [status.st_size, status.st_mtime_ns]
    return found


def name_of(kind: str, key: object) -> str:
    """Return the file name of the document of that ``kind`` and ``key``."""
    return f"{kind}-{zlib.crc32(jsontext.dumps(key).encode()):08x}"


def read(kind: str, key: object) -> object | None:
    """Return what was kept under ``key``, a JSON value; None when there is nothing that can be trusted."""
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
    """Return the value of a document from its bytes; None for what was not written here, under ``key``."""
    head, _, body = data.partition(b"\n")
    if head != _head(body):
        return None
    try:
        document = jsontext.loads(body, LIMIT)
    except jsontext.JsonError:
        return None
    # Another key may by chance have the same file name.
    return (
        document.get("value") if isinstance(document, dict) and document.get("key") == key else None
    )


def write(kind: str, key: object, value: object) -> bool:
    """Keep ``value`` under ``key`` in place of what was there, at once; tell whether it is there now."""
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
    """Remove every document whose name begins with ``prefix``, also what is unfinished without one; return how many there were.

    :raises OSError: when one cannot be removed.
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
    """Return the bytes of a file that is this user's own, closed to all others and has no second name; b"" for any other.

    It may have no name at all by now, when a newer one has taken its place.
    """
    fd = os.open(
        name,
        os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
        dir_fd=directory,
    )
    try:
        found = os.fstat(fd)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_uid != os.geteuid()
            or found.st_mode & 0o077
            or found.st_nlink > 1
        ):
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
    """Remove what hooks that were killed have left unfinished, and the oldest documents of a kind beyond KEPT."""
    ages = []
    for name in os.listdir(directory):
        try:
            changed = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            continue  # another hook tidies up at the same time
        if name.startswith(f"{kind}-"):
            ages.append((changed, name))
        elif name.startswith(".") and changed < time.time_ns() - _ABANDONED * 10**9:
            _unlink(directory, name)
    for _, name in sorted(ages)[:-KEPT]:
        _unlink(directory, name)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _head(body: bytes) -> bytes:
    return b"%b %08x" % (_MAGIC, zlib.crc32(body))
