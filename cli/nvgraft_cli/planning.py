"""From people's inputs to a plan: the hook's own flow, with a recorded host or this one, and a bundle that is not running."""

import json
import os
from typing import Any

from nvgraft.components import Host, Inventory
from nvgraft.config import Config, load_config
from nvgraft.decision import decide
from nvgraft.errors import Refusal
from nvgraft.inventory import read_inventory
from nvgraft.live import mps_directory, read_live_host, search_path
from nvgraft.oci import parse_config, read_config
from nvgraft.plan import Plan
from nvgraft.planner import Settings, check_request, make_plan
from nvgraft.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft_cli.bundle import open_target
from nvgraft_specs import gallery
from nvgraft_specs.models import DocumentError, read_bytes
from nvgraft_specs.models.host import parse_host


class InputError(Exception):
    """Something that was named on the command line cannot be used; the text names it, the cause and the fix."""


def read_snapshot(name: str) -> dict[str, Any]:
    """Return the checked ``nvgraft.host/1`` document of a file, or of a gallery host.

    :raises InputError: when there is none, or it is no such document.
    """
    path = gallery.path(name) if name in gallery.names() else name
    try:
        raw = read_bytes(path)
        parse_host(raw, path)
    except DocumentError as error:
        raise InputError(str(error)) from error
    document: dict[str, Any] = json.loads(raw)
    return document


def _configuration(path: str | None, document: dict[str, Any] | None) -> Config:
    """Return the configuration for a plan. A recorded host without a named config.toml gets the defaults, and its own root.

    :raises InputError: when the file names another driver root than the snapshot.
    :raises Refusal: the hook's own complaint about the file.
    """
    if document is None:
        return load_config(path, os.environ)
    if path is None:
        return Config(cli_root="" if document["root"] == "/" else document["root"])
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file: --config must name a config.toml")
    config = load_config(path, {})
    if (config.cli_root.rstrip("/") or "/") != (document["root"].rstrip("/") or "/"):
        fix = f'set root = "{document["root"]}" in [nvidia-container-cli], or use a snapshot of that root'
        raise InputError(f"{path}: its driver root is {config.cli_root or '/'}, the snapshot's is {document['root']} | {fix}")
    return config


def plan_bundle(bundle: str, snapshot: str | None, config_path: str | None) -> tuple[Plan, Refusal | None]:
    """Plan the container of ``bundle`` on a recorded host, or without ``snapshot`` on this one.

    A refusal is a plan as well; it comes with the hook's own error.

    :raises InputError: for inputs that cannot be read.
    """
    if not os.path.isdir(bundle):
        raise InputError(f"{bundle}: no such directory: --bundle must name an OCI bundle (a directory with config.json)")
    document = None if snapshot is None else read_snapshot(snapshot)
    try:
        config = _configuration(config_path, document)
        data = read_config(bundle)
        decision = decide(data, config, os.path.abspath(bundle))
        if decision.refusal is not None:
            raise decision.refusal
        if decision.request is None:
            return Plan("skip", decision.reason, {}, {}, {}), None
        check_request(decision.request)
        host = read_live_host(config) if document is None else snapshot_host(document)
        settings = Settings.from_config(config)
        # The reference looks at the container before the driver's files.
        with open_target(parse_config(data), bundle, host.machine, module=not config.simulated_host) as target:
            inventory = _live_inventory(host, config) if document is None else read_inventory(host, OFFLINE_PATH)
            return make_plan(decision.request, inventory, target, settings), None
    except Refusal as refusal:
        return Plan("refuse", refusal.reference_line(), {}, {}, {}), refusal


def _live_inventory(host: Host, config: Config) -> Inventory:
    return read_inventory(host, search_path(os.environ, config), mps_directory(os.environ, config))
