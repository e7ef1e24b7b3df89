"""Open files that only root can have written or replaced, because they decide what root does
(SECURITY R13).

Each component is opened from the descriptor of its parent and then checked, so what is checked is
what is read. Files of images, and those of people who only plan, are opened elsewhere.
"""

from __future__ import annotations

import errno

from nvgraft.base import files
from nvgraft.base._os import os, stat
from nvgraft.system import userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The most symbolic links that are followed: an administrator may keep the file elsewhere.
_LINKS = 1

_DIRECTORY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Untrusted(Exception):
    """A user other than root may have written the file. ``place`` is the path in question, ``hint``
    the fix.
    """

    def __init__(self, place: str, problem: str, hint: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.hint = hint


def open_trusted(path: str, *, sticky: bool = False) -> int:
    """Open the regular file at the absolute ``path`` for reading.

    The file, and every directory and link on the way, must belong to root or to this user (who
    gains nothing by it), and must not be writable by others.

    :param sticky: accept directories like /tmp, where users cannot replace files of others.
    :raises Untrusted: names the first path that is not so, or a second symbolic link.
    :raises OSError: as open(2); EISDIR or EINVAL for a file that is not regular.
    """
    fd, status = _walk(None, path, _open_file_or_link, sticky=sticky)
    try:
        files.require_regular(status.st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_trusted_in(directory: str, name: str) -> int:
    """Open the regular file ``name`` of a directory that root has chosen, for reading.

    What :func:`open_trusted` demands is demanded of the directory and of the file, not of what lies
    above: who can replace /etc or /run is root. If the file is a link, its target is opened as
    ``open_trusted`` does with ``sticky``.

    :raises Untrusted: as :func:`open_trusted`.
    :raises OSError: as :func:`open_trusted`.
    """
    path = f"{directory}/{name}"
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(directory, os.fstat(directory_fd), sticky=True)
        fd = _open_file_or_link(name, directory_fd)
    finally:
        os.close(directory_fd)
    try:
        status = os.fstat(fd)
        _check(path, status, sticky=True)
        if not stat.S_ISLNK(status.st_mode):
            files.require_regular(status.st_mode)
            return fd
        target = os.readlink("", dir_fd=fd)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return open_trusted(target if target.startswith("/") else f"{directory}/{target}", sticky=True)


def open_trusted_directory(root_fd: int, path: str) -> int:
    """Open the directory ``path``, absolute inside of the directory ``root_fd``, as an O_PATH
    descriptor.

    The same is demanded of it as of a file; directories like /tmp may be on the way.

    :raises Untrusted: as :func:`open_trusted`.
    :raises OSError: as open(2); ENOTDIR for what is not a directory.
    """
    fd, status = _walk(root_fd, path, _open_directory, sticky=True)
    if not stat.S_ISDIR(status.st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return fd


def _walk(
    root_fd: int | None, path: str, open_last: Callable[[str, int], int], *, sticky: bool
) -> tuple[int, os.stat_result]:
    """Open ``path``, component by component from the directory ``root_fd`` (None: /), and return it
    with its status. ``open_last`` opens the last component, or the link in its place.
    """
    rest = _parts(path)
    links = 0
    place = "/"
    reached_fd = _open_root(root_fd)
    try:
        status = os.fstat(reached_fd)
        _check("/", status, sticky=sticky)
        while rest:
            name = rest.pop(0)
            below = f"{place.rstrip('/')}/{name}"
            fd = (_open_directory if rest else open_last)(name, reached_fd)
            status = os.fstat(fd)
            if not stat.S_ISLNK(status.st_mode):
                os.close(reached_fd)
                reached_fd, place = fd, below
                _check(place, status, sticky=sticky)
                continue
            try:
                _check(below, status, sticky=sticky)
                links += 1
                if links > _LINKS:
                    raise Untrusted(
                        below,
                        "a second symbolic link on the way",
                        f"name the file itself instead of {path}",
                    )
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            rest = _parts(target) + rest
            if target.startswith("/"):
                os.close(reached_fd)
                reached_fd, place = _open_root(root_fd), "/"
    except BaseException:
        os.close(reached_fd)
        raise
    return reached_fd, status


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _open_root(root_fd: int | None) -> int:
    return os.open("/" if root_fd is None else ".", _DIRECTORY, dir_fd=root_fd)


def _open_directory(name: str, parent: int) -> int:
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _open_file_or_link(name: str, parent: int) -> int:
    try:
        return os.open(name, _FILE, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return _open_directory(name, parent)


def _check(place: str, status: os.stat_result, *, sticky: bool) -> None:
    # The directory may be a user's home, or /tmp: it is the file that belongs elsewhere.
    elsewhere = "keep the file in a directory that only root can write"
    directory = stat.S_ISDIR(status.st_mode)
    if not userns.is_root(status.st_uid) and status.st_uid != os.geteuid():
        fix = elsewhere if directory else f"run chown -h root {place}"
        raise Untrusted(
            place, f"it belongs to user {status.st_uid}", f"it decides what root does: {fix}"
        )
    writable = status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)
    if writable and not (sticky and directory and status.st_mode & stat.S_ISVTX):
        chmod = f"run chmod go-w {place}, or {elsewhere}"
        shared = status.st_mode & stat.S_ISVTX or not (directory or stat.S_ISREG(status.st_mode))
        fix = elsewhere if shared else chmod
        raise Untrusted(place, "group or others may write it", f"it decides what root does: {fix}")
