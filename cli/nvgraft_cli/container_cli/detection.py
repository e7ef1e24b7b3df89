"""Read this host's inventory with the options of nvidia-container-cli."""

import os
from collections.abc import Collection

from nvgraft.base.errors import Refusal
from nvgraft.graft import DEFAULT_LDCONFIG, log_inventory
from nvgraft.host.components import Inventory
from nvgraft.host.inventory import read_inventory
from nvgraft.host.kept_inventory import read_host
from nvgraft.host.places import mps_directory
from nvgraft.report.debug_log import DebugLog
from nvgraft.request.config import Config, load_config
from nvgraft.system import userns
from nvgraft.system.trusted import open_trusted
from nvgraft_cli.container_cli.options import GlobalOptions


def engine_config(options: GlobalOptions, ldconfig: str = "") -> Config:
    """Return the engine's configuration for a command line.

    The original CLI does not read config.toml. Only nvgraft's own keys are used here: whether the
    host is simulated, how the loader cache is written, and whether FUSE is allowed. A file that
    cannot be read is ignored.
    """
    try:
        written = load_config(
            None, os.environ, os.getcwd(), lambda path: open_trusted(path, sticky=True), cached=True
        )
    except Refusal:
        written = Config()
    user = options.user
    if not user and userns.inside():
        # The user nobody has no id here, and the user of the namespace has no privileges to drop.
        user = f"{os.geteuid()}:{os.getegid()}"
    return Config(
        cli_root="" if options.root == "/" else options.root,
        cli_ldcache=options.ldcache,
        cli_user=user,
        cli_load_kmods=options.load_kmods,
        cli_no_pivot=not options.pivot,
        cli_ldconfig=ldconfig or DEFAULT_LDCONFIG,
        features_disable_imex_channel_creation=not options.create_imex_channels,
        simulated_host=written.simulated_host,
        host_snapshot=written.host_snapshot,
        image_names=written.image_names,
        image_directories=written.image_directories,
        image_libraries=written.image_libraries,
        image_seconds=written.image_seconds,
        allow_fuse=written.allow_fuse,
        # A program that is named on the command line is to be run.
        ldcache_mode="ldconfig" if ldconfig else written.ldcache_mode,
    )


def detect(config: Config, omit: Collection[str], log: DebugLog) -> Inventory:
    """Read the driver and its files.

    :raises Refusal: stages ``initialization`` and ``detection``.
    """
    host = read_host(config)
    inventory = read_inventory(
        host, os.environ.get("PATH"), mps_directory(os.environ, config), omit
    )
    log_inventory(log, inventory)
    return inventory
