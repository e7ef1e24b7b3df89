"""Keep the last messages of the hook about each container, because crun and podman hide its stderr.

Each container has one small file under /run/nvgraft, or for a user's own containers (rootless)
under /run/user/UID/nvgraft; only the newest are kept. ``nvgraft last-error`` reads them. A start
never fails because no record can be kept.
"""

from __future__ import annotations

import time

from nvgraft.base._os import os
from nvgraft.system import userns
from nvgraft.system.rundir import open_private

#: The directory of the records. Only root can read it, since messages quote paths of images.
DIRECTORY = "/run/nvgraft/last-error"

#: The most records that are kept; the oldest are removed.
KEPT = 64

#: The most bytes of one record.
SIZE_LIMIT = 8192

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def file_name(container_id: str) -> str:
    """Return a file name, without any slash, for an id that an engine chose."""
    name = "".join(char if char in _SAFE else f"%{ord(char):x}" for char in container_id[:128])
    return ("id-" + name)[:200]


def directory_of(uid: int | str) -> str:
    """Return the directory of the records of a user's own containers.

    It is below the directory that logind makes for the user: the hook has no XDG_RUNTIME_DIR.
    """
    return f"/run/user/{uid}/nvgraft/last-error"


def open_directory() -> int | None:
    """Open the directory of records; return None where there can be none."""
    directory = open_private(DIRECTORY)
    if directory is None and userns.inside():
        return open_private(directory_of(userns.outer_uid()))
    return directory


def keep(directory: int, container_id: str, exit_code: int, lines: list[str]) -> None:
    """Replace the record of ``container_id``: time, exit code and the lines."""
    name = file_name(container_id)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    head = f"{now} exit {exit_code} container {container_id[:128]!r}"
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
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(temporary, dir_fd=directory)
        finally:
            os.close(fd)
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
        except OSError:
            continue  # dropped by another hook, or a directory, which no hook has made
