"""A FUSE server for tests, without a library: it serves a directory of this machine, and can fall
silent.

    python3 fuse_server.py SOURCE MOUNTPOINT [--type TYPE] [--silent-when FILE]
                           [--hide]

It mounts the directory SOURCE on MOUNTPOINT (root only) and serves it until it is killed.

--silent-when  from the moment FILE exists, no request is answered any more
--hide         a deleted file that is open is renamed to .fuse_hidden..., as libfuse does

When it ends, the kernel answers all requests with an error.
"""

import argparse
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable

# Operations of linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS = 9, 10, 11, 12, 14, 15, 16, 17
RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 18, 25, 26, 27, 28, 29
CREATE, INTERRUPT, BATCH_FORGET, RENAME2 = 35, 36, 42, 45

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
#: Seconds for which the kernel may use an answer: none, so that every look is a request.
_ENTRY = struct.Struct("=QQQQII")


class Server:
    """Serve ``source``. Nodes are numbered in the order in which they are first named."""

    def __init__(self, source: str, silent_when: str, *, hide: bool) -> None:
        self.source = source
        self.silent_when = silent_when
        self.hide = hide
        self.paths = {1: ""}
        self.numbers = {"": 1}
        self.open: dict[int, tuple[int, int]] = {}

    def mount(self, point: str, fstype: str) -> None:
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"nvgraft-test", point.encode(), fstype.encode(), 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 17 | 1 << 12)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in {errno.EINTR, errno.ENOENT}:
                    continue
                raise
            _, operation, unique, node, _, _, _, _, _ = _IN.unpack_from(request)
            if operation in {FORGET, BATCH_FORGET, INTERRUPT}:
                continue
            if self.silent_when and os.path.exists(self.silent_when):
                continue
            try:
                answer = self.answer(operation, node, request[_IN.size :])
                self.reply(unique, 0, answer)
            except OSError as error:
                self.reply(unique, -(error.errno or errno.EIO), b"")

    def reply(self, unique: int, code: int, data: bytes) -> None:
        try:
            os.write(self.device, _OUT.pack(_OUT.size + len(data), code, unique) + data)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the request was interrupted
                raise

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        if operation == INIT:
            return struct.pack("=IIIIHHIIHH28x", 7, 31, 65536, 0, 12, 8, 1 << 16, 1, 0, 0)
        operations: dict[int, Callable[[str, bytes], bytes]] = {
            LOOKUP: lambda path, name: self.entry(self.below(path, name)),
            GETATTR: lambda path, _: struct.pack("=QII", 0, 0, 0) + self.attributes(path),
            SETATTR: self.set_attributes,
            READLINK: lambda path, _: os.fsencode(os.readlink(self.real(path))),
            SYMLINK: self.symlink,
            MKDIR: self.mkdir,
            UNLINK: self.unlink,
            RMDIR: self.rmdir,
            RENAME: lambda path, data: self.rename(path, data, 8),
            RENAME2: lambda path, data: self.rename(path, data, 16),
            OPEN: self.open_file,
            CREATE: self.create,
            READ: self.read,
            WRITE: self.write,
            RELEASE: self.release,
            FLUSH: lambda _path, _data: b"",
            OPENDIR: lambda _path, _data: struct.pack("=QII", 0, 0, 0),
            READDIR: self.list,
            RELEASEDIR: lambda _path, _data: b"",
            STATFS: lambda _path, _data: struct.pack(
                "=QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0
            ),
        }
        if operation not in operations:
            raise OSError(errno.ENOSYS, "")
        return operations[operation](self.paths[node], body)

    # ---- names

    def real(self, path: str) -> str:
        return self.source + path

    @staticmethod
    def below(path: str, name: bytes) -> str:
        return f"{path}/{os.fsdecode(name.partition(bytes(1))[0])}"

    def attributes(self, path: str) -> bytes:
        status = os.lstat(self.real(path))
        return self.pack(path, status)

    def pack(self, path: str, status: os.stat_result) -> bytes:
        times = [status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns]
        return _ATTR.pack(
            self.number(path),
            status.st_size,
            status.st_blocks,
            *(time // 10**9 for time in times),
            *(time % 10**9 for time in times),
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            0,
            4096,
            0,
        )

    def number(self, path: str) -> int:
        number = self.numbers.setdefault(path, len(self.paths) + 1)
        self.paths[number] = path
        return number

    def entry(self, path: str) -> bytes:
        attributes = self.attributes(path)
        return _ENTRY.pack(self.number(path), 0, 0, 0, 0, 0) + attributes

    # ---- changes

    def set_attributes(self, path: str, data: bytes) -> bytes:
        valid, _, _, size, _, accessed, modified = struct.unpack_from("=IIQQQQQ", data)
        mode, _, uid, gid = struct.unpack_from("=IIII", data, 68)
        real = self.real(path)
        if valid & 1:
            os.chmod(real, mode)
        if valid & 6:
            ids = [uid if valid & 2 else -1, gid if valid & 4 else -1]
            os.chown(real, *ids, follow_symlinks=False)
        if valid & 8:
            os.truncate(real, size)
        if valid & 0x30 == 0x30:
            os.utime(real, (accessed, modified), follow_symlinks=False)
        return struct.pack("=QII", 0, 0, 0) + self.attributes(path)

    def symlink(self, path: str, data: bytes) -> bytes:
        name, target = data.split(b"\0")[:2]
        made = self.below(path, name)
        os.symlink(target, self.real(made))
        return self.entry(made)

    def mkdir(self, path: str, data: bytes) -> bytes:
        made = self.below(path, data[8:])
        os.mkdir(self.real(made), struct.unpack_from("=I", data)[0])
        return self.entry(made)

    def rmdir(self, path: str, data: bytes) -> bytes:
        os.rmdir(self.real(self.below(path, data)))
        self.forget(self.below(path, data))
        return b""

    def unlink(self, path: str, data: bytes) -> bytes:
        gone = self.below(path, data)
        held = any(number == self.numbers.get(gone) for number, _ in self.open.values())
        if self.hide and held:
            hidden = f"{path}/.fuse_hidden{self.numbers[gone]:016x}"
            os.rename(self.real(gone), self.real(hidden))
            self.move(gone, hidden)
        else:
            os.unlink(self.real(gone))
            self.forget(gone)
        return b""

    def rename(self, path: str, data: bytes, names_at: int) -> bytes:
        old, new = data[names_at:].split(b"\0")[:2]
        directory = self.paths[struct.unpack_from("=Q", data)[0]]
        was, now = self.below(path, old), self.below(directory, new)
        os.rename(self.real(was), self.real(now))
        self.forget(now)
        self.move(was, now)
        return b""

    def forget(self, path: str) -> None:
        """Give the next thing of this name another number."""
        number = self.numbers.pop(path, None)
        if number is not None:
            self.paths[number] = f"{path}/gone"

    def move(self, was: str, now: str) -> None:
        for number, path in list(self.paths.items()):
            if path == was or path.startswith(was + "/"):
                self.numbers.pop(path, None)
                moved = now + path[len(was) :]
                self.paths[number] = moved
                self.numbers[moved] = number

    # ---- open files

    def hold(self, path: str, flags: int, mode: int = 0) -> bytes:
        fd = os.open(self.real(path), flags & ~os.O_NOFOLLOW, mode)
        self.open[fd] = (self.number(path), fd)
        return struct.pack("=QII", fd, 0, 0)

    def open_file(self, path: str, data: bytes) -> bytes:
        return self.hold(path, struct.unpack_from("=I", data)[0])

    def create(self, path: str, data: bytes) -> bytes:
        flags, mode, _, _ = struct.unpack_from("=IIII", data)
        made = self.below(path, data[16:])
        opened = self.hold(made, flags | os.O_CREAT, mode)
        return self.entry(made) + opened

    def read(self, path: str, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", data)
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", data)
        return struct.pack("=II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def release(self, path: str, data: bytes) -> bytes:
        handle = struct.unpack_from("=Q", data)[0]
        del self.open[handle]
        os.close(handle)
        name = path.rpartition("/")[2]
        held = {number for number, _ in self.open.values()}
        if name.startswith(".fuse_hidden") and self.numbers.get(path) not in held:
            os.unlink(self.real(path))
        return b""

    def list(self, path: str, data: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", data)
        rows = b""
        for number, name in enumerate(sorted(os.listdir(self.real(path))), 1):
            if number <= offset:
                continue
            word = os.fsencode(name)
            kind = stat.S_IFMT(os.lstat(self.real(f"{path}/{name}")).st_mode) >> 12
            row = struct.pack("=QQII", number + 1, number, len(word), kind) + word
            row += bytes(-len(row) % 8)
            if len(rows) + len(row) > size:
                break
            rows += row
        return rows


def main() -> None:
    """Mount, print the pid of the process that serves, and let it serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("point")
    parser.add_argument("--type", default="fuse.nvgraft")
    parser.add_argument("--silent-when", default="")
    parser.add_argument("--hide", action="store_true")
    args = parser.parse_args()
    os.umask(0)
    server = Server(args.source, args.silent_when, hide=args.hide)
    server.mount(args.point, args.type)
    child = os.fork()
    if child:
        print(child, flush=True)
        os._exit(0)
    os.setsid()
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    server.serve()


if __name__ == "__main__":
    main()
