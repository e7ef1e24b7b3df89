"""Make or replace a symbolic link in a container, with the way back."""

from __future__ import annotations

import errno

from nvgraft.apply.journal import JournalEntry
from nvgraft.apply.restore import DirectoryEntry, NotAFile, Owner, SharedDirectory
from nvgraft.base import paths
from nvgraft.base._os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.apply.undo import UndoLog


class Link:
    """A link to make, or to replace. Anything else in its place belongs to the image and stays.

    :param over_file: also replace a regular file.
    """

    def __init__(
        self,
        directory: SharedDirectory,
        name: str,
        target: str,
        owner: Owner,
        own_fds: int,
        *,
        required: bool = True,
        over_file: bool = False,
    ) -> None:
        self.directory = directory
        self.required = required
        self.path = paths.join(directory.path, name)
        self._name = name
        self._target = target
        self._owner = owner
        self._over_file = over_file
        self._changed = False
        try:
            self._before: DirectoryEntry | None = DirectoryEntry(
                directory, name, owner, own_fds, content=over_file
            )
        except NotAFile:
            self._before = None

    @property
    def replaceable(self) -> bool:
        """Whether its place is free or holds a link, or a file that may be replaced."""
        return self._before is not None and (
            self._over_file or self._before.before.kind != "was-file"
        )

    @property
    def place(self) -> tuple[int, int, str]:
        """The position of the link, independent of the path of its directory."""
        return *self.directory.identity, self._name

    def announcements(self) -> list[JournalEntry]:
        """Return the journal's entries for the link, and for what it replaces."""
        assert self._before is not None
        before = self._before.before
        if before.kind == "was-link":
            return [before]
        ours = JournalEntry("link", self.path, self._target)
        return [before, ours] if self._before.exists else [ours]

    def make(self, undo: UndoLog) -> None:
        """Make the link.

        :raises OSError: when it is required and cannot be made.
        """
        before = self._before
        assert before is not None
        undo.add(self.path, self._take_back)
        try:
            if before.exists:
                os.unlink(self._name, dir_fd=self.directory.fd)
                self._changed = True
            with self._owner:
                os.symlink(self._target, self._name, dir_fd=self.directory.fd)
            self._changed = True
            before.replaced()
        except OSError as error:
            if self.required or error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                raise
            self._take_back()

    def _take_back(self) -> None:
        if self._changed and self._before is not None:
            self._before.restore()
            self._changed = False
