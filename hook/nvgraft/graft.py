"""Bring the driver into one container: the order of all steps behind the hook and ``configure``.

The checks have the reference's order (reference behaviour 4.6), so that of several faults the same
one is named. The caller makes the request and reports refusals.

The modules that plan and apply are loaded when they are needed, or while NVML is asked.
"""

from __future__ import annotations

from nvgraft import startup
from nvgraft.base import paths
from nvgraft.base.values import Value
from nvgraft.container import container as containers
from nvgraft.container.container import Container
from nvgraft.container.live_target import LiveTarget
from nvgraft.host.kept_inventory import read_host
from nvgraft.host.places import mps_directory
from nvgraft.request.config import host_ldconfig
from nvgraft.request.request import check_request
from nvgraft.system import privileges
from nvgraft.system.launch import Interruptible
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nvgraft.apply.cache_step import LoaderCacheStep
    from nvgraft.base.finding import Finding
    from nvgraft.host.components import Host, Inventory
    from nvgraft.plan.actions import Injection, Plan
    from nvgraft.plan.settings import Settings
    from nvgraft.report.debug_log import DebugLog
    from nvgraft.request.config import Config
    from nvgraft.request.request import Request

DEFAULT_LDCONFIG = "@/sbin/ldconfig"


class Job(Value):
    """The ``request`` for the container of ``pid``, whose rootfs has the absolute path ``rootfs``.

    :param pid: the container's first process; None for a directory of this process's own mount
        namespace (standalone).
    :param by_its_starter: the program that started that process may ask for this run.
    :param settings: the settings of config.toml or the command line for the plan.
    :param path: the search path for the driver's programs, or None.
    :param omit: kinds of components to leave out (see ``read_inventory``).
    """

    def __init__(
        self,
        request: Request,
        pid: int | None,
        rootfs: str,
        settings: Settings,
        path: str | None,
        omit: Collection[str] = (),
        *,
        by_its_starter: bool = False,
    ) -> None:
        self.request = request
        self.pid = pid
        self.rootfs = rootfs
        self.settings = settings
        self.path = path
        self.omit = omit
        self.by_its_starter = by_its_starter


def graft(job: Job, config: Config, log: DebugLog, warn: Callable[[str], None]) -> bool:
    """Read the host and the container, plan, and apply. Return False if the container was
    configured already.

    Afterwards this process is in the container's mount namespace.

    :param warn: called with each warning and its hint as one line.
    :raises Refusal: everything is undone.
    """
    privileges.demand()
    loads_modules = config.cli_load_kmods and not config.simulated_host
    privileges.keep(privileges.START if loads_modules else privileges.LOOK)
    check_request(job.request)
    pidfd = None if job.pid is None else containers.hold_process(job.pid)
    if loads_modules:
        from nvgraft.host.kmods import load_modules

        create = not config.features_disable_imex_channel_creation
        _tell(
            load_modules(config.cli_root or "/", job.request.imex_channels.ids(), create),
            log,
            warn,
        )
        privileges.keep(privileges.LOOK)
    log.note(f"using root {config.cli_root or '/'}")
    log.note(f"using ldcache {config.cli_ldcache or '/etc/ld.so.cache'}")
    log.note(f"using unprivileged user {config.cli_user or 'nobody'}")
    host = read_host(config, _load_the_rest, before_reading=lambda: startup.load("host"))
    _load_the_rest()
    log.note(f"inventory: {host.origin}")
    if job.pid is None or pidfd is None:
        from nvgraft.container.unprepared import open_standalone

        container = open_standalone(job.rootfs)
    else:
        container = containers.open_container(
            job.pid, pidfd, job.rootfs, by_its_starter=job.by_its_starter
        )
    from nvgraft.apply.held_container import HeldContainer

    with HeldContainer(container, warn, lambda: config.allow_fuse):
        with Interruptible():
            plan = _plan(job, config, host, container, log)
        return _apply(plan, config, container, log, warn)


def _load_the_rest() -> None:
    startup.load("apply")


def _plan(job: Job, config: Config, host: Host, container: Container, log: DebugLog) -> Injection:
    from nvgraft.host.inventory import read_inventory
    from nvgraft.plan.planner import make_plan, read_in_order

    container.bound(config.image_limits)
    _log_container(log, job, container)
    target = LiveTarget(container, host.machine)
    mps = mps_directory(paths.environment(), config)
    inventory = read_in_order(
        lambda: read_inventory(host, job.path, mps, job.omit, job.request.imex_channels.ids()),
        job.request,
        host.report.driver_version,
        target,
        job.settings,
    )
    log_inventory(log, inventory)
    plan = make_plan(job.request, inventory, target, job.settings)
    target.close()
    _log_plan(log, plan, container)
    return plan


def _apply(
    plan: Plan, config: Config, container: Container, log: DebugLog, warn: Callable[[str], None]
) -> bool:
    from nvgraft.apply.executor import apply_plan

    program = host_ldconfig(config.cli_ldconfig, paths.exists)
    if not program.startswith("@"):
        # config.toml may set a path of the image with features.allow-ldconfig-from-container. A
        # program of the image is never run as root.
        program = host_ldconfig(DEFAULT_LDCONFIG, paths.exists)
        if config.ldcache_mode == "ldconfig":
            warn(
                "the host's ldconfig is run, never that of the image | write it as a path"
                " of the host, with @"
            )
    program = program[1:]
    usual = program.removesuffix(".real") == DEFAULT_LDCONFIG[1:]
    if config.ldcache_mode == "native" and not usual:
        from nvgraft.host.ldconfig import check_program

        _tell(check_program(program), log, warn)
    if config.ldcache_mode == "ldconfig":
        log.note(f"executing {program} from host at {container.rootfs}")
    else:
        log.note(f"writing {container.rootfs}/etc/ld.so.cache without {program}")
    cache = loader_cache_step(
        config.ldcache_mode,
        program,
        pivot=not config.cli_no_pivot,
        shunning=bool(container.shunned),
    )
    changed = apply_plan(plan, container, cache)
    _tell((*plan.findings, *container.findings, *cache.findings), log, warn)
    return changed


def _tell(findings: Iterable[Finding], log: DebugLog, warn: Callable[[str], None]) -> None:
    for finding in findings:
        if finding.level == "warning":
            log.warn_of(finding.message)
            warn(f"{finding.message} | {finding.hint}")


def _log_container(log: DebugLog, job: Job, container: Container) -> None:
    mode = "standalone" if container.standalone else "supervised"
    log.note(f"configuring container with '{' '.join([*sorted(job.request.capabilities), mode])}'")
    log.note(f"setting pid to {container.pid}")
    log.note(f"setting rootfs to {container.rootfs}")
    log.note(f"setting owner to {container.uid}:{container.gid}")


def log_inventory(log: DebugLog, inventory: Inventory) -> None:
    """Log the host's components and devices, and the missing ones."""
    if not log.is_open:
        return
    files, devices = inventory.files, inventory.devices
    for component in (*files.libraries, *files.libraries32, *files.binaries):
        log.note(f"selecting {component.path}")
    for row in files.missing:
        kind = "library" if row in catalogue.LIBRARIES else "binary"
        log.warn_of(f"missing {kind} {row.name} ({row.component_class})")
    for firmware in files.firmware:
        log.note(f"listing firmware path {firmware.target}")
    for node in devices.control:
        log.note(f"listing device {node.path}")
    for socket in (*files.sockets, files.mps):
        if socket is not None:
            log.note(f"listing ipc path {socket.path}")
    for device in devices.gpus:
        log.note(f"listing device {device.node.path} ({device.gpu.uuid} at {device.gpu.bus_id})")


def _log_plan(log: DebugLog, plan: Injection, container: Container) -> None:
    if not log.is_open:
        return
    from nvgraft.plan.actions import Bind, Tmpfs

    log.note(f"setting libs directory to {plan.target.libs_dir}")
    log.note(f"setting libs32 directory to {plan.target.libs32_dir}")
    for action in plan.actions:
        if isinstance(action, Bind):
            log.note(f"mounting {action.source} at {container.rootfs}{action.target}")
        elif isinstance(action, Tmpfs):
            log.note(f"mounting tmpfs at {container.rootfs}{action.target}")
        else:
            log.note(f"{action!r}")


def loader_cache_step(
    mode: str, program: str, *, pivot: bool, shunning: bool = False
) -> LoaderCacheStep:
    """Return the loader cache step for the ``ldcache`` of config.toml.

    :param program: the host's ldconfig, which "native" only names in messages.
    :param pivot: false for the reference's ``no-pivot``: the root of ldconfig is then moved without
        pivot_root.
    :param shunning: whether the container has FUSE volumes that must not be touched.
    """
    if mode == "native":
        from nvgraft.apply.cache.native import NativeCache

        return NativeCache(program, shunning=shunning)
    from nvgraft.apply.cache.ldconfig import ConfinedLdconfig

    return ConfinedLdconfig(program, pivot=pivot)
