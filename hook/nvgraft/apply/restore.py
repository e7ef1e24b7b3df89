"""Record what a directory of a root file system holds, and put it back.

This is for changes that nvgraft does not make itself and so cannot undo one by one: those of
ldconfig. The records go to the journal, and can be put back from it as well. All access is by
directory descriptors. The caller decides which directories and files to record.
"""

from __future__ import annotations

import errno

from nvgraft.apply import journal
from nvgraft.apply.descriptors import read_whole, reopen
from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.files import write_all
from nvgraft.system import privileges, syscalls

#: The most bytes of a file that are recorded: a root file system is hostile (SECURITY R17).
FILE_LIMIT = 16 << 20


class SharedDirectory:
    """An open directory. The records of its content share it, and the last of them closes it."""

    def __init__(self, fd: int, path: str) -> None:
        """Take over ``fd``, opened for reading; ``path`` is its name in messages.

        ``identity`` is device and inode.
        """
        status = os.fstat(fd)
        self.fd = fd
        self.identity = (status.st_dev, status.st_ino)
        self.path = path

    def __del__(self) -> None:
        syscalls.close(self.fd)


class Owner:
    """The host's ids of the container's root, with which things are made or put back (SECURITY
    R30).

    On a file system of the container's user namespace only they can make files (else EOVERFLOW).
    """

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid
        self._is_us = (uid, gid) == (os.geteuid(), os.getegid())

    def __enter__(self) -> None:
        if self._is_us:
            return
        try:
            syscalls.set_fs_ids(self.uid, self.gid)
            # The kernel drops this capability with the ids. The reference raises it again, because
            # an image's directories need not belong to the container's root.
            privileges.regain(privileges.DAC_OVERRIDE)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        if not self._is_us:
            syscalls.set_fs_ids(os.geteuid(), os.getegid())


class NotAFile(OSError):
    """A name that holds neither a regular file nor a link, and so could not be put back."""


class DirectoryEntry:
    """One name of a directory: free, a regular file with its bytes, or a symbolic link."""

    def __init__(
        self,
        directory: SharedDirectory,
        name: str,
        owner: Owner,
        own_fds: int,
        *,
        content: bool = True,
    ) -> None:
        """Read what ``name`` holds now, and keep it as the journal's entry ``before``.

        :param own_fds: a descriptor of this process's own /proc/self/fd.
        :param content: false for a name that is not replaced if it holds a file: the file is not
            read then, and not put back.
        :raises NotAFile: for anything that could not be put back (a directory, a FIFO, a device).
        :raises OSError: EFBIG beyond FILE_LIMIT, or the kernel's error.
        """
        self._directory = directory
        self._name = name
        self._owner = owner
        self._ours: tuple[int, ...] = ()
        status = self._lstat()
        self._identity = self._identify(status)
        path = paths.join(directory.path, name)
        if status is None:
            self.before = journal.JournalEntry("absent", path)
            return
        ids = (str(status.st_uid), str(status.st_gid))
        if stat.S_ISLNK(status.st_mode):
            self.before = journal.JournalEntry(
                "was-link", path, os.readlink(name, dir_fd=directory.fd), *ids
            )
        elif stat.S_ISREG(status.st_mode):
            mode = str(stat.S_IMODE(status.st_mode))
            times = (str(status.st_atime_ns), str(status.st_mtime_ns))
            data = self._read(own_fds) if content else b""
            self.before = journal.JournalEntry("was-file", path, mode, *ids, *times, data=data)
        else:
            raise NotAFile(errno.EINVAL, "not a regular file", path)

    @property
    def exists(self) -> bool:
        """Whether the name was taken."""
        return self.before.kind != "absent"

    def replaced(self) -> None:
        """Note what replaced it: :meth:`restore` leaves anything else alone."""
        self._ours = self._identify(self._lstat())

    def _lstat(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @staticmethod
    def _identify(status: os.stat_result | None) -> tuple[int, ...]:
        # The change time tells a file from a later one that was given the same inode number.
        return () if status is None else (status.st_dev, status.st_ino, status.st_ctime_ns)

    def _read(self, own_fds: int) -> bytes:
        path = paths.join(self._directory.path, self._name)
        path_fd = os.open(
            self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory.fd
        )
        try:
            fd = reopen(path_fd, own_fds, path)
        finally:
            syscalls.close(path_fd)
        try:
            return read_whole(fd, FILE_LIMIT, path)
        finally:
            syscalls.close(fd)

    def restore(self) -> None:
        """Make the name what it was."""
        now = self._lstat()
        if self._identify(now) == self._identity or (
            self._ours and now is not None and self._identify(now) != self._ours
        ):
            return
        if now is not None:
            os.unlink(self._name, dir_fd=self._directory.fd)
        # A second try may remove what this one has made.
        self._ours = ()
        put_back(self._directory.fd, self._name, self.before, self._owner)


def put_back(directory: int, name: str, before: journal.JournalEntry, owner: Owner) -> None:
    """Make the free name ``name`` what the journal's entry ``before`` says it was."""
    if before.kind == "absent":
        return
    if before.kind == "was-link":
        target, *ids = before.fields
        make_link(directory, name, target, (int(ids[0]), int(ids[1])), owner)
        return
    mode, uid, gid, accessed, modified = map(int, before.fields)
    with owner:
        copy = os.open(
            name,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
    try:
        write_all(copy, before.data)
        if (uid, gid) != (owner.uid, owner.gid):
            os.fchown(copy, uid, gid)
        os.fchmod(copy, mode)
        os.utime(copy, ns=(accessed, modified))
    except BaseException:
        # Half of the file would be taken for the whole.
        os.unlink(name, dir_fd=directory)
        raise
    finally:
        os.close(copy)


def make_link(directory: int, name: str, target: str, ids: tuple[int, int], owner: Owner) -> None:
    """Make a symbolic link that belongs to ``ids`` (uid, gid)."""
    with owner:
        os.symlink(target, name, dir_fd=directory)
    if ids != (owner.uid, owner.gid):
        os.chown(name, *ids, dir_fd=directory, follow_symlinks=False)
