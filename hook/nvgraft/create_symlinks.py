"""``nvgraft-hook create-symlinks``: links in a container that no loader cache step makes.

The runtime registers it as a createRuntime hook with the links as arguments, where the original has a program of its own run
inside the container (reference behaviour 9.5, 10.5; docs/decisions/0052). It plans and applies like the hook, with links alone.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.errors import UsageError
from nvgraft.base.finding import Finding
from nvgraft.plan.actions import Plan, Why
from nvgraft.plan.layout import Layout, OnVolume
from nvgraft.request.oci import path_problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.container.container import Container
    from nvgraft.container.target import Target

_USAGE = """\
usage: nvgraft-hook create-symlinks --link TARGET::LINK...

Make symbolic links in the container whose OCI state is read from stdin, in the place of other links.

example:
  nvgraft-hook create-symlinks --link ../card1::/dev/dri/by-path/pci-0000:65:00.0-card < state.json"""


def parse_links(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return the links of a command line, each its target and its path, each once.

    :raises UsageError: for anything but ``--link TARGET::LINK``, LINK being absolute.
    """
    links = {}
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option.lstrip("-") != "link" or not option.startswith("-") or (not equals and not rest):
            raise UsageError(f"create-symlinks: {option}: --link TARGET::LINK is expected", _USAGE)
        value = value if equals else rest.pop(0)
        target, colons, path = value.partition("::")
        if (
            not (target and colons)
            or not path.startswith("/")
            or path.endswith("/")
            or ".." in path.split("/")
        ):
            raise UsageError(f"invalid symlink specification {value}", _USAGE)
        for name in (target, path):
            if problem := path_problem(name):
                raise UsageError(f"invalid symlink specification {value}: {problem}", _USAGE)
        links[path] = target
    return [(target, path) for path, target in links.items()]


def create_symlinks(
    links: Sequence[tuple[str, str]], pid: int, rootfs: str, warn: Callable[[str], None]
) -> None:
    """Make ``links`` in the container of ``pid`` at ``rootfs``, an absolute path.

    This process is in the container's mount namespace afterwards.

    :raises nvgraft.base.errors.Refusal: with everything undone.
    """
    from nvgraft import startup
    from nvgraft.container import container as containers
    from nvgraft.system import privileges
    from nvgraft.system.launch import Interruptible

    privileges.demand()
    privileges.keep(privileges.START)
    pidfd = containers.hold_process(pid)
    privileges.keep(privileges.LOOK)
    container = containers.open_container(pid, pidfd, rootfs)
    startup.load("apply")
    from nvgraft.apply.held_container import HeldContainer

    with HeldContainer(container, warn):
        with Interruptible():
            plan = _plan(container, links)
        _apply(plan, container, warn)


def _plan(container: Container, links: Sequence[tuple[str, str]]) -> Plan:
    from nvgraft.container.live_target import LiveTarget

    container.read_mounts()
    target = LiveTarget(container, os.uname().machine)
    try:
        return plan_links(target, links)
    finally:
        target.close()


def plan_links(target: Target, links: Sequence[tuple[str, str]]) -> Plan:
    """Decide what is made for ``links``; one that cannot be made without touching what is not ours is left out, with a finding.

    :raises Refusal: the image's own links lead to where nothing may be made.
    """
    layout = Layout(target, cgroups=False)
    findings = []
    for text, path in links:
        why = Why("graphics", path, "programs open it by this name")
        kept = layout.checkpoint()
        parent, _, name = path.rpartition("/")
        message, hint = (
            f"{path} is left out: it is no link",
            "the image has a file of its own there: rebuild it without",
        )
        try:
            directory = layout.resolve(parent)
            layout.directory(directory, 0o755, why)
            if layout.force_link(f"{directory}/{name}", text, why):
                continue
        except OnVolume as refusal:
            layout.rewind(kept)
            message, hint = f"{path} is left out: {refusal.text}", refusal.hint
        findings.append(Finding("link-skipped", "warning", message, hint))
    return Plan("inject", "links", tuple(layout.actions), findings=tuple(findings))


def _apply(plan: Plan, container: Container, warn: Callable[[str], None]) -> None:
    from nvgraft.apply.cache_step import LoaderCacheStep
    from nvgraft.apply.executor import apply_plan

    for finding in plan.findings:
        warn(f"{finding.message} | {finding.hint}")
    if plan.actions:
        apply_plan(plan, container, LoaderCacheStep())
