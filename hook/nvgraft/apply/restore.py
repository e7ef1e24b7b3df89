"""What a directory of a root file system held before a program was let loose on it, and the way back.

For changes that nvgraft does not make itself and so cannot undo one by one: ldconfig's. Everything goes through directory
descriptors. Which directories and files are worth a record is not decided here.
"""

import errno
import os
import stat

from nvgraft import syscalls

#: The most symbolic links, and the largest file in bytes, that are recorded: a root file system is hostile (SECURITY R17).
LINKS_LIMIT = 100_000
FILE_LIMIT = 16 << 20


class Directory:
    """An open directory, shared by the records of what is in it and closed with the last of them."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        """Take over ``fd``, opened for reading; ``path`` is its name in messages."""
        self.fd = fd
        self.path = path

    def __del__(self) -> None:
        os.close(self.fd)


class Owner:
    """The host's ids of the container's root: what is put back is made with them, then given to whom it belonged.

    On a file system of the container's user namespace nobody else can make files (EOVERFLOW, SECURITY R30).
    """

    __slots__ = ("gid", "uid")

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid

    def __enter__(self) -> None:
        syscalls.set_fs_ids(self.uid, self.gid)

    def __exit__(self, *_error: object) -> None:
        syscalls.set_fs_ids(os.geteuid(), os.getegid())


class Links:
    """Every symbolic link of one directory. ldconfig makes, replaces and (where they dangle) removes links."""

    __slots__ = ("_before", "_directory", "_owner")

    def __init__(self, directory: Directory, owner: Owner) -> None:
        """Read the links.

        :raises OSError: EFBIG for more than LINKS_LIMIT of them.
        """
        self._directory = directory
        self._owner = owner
        self._before = self._read()

    def _read(self) -> dict[str, tuple[str, int, int]]:
        links: dict[str, tuple[str, int, int]] = {}
        with os.scandir(self._directory.fd) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    continue
                if len(links) == LINKS_LIMIT:
                    raise OSError(errno.EFBIG, f"more than {LINKS_LIMIT} symbolic links", self._directory.path)
                found = entry.stat(follow_symlinks=False)
                links[entry.name] = (os.readlink(entry.name, dir_fd=self._directory.fd), found.st_uid, found.st_gid)
        return links

    def restore(self) -> None:
        """Remove the links that are new, and put back those that were replaced or removed."""
        now = self._read()
        for name in now:
            if now[name] != self._before.get(name):
                os.unlink(name, dir_fd=self._directory.fd)
        for name, (target, uid, gid) in self._before.items():
            if now.get(name) != (target, uid, gid):
                _make_link(self._directory.fd, name, target, (uid, gid), self._owner)


class Entry:
    """One name of a directory: nothing, a regular file with its bytes, or a symbolic link."""

    __slots__ = ("_data", "_directory", "_identity", "_name", "_owner", "_stat", "_target")

    def __init__(self, directory: Directory, name: str, owner: Owner, own_fds: int) -> None:
        """Read what ``name`` is now; ``own_fds`` is a descriptor of this process's own /proc/self/fd.

        :raises OSError: EINVAL for what could not be put back (a directory, a FIFO, a device), EFBIG beyond FILE_LIMIT.
        """
        self._directory = directory
        self._name = name
        self._owner = owner
        self._data = b""
        self._target = ""
        self._stat = self._lstat()
        self._identity = self._identify(self._stat)
        if self._stat is None:
            return
        if stat.S_ISLNK(self._stat.st_mode):
            self._target = os.readlink(name, dir_fd=directory.fd)
        elif stat.S_ISREG(self._stat.st_mode):
            self._data = self._read(own_fds)
        else:
            raise OSError(errno.EINVAL, "not a regular file", f"{directory.path}/{name}")

    @property
    def exists(self) -> bool:
        """Whether there was anything."""
        return self._stat is not None

    def _lstat(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @staticmethod
    def _identify(found: os.stat_result | None) -> tuple[int, ...]:
        # The time tells a file from its successor that was given the same inode number.
        return () if found is None else (found.st_dev, found.st_ino, found.st_ctime_ns)

    def _read(self, own_fds: int) -> bytes:
        # Held first and opened through the holder: what is looked at and what is opened cannot be two things (R17).
        held = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory.fd)
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", f"{self._directory.path}/{self._name}")
            fd = os.open(str(held), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=own_fds)
        finally:
            os.close(held)
        try:
            size = os.fstat(fd).st_size
            if size > FILE_LIMIT:
                raise OSError(errno.EFBIG, f"larger than {FILE_LIMIT >> 20} MiB", f"{self._directory.path}/{self._name}")
            return os.read(fd, size)
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Make the name what it was."""
        now = self._lstat()
        if self._identify(now) == self._identity:
            return
        fd = self._directory.fd
        if now is not None:
            os.unlink(self._name, dir_fd=fd)
        if self._stat is None:
            return
        owner = (self._stat.st_uid, self._stat.st_gid)
        if stat.S_ISLNK(self._stat.st_mode):
            _make_link(fd, self._name, self._target, owner, self._owner)
            return
        with self._owner:
            copy = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
        try:
            rest = memoryview(self._data)
            while rest:
                rest = rest[os.write(copy, rest) :]
            if owner != (self._owner.uid, self._owner.gid):
                os.fchown(copy, *owner)
            os.fchmod(copy, stat.S_IMODE(self._stat.st_mode))
            os.utime(copy, ns=(self._stat.st_atime_ns, self._stat.st_mtime_ns))
        finally:
            os.close(copy)


def _make_link(directory: int, name: str, target: str, ids: tuple[int, int], owner: Owner) -> None:
    with owner:
        os.symlink(target, name, dir_fd=directory)
    if ids != (owner.uid, owner.gid):
        os.chown(name, *ids, dir_fd=directory, follow_symlinks=False)
