"""A symbolic link that is made in the container, in the place of another one if need be, and the way back."""

from __future__ import annotations

import errno

from nvgraft.apply.journal import Item
from nvgraft.apply.restore import Directory, DirectoryEntry, NotAFile, Owner
from nvgraft.base import paths
from nvgraft.base._os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.apply.undo import UndoLog


class Link:
    """A link that is to be made or replaced; what is no link is the image's and stays."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        target: str,
        owner: Owner,
        own_fds: int,
        *,
        required: bool = True,
    ) -> None:
        self.directory = directory
        self.required = required
        self.path = paths.join(directory.path, name)
        self._name = name
        self._target = target
        self._owner = owner
        self._changed = False
        try:
            self._before: DirectoryEntry | None = DirectoryEntry(
                directory, name, owner, own_fds, content=False
            )
        except NotAFile:
            self._before = None

    @property
    def replaceable(self) -> bool:
        """Whether there is nothing in its place, or a link."""
        return self._before is not None and self._before.before.kind != "was-file"

    @property
    def place(self) -> tuple[int, int, str]:
        """Where it is, whatever the path of its directory."""
        return *self.directory.identity, self._name

    def announcement(self) -> Item:
        """Return what the journal has to know."""
        assert self._before is not None
        return self._before.before if self._before.exists else Item("link", self.path, self._target)

    def make(self, undo: UndoLog) -> None:
        """Make it.

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
