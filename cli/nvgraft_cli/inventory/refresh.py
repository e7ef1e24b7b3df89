"""Read this host now and keep the result, for ``inventory refresh`` and ``watch``."""

import os
import time
from contextlib import suppress

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import LiveTree
from nvgraft.host import keep_inventory, kept_inventory
from nvgraft.host.components import Host
from nvgraft.host.libraries import select_libraries
from nvgraft.request.config import Config, load_config
from nvgraft.system import keep, kept
from nvgraft.system.trusted import open_trusted
from nvgraft_cli.case.hosts import read_configuration
from nvgraft_cli.shell.errors import InputError

#: Seconds for which a refresh waits until the driver's files stop changing.
PATIENCE = 2.0


class NotKept(Exception):
    """The host was read, but is not kept; the text says why."""


def require_root() -> None:
    """Check that this user may use the kept inventory.

    :raises nvgraft_cli.shell.errors.InputError: only root may.
    """
    if os.geteuid() != 0:
        raise InputError(f"{kept.DIRECTORY} is for root alone | run the command as root")


def become_like_the_hook() -> None:
    """Remove variables that NVML reads from the environment.

    The hook is registered with an environment of its own (SECURITY R1), and a refresh from a shell
    must find what the hook would find.
    """
    for name in [name for name in os.environ if kept_inventory.reaches_nvml(name)]:
        del os.environ[name]


def hook_config(path: str | None) -> Config:
    """Return the configuration that the hook uses.

    :param path: the file of the hook's ``-config``, or None.
    :raises Refusal: the hook would refuse it.
    """
    return load_config(path, os.environ, os.getcwd(), open_trusted, cached=True)


def named_config(path: str | None) -> Config:
    """Return the configuration that the hook uses, from a file that the user may have named.

    :raises nvgraft_cli.shell.errors.InputError: the named file cannot be used.
    :raises Refusal: the hook would refuse its own file.
    """
    return read_configuration(path, lambda name, _: hook_config(name))


def refresh(config: Config) -> Host:
    """Read this host and keep the result.

    :raises Refusal: the host cannot be read. The kept inventory is dropped, so that the next hook
        reads the host itself.
    :raises NotKept: the host was read, but the result cannot be kept.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            host, problem = _read_and_keep(config)
        except Refusal:
            # What cannot be removed is not a document that a hook would use.
            with suppress(OSError):
                keep.drop(kept_inventory.name_of(config))
            raise
        if not problem:
            return host
        if problem != keep_inventory.CHANGING or time.monotonic() > deadline:
            raise NotKept(problem)
        time.sleep(keep_inventory.SETTLED / 1e9)


def _read_and_keep(config: Config) -> tuple[Host, str]:
    host = kept_inventory.read_host(config, use_kept=False)
    assert isinstance(host.tree, LiveTree)
    try:
        if host.refusal is not None:
            raise host.refusal
        host.libraries = select_libraries(host)
        problem = (
            "the state of the driver cannot be read"
            if host.keep is None
            else host.keep(host.libraries)
        )
    finally:
        host.tree.close()
    return host, problem


def facts(host: Host) -> dict[str, object]:
    """Return the facts of a host that are reported after reading it."""
    migs = sum(len(gpu.mig_devices) for gpu in host.report.gpus)
    libraries = len(host.libraries.wide) + len(host.libraries.narrow) if host.libraries else 0
    return {
        "driver": host.report.driver_version,
        "gpus": len(host.report.gpus),
        "mig_devices": migs,
        "libraries": libraries,
    }
