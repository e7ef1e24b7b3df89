"""Place the files of a plan on a container's root file system, and change permissions there.

Only the steps of nvgraft-cdi-hook do that. Everything is looked up by descriptors, announced before
the first change, and registered in the undo log.
"""

from __future__ import annotations

import errno

from nvgraft.apply.journal import JournalEntry
from nvgraft.apply.placed_file import PlacedFile
from nvgraft.apply.restore import NotAFile, Owner, SharedDirectory
from nvgraft.apply.targets import open_in_root
from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.base.finding import Finding
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvgraft.apply.journal import Journal
    from nvgraft.apply.undo import UndoLog
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Action

_HINT = "give the container a writable image that nothing else changes while it starts"


class Placement:
    """The files and permissions of one plan. Make it before the container's mount namespace is
    entered, and close it after use.

    ``own_fds`` is a descriptor of this process's own /proc/self/fd: the container's /proc may be
    anything.
    """

    def __init__(self, container: Container, undo: UndoLog, journal: Journal) -> None:
        self._container = container
        self._undo = undo
        self._journal = journal
        self._files: list[PlacedFile] = []
        self._opened: list[int] = []
        self.own_fds = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close every descriptor. The undo log's steps cannot be used afterwards."""
        for file in self._files:
            file.close()
        for fd in (*self._opened, self.own_fds):
            syscalls.close(fd)
        self._opened.clear()

    def place(self, actions: Iterable[Action]) -> None:
        """Write the files among ``actions``.

        :raises Refusal: stage ``mount``: one cannot be written, or would be on a volume.
        """
        owner = Owner(self._container.uid, self._container.gid)
        files = [action for action in actions if isinstance(action, PlaceFile)]
        for action in files:
            self._checked(action.path, lambda action=action: self._look(action, owner))  # type: ignore[misc]
        self._journal.announce(entry for file in self._files for entry in file.announcements())
        for action, file in zip(files, self._files, strict=True):
            data = action.content.encode("utf-8", "surrogateescape")
            self._checked(
                action.path,
                lambda action=action, file=file, data=data: file.write(  # type: ignore[misc]
                    data, action.mode, self._undo, keep=True
                ),
            )

    def _look(self, action: PlaceFile, owner: Owner) -> None:
        container = self._container
        parent, name = paths.split(action.path)
        fd = open_in_root(container.rootfs_fd, parent, os.O_RDONLY | os.O_DIRECTORY)
        directory = SharedDirectory(fd, parent)
        if container.volume(syscalls.mount_id(fd)) is not None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        temporary = f".{name}.nvgraft"
        self._files.append(PlacedFile(container, directory, name, temporary, owner, self.own_fds))

    def change_modes(self, actions: Iterable[Action]) -> None:
        """Set the permissions among ``actions``. What is on a volume, or gone, is left as it is,
        with a finding.

        :raises Refusal: stage ``mount``.
        """
        for action in [action for action in actions if isinstance(action, ChangeMode)]:
            self._checked(action.path, lambda action=action: self._change_mode(action))  # type: ignore[misc]

    def _change_mode(self, action: ChangeMode) -> None:
        container = self._container
        fd = open_in_root(container.rootfs_fd, action.path, os.O_PATH)
        self._opened.append(fd)
        mount_id = syscalls.mount_id(fd)
        if (volume := container.volume(mount_id)) is not None:
            message = f"{action.path} keeps its permissions: it is on the volume {volume}"
            hint = "set them where the volume comes from"
            container.findings.append(Finding("mode-on-volume", "warning", message, hint))
            return
        before = stat.S_IMODE(os.fstat(fd).st_mode)
        if container.is_rootfs(mount_id):
            # Elsewhere it ends with the container.
            entry = JournalEntry("was-mode", action.path, str(before), str(action.mode))
            self._journal.announce([entry])

        def restore() -> None:
            os.chmod(str(fd), before, dir_fd=self.own_fds)

        self._undo.add(f"mode of {action.path}", restore)
        try:
            os.chmod(str(fd), action.mode, dir_fd=self.own_fds)
        except OSError as error:
            if error.errno != errno.EPERM:  # the reference ignores it
                raise

    def _checked(self, path: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (syscalls.MissingFeature, Refusal):
            raise
        except OSError as error:
            cause = "file exists" if isinstance(error, NotAFile) else reason(error)
            text = f"file creation failed: {self._container.rootfs}{path}: {cause}"
            raise Refusal("mount", text, _HINT) from error
