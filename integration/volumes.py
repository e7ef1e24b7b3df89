"""File systems of FUSE that no disk could hold: directories without end, files of any size, links
that lead on and on. The server is a child process that speaks the kernel's protocol (fuse(4)).
"""

import errno
import os
import stat
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nvgraft.system import syscalls

_LOOKUP, _FORGET, _GETATTR, _READLINK, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _INTERRUPT = 26, 27, 28, 29, 34, 36
_BATCH_FORGET = 42
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_HEADER_AND_WRITE = (1 << 20) + 4096
_VERSION = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 16, 12, 1 << 20, 1, 32, 0, 0)


class Entry(NamedTuple):
    """One file. A directory has ``names``, a link ``target``, and a file ``size`` bytes, which
    begin with ``content``.

    :ivar names: position -> name; None behind the last one.
    """

    names: Callable[[int], str | None] | None = None
    target: str = ""
    size: int = 0
    content: bytes = b""

    def attributes(self, inode: int) -> bytes:
        mode = stat.S_IFREG | 0o755
        if self.names is not None:
            mode = stat.S_IFDIR | 0o755
        elif self.target:
            mode = stat.S_IFLNK | 0o777
        return _ATTRIBUTES.pack(inode, self.size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


Look = Callable[[str], Entry | None]
"""The file at a path in the volume; the path of its root is ""."""


def endless(prefix: str = "file", length: int = 0) -> Entry:
    """Return a directory whose names begin with ``prefix``, without end."""
    return Entry(names=lambda position: f"{prefix}{position:0{length}}")


def listing(*names: str) -> Entry:
    """Return a directory with these names."""
    return Entry(names=lambda position: names[position] if position < len(names) else None)


def mount(point: Path, look: Look, delay: float = 0.0) -> None:
    """Mount a volume on ``point``; its server ends with the mount. Root only.

    :param delay: seconds before each answer.
    """
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other"
    syscalls.mount("volume", str(point), "fuse", 0, options)
    if os.fork() == 0:
        try:
            _serve(device, look, delay)
        except BaseException:  # noqa: BLE001 - a defect of the server, which nobody waits for
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(device)


def _serve(device: int, look: Look, delay: float) -> None:
    paths = ["", ""]  # by inode; the root has number 1
    inodes = {"": 1}
    while True:
        try:
            request = os.read(device, _HEADER_AND_WRITE)
        except OSError as error:
            if error.errno in {errno.EINTR, errno.ENOENT}:
                continue
            return  # unmounted
        _, operation, unique, inode, *_ = _IN.unpack_from(request)
        if operation in {_FORGET, _BATCH_FORGET, _INTERRUPT}:
            continue
        body = request[_IN.size :]
        if operation == _LOOKUP:
            path = f"{paths[inode]}/{body.rstrip(bytes(1)).decode(errors='surrogateescape')}"
            if path not in inodes:
                inodes[path] = len(paths)
                paths.append(path)
            inode = inodes[path]
        time.sleep(delay)
        answer = _answer(operation, inode, look(paths[inode]), body)
        code, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
        try:
            os.write(device, _OUT.pack(_OUT.size + len(data), code, unique) + data)
        except FileNotFoundError:
            continue  # interrupted meanwhile


def _answer(operation: int, inode: int, entry: Entry | None, body: bytes) -> bytes | int:
    """Return the answer to a request, or the number of an error."""
    if operation == _INIT:
        return _VERSION
    if entry is None:
        return errno.ENOENT
    if operation == _LOOKUP:
        return struct.pack("<QQQQII", inode, 0, 60, 60, 0, 0) + entry.attributes(inode)
    if operation == _GETATTR:
        return struct.pack("<QII", 60, 0, 0) + entry.attributes(inode)
    if operation == _READLINK:
        return entry.target.encode()
    if operation in {_OPEN, _OPENDIR}:
        return bytes(16)
    if operation in {_RELEASE, _RELEASEDIR, _ACCESS}:
        return b""
    if operation == _STATFS:
        return bytes(80)
    if operation not in {_READ, _READDIR}:
        return errno.ENOSYS
    _, offset, size = struct.unpack_from("<QQI", body)
    if entry.names is not None:
        return _names(entry.names, offset, size)
    return entry.content[offset : offset + size].ljust(min(size, entry.size - offset), b"\0")


def _names(names: Callable[[int], str | None], position: int, size: int) -> bytes:
    entries = bytearray()
    while (name := names(position)) is not None:
        data = name.encode()
        position += 1
        entry = struct.pack("<QQII", position + 1, position, len(data), stat.S_IFREG >> 12) + data
        if len(entries) + len(entry) + 7 > size:
            break
        entries += entry.ljust(-(-len(entry) // 8) * 8, b"\0")
    return bytes(entries)
