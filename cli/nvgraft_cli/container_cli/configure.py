"""``configure``: configure a container as the hook does, with a request from the command line.

With ``--pid`` (supervised) it is the hook without OCI documents. The program that started that
process may also prepare a directory for it, as gVisor's runsc does for its gofer
(docs/decisions/0055). Without ``--pid`` (standalone) it configures
a directory of the caller's mount namespace, often in a user namespace, for enroot, Charliecloud and
Apptainer.
"""

import os
from collections.abc import Callable

from nvgraft.base.files import read_text
from nvgraft.graft import Job, graft
from nvgraft.plan.compat import MODES
from nvgraft.plan.settings import Settings
from nvgraft.report.debug_log import DebugLog
from nvgraft.request.config import Config
from nvgraft.request.request import Request
from nvgraft.system import launch
from nvgraft_cli.container_cli.options import ConfigureOptions

_LIBRARY_PATH = "LD_LIBRARY_PATH"
#: Bytes; more than the kernel accepts for a new program by default.
_MOST_ENVIRONMENT = 8 << 20


def request_of(options: ConfigureOptions) -> Request:
    """Return the request of the command line."""
    devices = tuple(token for token in options.devices or () if token)
    return Request(
        devices,
        tuple(sorted(options.capabilities)),
        requirements=tuple(options.requirements),
        imex_channels=options.imex_channels,
        mig_config=options.mig_config,
        mig_monitor=options.mig_monitor,
        devices_from=f"--device={','.join(devices)}" if devices else "command line",
        capabilities_from="command line",
    )


def configure(
    config: Config, options: ConfigureOptions, log: DebugLog, say: Callable[[str], None]
) -> None:
    """Configure a container. Afterwards this process is in the container's mount namespace.

    :param say: prints a warning.
    :raises Refusal: everything is undone.
    """
    settings = Settings(
        cgroups=options.cgroups,
        simulated=config.simulated_host,
        cuda_compat=options.cuda_compat_mode or MODES[0],
        devbind=options.devbind,
    )
    job = Job(
        request_of(options),
        options.pid or None,
        options.rootfs,
        settings,
        os.environ.get("PATH"),
        options.omit,
        by_its_starter=True,
    )
    if not graft(job, config, log, say):
        say("this container is configured already; nothing was changed")


def prepare_process(options: ConfigureOptions) -> None:
    """Put this process into a known state before anything is looked at.

    Supervised, the caller may be a hook that was given a container's environment (SECURITY R3). An
    LD_LIBRARY_PATH with which the caller itself was started is not a container's: containerd sets
    one for every shim, and so for every runtime. Standalone, a person or a tool runs this with the
    caller's own privileges in the caller's own namespace, where LD_LIBRARY_PATH is common and
    harmless.
    """
    if options.pid:
        environ = dict(os.environ)
        if _is_callers(_LIBRARY_PATH):
            environ.pop(_LIBRARY_PATH, None)
        launch.check_environment(environ)
    launch.check_identity()
    launch.reset_process()


def _is_callers(name: str) -> bool:
    """Tell whether the parent of this process was started with the same value of the variable."""
    try:
        text = read_text(f"/proc/{os.getppid()}/environ", _MOST_ENVIRONMENT)
    except OSError:
        return False
    return f"{name}={os.environ.get(name)}" in text.split("\0")
