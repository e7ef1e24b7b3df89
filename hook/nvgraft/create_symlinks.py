"""``nvgraft-hook create-symlinks``: make those links in a container that no loader cache step
makes.

The runtime wrapper registers it as a createRuntime hook with the links as arguments. The reference
runs a program in the container instead (reference behaviour 9.5, 10.5; docs/decisions/0052). Like
the hook it makes a plan, of links only, and applies it.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.finding import Finding
from nvgraft.base.usage import UsageError
from nvgraft.container.target import OnVolume
from nvgraft.plan.actions import Plan, Why
from nvgraft.plan.layout import Layout
from nvgraft.request.oci import path_problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.container.container import Container
    from nvgraft.container.target import Target

_USAGE = """\
usage: nvgraft-hook create-symlinks --link TARGET::LINK...

Make symbolic links in the container whose OCI state is read from stdin. Existing links are
replaced.

example:
  nvgraft-hook create-symlinks --link ../card1::/dev/dri/by-path/pci-0000:65:00.0 < state.json"""


def parse_links(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return the links of a command line as (target, path), without repetitions.

    :raises UsageError: an argument is not ``--link TARGET::LINK`` with an absolute LINK.
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
    links: Sequence[tuple[str, str]],
    pid: int,
    rootfs: str,
    warn: Callable[[str], None],
    allow_fuse: Callable[[], bool],
) -> None:
    """Make ``links`` in the container of ``pid``, whose rootfs has the absolute path ``rootfs``.

    Afterwards this process is in the container's mount namespace.

    :param allow_fuse: as for :class:`nvgraft.apply.held_container.HeldContainer`.
    :raises nvgraft.base.errors.Refusal: everything is undone.
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

    with HeldContainer(container, warn, allow_fuse):
        with Interruptible():
            plan = _plan(container, links)
        _apply(plan, container, warn)


def _plan(container: Container, links: Sequence[tuple[str, str]]) -> Plan:
    from nvgraft.container.live_target import LiveTarget

    target = LiveTarget(container, os.uname().machine)
    try:
        return plan_links(target, links)
    finally:
        target.close()


def plan_links(target: Target, links: Sequence[tuple[str, str]]) -> Plan:
    """Plan ``links``. A link that would replace a file or be made on a volume is left out, with a
    finding.

    :raises Refusal: the image's links lead to a place where nothing may be made.
    """
    layout = Layout(target, cgroups=False)
    findings = []
    for text, path in links:
        why = Why("graphics", path, "programs open it by this name")
        rewind = layout.checkpoint()
        parent, _, name = path.rpartition("/")
        message = f"{path} is left out: it is not a link"
        hint = "the image has a file there: rebuild the image without it"
        try:
            directory = layout.resolve(parent)
            layout.directory(directory, 0o755, why)
            if layout.force_link(f"{directory}/{name}", text, why):
                continue
        except OnVolume as refusal:
            rewind()
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
