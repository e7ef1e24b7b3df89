"""Time a plan offline, from a loaded snapshot, in one process and without the command around it."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cases import EVERYTHING
from nvgraft.container.offline_target import OfflineTarget, VirtualTree
from nvgraft.formats.tree import open_tree_at
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.config import Config
from nvgraft.request.decision import decide


def bundle_config(rootfs: str) -> dict[str, Any]:
    """Return the config.json of a container that requests everything."""
    return {
        "ociVersion": "1.0.2",
        "process": {"args": ["sh"], "env": list(EVERYTHING)},
        "root": {"path": rootfs},
    }


def seconds(document: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return, by round, the seconds from the loaded document to the plan, and those of the planner
    alone.

    The planner alone begins with the inventory read.
    """
    host = json.loads(document.read_text())
    settings = Settings.from_config(Config())
    whole, alone = [], []
    with tempfile.TemporaryDirectory() as rootfs:
        os.makedirs(f"{rootfs}/usr/bin")
        config = json.dumps(bundle_config(rootfs)).encode()
        for _ in range(rounds):
            started = time.perf_counter()
            request = decide(config, Config(), "/").request
            assert request is not None, "the container of the bench asks for everything"
            recorded = snapshot_host(host)
            inventory = read_inventory(recorded, OFFLINE_PATH)
            tree = open_tree_at(rootfs)
            planned = time.perf_counter()
            make_plan(
                request,
                inventory,
                OfflineTarget(VirtualTree(tree, rootfs), recorded.machine, (), module=True),
                settings,
            )
            ended = time.perf_counter()
            tree.close()
            whole.append(ended - started)
            alone.append(ended - planned)
    return whole, alone
