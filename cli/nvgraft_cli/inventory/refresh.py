"""Reading this host now, whatever is cached, and caching it: for people and for the watcher."""

import os
import time

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import LiveTree
from nvgraft.host import kept_inventory
from nvgraft.host.components import Host
from nvgraft.host.libraries import select_libraries
from nvgraft.request.config import Config, load_config
from nvgraft.system import kept
from nvgraft.system.trusted import open_trusted
from nvgraft_cli.case.hosts import read_configuration

#: Seconds for which the driver's files may go on changing before it is given up for now.
PATIENCE = 2.0


class NotKept(Exception):
    """The host was read, but is not cached; the text says why."""


def permission_problem() -> str:
    """Return why this user has no business with what the hook keeps, or ""."""
    return "" if os.geteuid() == 0 else f"{kept.DIRECTORY} is root's own | run it as root"


def become_like_the_hook() -> None:
    """Take out of this process's environment what a hook does not inherit and NVML would heed: a refresh from somebody's
    shell is for the hook, which is registered with an environment of its own (SECURITY R1)."""
    for name in [name for name in os.environ if kept_inventory.reaches_nvml(name)]:
        del os.environ[name]


def hook_config(path: str | None) -> Config:
    """Return the configuration that the hook uses.

    :param path: the file of the hook's ``-config``, or None.
    :raises Refusal: the hook's own complaint about it.
    """
    return load_config(path, os.environ, os.getcwd(), open_trusted, cached=True)


def named_config(path: str | None) -> Config:
    """Return the same, for a person who has named the file.

    :raises nvgraft_cli.shell.errors.InputError: when that file cannot be used.
    :raises Refusal: the hook's own complaint about its own file.
    """
    return read_configuration(path, lambda name, _: hook_config(name))


def refresh(config: Config) -> Host:
    """Read this host and cache it.

    :raises Refusal: it cannot be read. What was cached is dropped: the next hook has to see it for itself.
    :raises NotKept: it was read and cannot be cached.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            host, problem = _read_and_keep(config)
        except Refusal:
            kept.drop(kept_inventory.name_of(config))
            raise
        if not problem:
            return host
        if problem != kept_inventory.CHANGING or time.monotonic() > deadline:
            raise NotKept(problem)
        time.sleep(kept_inventory.SETTLED / 1e9)


def _read_and_keep(config: Config) -> tuple[Host, str]:
    host = kept_inventory.read_host(config, use_kept=False)
    assert isinstance(host.tree, LiveTree)
    try:
        if host.refusal is not None:
            raise host.refusal
        host.libraries = select_libraries(host)
        problem = (
            "the state of the driver cannot be seen"
            if host.keep is None
            else host.keep(host.libraries)
        )
    finally:
        host.tree.close()
    return host, problem


def facts(host: Host) -> dict[str, object]:
    """Return what is worth a line about a host that was read."""
    migs = sum(len(gpu.mig_devices) for gpu in host.report.gpus)
    libraries = len(host.libraries.wide) + len(host.libraries.narrow) if host.libraries else 0
    return {
        "driver": host.report.driver_version,
        "gpus": len(host.report.gpus),
        "mig_devices": migs,
        "libraries": libraries,
    }
