"""The symbolic links of a directory in which ldconfig makes links, and the way back to them."""

from __future__ import annotations

import errno

from nvgraft.apply import journal
from nvgraft.apply.restore import Owner, SharedDirectory, make_link
from nvgraft.base import paths
from nvgraft.base._os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The most symbolic links that are recorded: a root file system is hostile (SECURITY R17).
LINKS_LIMIT = 100_000
#: The most names of a directory that are looked at for links: it may have no end (SECURITY R41).
_NAMES_LIMIT = 1_000_000


class Links:
    """Every symbolic link of one directory: ldconfig makes, replaces and removes links there."""

    def __init__(self, directory: SharedDirectory, owner: Owner) -> None:
        """Read the links.

        :raises OSError: EFBIG for more than LINKS_LIMIT of them, or a directory that is too large.
        """
        self._directory = directory
        self._owner = owner
        self._before = self._read()

    def _read(self) -> dict[str, tuple[str, int, int]]:
        links: dict[str, tuple[str, int, int]] = {}
        with os.scandir(self._directory.fd) as entries:
            for number, entry in enumerate(entries):
                if number == _NAMES_LIMIT:
                    raise OSError(
                        errno.EFBIG, f"more than {_NAMES_LIMIT} names", self._directory.path
                    )
                if not entry.is_symlink():
                    continue
                if len(links) == LINKS_LIMIT:
                    raise OSError(
                        errno.EFBIG, f"more than {LINKS_LIMIT} symbolic links", self._directory.path
                    )
                status = entry.stat(follow_symlinks=False)
                links[entry.name] = (
                    os.readlink(entry.name, dir_fd=self._directory.fd),
                    status.st_uid,
                    status.st_gid,
                )
        return links

    def entries(self) -> Iterator[journal.JournalEntry]:
        """Yield the journal's entries."""
        yield journal.JournalEntry("links", self._directory.path)
        for name, (target, uid, gid) in self._before.items():
            yield journal.JournalEntry(
                "was-link", paths.join(self._directory.path, name), target, str(uid), str(gid)
            )

    def restore(self) -> None:
        """Remove the new links, and put back those that were replaced or removed."""
        now = self._read()
        for name in now:
            if now[name] != self._before.get(name):
                os.unlink(name, dir_fd=self._directory.fd)
        for name, (target, uid, gid) in self._before.items():
            if now.get(name) != (target, uid, gid):
                make_link(self._directory.fd, name, target, (uid, gid), self._owner)
