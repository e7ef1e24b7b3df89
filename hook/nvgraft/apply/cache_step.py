"""The loader cache step of a plan, in one of two ways: written here, or by the host's ldconfig.

The ways are modules of their own, of which only the chosen one is loaded. Which directories and libraries are meant is the
plan's business.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.apply.journal import Journal
    from nvgraft.apply.undo import UndoLog
    from nvgraft.base.finding import Finding
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Plan, UpdateLoaderCache


class LoaderCacheStep:
    """A way to bring a container's loader cache up to date. Close it after use; ``findings`` are there after that."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def prepare(self) -> None:
        """Open what is needed of the host; called in the host's mount namespace.

        :raises Refusal: stage "ldcache".
        """

    def survey(self, container: Container, action: UpdateLoaderCache) -> None:
        """Look at the container; called in its mount namespace, before anything is changed there. Faults are kept for later."""

    def update(
        self,
        container: Container,
        plan: Plan,
        action: UpdateLoaderCache,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        """Write /etc/ld.so.cache and the SONAME links, after all mounts; the way back is in ``undo`` and told to ``journal`` before.

        :raises Refusal: stage "ldcache", in the reference's words.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back what :meth:`prepare` opened. What was registered in an undo log stays valid."""
