"""The loader cache step of a plan, done by nvgraft itself or by the host's ldconfig.

Each of the two ways is a module of its own, and only the chosen one is loaded. The plan says which
directories and libraries the step covers.
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
    """A way to bring a container's loader cache up to date. Close it after use, then read
    ``findings``.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def prepare(self) -> None:
        """Open what the step needs of the host. Call this in the host's mount namespace.

        :raises Refusal: stage "ldcache".
        """

    def survey(self, container: Container, action: UpdateLoaderCache) -> None:
        """Read the container's directories before anything is changed. Call this in its mount
        namespace.

        Errors are kept and raised by :meth:`update`.
        """

    def update(
        self,
        container: Container,
        plan: Plan,
        action: UpdateLoaderCache,
        undo: UndoLog,
        journal: Journal,
    ) -> None:
        """Write /etc/ld.so.cache and the SONAME links, after all mounts.

        Each change is announced to ``journal`` and registered in ``undo`` before it is made.

        :raises Refusal: stage "ldcache", in the reference's words.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close what :meth:`prepare` opened. Steps registered in an undo log stay valid."""
