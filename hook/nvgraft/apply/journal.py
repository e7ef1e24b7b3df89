"""A record of what a start is about to make in a root file system: a killed hook undoes nothing
(SECURITY R35).

Each hook at work has one file under /run, and removes it when its work is done or undone. A file
without a hook was left by a killed one, and names what may be in the root file system. This module
writes and reads journals. The executor decides what to announce, and
:mod:`nvgraft.apply.leftovers` removes what was made.

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
from nvgraft.base.files import read_fd, reason, write_all
from nvgraft.base.values import Value
from nvgraft.system import syscalls
from nvgraft.system.lock import lock_name
from nvgraft.system.rundir import open_private, require_private, unlike_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The directory of journals. Only root may read it, since journals name paths of images.
DIRECTORY = "/run/nvgraft/journal"

#: Bytes of the largest journal that is written and read. Its largest parts are the former loader
#: cache and its temporary file, of at most 16 MiB each.
SIZE_LIMIT = 40 << 20

#: The most journals of killed hooks that are kept, and the most bytes of all of them together: /run
#: is in memory.
KEPT, KEPT_BYTES = 256, 64 << 20

#: Nanoseconds after its last announcement within which a hook has ended or been killed: more than
#: engines grant.
_AT_WORK = 120 * 10**9

_VERSION = "nvgraft.journal/2"
#: _MAGIC, the record's length and CRC-32, and the CRC-32 of these three.
_FRAME = struct.Struct("=4sIII")
_MAGIC = b"nvj2"

#: From linux/time.h. File systems take their times from this clock; time.time() is some
#: milliseconds ahead of it.
_CLOCK_REALTIME_COARSE = 5

#: Kind of entry -> number of fields after its path.
_FIELDS = {
    "dir": 0,
    "file": 0,
    "link": 1,
    "devices": 1,
    "absent": 0,
    "was-link": 3,
    "links": 0,
    "was-file": 5,
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
    - links: a directory in which that step makes links; those that exist are announced as was-link.
    """

    def __init__(self, kind: str, path: str, *fields: str, data: bytes = b"") -> None:
        if len(fields) != _FIELDS[kind]:
            raise ValueError(f"{kind} has {_FIELDS[kind]} fields")
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
            journal._write(_frame(_heading_record(heading)))
        except OSError as error:
            if journal._fd >= 0:
                _remove(directory, name)
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
            for fields, data in _records(entries):
                self._write(_frame(fields, data))
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
            _remove(self._directory, self.name)

    def close(self) -> None:
        """Close the descriptors. A journal that was not ended stays."""
        for fd in (self._fd, self._directory):
            if fd >= 0:
                syscalls.close(fd)
        self._fd = self._directory = -1


class Left(Value):
    """The journal ``name`` of an unfinished hook; ``heading`` is None if the hook had made nothing.

    :param written: when it was last written, in ns of the file systems' time.
    """

    def __init__(
        self, name: str, heading: Heading | None, entries: tuple[JournalEntry, ...], written: int
    ) -> None:
        self.name = name
        self.heading = heading
        self.entries = entries
        self.written = written

    @property
    def until(self) -> int:
        """When its hook had certainly ended, in ns of the file systems' time."""
        return self.written + _AT_WORK

    def is_of(self, now: Heading) -> bool:
        """Tell whether the journal is of the root file system that ``now`` describes.

        An overlay gets another device number at each mount. A new directory may get the inode
        number of a former one, but was born later. A directory of an overlay's lower layer is born
        again when something is first made in it, and that happened while the hook was at work.
        """
        was = self.heading
        if (
            was is None
            or was.inode != now.inode
            or (was.device != now.device and was.rootfs != now.rootfs)
        ):
            return False
        return was.born == now.born or was.since <= now.born <= self.until


def lock_of(name: str) -> str:
    """Return the name of the lock that the hook of the journal ``name`` holds while at work."""
    return name.rpartition("-")[0]


def pending() -> bool:
    """Tell whether there is any journal, of a hook at work or of a killed one."""
    directory = open_private(DIRECTORY)
    if directory is None:
        return False
    try:
        return bool(os.listdir(directory))
    finally:
        syscalls.close(directory)


class Entry(Value):
    """A file ``name`` of the directory of journals, its ``size`` in bytes, and when it was last
    ``written``, in ns of the file systems' time.

    :param problem: why it is not used; "" for a journal.
    """

    def __init__(self, name: str, size: int, written: int, problem: str) -> None:
        self.name = name
        self.size = size
        self.written = written
        self.problem = problem


def entries_of(directory: int) -> list[Entry]:
    """Return what the open ``directory`` holds, oldest first.

    What is not a journal as hooks leave it is neither read nor removed (SECURITY R43).
    """
    entries = []
    for name in os.listdir(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue  # its hook has ended
        problem = unlike_ours(status, SIZE_LIMIT)
        if not problem and _numbers(name) is None:
            problem = "its name is not that of a journal"
        entries.append(Entry(name, status.st_size, status.st_mtime_ns, problem))
    return sorted(entries, key=lambda entry: (entry.written, entry.name))


def _numbers(name: str) -> tuple[int, int] | None:
    """Return the device and inode in the name of a journal, or None for another name."""
    root, _, started = name.rpartition("-")
    device, _, inode = root.partition("-")
    for part in (device, inode, started.partition(".")[0]):
        if not part or part.strip("0123456789abcdef"):
            return None
    return int(device, 16), int(inode, 16)


def inode_of(name: str) -> int:
    """Return the inode of the root directory of the journal ``name``."""
    numbers = _numbers(name)
    return numbers[1] if numbers is not None else -1


def read(directory: int, name: str) -> Left:
    """Read a journal of the open ``directory``, in which only this user can make files.

    :raises ValueError: when it is damaged. No hook leaves a damaged one, however it ends.
    :raises OSError: when it cannot be read.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = read_fd(fd, SIZE_LIMIT)
        written = os.fstat(fd).st_mtime_ns
    finally:
        syscalls.close(fd)
    left = parse(name, data, written)
    if left.heading is not None and _numbers(name) != (left.heading.device, left.heading.inode):
        raise ValueError("its name is that of another root file system")
    return left


def parse(name: str, data: bytes, written: int) -> Left:
    """Parse the bytes ``data`` of the journal ``name``.

    :raises ValueError: as :func:`read`.
    """
    records = list(_whole_records(data))
    if not records:
        return Left(name, None, (), written)
    try:
        version, rootfs, *numbers = (paths.fsdecode(field) for field in records[0].split(b"\0"))
        if version != _VERSION:
            raise ValueError(f"its format is {version!r}, this nvgraft reads {_VERSION}")
        device, inode, born, since, uid, gid = (int(number) for number in numbers)
        entries = [entry for record in records[1:] for entry in _entries(record)]
    except KeyError as error:
        raise ValueError(f"malformed entry: {error}") from error
    return Left(
        name, Heading(rootfs, device, inode, born, since, uid, gid), tuple(entries), written
    )


def rewrite(directory: int, left: Left) -> None:
    """Write ``left`` in the place of the journal of that name, or remove the journal if no entry is
    left.

    :raises OSError: when neither works. The journal is unchanged then.
    """
    if left.heading is None or not left.entries:
        os.unlink(left.name, dir_fd=directory)
        return
    # No hook uses this name. If this process is killed here, there is one more journal of the same
    # things.
    temporary = f"{left.name}.{os.getpid()}"
    _remove(directory, temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        write_all(fd, _frame(_heading_record(left.heading)))
        for fields, data in _records(left.entries):
            write_all(fd, _frame(fields, data) + data)
        os.utime(fd, ns=(left.written, left.written))
    except BaseException:
        _remove(directory, temporary)
        raise
    finally:
        syscalls.close(fd)
    os.rename(temporary, left.name, src_dir_fd=directory, dst_dir_fd=directory)


def _remove(directory: int, name: str) -> None:
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


def _frame(fields: bytes, data: bytes = b"") -> bytes:
    """Return the bytes before ``data`` in a record of both: ``data`` can be long and is not
    copied.
    """
    numbers = (_MAGIC, len(fields) + len(data), zlib.crc32(data, zlib.crc32(fields)))
    return _FRAME.pack(*numbers, zlib.crc32(_FRAME.pack(*numbers, 0))) + fields


def _whole_records(data: bytes) -> Iterator[bytes]:
    """Yield the records that were written completely."""
    offset = 0
    while offset + _FRAME.size <= len(data):
        magic, length, check, own_check = _FRAME.unpack_from(data, offset)
        if magic != _MAGIC or own_check != zlib.crc32(_FRAME.pack(magic, length, check, 0)):
            raise ValueError(f"no record at byte {offset}")
        offset += _FRAME.size
        if offset + length > len(data):
            return
        record = data[offset : offset + length]
        if zlib.crc32(record) != check:
            raise ValueError(f"the record at byte {offset} is not as it was written")
        yield record
        offset += length


def _heading_record(heading: Heading) -> bytes:
    numbers = (heading.device, heading.inode, heading.born, heading.since, heading.uid, heading.gid)
    return paths.fsencode("\0".join((_VERSION, heading.rootfs, *map(str, numbers))))


def _records(entries: Iterable[JournalEntry]) -> Iterator[tuple[bytes, bytes]]:
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


def _entries(record: bytes) -> Iterator[JournalEntry]:
    at = 0
    while at < len(record):
        kind = paths.fsdecode(record[at : record.find(b"\0", at)])
        words = []
        for _ in range(2 + _FIELDS[kind]):
            end = record.find(b"\0", at)
            if end < 0:
                raise ValueError(f"malformed entry: {kind}")
            words.append(paths.fsdecode(record[at:end]))
            at = end + 1
        data = b""
        if kind == "was-file":
            data, at = record[at:], len(record)
        yield JournalEntry(*words, data=data)
