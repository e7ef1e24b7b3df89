"""Write and remove the documents that :mod:`nvgraft.system.kept` reads.

Most starts find what is kept as it was, and do not load this module.
"""

from __future__ import annotations

import time

from nvgraft.base import jsontext
from nvgraft.base._os import os
from nvgraft.system import kept
from nvgraft.system.rundir import open_private

#: Documents of one kind. Older ones are removed. A host has one for each config.toml that is in
#: use.
KEPT = 16

#: Seconds after which an unfinished file counts as abandoned: its writer was killed.
_ABANDONED = 60


def write(kind: str, key: object, value: object) -> bool:
    """Keep ``value`` under ``key``, replacing an older value in one step, and tell whether that
    succeeded.
    """
    body = jsontext.dumps({"key": key, "value": value}).encode()
    directory = open_private(kept.DIRECTORY)
    if directory is None:
        return False
    try:
        _write(directory, kept.name_of(kind, key), kept.head(body) + b"\n" + body)
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
    directory = open_private(kept.DIRECTORY, create=False)
    if directory is None:
        return 0
    try:
        names = [name for name in os.listdir(directory) if name.startswith(prefix)]
        for name in names:
            _unlink(directory, name)
        return len(names)
    finally:
        os.close(directory)


def _write(directory: int, name: str, data: bytes) -> None:
    if len(data) > kept.LIMIT:
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
