"""Hold a root file system for one hook, and clear it of what a killed hook has left."""

from __future__ import annotations

from nvgraft.apply import journal
from nvgraft.system.launch import hold_signals
from nvgraft.system.lock import lock_rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvgraft.container.container import Container


class HeldContainer:
    """A context in which no other hook works on the rootfs of ``container``.

    Entering it reads the container's mounts, removes what a killed hook has left there, and calls
    ``warn`` with each warning about it. Signals wait in the context and after it: see
    :func:`nvgraft.system.launch.hold_signals`.

    :param allow_fuse: as for :meth:`~nvgraft.container.container.Container.read_mounts`.
    """

    def __init__(
        self,
        container: Container,
        warn: Callable[[str], None],
        allow_fuse: Callable[[], bool],
    ) -> None:
        self._container = container
        self._warn = warn
        self._allow_fuse = allow_fuse

    def __enter__(self) -> None:
        hold_signals()
        self._lock = lock_rootfs(self._container.rootfs_fd)
        try:
            # Only now: before, another hook may have been working on the container.
            self._container.read_mounts(self._allow_fuse)
            if journal.pending():
                from nvgraft.apply.leftovers import take_over

                take_over(self._container, self._warn)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        self._lock.__exit__()
