"""A record of what a start is about to make in a root file system: a killed hook undoes nothing
(SECURITY R35).

Each hook at work has one file under /run, and removes it when its work is done or undone. A file
without a hook was left by a killed one, and names what may be in the root file system. This module
writes journals, and :mod:`nvgraft.apply.left_journal` reads them. The executor decides what to
announce, and :mod:`nvgraft.apply.leftovers` removes what was made.

A file is a sequence of records, each with its length and a check. A record cut short was never
followed by what it announces. /run is in memory, so nothing is synchronised to a disk, and a power
cut leaves no journal.
"""

from __future__ import annotations

import errno
import time
import zlib

from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base._stdlib import struct
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason, write_all
from nvgraft.base.values import Value
from nvgraft.system import syscalls
from nvgraft.system.lock import lock_name
from nvgraft.system.rundir import open_private, require_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The directory of journals. Only root may read it, since journals name paths of images.
DIRECTORY = "/run/nvgraft/journal"

#: Bytes of the largest journal that is written and read. Its largest parts are the former loader
#: cache and its temporary file, of at most 16 MiB each.
SIZE_LIMIT = 40 << 20

VERSION = "nvgraft.journal/2"
#: MAGIC, the record's length and CRC-32, and the CRC-32 of these three.
FRAME = struct.Struct("=4sIII")
MAGIC = b"nvj2"

#: From linux/time.h. File systems take their times from this clock; time.time() is some
#: milliseconds ahead of it.
_CLOCK_REALTIME_COARSE = 5

#: Kind of entry -> number of fields after its path.
FIELDS = {
    "dir": 0,
    "file": 0,
    "link": 1,
    "devices": 1,
    "absent": 0,
    "was-link": 3,
    "links": 0,
    "was-file": 5,
    "was-mode": 2,
}


class JournalEntry(Value):
    """One thing that a start is about to make or change, at the absolute ``path`` in the root file
    system.

    ``kind`` is one of

    - dir, file, link (target): made where nothing is;
    - devices (inode): rules of the host's cgroup directory ``path``;
    - absent: a file that the loader cache step makes, with content, where nothing is;
    - was-file (mode, uid, gid, access and modification time in ns; ``data``), was-link (target,
      uid, gid): what that step replaces;
    - was-mode (former mode, new mode): permissions that are changed;
    - links: a directory in which that step makes links; those that exist are announced as was-link.
    """

    def __init__(self, kind: str, path: str, *fields: str, data: bytes = b"") -> None:
        if len(fields) != FIELDS[kind]:
            raise ValueError(f"{kind} has {FIELDS[kind]} fields")
        self.kind = kind
        self.path = path
        self.fields = fields
        self.data = data


class Heading(Value):
    """The root file system of a journal: its path ``rootfs``, and the ``device``, ``inode`` and
    ``born`` of its root.

    :param born: birth time in ns; 0 where the file system has none.
    :param since: the file systems' time in ns when the work began. Anything older was not made by
        it.
    :param uid: the host's id of the container's root; likewise ``gid``.
    """

    def __init__(
        self, rootfs: str, device: int, inode: int, born: int, since: int, uid: int, gid: int
    ) -> None:
        self.rootfs = rootfs
        self.device = device
        self.inode = inode
        self.born = born
        self.since = since
        self.uid = uid
        self.gid = gid

    @classmethod
    def of(cls, rootfs: str, rootfs_fd: int, uid: int, gid: int) -> Heading:
        """Describe the root file system that ``rootfs_fd`` holds, as of now."""
        root = os.fstat(rootfs_fd)
        since = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        return cls(
            rootfs, root.st_dev, root.st_ino, syscalls.birth_time(rootfs_fd), since, uid, gid
        )


class Journal:
    """The journal of one start. Without a journal directory (rootless) it announces nothing."""

    def __init__(self, directory: int = -1, name: str = "", fd: int = -1) -> None:
        self._directory = directory
        self.name = name
        self._fd = fd
        self._size = 0

    @classmethod
    def begin(cls, heading: Heading) -> Journal:
        """Begin a journal. Call this in the host's mount namespace, with signals held, then
        :meth:`close`.

        :raises Refusal: when the journal cannot be written. Nothing may be made then.
        """
        directory = require_private(DIRECTORY)
        if directory is None:
            return cls()
        name = f"{lock_name(heading.device, heading.inode)}-{time.time_ns():x}"
        journal = cls(directory, name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            journal._fd = os.open(name, flags, 0o600, dir_fd=directory)
            journal._write(frame(heading_record(heading)))
        except OSError as error:
            if journal._fd >= 0:
                remove(directory, name)
            journal.close()
            raise _cannot_write(name, error) from error
        return journal

    def announce(self, entries: Iterable[JournalEntry]) -> None:
        """Write down what will be made or changed, before it is.

        :raises Refusal: when the journal cannot be written, or becomes larger than SIZE_LIMIT.
        """
        if self._fd < 0:
            return
        try:
            for fields, data in records(entries):
                self._write(frame(fields, data))
                self._write(data)
        except OSError as error:
            raise _cannot_write(self.name, error) from error

    def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > SIZE_LIMIT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        write_all(self._fd, data)

    def end(self) -> None:
        """Remove the journal: the work is done, or undone.

        :raises OSError: when the journal still names things, which a later hook would remove.
        """
        if self._fd < 0:
            return
        try:
            os.unlink(self.name, dir_fd=self._directory)
        except OSError:
            os.ftruncate(self._fd, 0)  # an empty journal names nothing
            remove(self._directory, self.name)

    def close(self) -> None:
        """Close the descriptors. A journal that was not ended stays."""
        for fd in (self._fd, self._directory):
            if fd >= 0:
                syscalls.close(fd)
        self._fd = self._directory = -1


def pending() -> bool:
    """Tell whether there is any journal, of a hook at work or of a killed one."""
    directory = open_private(DIRECTORY)
    if directory is None:
        return False
    try:
        return bool(os.listdir(directory))
    finally:
        syscalls.close(directory)


def remove(directory: int, name: str) -> None:
    """Remove a journal, as best effort."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        return


def _cannot_write(name: str, error: OSError) -> Refusal:
    fix = "make room in /run: nothing is made in a container before the journal names it"
    if error.errno == errno.EFBIG:
        fix = (
            f"a journal has at most {SIZE_LIMIT >> 20} MiB: reduce the links in the image's library"
            " directories, which it would have to name"
        )
    return Refusal("initialization", f"write failed: {DIRECTORY}/{name}: {reason(error)}", fix)


def frame(fields: bytes, data: bytes = b"") -> bytes:
    """Return the bytes before ``data`` in a record of both: ``data`` can be long and is not
    copied.
    """
    numbers = (MAGIC, len(fields) + len(data), zlib.crc32(data, zlib.crc32(fields)))
    return FRAME.pack(*numbers, zlib.crc32(FRAME.pack(*numbers, 0))) + fields


def heading_record(heading: Heading) -> bytes:
    """Return the first record of a journal."""
    numbers = (heading.device, heading.inode, heading.born, heading.since, heading.uid, heading.gid)
    return paths.fsencode("\0".join((VERSION, heading.rootfs, *map(str, numbers))))


def records(entries: Iterable[JournalEntry]) -> Iterator[tuple[bytes, bytes]]:
    """Yield records for ``entries``. Each ``data`` ends a record of its own; the rest share one."""
    words: list[str] = []
    for entry in entries:
        own = (entry.kind, entry.path, *entry.fields)
        if entry.kind == "was-file":
            yield paths.fsencode("\0".join((*own, ""))), entry.data
        else:
            words += own
    if words:
        yield paths.fsencode("\0".join((*words, ""))), b""
