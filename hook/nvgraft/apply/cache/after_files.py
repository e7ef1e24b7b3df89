"""The loader cache step for a plan that places files of ld.so.conf: it reads the container after
them, when nothing else is changed any more.
"""

from __future__ import annotations

from nvgraft.apply.cache.native import NativeCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.apply.journal import Journal
    from nvgraft.apply.undo import UndoLog
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Plan, UpdateLoaderCache


class CacheAfterFiles(NativeCache):
    """The native step, with its survey at the end."""

    def survey(self, container: Container, action: UpdateLoaderCache) -> None:
        """Read nothing yet."""

    def update(
        self,
        container: Container,
        plan: Plan,
        action: UpdateLoaderCache,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        super().survey(container, action)
        super().update(container, plan, action, undo, journal)
