"""A file tree that may be live or recorded, and the one way to resolve a path in it.

Everything that decides (inventory, target, plan) reads through :class:`Tree`, so that a live host, a host snapshot and a
container's root file system give the same answer to the same question. Nothing here writes, and nothing that was
resolved here is used again as a string for a write: the applier opens its targets itself (SECURITY R18).
"""

from __future__ import annotations

import _stat as stat
import errno

from nvgraft.base._os import os
from nvgraft.base.files import read_fd, reason
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.formats.elf import ElfFacts

#: Symbolic links followed in one resolution; the reference's limit (the kernel's own is 40).
MAX_LINKS = 20

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
}


class Node(Value):
    """What lstat says of one path: ``type`` is one of file, dir, symlink, char, block, socket, fifo."""

    __slots__ = ("gid", "mode", "rdev", "size", "target", "type", "uid")

    def __init__(
        self,
        type: str,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        target: str = "",
        rdev: tuple[int, int] | None = None,
        size: int = 0,
    ) -> None:
        self.type = type
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.target = target
        self.rdev = rdev
        self.size = size


class PathError(Exception):
    """A path cannot be resolved inside its tree; ``text`` is the reference's wording with the tree's ``label``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Tree:
    """A tree of files below one root. ``label`` is the root's name in messages ("" for the host's own root).

    A tree that does not change while it is used may have a set as ``_plain``: directories that exist and are reached without a
    link, remembered so that :meth:`resolve` does not walk there again.
    """

    label = ""
    #: Whether ``..`` means what it means to a process inside: of the root it is the root, and of nothing it is nothing. A plan does
    #: not follow the one, and takes the other for the directory above.
    closed = False
    _plain: set[str] | None = None

    def lstat(self, path: str) -> Node | None:
        """Return the node at ``path``, whose parents are directories and no links, or None where nothing is.

        :raises OSError: when it cannot be told (permission, I/O).
        """
        raise NotImplementedError

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory at a resolved ``path``, sorted; none where it does not exist."""
        raise NotImplementedError

    def read(self, path: str, limit: int) -> bytes:
        """Return at most ``limit`` bytes of the regular file at a resolved ``path``.

        :raises OSError: ENOENT, EACCES, EINVAL for anything but a regular file, EFBIG beyond the limit.
        """
        raise NotImplementedError

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        """Return the ELF facts of the file at a resolved ``path``; without ``sections`` the ABI tag is left out.

        :raises OSError: when it cannot be opened.
        :raises ValueError: when it is no ELF file, or damaged.
        """
        raise NotImplementedError

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Follow every symbolic link of ``path`` inside this tree and return the path without any (reference behaviour 6.2).

        Components that do not exist are kept as they are. With ``follow_last`` false the last component is kept even
        when it is a link.

        :raises PathError: for a ``..`` above the root, more than MAX_LINKS links, a link in /proc, or a file in place of a directory.
        """
        parent, _, name = path.rpartition("/")
        plain = self._plain
        if plain is not None and parent in plain and name not in {"", ".", ".."}:
            node = self._lstat_below(path, path)
            if node is None or node.type != "symlink" or not follow_last:
                return path
        pending = [part for part in reversed(path.split("/")) if part]
        done: list[str] = []
        exists = 0  # how many components of `done` are known to exist
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                if self.closed and exists < len(done):
                    raise PathError(
                        f"path error: {self.label or '/'}/{path}: no such file or directory"
                    )
                if not done and self.closed:
                    continue
                if not done:
                    raise PathError(f"path error: {path} resolves outside of {self.label or '/'}")
                done.pop()
                exists = min(exists, len(done))
                continue
            node = (
                self._lstat_below(path, "/" + "/".join([*done, part]))
                if exists == len(done)
                else None
            )
            if node is None:
                done.append(part)
                continue
            if node.type == "symlink" and (pending or follow_last):
                links += 1
                # A link of procfs leads past its text, to whatever root, directory or file a process has (SECURITY R18).
                if links > MAX_LINKS or done[:1] == ["proc"]:
                    raise PathError(
                        f"path error: {self.label or '/'}/{path}: too many levels of symbolic links"
                    )
                if node.target.startswith("/"):
                    done.clear()
                    exists = 0
                pending.extend(part for part in reversed(node.target.split("/")) if part)
                continue
            if node.type != "dir" and pending:
                raise PathError(f"path error: {self.label or '/'}/{path}: not a directory")
            done.append(part)
            exists += 1
        resolved = "/" + "/".join(done)
        if plain is not None and not links and exists >= len(done) - 1 and path == resolved:
            plain.add(parent)
        return resolved

    def _lstat_below(self, path: str, place: str) -> Node | None:
        """Return the node at ``place``, on the way of ``path``."""
        try:
            return self.lstat(place)
        except OSError as error:
            raise PathError(f"path error: {self.label or '/'}/{path}: {reason(error)}") from error

    def find(self, path: str) -> tuple[str, Node | None]:
        """Resolve ``path`` and return it with what is there."""
        resolved = self.resolve(path)
        return resolved, self.lstat(resolved) if resolved != "/" else Node("dir", 0o755)


class LiveTree(Tree):
    """The tree below an open directory. Each component is opened from its parent's descriptor, links are never followed
    by the kernel, so a tree that is changed meanwhile can lie to us but not lead us out of it.

    What was read once is remembered: a decision is made on one state of the tree. Close it after use.

    ``statuses`` has every path that lstat was asked for, with what the kernel said, None where nothing is.
    """

    def __init__(self, root_fd: int, label: str = "") -> None:
        """Take over ``root_fd``, an O_PATH descriptor of a directory."""
        self.label = label
        self._plain = set()
        self.statuses: dict[str, os.stat_result | None] = {}
        self._directories: dict[str, int] = {"": root_fd}
        self._nodes: dict[str, Node | None] = {}
        self._facts: dict[tuple[str, bool], ElfFacts] = {}

    def close(self) -> None:
        """Close every descriptor, the root's included."""
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()

    def directory(self, path: str) -> int:
        """Return an O_PATH descriptor, owned by this tree, of the directory at a resolved ``path``."""
        path = path.rstrip("/")
        fd = self._directories.get(path)
        if fd is None:
            parent, _, name = path.rpartition("/")
            fd = os.open(
                name,
                os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC,
                dir_fd=self.directory(parent),
            )
            self._directories[path] = fd
        return fd

    def lstat(self, path: str) -> Node | None:
        if path in self._nodes:
            return self._nodes[path]
        parent, _, name = path.rpartition("/")
        node = found = None
        try:
            fd = self.directory(parent)
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            kind = _TYPES[stat.S_IFMT(found.st_mode)]
            target = os.readlink(name, dir_fd=fd) if kind == "symlink" else ""
            rdev = (
                (os.major(found.st_rdev), os.minor(found.st_rdev))
                if kind in {"char", "block"}
                else None
            )
            node = Node(
                kind,
                stat.S_IMODE(found.st_mode),
                found.st_uid,
                found.st_gid,
                target,
                rdev,
                found.st_size,
            )
        except OSError as error:
            # ENOTDIR and ELOOP: a parent has become something else since it was looked at. EINVAL: a link has, since just now.
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL}:
                raise
        self.statuses[path] = found if node is not None else None
        self._nodes[path] = node
        return node

    def listdir(self, path: str) -> list[str]:
        try:
            fd = os.open(
                ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.directory(path)
            )
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            return []
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def open(self, path: str) -> int:
        """Open the regular file at a resolved ``path`` for reading; a FIFO or a device is never opened (SECURITY R17).

        :raises OSError: EINVAL for anything but a regular file.
        """
        parent, _, name = path.rpartition("/")
        held = os.open(
            name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory(parent)
        )
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(held)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        facts = self._facts.get((path, sections))
        if facts is None:
            from nvgraft.formats.elf import read_facts

            fd = self.open(path)
            try:
                facts = self._facts[path, sections] = read_facts(fd, sections=sections)
            finally:
                os.close(fd)
        return facts

    def read(self, path: str, limit: int) -> bytes:
        fd = self.open(path)
        try:
            return read_fd(fd, limit)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path) from error
            raise
        finally:
            os.close(fd)


def open_tree_at(path: str, label: str = "") -> LiveTree:
    """Return the live tree below the directory ``path`` of this host.

    :raises OSError: when it is missing or no directory.
    """
    return LiveTree(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), label)
