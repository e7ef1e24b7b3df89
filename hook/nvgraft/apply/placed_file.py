"""Write a file in a container's directory in one step, with the way back to what was there."""

from __future__ import annotations

from nvgraft.apply.journal import JournalEntry
from nvgraft.apply.restore import DirectoryEntry, Owner, SharedDirectory
from nvgraft.apply.targets import check_gone
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.files import write_all
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.apply.undo import UndoLog
    from nvgraft.container.container import Container

_PLACED_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PlacedFile:
    """A file to write at ``name`` of an open directory. It is written under the name ``temporary``
    there, and then renamed. Close it after use.

    :param before: what is at ``name``, if it was read already.
    """

    def __init__(
        self,
        container: Container,
        directory: SharedDirectory,
        name: str,
        temporary: str,
        owner: Owner,
        own_fds: int,
        before: DirectoryEntry | None = None,
    ) -> None:
        self._container = container
        self._directory = directory
        self._name = name
        self._temporary_name = temporary
        self._owner = owner
        self._before = before or DirectoryEntry(directory, name, owner, own_fds)
        self._temporary = DirectoryEntry(directory, temporary, owner, own_fds)
        self._begun = self._renamed = False
        self._fd = -1

    def announcements(self) -> list[JournalEntry]:
        """Return the journal's entries."""
        return [self._before.before, self._temporary.before]

    def write(self, data: bytes, mode: int, undo: UndoLog, *, keep: bool = False) -> None:
        """Put ``data`` there, with ``mode``.

        :param keep: leave mode and owner of a file that is replaced as they are.
        :raises OSError: it cannot be written; ``undo`` takes back what was done.
        """
        directory = self._directory.fd
        path = paths.join(self._directory.path, self._name)
        before, temporary = self._before, self._temporary
        undo.add(path, self._leave_nothing_elsewhere)
        undo.add(path, lambda: before.restore() if self._renamed else None)
        undo.add(
            paths.join(self._directory.path, self._temporary_name),
            lambda: temporary.restore() if self._begun else None,
        )
        if temporary.exists:
            os.unlink(self._temporary_name, dir_fd=directory)
            self._begun = True
        with self._owner:
            self._fd = os.open(self._temporary_name, _PLACED_FLAGS, 0o644, dir_fd=directory)
        self._begun = True
        write_all(self._fd, data)
        if keep and before.before.kind == "was-file":
            mode, uid, gid = map(int, before.before.fields[:3])
            if (uid, gid) != (self._owner.uid, self._owner.gid):
                os.fchown(self._fd, uid, gid)
        os.fchmod(self._fd, mode)
        # Idmapped mounts: a new name, too, needs an owner that has a number.
        with self._owner:
            os.rename(self._temporary_name, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        self._renamed = True
        before.replaced()

    def close(self) -> None:
        """Close the file that was written."""
        if self._fd >= 0:
            syscalls.close(self._fd)
            self._fd = -1

    def _leave_nothing_elsewhere(self) -> None:
        """After an undo, empty and report a file of ours that was moved elsewhere, and close it."""
        if self._fd < 0:
            return
        try:
            if not self._container.keeps_deleted_files(self._fd):
                check_gone(self._fd)
        except OSError:
            os.ftruncate(self._fd, 0)
            raise
        self.close()
