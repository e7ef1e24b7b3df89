"""nvgraft-cdi-hook: the hooks of CDI edits, a drop-in for nvidia-cdi-hook and ``nvidia-ctk hook``.

A runtime starts it at the stage createContainer, in the container's namespaces and before the root
is changed. It reads the OCI state from stdin, makes one plan for all steps of its command line, and
applies it as the prestart hook does: by descriptors, all or nothing, and without running a file of
the image. No variable is read, because a hook without an ``env`` may be started with the
container's (SECURITY R45).
"""

from __future__ import annotations

from nvgraft import __version__
from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_fd, reason
from nvgraft.hook import Invocation, begin, print_line, report
from nvgraft.request.config import host_ldconfig, load_config
from nvgraft.request.decision import absolute_rootfs
from nvgraft.request.hook_steps import (
    DEFAULT_LDCONFIG,
    DisableDeviceNodeModification,
    UnknownStep,
    UpdateLdcache,
    parse_steps,
)
from nvgraft.request.oci import parse_config, read_config, read_state
from nvgraft.system import launch
from nvgraft.system.trusted import open_trusted
from nvgraft_specs import cdi_hooks as names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nvgraft.apply.cache_step import LoaderCacheStep
    from nvgraft.container.container import Container
    from nvgraft.plan.actions import Plan
    from nvgraft.request.config import Config
    from nvgraft.request.hook_steps import HookStep

_USAGE = """\
usage: nvgraft-cdi-hook [--config FILE] [--debug] [--quiet] COMMAND

The hooks that CDI edits name, for OCI runtimes. The OCI state is read from stdin.

commands:
  create-symlinks --link TARGET::LINK...
  enable-cuda-compat [--host-driver-version V] [--host-cuda-version C]
                     [--cuda-compat-container-root DIR]
  update-ldcache [--folder DIR]... [--ldconfig-path FILE]
  disable-device-node-modification
  update-application-profile
  chmod --mode OCTAL --path PATH...
  steps COMMAND [-- COMMAND]...   several of these in one process, all or nothing

options:
  --config FILE  use FILE instead of /etc/nvidia-container-runtime/config.toml
  --debug        write tracebacks to stderr
  --quiet        write no warnings
  --version      print the version

example:
  nvgraft-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib/libcuda.so < state.json"""

#: The first word that ``nvidia-ctk`` has before a sub-command, and those of its other commands.
_CTK_HOOK = "hook"
_CTK_OTHERS = ("cdi", "config", "graphics", "info", "runtime", "system")

_PARAMS = "/proc/driver/nvidia/params"


class _Options:
    """The options before the sub-command."""

    def __init__(self) -> None:
        self.config: str | None = None
        self.quiet = False


def run(argv: Sequence[str]) -> NoReturn:
    """Run the hook and end this process, as :func:`nvgraft.hook.run` does."""
    os._exit(main(argv))


def main(argv: Sequence[str]) -> int:
    """Run the hook in this process, whose state it changes, and return the exit code.

    0: done, or nothing to do. 1: refused, everything undone. 3: refused, and the undo failed.
    """
    invocation = Invocation()
    return report(invocation, lambda: _run(argv[1:], invocation))


def _run(arguments: Sequence[str], invocation: Invocation) -> None:
    options = _Options()
    words = _parse(arguments, invocation, options)
    if words is None:
        return
    steps = []
    for step in parse_steps(words):
        if isinstance(step, UnknownStep):
            _unsupported(step.name, invocation, options)
        else:
            steps.append(step)
    if steps:
        _take(steps, invocation, options)


def _parse(arguments: Sequence[str], invocation: Invocation, options: _Options) -> list[str] | None:
    """Return the sub-command and its arguments; None if there is nothing to do.

    As in the reference, an unknown option or no sub-command is a warning: a specification may name
    a hook of a newer version.
    """
    rest = list(arguments)
    if rest[:1] == [_CTK_HOOK]:
        del rest[0]
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        if name in {"h", "help"}:
            invocation.say(_USAGE)
            return None
        if name in {"v", "version"}:
            print_line(f"NVIDIA CDI Hook version {__version__} (nvgraft)")
            return None
        if name == names.CONFIG_OPTION.lstrip("-"):
            if not equals and not rest:
                raise Refusal("", f"flag needs an argument: --{name}", "name a config.toml")
            options.config = value if equals else rest.pop(0)
        elif name in {"d", "debug"}:
            invocation.debug = True
        elif name == "quiet":
            options.quiet = True
        else:
            rest.clear()
    if not rest:
        _warn(invocation, options, "No CDI hook specified | see nvgraft-cdi-hook --help")
        return None
    if not {"-h", "--help"}.isdisjoint(rest):
        invocation.say(_USAGE)
        return None
    if rest[0] in _CTK_OTHERS:
        hint = "nvgraft has `nvidia-ctk hook` alone; for specifications see `nvgraft cdi --help`"
        raise Refusal("", f"nvidia-ctk {rest[0]}: no such command", hint)
    return rest


def _unsupported(name: str, invocation: Invocation, options: _Options) -> None:
    _warn(invocation, options, f"Unsupported CDI hook: {name} | see nvgraft-cdi-hook --help")


def _warn(invocation: Invocation, options: _Options, text: str) -> None:
    if not options.quiet:
        invocation.warn(text)


def _take(steps: Sequence[HookStep], invocation: Invocation, options: _Options) -> None:
    """Take the steps in the container that the state on stdin names.

    :raises Refusal: everything is undone.
    """
    directory = begin()
    path = launch.path_of(directory)
    params = ""
    if any(isinstance(step, DisableDeviceNodeModification) for step in steps):
        params = _host_params()
        if len(steps) == 1 and not params:
            return  # the driver has no parameters to hide
    config = load_config(options.config, {}, path, open_trusted, cached=True)
    pid, rootfs = _container_of(invocation, directory, path)
    invocation.open_records()
    container = _open(pid, rootfs)
    _graft(steps, params, container, config, lambda text: _warn(invocation, options, text))


def _host_params() -> str:
    """Return the driver's parameters on the host; "" where there are none."""
    from nvgraft.plan.hook_steps import TEXT_LIMIT

    try:
        fd = os.open(_PARAMS, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    except OSError as error:
        text = f"failed to get modified params file contents: open {_PARAMS}: {reason(error)}"
        raise Refusal("", text, "let the hook read the driver's parameters") from error
    try:
        return read_fd(fd, TEXT_LIMIT).decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def _container_of(invocation: Invocation, directory: int, path: str) -> tuple[int, str]:
    """Return the pid of the state on stdin, and the absolute path of its root file system.

    :param directory: a descriptor of the working directory, whose path is ``path``.
    """
    try:
        state = read_state(0)
    except Refusal as refusal:
        cause = refusal.text.removeprefix("could not decode container state: ")
        text = f"failed to load container state: failed to decode container state: {cause}"
        raise refusal.in_words(text) from refusal
    invocation.container_id = state.id
    try:
        config = parse_config(read_config(state.bundle, directory), complete=False)
        bundle = paths.join(path, state.bundle)
        if not config.root_path:
            raise Refusal("", "root.path is empty", "name the root file system in config.json")
        return state.pid, absolute_rootfs(config.root_path, bundle)
    except Refusal as refusal:
        raise refusal.in_words(f"failed to determined container root: {refusal.text}") from refusal


def _open(pid: int, rootfs: str) -> Container:
    from nvgraft.container import container as containers
    from nvgraft.container.unprepared import is_own_namespace, open_own
    from nvgraft.system import privileges

    privileges.demand()
    if is_own_namespace(pid):
        privileges.keep(privileges.APPLY)
        return open_own(rootfs)
    # A specification may name another stage, where the container's namespace must be entered.
    pidfd = containers.hold_process(pid)
    privileges.keep(privileges.LOOK)
    return containers.open_container(pid, pidfd, rootfs)


def _graft(
    steps: Sequence[HookStep],
    params: str,
    container: Container,
    config: Config,
    warn: Callable[[str], None],
) -> None:
    from nvgraft.apply.executor import apply_plan
    from nvgraft.apply.held_container import HeldContainer
    from nvgraft.system.launch import Interruptible

    with HeldContainer(container, warn, lambda: config.allow_fuse):
        with Interruptible():
            _check(steps, container)
            plan = _plan(steps, params, container, config)
        for finding in plan.findings:
            warn(f"{finding.message} | {finding.hint}")
        if not plan.actions:
            return
        cache = _cache_step(steps, config, container)
        apply_plan(plan, container, cache)
        for finding in (*container.findings, *cache.findings):
            if finding.level == "warning":
                warn(f"{finding.message} | {finding.hint}")


def _check(steps: Sequence[HookStep], container: Container) -> None:
    """Check what the steps need besides files of the container.

    :raises Refusal: the root is not a mount, the host has no such ldconfig, or a mount would be
        made in the host's mount namespace.
    """
    for step in steps:
        if isinstance(step, UpdateLdcache):
            if not container.is_mount_point():
                text = f"error running pivot_root: {container.rootfs}: invalid argument"
                raise Refusal("", text, "root.path in config.json must be a mount point")
            if step.ldconfig != DEFAULT_LDCONFIG:
                from nvgraft.host.ldconfig import check_static

                check_static(step.ldconfig)
        elif (
            isinstance(step, DisableDeviceNodeModification)
            and container.standalone
            and _is_host_namespace()
        ):
            text = "the container has no mount namespace of its own"
            hint = "give it one: without it the driver's parameters would be hidden on the host"
            raise Refusal("container", text, hint)


def _is_host_namespace() -> bool:
    try:
        return os.readlink("/proc/1/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False  # this user may not look at the host's first process


def _plan(steps: Sequence[HookStep], params: str, container: Container, config: Config) -> Plan:
    from nvgraft.container.live_target import LiveTarget
    from nvgraft.plan.hook_steps import StepPlanner

    container.bound(config.image_limits)
    target = LiveTarget(container, os.uname().machine, closed=True)
    try:
        return StepPlanner(target, params).plan(steps)
    finally:
        target.close()


def _cache_step(steps: Sequence[HookStep], config: Config, container: Container) -> LoaderCacheStep:
    """Return the loader cache step for the ``ldcache`` of config.toml."""
    program = next((step.ldconfig for step in steps if isinstance(step, UpdateLdcache)), "")
    if config.ldcache_mode == "native":
        from nvgraft.apply.cache.after_files import CacheAfterFiles

        return CacheAfterFiles(program, shunning=bool(container.shunned))
    from nvgraft.apply.cache.ldconfig import ConfinedLdconfig

    program = host_ldconfig(f"@{program}", paths.exists)[1:]
    return ConfinedLdconfig(program, pivot=not config.cli_no_pivot)
