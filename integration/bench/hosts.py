"""Hosts to measure on: the gallery's recorded node with chosen numbers of GPUs and cache
entries.
"""

import copy
import json
from pathlib import Path
from typing import Any

#: A node whose driver is a .run installation: two GPUs, every optional component.
MODEL = "runfile-a10x2"


def document(gallery: Path, gpus: int, entries: int = 0) -> dict[str, Any]:
    """Return a ``nvgraft.host/1`` document with ``gpus`` GPUs and ``entries`` more libraries in its
    cache.

    :param gallery: the directory of the recorded hosts.
    """
    host: dict[str, Any] = json.loads((gallery / f"{MODEL}.json").read_text())
    host["name"] = f"bench-{gpus}"
    model = host["nvml"]["gpus"][0]
    files = host["files"]
    node = files["/dev/nvidia0"]
    place = f"/proc/driver/nvidia/gpus/{_address(model)}"
    information = files[f"{place}/information"]["content"]
    directory = files[place]
    for gpu in host["nvml"]["gpus"]:
        del files[f"/dev/nvidia{gpu['minor']}"]
        old = f"/proc/driver/nvidia/gpus/{_address(gpu)}"
        del files[old], files[f"{old}/information"]
    host["nvml"]["gpus"] = []
    for minor in range(gpus):
        gpu = copy.deepcopy(model)
        gpu["minor"] = minor
        gpu["uuid"] = f"GPU-00000000-0000-0000-0000-{minor:012x}"
        gpu["pci"]["bus"] = minor + 1
        host["nvml"]["gpus"].append(gpu)
        files[f"/dev/nvidia{minor}"] = {**node, "rdev": [node["rdev"][0], minor]}
        place = f"/proc/driver/nvidia/gpus/{_address(gpu)}"
        files[place] = directory
        content = information.replace(model["uuid"], gpu["uuid"]).replace(
            "Minor: \t 0", f"Minor: \t {minor}"
        )
        files[f"{place}/information"] = {
            "type": "file",
            "mode": "0444",
            "uid": 0,
            "gid": 0,
            "size": len(content),
            "content": content,
        }
    host["ld_so_cache"] += [
        [f"libbench{number}.so.1", "libc6,x86-64", f"/usr/lib/bench/libbench{number}.so.1"]
        for number in range(entries)
    ]
    return host


def for_edits(host: dict[str, Any]) -> dict[str, Any]:
    """Return the host without the library whose stand-in the reference's runtime cannot use."""
    missing = "libnvidia-sandboxutils"
    files = {path: entry for path, entry in host["files"].items() if missing not in path}
    rows = [row for row in host["ld_so_cache"] if missing not in row[2]]
    return {**host, "files": files, "ld_so_cache": rows}


def _address(gpu: dict[str, Any]) -> str:
    pci = gpu["pci"]
    return f"{pci['domain']:04x}:{pci['bus']:02x}:{pci['device']:02x}.0"
