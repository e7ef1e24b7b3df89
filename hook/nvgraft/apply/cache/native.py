"""The loader cache step without ldconfig: add the driver's libraries to the container's cache.

No program is run, and the image needs neither an ldconfig nor a cache. The image is read through
descriptors of its root and within bounds. One file, under its temporary name first, and links are
written. :mod:`nvgraft.apply.cache.content` decides what the file holds.
"""

from __future__ import annotations

import errno

from nvgraft.apply.cache.content import CacheContent
from nvgraft.apply.cache.rootfs import Rootfs, check_absent, check_configuration
from nvgraft.apply.cache_step import LoaderCacheStep
from nvgraft.apply.journal import JournalEntry
from nvgraft.apply.placed_file import PlacedFile
from nvgraft.apply.replaced_link import Link
from nvgraft.apply.restore import DirectoryEntry, Owner, SharedDirectory
from nvgraft.apply.targets import open_in_root, remove_directory
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.container.target import ALLOW_FUSE, on_volume
from nvgraft.formats.ldcache import SIZE_LIMIT
from nvgraft.formats.ldcache_table import Table
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.apply.cache.shunning import ShunningRootfs
    from nvgraft.apply.journal import Journal
    from nvgraft.apply.undo import UndoLog
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Plan, UpdateLoaderCache

ETC = "/etc"
CACHE = "ld.so.cache"

#: The temporary name of the file, in the same directory; ldconfig uses the same name.
TEMPORARY = CACHE + "~"


class NativeCache(LoaderCacheStep):
    """The loader cache step of one container.

    :param program: the ldconfig to name in messages, because people search for the reference's
        words.

    Beyond the container's bounds the cache keeps what it had, and a finding says what was not read.
    :param shunning: whether the container has FUSE volumes that must not be touched.
    """

    def __init__(self, program: str, *, shunning: bool = False) -> None:
        super().__init__()
        self._program = program
        self._shunning: type[ShunningRootfs] | None = None
        if shunning:
            # Nothing can be imported any more in the container's mount namespace.
            from nvgraft.apply.cache.shunning import ShunningRootfs

            self._shunning = ShunningRootfs
        self._own_fds = -1
        self._machine = os.uname().machine
        self._rootfs: Rootfs | None = None
        self._etc: SharedDirectory | None = None
        self._before: DirectoryEntry | None = None
        self._fault: OSError | None = None
        self._skipped: dict[str, None] = {}
        self._table: Table | None = None
        self._written = 0
        self._content: CacheContent | None = None
        self._file: _CacheFile | None = None

    def prepare(self) -> None:
        """Open /proc/self/fd of this process, because the container's /proc may be anything."""
        self._own_fds = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._own_fds >= 0:
            syscalls.close(self._own_fds)
            self._own_fds = -1

    # ---- before anything is changed

    def survey(self, container: Container, action: UpdateLoaderCache) -> None:
        """Read the cache and find newer directories, before placeholders and links make all of them
        newer.
        """
        container.bounds.next_step()
        rootfs = self._rootfs = self._open_rootfs(container)
        try:
            check_configuration(container.rootfs_fd)
            self._record(rootfs, container)
            self._content = CacheContent(rootfs, action, self._machine, self._table, self._written)
        except OSError as error:
            self._fault = error

    def _open_rootfs(self, container: Container) -> Rootfs:
        if self._shunning is None:
            return Rootfs(container.rootfs_fd, self._own_fds, container.bounds)
        rootfs = self._shunning(container, self._own_fds, container.bounds)
        self._skipped = rootfs.skipped
        return rootfs

    def _record(self, rootfs: Rootfs, container: Container) -> None:
        """Record what is in the cache's place, and read the cache that the container's loader would
        use.
        """
        self._etc = self._open_etc(rootfs, container)
        if self._etc is None:
            return
        self._before = DirectoryEntry(
            self._etc, CACHE, Owner(container.uid, container.gid), self._own_fds
        )
        before = self._before.before
        if before.kind == "was-file":
            data, self._written = before.data, int(before.fields[4])
        elif before.kind == "was-link":
            try:
                # The loader follows the link.
                data, status = rootfs.read(f"{ETC}/{CACHE}", SIZE_LIMIT)
            except OSError as error:
                check_absent(error)
                return
            self._written = status.st_mtime_ns
        else:
            return
        try:
            self._table = Table.parse(data)
        except ValueError:
            return  # a loader does not use it either

    def _open_etc(self, rootfs: Rootfs, container: Container) -> SharedDirectory | None:
        """Open the container's /etc. Like the reference, follow the image's links inside the
        root.
        """
        try:
            fd = rootfs.open(ETC, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return self._directory(fd, container, ETC)

    def _directory(self, fd: int, container: Container, name: str) -> SharedDirectory:
        """Take over ``fd`` under the directory's resolved path: the undo of a killed hook follows
        no links.
        """
        path = os.readlink(str(fd), dir_fd=self._own_fds)
        return SharedDirectory(
            fd, path[len(container.rootfs) :] if path.startswith(container.rootfs + "/") else name
        )

    # ---- after all mounts

    def update(
        self,
        container: Container,
        plan: Plan,
        action: UpdateLoaderCache,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        try:
            if self._fault is not None:
                raise self._fault
            self._update(container, plan, undo, journal)
        except syscalls.MissingFeature:
            raise
        except OSError as error:
            if error.errno == errno.EBUSY and error.filename == TEMPORARY:
                path = f"{ETC}/{CACHE}"
                raise self._failed(on_volume(path, path), error) from error
            name = f"{error.filename}: " if error.filename else ""
            raise self._failed(f"{name}{error.strerror or error}".lower(), error) from error

    def _failed(self, cause: str, error: OSError | None = None) -> Refusal:
        hint = f"the loader cache was not written: {cause}"
        if error is not None and error.errno == errno.EROFS:
            hint += (
                ": give the container a writable root file system, or an image whose cache and "
                "links name this driver"
            )
        return Refusal("ldcache", f"process {self._program} failed with error code: 1", hint)

    def _update(self, container: Container, plan: Plan, undo: UndoLog, journal: Journal) -> None:
        rootfs, content = self._rootfs, self._content
        assert rootfs is not None and content is not None
        owner = Owner(container.uid, container.gid)
        table = content.compute(rootfs, plan.links)
        links = self._planned_links(container, plan, owner) + self._image_links(
            rootfs, container, content, owner
        )
        if content.left_out:
            message = (
                "not all of the image's libraries may be in its loader cache: "
                f"{', '.join(content.left_out)}"
            )
            self.findings.append(
                Finding(
                    "ldcache-bounds",
                    "warning",
                    message,
                    "run ldconfig when the image is built, or raise the bound that is named, under"
                    " [nvgraft] in config.toml",
                )
            )
        if self._skipped:
            message = (
                "libraries on FUSE volumes, which may never answer, are not in the loader cache: "
                f"{', '.join(self._skipped)}"
            )
            self.findings.append(Finding("ldcache-fuse", "warning", message, ALLOW_FUSE))
        data = b""
        if table is not self._table and not self._stays(content):
            data = content.with_development_rows(rootfs, table).data()
        self._carry_out(
            rootfs,
            container,
            [link for link in links if link.replaceable],
            data,
            owner,
            undo,
            journal,
        )

    def _stays(self, content: CacheContent) -> bool:
        """Tell whether a read-only cache names the driver already, and so can stay. Other rows were
        missing before.
        """
        if self._table is None or self._etc is None:
            return False
        if not os.fstatvfs(self._etc.fd).f_flag & os.ST_RDONLY:
            return False
        if not content.knows_driver():
            return False
        message = (
            "the image's loader cache names this driver, and lacks libraries of its own; it is "
            "read-only and stays as it is"
        )
        self.findings.append(
            Finding("ldcache-kept", "info", message, "run ldconfig when the image is built")
        )
        return True

    def _carry_out(
        self,
        rootfs: Rootfs,
        container: Container,
        links: Sequence[Link],
        data: bytes,
        owner: Owner,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        """Make the links and write ``data``, if any. Everything is announced before the first
        change.
        """
        # A planned link comes before one that the search found in the same place.
        unique = {link.place: link for link in reversed(links)}
        volumes: dict[SharedDirectory, str | None] = {}
        for link in unique.values():
            if link.directory not in volumes:
                mount_id = syscalls.mount_id(link.directory.fd)
                volumes[link.directory] = container.volume(mount_id)
        links = [
            link
            for link in reversed(unique.values())
            if self._may_be_made(link, volumes[link.directory])
        ]
        announced = [entry for link in links for entry in link.announcements()]
        file = None
        if data:
            etc = self._etc or self._open_etc(rootfs, container)
            file = self._file = _CacheFile(container, etc, self._before, owner, self._own_fds)
            place = container.rootfs_fd if file.etc is None else file.etc.fd
            volume = container.volume(syscalls.mount_id(place))
            self._check_volume(f"{ETC}/{CACHE}", volume)
            announced += file.announcements()
        if announced:
            journal.announce(announced)
        for link in links:
            link.make(undo)
        if file is not None:
            file.write(container.rootfs_fd, data, undo)

    def _may_be_made(self, link: Link, volume: str | None) -> bool:
        if link.required:
            self._check_volume(link.path, volume)
            return True
        return volume is None

    def _check_volume(self, path: str, volume: str | None) -> None:
        if volume is not None:
            raise self._failed(on_volume(path, volume))

    def _planned_links(self, container: Container, plan: Plan, owner: Owner) -> list[Link]:
        """Return the SONAME links of the mounted libraries."""
        directories: dict[str, SharedDirectory] = {}
        links = []
        for path, target in plan.links:
            parent, name = paths.split(path)
            if parent not in directories:
                directories[parent] = SharedDirectory(
                    open_in_root(container.rootfs_fd, parent, os.O_RDONLY | os.O_DIRECTORY), parent
                )
            links.append(Link(directories[parent], name, target, owner, self._own_fds))
        return links

    def _image_links(
        self, rootfs: Rootfs, container: Container, content: CacheContent, owner: Owner
    ) -> list[Link]:
        """Return the missing links of the image's own libraries. They are optional: it worked
        without them.
        """
        directories: dict[str, SharedDirectory | None] = {}
        links = []
        for missing in content.links:
            path = missing.directory
            if path not in directories:
                try:
                    fd = rootfs.open(path, os.O_RDONLY | os.O_DIRECTORY)
                except OSError as error:
                    check_absent(error)
                    directories[path] = None
                else:
                    directories[path] = self._directory(fd, container, path)
            directory = directories[path]
            if directory is not None:
                links.append(
                    Link(
                        directory,
                        missing.soname,
                        missing.target,
                        owner,
                        self._own_fds,
                        required=False,
                    )
                )
        return links


class _CacheFile:
    """The cache file in /etc and its former content. ``etc`` is None if the image has no /etc, and
    gets one.
    """

    def __init__(
        self,
        container: Container,
        etc: SharedDirectory | None,
        before: DirectoryEntry | None,
        owner: Owner,
        own_fds: int,
    ) -> None:
        self._container = container
        self.etc = etc
        self._owner = owner
        self._own_fds = own_fds
        self._file = None if etc is None else self._in(etc, before)

    def _in(self, etc: SharedDirectory, before: DirectoryEntry | None = None) -> PlacedFile:
        return PlacedFile(
            self._container, etc, CACHE, TEMPORARY, self._owner, self._own_fds, before
        )

    def announcements(self) -> list[JournalEntry]:
        """Return the journal's entries."""
        if self._file is None:
            return [
                JournalEntry("dir", ETC),
                JournalEntry("absent", f"{ETC}/{CACHE}"),
                JournalEntry("absent", f"{ETC}/{TEMPORARY}"),
            ]
        return self._file.announcements()

    def write(self, rootfs_fd: int, data: bytes, undo: UndoLog) -> None:
        """Replace the cache in one step: write it under another name, then rename it."""
        if self._file is None:
            self._file = self._in(self._make_etc(rootfs_fd, undo))
        if len(data) > SIZE_LIMIT:
            raise OSError(errno.EFBIG, f"larger than {SIZE_LIMIT >> 20} MiB", f"{ETC}/{CACHE}")
        self._file.write(data, 0o644, undo)

    def close(self) -> None:
        """Close the file that was written."""
        if self._file is not None:
            self._file.close()

    def _make_etc(self, rootfs_fd: int, undo: UndoLog) -> SharedDirectory:
        made = False

        def remove() -> None:
            if made:
                remove_directory(ETC[1:], rootfs_fd, self._container)

        undo.add(ETC, remove)
        with self._owner:
            os.mkdir(ETC[1:], 0o755, dir_fd=rootfs_fd)
        made = True
        return SharedDirectory(open_in_root(rootfs_fd, ETC, os.O_RDONLY | os.O_DIRECTORY), ETC)
