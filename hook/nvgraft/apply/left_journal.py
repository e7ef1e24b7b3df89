"""Read the journals that killed hooks have left, and write down what is still to be removed.

:mod:`nvgraft.apply.journal` writes the journals of hooks at work, and has their format.
"""

from __future__ import annotations

import zlib

from nvgraft.apply.journal import (
    FIELDS,
    FRAME,
    MAGIC,
    SIZE_LIMIT,
    VERSION,
    Heading,
    JournalEntry,
    frame,
    heading_record,
    records,
    remove,
)
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.files import read_fd, write_all
from nvgraft.base.values import Value
from nvgraft.system import syscalls
from nvgraft.system.rundir import unlike_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The most journals of killed hooks that are kept, and the most bytes of all of them together: /run
#: is in memory.
KEPT, KEPT_BYTES = 256, 64 << 20

#: Nanoseconds after its last announcement within which a hook has ended or been killed: more than
#: engines grant.
_AT_WORK = 120 * 10**9


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
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
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
    whole = list(_whole_records(data))
    if not whole:
        return Left(name, None, (), written)
    try:
        version, rootfs, *numbers = (paths.fsdecode(field) for field in whole[0].split(b"\0"))
        if version != VERSION:
            raise ValueError(f"its format is {version!r}, this nvgraft reads {VERSION}")
        device, inode, born, since, uid, gid = (int(number) for number in numbers)
        entries = [entry for record in whole[1:] for entry in _entries(record)]
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
    remove(directory, temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        write_all(fd, frame(heading_record(left.heading)))
        for fields, data in records(left.entries):
            write_all(fd, frame(fields, data) + data)
        os.utime(fd, ns=(left.written, left.written))
    except BaseException:
        remove(directory, temporary)
        raise
    finally:
        syscalls.close(fd)
    os.rename(temporary, left.name, src_dir_fd=directory, dst_dir_fd=directory)


def _whole_records(data: bytes) -> Iterator[bytes]:
    """Yield the records that were written completely."""
    offset = 0
    while offset + FRAME.size <= len(data):
        magic, length, check, own_check = FRAME.unpack_from(data, offset)
        if magic != MAGIC or own_check != zlib.crc32(FRAME.pack(magic, length, check, 0)):
            raise ValueError(f"no record at byte {offset}")
        offset += FRAME.size
        if offset + length > len(data):
            return
        record = data[offset : offset + length]
        if zlib.crc32(record) != check:
            raise ValueError(f"the record at byte {offset} is not as it was written")
        yield record
        offset += length


def _entries(record: bytes) -> Iterator[JournalEntry]:
    at = 0
    while at < len(record):
        kind = paths.fsdecode(record[at : record.find(b"\0", at)])
        words = []
        for _ in range(2 + FIELDS[kind]):
            end = record.find(b"\0", at)
            if end < 0:
                raise ValueError(f"malformed entry: {kind}")
            words.append(paths.fsdecode(record[at:end]))
            at = end + 1
        data = b""
        if kind == "was-file":
            data, at = record[at:], len(record)
        yield JournalEntry(*words, data=data)
