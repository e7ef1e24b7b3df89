"""Read an image by descriptor, following its links inside its own root only (SECURITY R17, R18).

What is read here decides on rows of the loader cache only. Where something is made or mounted,
links are not followed: see :mod:`nvgraft.apply.targets`. The amount read is bounded, because an
image may hold anything.
"""

from __future__ import annotations

import errno

from nvgraft.apply.descriptors import Unreadable, read_whole, reopen
from nvgraft.apply.targets import open_in_root
from nvgraft.base._os import os, stat
from nvgraft.formats import ld_so_conf
from nvgraft.formats.tree import AT_ONCE
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Protocol

    from nvgraft.formats.elf import Library
    from nvgraft.formats.tree import Bounds

    class Files(Protocol):
        """What :mod:`nvgraft.apply.cache.content` asks of a root file system, real or only planned.

        Each method raises OSError as :class:`Rootfs` does.
        """

        bounds: Bounds
        volumes: list[str]

        def read(self, path: str, limit: int) -> tuple[bytes, object]: ...
        def names(self, path: str) -> list[str]: ...
        def on_volume(self, path: str) -> bool: ...
        def identity(self, path: str) -> Hashable | None: ...
        def look(self, path: str) -> FilesDirectory: ...
        def directory(self, path: str) -> FilesDirectory: ...

    class FilesDirectory(Protocol):
        """See :class:`OpenDirectory`."""

        def close(self) -> None: ...
        def status(self) -> tuple[Hashable, int]: ...
        def kind(self, name: str) -> str | None: ...
        def entries(self) -> list[tuple[str, str]]: ...
        def readlink(self, name: str) -> str: ...
        def is_older(self, name: str, written: int) -> bool: ...
        def library(self, name: str, *, isa_level: bool = False) -> Library: ...
        def library_behind(self, name: str, *, isa_level: bool = False) -> Library: ...


#: Bytes of the largest ld.so.conf that is given to a reader.
_CONFIGURATION_LIMIT = 1 << 20


#: Errors that an image's own files may cause: no such file, another type, no permission. ldconfig
#: skips such a file. Any other error is this machine's, and the cache would be incomplete.
ABSENT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.EACCES,
        errno.EPERM,
        errno.EINVAL,
        errno.EFBIG,
        errno.ENXIO,
        errno.ENAMETOOLONG,
    }
)


def check_absent(error: OSError) -> None:
    """Raise ``error`` again unless it means that the image has no such file."""
    if error.errno not in ABSENT or isinstance(error, (syscalls.MissingFeature, Unreadable)):
        raise error


class Rootfs:
    """A container's root file system, for reading.

    The caller keeps and closes both descriptors.

    :param fd: its root, O_PATH.
    :param own_fds: a descriptor of this process's own /proc/self/fd.

    ``volumes`` are the directories that were not listed, because they are on volumes.
    """

    def __init__(self, fd: int, own_fds: int, bounds: Bounds) -> None:
        self.fd = fd
        self._own_fds = own_fds
        self.bounds = bounds
        self.volumes: list[str] = []

    def look(self, path: str) -> OpenDirectory:
        """Open the directory ``path`` for lookups but not for listing. The caller closes it."""
        return OpenDirectory(self, self.open(path, os.O_PATH | os.O_DIRECTORY), path)

    def directory(self, path: str) -> OpenDirectory:
        """Open the directory ``path``. The caller closes it."""
        return OpenDirectory(self, self.open(path, os.O_RDONLY | os.O_DIRECTORY), path)

    def identity(self, path: str) -> Hashable | None:
        """Return what ``path`` leads to, equal for two paths to one thing; None if it leads
        nowhere.
        """
        try:
            fd = self.open(path, os.O_PATH)
        except OSError as error:
            check_absent(error)
            return None
        try:
            status = os.fstat(fd)
        finally:
            syscalls.close(fd)
        return status.st_dev, status.st_ino

    def open(self, path: str, flags: int) -> int:
        """Open ``path``, following the image's links. Use O_PATH for a file, or
        :meth:`open_file`.
        """
        return open_in_root(self.fd, path, flags, follow=True)

    def open_file(self, path: str) -> int:
        """Open the regular file ``path`` for reading.

        :raises OSError: EINVAL for anything but a regular file, or as openat2(2).
        """
        path_fd = self.open(path, os.O_PATH)
        try:
            return reopen(path_fd, self._own_fds, path)
        finally:
            syscalls.close(path_fd)

    def open_file_at(self, directory: int, name: str) -> int:
        """Open the regular file ``name`` of an open directory for reading. A link is refused."""
        path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            return reopen(path_fd, self._own_fds, name)
        finally:
            syscalls.close(path_fd)

    def read(self, path: str, limit: int) -> tuple[bytes, os.stat_result]:
        """Return the content and the status of a regular file.

        :raises OSError: EFBIG for more than ``limit`` bytes.
        """
        fd = self.open_file(path)
        try:
            return read_whole(fd, limit, path), os.fstat(fd)
        finally:
            syscalls.close(fd)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; an empty list if it does not exist, or is on a volume.

        A volume may be large, slow or without end (SECURITY R41).
        """
        try:
            fd = self._open_own(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self.volumes.append(path)
            else:
                check_absent(error)
            return []
        try:
            return [name for name, _kind in self.entries(fd, path)]
        finally:
            syscalls.close(fd)

    def on_volume(self, path: str) -> bool:
        """Tell whether the directory ``path`` is on another mount than the root."""
        try:
            syscalls.close(self._open_own(path, os.O_PATH | os.O_DIRECTORY))
        except OSError as error:
            return error.errno == errno.EXDEV
        return False

    def _open_own(self, path: str, flags: int) -> int:
        """Open ``path`` as :meth:`open` does, but on no volume: that is EXDEV."""
        return open_in_root(self.fd, path, flags, syscalls.RESOLVE_NO_XDEV, follow=True)

    def entries(self, directory: int, path: str) -> list[tuple[str, str]]:
        """Return the names in an open directory, each with "file", "link" or "other"."""
        kinds: list[tuple[str, str]] = []
        with os.scandir(directory) as entries:
            # zip() takes a number first, and so no entry after the last number.
            while more := [(entry.name, _kind(entry)) for _, entry in zip(range(AT_ONCE), entries)]:  # noqa: B905
                self.bounds.count_names(path, len(more), sum(len(name) for name, _ in more))
                kinds += more
        return kinds


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


class OpenDirectory:
    """An open directory of a root file system, for lookups even if its path changes. Close it."""

    def __init__(self, rootfs: Rootfs, fd: int, path: str) -> None:
        self._rootfs = rootfs
        self._fd = fd
        self._path = path

    def close(self) -> None:
        syscalls.close(self._fd)

    def status(self) -> tuple[Hashable, int]:
        """Return the directory's identity, whatever its path, and its change time in ns."""
        status = os.fstat(self._fd)
        return (status.st_dev, status.st_ino), status.st_mtime_ns

    def kind(self, name: str) -> str | None:
        """Return "file", "link" or "other" for ``name``; None if it does not exist."""
        try:
            mode = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode
        except OSError as error:
            check_absent(error)
            return None
        return "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "other"

    def entries(self) -> list[tuple[str, str]]:
        """Return the names, each with "file", "link" or "other"."""
        return self._rootfs.entries(self._fd, self._path)

    def readlink(self, name: str) -> str:
        return os.readlink(name, dir_fd=self._fd)

    def is_older(self, name: str, written: int) -> bool:
        """Tell whether ``name`` is a file that was not changed after ``written``, in ns."""
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            check_absent(error)
            return False
        return status.st_mtime_ns <= written

    def library(self, name: str, *, isa_level: bool = False) -> Library:
        """Return what ldconfig reads of the file ``name``.

        :raises OSError: for a link, and when it cannot be read.
        :raises ValueError: as :func:`nvgraft.formats.elf.read_library`.
        """
        return _library(self._rootfs.open_file_at(self._fd, name), isa_level=isa_level)

    def library_behind(self, name: str, *, isa_level: bool = False) -> Library:
        """Return what ldconfig reads of the file to which ``name`` leads; raises as
        :meth:`library`.
        """
        return _library(self._rootfs.open_file(f"{self._path}/{name}"), isa_level=isa_level)


def _library(fd: int, *, isa_level: bool) -> Library:
    from nvgraft.formats.elf import read_library

    try:
        return read_library(fd, isa_level=isa_level)
    except OSError as error:
        raise Unreadable(error.errno, error.strerror) from error
    finally:
        syscalls.close(fd)


def check_configuration(root_fd: int) -> None:
    """Refuse an ld.so.conf that would block its reader: a FIFO, or a file without end (SECURITY
    R17).

    :raises OSError: EINVAL or EFBIG, with the file's name.
    """
    try:
        fd = open_in_root(root_fd, ld_so_conf.PATH, os.O_PATH, follow=True)
    except OSError as error:
        check_absent(error)
        return  # as in an image without libraries
    try:
        status = os.fstat(fd)
    finally:
        syscalls.close(fd)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", ld_so_conf.PATH)
    if stat.S_ISREG(status.st_mode) and status.st_size > _CONFIGURATION_LIMIT:
        raise OSError(errno.EFBIG, f"larger than {_CONFIGURATION_LIMIT >> 20} MiB", ld_so_conf.PATH)
