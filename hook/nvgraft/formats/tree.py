"""File trees, live or recorded, and the resolution of paths in them.

Inventory, target and plan read files through :class:`Tree`, so that a live host, a host snapshot
and a container's root file system answer alike. Nothing here writes, and no path that is resolved
here is used for a write: the applier opens its targets itself (SECURITY R18).
"""

from __future__ import annotations

import errno
import time

from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_fd, reason
from nvgraft.base.values import Value
from nvgraft_specs import names as defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.formats.elf import ElfFacts

#: The most symbolic links followed in one resolution: the reference's limit (the kernel's is 40).
MAX_LINKS = 20
#: The most levels that a resolution may have reached when it follows a link, and the most bytes
#: that are left to be followed then, as in the kernel.
_MAX_LEVELS = 512
_MAX_PENDING = 4096

#: How to start an image in spite of a bound.
RAISE = "use a smaller image or volume, or raise {} under [nvgraft] in config.toml"

#: Names of a directory that are read before they are counted, and names of one that is so large
#: that their bytes are counted too: to count the others would only cost time.
AT_ONCE, _MANY = 512, 4096
#: Bytes of a name, on average over all names: a directory of FUSE may have names of 1024.
_NAME_SIZE = 100
#: Directories of a bounded tree that are held open.
_MOST_OPEN = 4096

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
    """The result of lstat(2). ``type`` is one of file, dir, symlink, char, block, socket, fifo."""

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


class OutOfBounds(Refusal):
    """An image, or a volume in it, holds more than a bound allows (SECURITY R41).

    ``excess`` names what there is too much of, how much was found, and the key of config.toml that
    allows more.
    """

    def __init__(self, where: str, found: str, key: str, limit: float) -> None:
        self.excess = f"{found}, more than {key} = {limit} allows"
        self.key = key
        super().__init__(
            "container",
            f"{where}: {self.excess}",
            RAISE.format(key),
        )


class Bounds:
    """Counts what is read of one image, and of the volumes in it, from now on (SECURITY R41).

    Each method that counts raises :class:`OutOfBounds`; ``where`` is what the message blames.

    :param seconds: wall-clock time. It is looked at whenever something is counted.
    """

    def __init__(
        self,
        names: int = defaults.IMAGE_NAMES,
        directories: int = defaults.IMAGE_DIRECTORIES,
        libraries: int = defaults.IMAGE_LIBRARIES,
        seconds: float = defaults.IMAGE_SECONDS,
    ) -> None:
        self._limits = (names, directories, libraries, seconds)
        self._began = time.monotonic()
        self._names = self._bytes = self._directories = self._libraries = 0

    def next_step(self) -> None:
        """Count from zero again, for a step that reads the same directories. The time goes on."""
        self._names = self._bytes = self._directories = self._libraries = 0

    def count_names(self, where: str, number: int, size: int) -> None:
        """Count names that a directory lists, or that are tried, with ``size`` bytes together."""
        self._names += number
        self._bytes += size
        limit = self._limits[0]
        if self._names > limit or self._bytes > limit * _NAME_SIZE:
            found = f"{self._names} names with {self._bytes} bytes"
            raise OutOfBounds(where, found, "image-names", limit)
        self.check_time(where)

    def count_directory(self, where: str) -> None:
        """Count a directory in which a loader searches."""
        self._directories += 1
        if self._directories > self._limits[1]:
            found = f"{self._directories} library directories"
            raise OutOfBounds(where, found, "image-directories", self._limits[1])

    def count_library(self, where: str) -> None:
        """Count a file that is opened, or looked at, because it may be a library."""
        self._libraries += 1
        if self._libraries > self._limits[2]:
            found = f"{self._libraries} libraries"
            raise OutOfBounds(where, found, "image-libraries", self._limits[2])
        self.check_time(where)

    def check_time(self, where: str) -> None:
        """Check that there is time left."""
        left = self.time_left()
        if left < 0:
            limit = self._limits[3]
            raise OutOfBounds(where, f"{limit - left:.1f} seconds", "image-seconds", limit)

    def allow(self, seconds: float) -> None:
        """Allow more time, for input whose size its user knows."""
        self._began += seconds

    def time_left(self) -> float:
        """Return the seconds that are left; a negative number when there are none."""
        return self._limits[3] - (time.monotonic() - self._began)


#: Causes of a PathError, in the words of the C library.
NOT_A_DIRECTORY = "not a directory"
LOOP = "too many levels of symbolic links"


#: Cause of a path that cannot be resolved -> where it leads.
_LEADS = {NOT_A_DIRECTORY: "through a file", LOOP: "in a circle", "": "out of the image"}


class PathError(Exception):
    """A path that cannot be resolved in its tree. ``text`` has the reference's words, ``cause``
    their last part if that is an error of the kernel: NOT_A_DIRECTORY, LOOP or another, and
    ``leads`` says where the path leads.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        self.text = f"{text}: {cause}" if cause else text
        self.cause = cause
        self.leads = _LEADS.get(cause, "to a file that cannot be read")
        super().__init__(self.text)


class Tree:
    """A tree of files. ``label`` is the name of its root in messages ("" for the host's own root).

    A tree that does not change while it is used may set ``_plain`` to a set: :meth:`resolve` keeps
    in it the directories that exist and are reached without a symbolic link, and does not walk
    there again.
    """

    label = ""
    #: What counts the names and files that are read; None for a tree that is trusted.
    bounds: Bounds | None = None
    #: Whether ``..`` is what it is for a process inside: at the root it is the root, and below a
    #: missing directory it is an error. Otherwise it is an error at the root, and else the
    #: directory above.
    closed = False
    _plain: set[str] | None = None

    def close(self) -> None:
        """Give back what the tree holds open, if anything."""

    def lstat(self, path: str) -> Node | None:
        """Return the node at ``path``, or None where there is nothing. Its parents must not be
        links.

        :raises OSError: the kernel refuses to tell (permission, I/O).
        """
        raise NotImplementedError

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in the directory at a resolved ``path``; none if it does not
        exist.
        """
        raise NotImplementedError

    def read(self, path: str, limit: int) -> bytes:
        """Return the content of the regular file at a resolved ``path``.

        :raises OSError: ENOENT, EACCES, EINVAL for a file that is not regular, EFBIG for more than
            ``limit`` bytes.
        """
        raise NotImplementedError

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        """Return the ELF facts of the file at a resolved ``path``; without ``sections`` no ABI tag.

        :raises OSError: the file cannot be opened.
        :raises ValueError: the file is not ELF, or is damaged.
        """
        raise NotImplementedError

    def note(self, path: str, section: str, owner: bytes) -> bytes:
        """Return the first note of a section of the ELF file at a resolved ``path``; nothing if it
        has no such section, or another owner's note. A recorded tree knows no notes.

        :raises OSError: the file cannot be opened.
        :raises ValueError: the file is not ELF, or is damaged.
        """
        return b""

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Return ``path`` with every symbolic link followed inside this tree (reference behaviour
        6.2).

        Components that do not exist are kept as they are.

        :param follow_last: false keeps the last component even if it is a link.
        :raises PathError: for a ``..`` above the root, more than MAX_LINKS links, a link in /proc,
            or a file in the place of a directory.
        """
        parent, _, name = path.rpartition("/")
        plain = self._plain
        if plain is not None and parent in plain and name not in {"", ".", ".."}:
            node = self._lstat_below(path, path)
            if node is None or node.type != "symlink" or not follow_last:
                return path
        pending = [part for part in reversed(path.split("/")) if part]
        done: list[str] = []
        exists = 0  # the number of components of `done` that exist
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                if self.closed and exists < len(done):
                    raise PathError(
                        f"path error: {self.label or '/'}/{path}", "no such file or directory"
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
                # The kernel follows a link in procfs to a process's root, directory or file, not by
                # its text (SECURITY R18).
                if links > MAX_LINKS or done[:1] == ["proc"]:
                    raise PathError(f"path error: {self.label or '/'}/{path}", LOOP)
                if node.target.startswith("/"):
                    done.clear()
                    exists = 0
                if (
                    len(done) > _MAX_LEVELS
                    or len(node.target) + sum(map(len, pending)) > _MAX_PENDING
                ):
                    raise PathError(f"path error: {self.label or '/'}/{path}: file name too long")
                if self.bounds is not None:
                    where = f"{self.label}{path}"
                    self.bounds.count_names(where, node.target.count("/"), len(node.target))
                pending.extend(part for part in reversed(node.target.split("/")) if part)
                continue
            if node.type != "dir" and pending:
                raise PathError(f"path error: {self.label or '/'}/{path}", NOT_A_DIRECTORY)
            done.append(part)
            exists += 1
        resolved = "/" + "/".join(done)
        if plain is not None and not links and exists >= len(done) - 1 and path == resolved:
            plain.add(parent)
        return resolved

    def _lstat_below(self, path: str, place: str) -> Node | None:
        """Return the node at ``place``, a prefix of ``path`` in its resolved form."""
        try:
            return self.lstat(place)
        except OSError as error:
            raise PathError(f"path error: {self.label or '/'}/{path}", reason(error)) from error

    def count_library(self, path: str) -> None:
        """Count a file that is looked at because it may be a library.

        :raises OutOfBounds: there were too many.
        """
        if self.bounds is not None:
            self.bounds.count_library(f"{self.label}{path}")

    def find(self, path: str) -> tuple[str, Node | None]:
        """Resolve ``path``, and return the result with its node."""
        resolved = self.resolve(path)
        return resolved, self.lstat(resolved) if resolved != "/" else Node("dir", 0o755)

    def is_there(self, path: str) -> bool:
        """Tell whether ``path`` leads to a file of any type that can be looked at."""
        try:
            return self.find(path)[1] is not None
        except (PathError, OSError):
            return False


def identity(status: os.stat_result | None) -> list[int] | bool:
    """Return values that change whenever the file does: the kernel sets ctime at every change of
    content, owner, mode and links.

    A missing file is False, and a directory is True: the paths in it are checked by themselves.
    """
    if status is None:
        return False
    if stat.S_ISDIR(status.st_mode):
        return True
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


class LiveTree(Tree):
    """The tree below an open directory.

    Each component is opened from the descriptor of its parent, and the kernel follows no link: a
    tree that changes meanwhile may give wrong answers but cannot lead out of itself. Nodes are read
    once, so that a decision sees one state of the tree. Close it after use.

    ``statuses`` has the result of lstat for each path that was asked for, None where there is
    nothing.
    """

    def __init__(self, root_fd: int, label: str = "", bounds: Bounds | None = None) -> None:
        """Take ownership of ``root_fd``, an O_PATH descriptor of a directory.

        :param bounds: for a tree of unknown origin; None for the host's own.
        """
        self.label = label
        self.bounds = bounds
        self._plain = set()
        self.statuses: dict[str, os.stat_result | None] = {}
        self._directories: dict[str, int] = {"": root_fd}
        self._nodes: dict[str, Node | None] = {}
        #: Directory -> its names, sorted and as a set.
        self._listings: dict[str, tuple[list[str], set[str]]] = {}
        self._facts: dict[tuple[str, bool], ElfFacts] = {}

    def close(self) -> None:
        """Close all descriptors, including the root's."""
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()

    def directory(self, path: str) -> int:
        """Return an O_PATH descriptor of the directory at a resolved ``path``; the tree owns it."""
        path = path.rstrip("/")
        fd = self._directories.get(path)
        if fd is None:
            parent, _, name = path.rpartition("/")
            if self.bounds is not None:
                self.bounds.check_time(f"{self.label}{path}")
                if len(self._directories) >= _MOST_OPEN:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
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
        node = status = None
        listing = self._listings.get(parent)
        missing = parent in self._nodes and self._nodes[parent] is None
        if missing or (listing is not None and name not in listing[1]):
            self.statuses[path] = self._nodes[path] = None
            return None
        try:
            fd = self._directories.get(parent)
            if fd is None:
                fd = self.directory(parent)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            kind = _TYPES[stat.S_IFMT(status.st_mode)]
            target = os.readlink(name, dir_fd=fd) if kind == "symlink" else ""
            rdev = (
                (os.major(status.st_rdev), os.minor(status.st_rdev))
                if kind in {"char", "block"}
                else None
            )
            node = Node(
                kind,
                stat.S_IMODE(status.st_mode),
                status.st_uid,
                status.st_gid,
                target,
                rdev,
                status.st_size,
            )
        except OSError as error:
            # ENOTDIR and ELOOP: a parent was replaced meanwhile. EINVAL: a link was, before
            # readlink.
            if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL}:
                raise
        self.statuses[path] = status if node is not None else None
        self._nodes[path] = node
        return node

    def listdir(self, path: str) -> list[str]:
        if path not in self._listings:
            if path in self._nodes and self._nodes[path] is None:
                return []
            try:
                # By this name the kernel opens the directory once; listdir() of a descriptor takes
                # a copy of it first.
                place = f"/proc/self/fd/{self.directory(path)}"
                names = os.listdir(place) if self.bounds is None else self._names_in(path, place)
            except FileNotFoundError:
                self.statuses[path] = self._nodes[path] = None
                return []
            except NotADirectoryError:
                return []
            names.sort()
            self._listings[path] = names, set(names)
        return list(self._listings[path][0])

    def _names_in(self, path: str, place: str) -> list[str]:
        """Return the names in the directory ``place``, and stop at a bound: it may have no end."""
        assert self.bounds is not None
        names: list[str] = []
        with os.scandir(place) as entries:
            # zip() takes a number first, and so no entry after the last number.
            while more := [entry.name for _, entry in zip(range(AT_ONCE), entries)]:  # noqa: B905
                size = len("".join(more)) if len(names) >= _MANY else 0
                self.bounds.count_names(f"{self.label}{path}", len(more), size)
                names += more
        return names

    def open(self, path: str) -> int:
        """Open the regular file at a resolved ``path``; never open a FIFO or a device (SECURITY
        R17).

        :raises OSError: EINVAL for a file that is not regular.
        """
        parent, _, name = path.rpartition("/")
        path_fd = os.open(
            name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory(parent)
        )
        try:
            if not stat.S_ISREG(os.fstat(path_fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(path_fd)

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

    def note(self, path: str, section: str, owner: bytes) -> bytes:
        from nvgraft.formats.elf import read_note

        fd = self.open(path)
        try:
            return read_note(fd, section, owner)
        finally:
            os.close(fd)

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


def open_tree_at(path: str, label: str = "", bounds: Bounds | None = None) -> LiveTree:
    """Return the live tree below the directory ``path`` of this host, for ``bounds`` see
    :class:`LiveTree`.

    :raises OSError: ``path`` is missing or is not a directory.
    """
    return LiveTree(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), label, bounds)
