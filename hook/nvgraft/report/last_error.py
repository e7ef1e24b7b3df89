"""What the hook last said about a container, kept where root can read it: crun and podman show no hook's stderr.

One small file for each container under /run/nvgraft, the newest ones only. Reading them is the CLI's business
(``nvgraft last-error``). Nothing here may make a start fail: where no record can be kept, none is kept.
"""

from __future__ import annotations

import time

from nvgraft.base._os import os
from nvgraft.system.rundir import open_private

#: Where the records are; root alone can look, since messages quote paths of images.
DIRECTORY = "/run/nvgraft/last-error"

#: Records that are kept; the oldest go first.
KEPT = 64

#: Bytes of one record.
SIZE_LIMIT = 8192

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def file_name(container_id: str) -> str:
    """Return a file name for an id that an engine chose: nothing in it can lead to another directory."""
    name = "".join(char if char in _SAFE else f"%{ord(char):x}" for char in container_id[:128])
    return ("id-" + name)[:200]


def open_directory() -> int | None:
    """Open the directory of records; None where none can be kept."""
    return open_private(DIRECTORY)


def keep(directory: int, container_id: str, exit_code: int, lines: list[str]) -> None:
    """Write the record of ``container_id`` in place of its last one: time, exit code and what was said."""
    name = file_name(container_id)
    head = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} exit {exit_code} container {container_id[:128]!r}"
    data = "\n".join([head, *lines, ""]).encode("utf-8", "backslashreplace")[:SIZE_LIMIT]
    temporary = f".{name}.{os.getpid()}"
    try:
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        _drop_oldest(directory)
    except OSError:
        return


def _drop_oldest(directory: int) -> None:
    names = os.listdir(directory)
    if len(names) <= KEPT:
        return
    ages = []
    for name in names:
        try:
            ages.append((os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns, name))
        except FileNotFoundError:
            continue  # another hook drops records at the same time
    for _, name in sorted(ages)[:-KEPT]:
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            continue
