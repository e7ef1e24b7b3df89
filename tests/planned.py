"""Plan a container as commands do."""

from collections.abc import Sequence

from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import Plan
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import open_host
from nvgraft_cli.case.planning import Case


def plan_bundle(
    bundle: str,
    snapshot: str | None,
    config_path: str | None,
    env: Sequence[str] = (),
    mode: str = "hook",
) -> tuple[Plan, Refusal | None]:
    """Plan a container on a recorded host, or on this one if ``snapshot`` is None.

    For ``bundle`` and ``env`` see :func:`nvgraft_cli.case.bundle.open_container`, for ``mode``
    :class:`Case`.

    :raises nvgraft_cli.shell.errors.InputError: the host, config.toml or container cannot be used.
    """
    try:
        with open_container(bundle, env) as container:
            return Case(open_host(snapshot, config_path), container, mode).outcome
    except Refusal as refusal:
        return Plan("refuse", refusal.reference_line()), refusal
