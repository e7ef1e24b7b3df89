"""The command line with which the reference hook would run ``nvidia-container-cli``.

The arguments follow from a decision that has been made. People compare them with those of the
reference stack on their nodes. The engine itself uses the Request. Source: reference behaviour 3.2.
"""

from __future__ import annotations

from nvgraft.request.config import compat_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvgraft.request.config import Config
    from nvgraft.request.request import Request


def reference_argv(
    request: Request, config: Config, pid: int, rootfs: str, debug: bool = False
) -> list[str]:
    """Return the arguments, without argv[0], in the reference's order.

    :param rootfs: absolute path of the container's root file system.
    :param debug: the hook was run with ``-debug``.
    """
    log = "/dev/stderr" if debug else config.cli_debug
    # (whether it applies, argument). The arguments after "configure" are options of that command.
    candidates = (
        (config.cli_root, f"--root={config.cli_root}"),
        (config.cli_load_kmods, "--load-kmods"),
        (config.features_disable_imex_channel_creation, "--no-create-imex-channels"),
        (config.cli_no_pivot, "--no-pivot"),
        (log, f"--debug={log}"),
        (config.cli_ldcache, f"--ldcache={config.cli_ldcache}"),
        (config.cli_user, f"--user={config.cli_user}"),
        (True, "configure"),
        (mode := compat_mode(config), f"--cuda-compat-mode={mode}"),
        (config.cli_ldconfig, f"--ldconfig={config.cli_ldconfig}"),
        (config.cli_no_cgroups, "--no-cgroups"),
        (request.devices, f"--device={','.join(request.devices)}"),
        (request.mig_config, f"--mig-config={request.mig_config}"),
        (request.mig_monitor, f"--mig-monitor={request.mig_monitor}"),
        (channels := request.imex_channels.written, f"--imex-channel={','.join(channels)}"),
    )
    return [
        *(argument for applies, argument in candidates if applies),
        *(f"--{name}" for name in request.capabilities),
        *(f"--require={expression}" for expression in request.requirements),
        f"--pid={pid}",
        rootfs,
    ]
