"""The loader cache step by the host's ldconfig, confined to a container's rootfs (SECURITY R31).

ldconfig reads what the image holds: configuration, library headers, an old cache. It is therefore
treated as hostile from its first read. It runs in a :mod:`nvgraft.system.jail`, from a sealed copy
in memory, so that nothing in the container reaches the host's file. The image's own ldconfig is
never run.

The plan decides which directories get SONAME links.
"""

from __future__ import annotations

import errno

from nvgraft.apply.cache.directory_links import Links
from nvgraft.apply.cache.rootfs import check_configuration
from nvgraft.apply.cache_step import LoaderCacheStep
from nvgraft.apply.restore import DirectoryEntry, Owner, SharedDirectory
from nvgraft.apply.targets import open_in_root
from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.formats import elf, ld_so_conf
from nvgraft.formats.tree import RAISE
from nvgraft.system import jail, seccomp, syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.apply.journal import Journal, JournalEntry
    from nvgraft.apply.undo import UndoLog
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Plan, UpdateLoaderCache

#: Bytes of the largest ldconfig that is copied into memory. Distributions ship about 1 MiB.
_PROGRAM_LIMIT = 32 << 20

#: memfd_create(2) since Linux 6.3: the file may be executed, whatever vm.memfd_noexec has as its
#: default.
_MFD_EXEC = 0x10

_CACHE = "ld.so.cache"
_SETTING = (
    'set ldconfig under [nvidia-container-cli] in config.toml to "@" and the path of the host\'s '
    "static ldconfig"
)


class ConfinedLdconfig(LoaderCacheStep):
    """The loader cache step by the host's ldconfig at ``program``, in the time that the container's
    bounds leave.
    """

    def __init__(self, program: str, *, pivot: bool) -> None:
        super().__init__()
        self._program = program
        self._pivot = pivot
        self._cache: LoaderCache | None = None

    def prepare(self) -> None:
        self._cache = LoaderCache.prepare(self._program)

    def update(
        self,
        container: Container,
        plan: Plan,
        action: UpdateLoaderCache,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        assert self._cache is not None
        ids = (container.uid, container.gid)
        try:
            self._cache.update(
                container.rootfs_fd,
                action.directories,
                *ids,
                undo,
                journal,
                container.bounds.time_left(),
                pivot=self._pivot,
            )
        except Refusal as refusal:
            if container.bounds.time_left() <= 0:
                refusal.hint += f": {RAISE.format('image-seconds')}"
            raise

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
            self._cache = None


class LoaderCache:
    """The host's ldconfig, ready to be run in a container. Close it after use."""

    def __init__(self, name: str, image: int, own_fds: int, filter_program: bytes) -> None:
        """Take over the descriptors, which :meth:`prepare` makes."""
        self._name = name
        self._image = image
        self._own_fds = own_fds
        self._filter = filter_program

    @classmethod
    def prepare(cls, path: str) -> LoaderCache:
        """Copy the host's ldconfig at ``path`` (without "@") into sealed memory, before any setns.

        A missing program is refused, although the reference starts some such containers: without
        SONAME links no program finds the driver's libraries.

        :raises Refusal: stage "ldcache", when it is missing or must not be run (SECURITY R31).
        """
        try:
            program = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            hint = f"nvgraft runs the host's ldconfig to make the loader cache; {_SETTING}"
            raise Refusal("ldcache", f"open failed: {path}: {reason}", hint) from error
        try:
            _check_owner(path, os.fstat(program))
            image = _sealed_copy(path, program)
        finally:
            syscalls.close(program)
        try:
            _check_static(path, image)
            try:
                filter_program = seccomp.program(os.uname().machine)
            except ValueError as error:
                raise _unsuitable(path, f"it cannot be confined: {error}") from error
            own_fds = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            syscalls.close(image)
            raise
        return cls(path, image, own_fds, filter_program)

    def close(self) -> None:
        """Free the memory. Steps registered in an undo log stay valid."""
        syscalls.close(self._image)
        syscalls.close(self._own_fds)

    def update(
        self,
        rootfs_fd: int,
        directories: Sequence[str],
        uid: int,
        gid: int,
        undo: UndoLog,
        journal: Journal,
        timeout: float,
        *,
        pivot: bool = True,
    ) -> None:
        """Write /etc/ld.so.cache and make the SONAME links of ``directories``.

        Call this in the container's mount namespace, from a single-threaded process. Each change is
        registered in ``undo`` and announced to ``journal`` before it is made, and stays registered
        after success.

        :param rootfs_fd: an O_PATH descriptor of the container's root, opened in this mount
            namespace.
        :param directories: resolved paths inside the root. ldconfig skips those that do not exist.
        :param uid: the host's id of the container's root, likewise ``gid``. ldconfig makes files
            with them.
        :param timeout: seconds after which ldconfig is killed.
        :param pivot: false for the reference's ``no-pivot``, where the host's root is an initial
            ramfs.
        :raises Refusal: stage "ldcache", in the reference's words, with the last line that ldconfig
            printed.
        """
        try:
            check_configuration(rootfs_fd)
            writable = self._record(rootfs_fd, directories, Owner(uid, gid), undo, journal)
        except OSError as error:
            cause = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise self._failed(1, f"it was not started: {cause}") from error
        argv = [self._name, "-f", ld_so_conf.PATH, "-C", "/etc/" + _CACHE, *directories]
        reachable = [(directory.path, directory.fd) for directory in writable]
        confinement = jail.Jail(rootfs_fd, reachable, uid, gid, self._filter, pivot)
        try:
            outcome = jail.run(self._image, argv, confinement, timeout)
        except OSError as error:
            raise self._failed(1, f"it was not started: {error}") from error
        if outcome.signal:
            raise Refusal(
                "ldcache",
                f"process {self._name} terminated with signal {outcome.signal}",
                outcome.late or outcome.last_line,
            )
        if outcome.code:
            hint = outcome.last_line
            if os.fstatvfs(writable[0].fd).f_flag & os.ST_RDONLY:
                hint += (
                    "; the container's /etc is read-only: give the container a writable root file "
                    "system"
                )
            raise self._failed(outcome.code, hint)

    def _failed(self, code: int, hint: str) -> Refusal:
        return Refusal("ldcache", f"process {self._name} failed with error code: {code}", hint)

    def _record(
        self,
        rootfs_fd: int,
        directories: Sequence[str],
        owner: Owner,
        undo: UndoLog,
        journal: Journal,
    ) -> list[SharedDirectory]:
        """Open what ldconfig may write to, /etc first, and register how to undo its changes
        there.
        """
        announced: list[JournalEntry] = []
        etc = _open_directory(rootfs_fd, "/etc")
        if etc is None:
            raise self._failed(
                1, "the image has no /etc to write ld.so.cache into: add the directory to the image"
            )
        writable = [etc]
        seen: set[tuple[int, int]] = set()
        for path in directories:
            directory = _open_directory(rootfs_fd, path)
            if directory is None:
                continue
            status = os.fstat(directory.fd)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            links = Links(directory, owner)
            announced += links.entries()
            undo.add(f"SONAME links in {path}", links.restore)
            writable.append(directory)
        cache = DirectoryEntry(etc, _CACHE, owner, self._own_fds)
        undo.add(f"/etc/{_CACHE}", cache.restore)
        # ldconfig writes under this name and renames it. It would open a leftover of an interrupted
        # run as it is: a FIFO would block it forever, and a second name of another file would cost
        # that file its content.
        leftover = DirectoryEntry(etc, _CACHE + "~", owner, self._own_fds)
        undo.add(f"/etc/{_CACHE}~", leftover.restore)
        journal.announce([*announced, cache.before, leftover.before])
        if leftover.exists:
            os.unlink(_CACHE + "~", dir_fd=etc.fd)
        return writable


def _unsuitable(path: str, reason: str) -> Refusal:
    # 127 is what the reference reports for a program that cannot be executed.
    return Refusal(
        "ldcache",
        f"process {path} failed with error code: 127",
        f"it was not started: {reason}; {_SETTING}",
    )


def _check_owner(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unsuitable(path, "it is not a regular file")
    if not userns.is_root(status.st_uid):
        raise _unsuitable(path, f"it belongs to uid {status.st_uid}, not to root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unsuitable(
            path, f"others than root may write it (mode {stat.S_IMODE(status.st_mode):04o})"
        )
    if status.st_size > _PROGRAM_LIMIT:
        raise _unsuitable(path, f"it is larger than {_PROGRAM_LIMIT >> 20} MiB")


def _sealed_copy(path: str, program: int) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            image = os.memfd_create("ldconfig", flags | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            image = os.memfd_create("ldconfig", flags)  # Linux before 6.3
    except OSError as error:
        if error.errno == errno.EACCES:
            raise _unsuitable(
                path, "it cannot be run from memory: the sysctl vm.memfd_noexec is 2 on this host"
            ) from error
        missing = error.errno in {errno.ENOSYS, errno.EPERM}
        kind = syscalls.MissingFeature if missing else syscalls.SyscallError
        raise kind(error.errno or 0, "memfd_create('ldconfig')") from error
    try:
        offset = 0
        while copied := os.sendfile(image, program, offset, _PROGRAM_LIMIT):
            offset += copied
        syscalls.seal(image)
    except BaseException:
        syscalls.close(image)
        raise
    return image


def _check_static(path: str, image: int) -> None:
    """Refuse a program that the kernel would start through another one, which would be the
    image's.
    """
    script = f"; is {path}.real the program itself?" if os.pread(image, 2, 0) == b"#!" else ""
    try:
        facts = elf.read_facts(image, sections=False)
    except ValueError as error:
        raise _unsuitable(path, f"{error}{script}") from error
    if facts.interp is not None or facts.needed:
        raise _unsuitable(
            path, "it is dynamically linked: its loader and libraries would be the image's"
        )


def _open_directory(rootfs_fd: int, path: str) -> SharedDirectory | None:
    """Open a directory of the container for reading, or return None if there is none."""
    try:
        # Like the reference, follow the image's /etc wherever it leads inside the root.
        fd = open_in_root(rootfs_fd, path, os.O_RDONLY | os.O_DIRECTORY, follow=path == "/etc")
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise
    return SharedDirectory(fd, path)
