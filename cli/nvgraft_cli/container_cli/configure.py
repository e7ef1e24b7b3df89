"""``configure``: the hook's way into a container, with a request that comes from the command line.

Supervised (``--pid``) it is the hook without its OCI documents. Standalone it configures a directory of the caller's own
mount namespace, often inside a user namespace, as enroot, Charliecloud and Apptainer do.
"""

import os
from collections.abc import Callable

from nvgraft import container as containers
from nvgraft import launch
from nvgraft.apply.executor import apply_plan
from nvgraft.config import Config, host_ldconfig
from nvgraft.container import Container
from nvgraft.errors import Refusal
from nvgraft.kmods import load_modules
from nvgraft.plan import Bind, Plan, Tmpfs
from nvgraft.planner import Settings, make_plan
from nvgraft.request import Origin, Request
from nvgraft.selection import imex_channels
from nvgraft_cli.container_cli.debug_log import DebugLog
from nvgraft_cli.container_cli.detection import read_host
from nvgraft_cli.container_cli.options import COMPAT_MODES, ConfigureOptions


def request_of(options: ConfigureOptions) -> Request:
    """Return what the command line asks for."""
    devices = tuple(token for token in options.devices or () if token)
    return Request(
        devices,
        tuple(sorted(options.capabilities)),
        tuple(options.requirements),
        options.imex_channels,
        options.mig_config,
        options.mig_monitor,
        origin=Origin(f"--device={','.join(devices)}" if devices else "command line", "command line"),
    )


def configure(config: Config, options: ConfigureOptions, log: DebugLog, say: Callable[[str], None]) -> None:
    """Configure a container as the command line says; this process is in the container's mount namespace afterwards.

    :param say: prints a warning.
    :raises Refusal: with everything undone.
    """
    if (os.geteuid(), os.getegid()) != (os.getuid(), os.getgid()):
        hint = "it must not be installed with the set-user-ID or set-group-ID bit"
        raise Refusal("permission", "capability change failed: operation not permitted", hint)
    request = request_of(options)
    pidfd = containers.hold_process(options.pid) if options.pid else None
    findings = []
    if config.cli_load_kmods and not config.simulated_host:
        create = not config.features_disable_imex_channel_creation
        findings += load_modules(config.cli_root or "/", imex_channels(request.imex_channels), create)
    inventory = read_host(config, options.omit, log)
    container = containers.open_standalone(options.rootfs) if pidfd is None else _supervised(options, pidfd)
    _log_container(log, container, options)
    if options.cuda_compat_mode not in ("", *COMPAT_MODES):
        hint = f"use one of {', '.join(COMPAT_MODES)}"
        raise Refusal("container", f"invalid option: cuda-compat-mode={options.cuda_compat_mode}", hint)
    target = containers.LiveTarget(container, inventory.machine)
    compat = options.cuda_compat_mode or "mount"
    settings = Settings(cgroups=options.cgroups, simulated=config.simulated_host, cuda_compat=compat, devbind=options.devbind)
    plan = make_plan(request, inventory, target, settings)
    target.close()
    _log_plan(log, plan, container)
    ldconfig = options.ldconfig or "@/sbin/ldconfig"
    if not ldconfig.startswith("@"):
        say("the ldconfig of the image is never run, the host's is | write --ldconfig=@PATH")
        ldconfig = "@/sbin/ldconfig"
    program = host_ldconfig(ldconfig, os.path.exists)[1:]
    log.note(f"executing {program} from host at {container.rootfs}")
    if not apply_plan(plan, container, program, pivot=not config.cli_no_pivot):
        say("this container is configured already; nothing was changed")
    for finding in (*findings, *plan.findings):
        if finding.level == "warning":
            log.warn_of(finding.message)
            say(f"{finding.message} | {finding.hint}")


def prepare_process(options: ConfigureOptions) -> None:
    """Put this process into a known state before anything is looked at.

    Supervised, the caller may be a hook that was given a container's environment (SECURITY R3). Standalone, a person or a
    tool runs this with the caller's own privileges in the caller's own namespace, where LD_LIBRARY_PATH is common and harmless.
    """
    if options.pid:
        launch.check_environment(os.environ)
    launch.reset_process()


def _supervised(options: ConfigureOptions, pidfd: int) -> Container:
    return containers.open_container(options.pid, pidfd, options.rootfs)


def _log_container(log: DebugLog, container: Container, options: ConfigureOptions) -> None:
    mode = "standalone" if container.standalone else "supervised"
    log.note(f"configuring container with '{' '.join([*sorted(options.capabilities), mode])}'")
    log.note(f"setting pid to {container.pid}")
    log.note(f"setting rootfs to {container.rootfs}")
    log.note(f"setting owner to {container.uid}:{container.gid}")


def _log_plan(log: DebugLog, plan: Plan, container: Container) -> None:
    log.note(f"setting libs directory to {plan.target['libs_dir']}")
    log.note(f"setting libs32 directory to {plan.target['libs32_dir']}")
    for action in plan.actions:
        if isinstance(action, Bind):
            log.note(f"mounting {action.source} at {container.rootfs}{action.target}")
        elif isinstance(action, Tmpfs):
            log.note(f"mounting tmpfs at {container.rootfs}{action.target}")
        else:
            log.note(f"{action!r}")
