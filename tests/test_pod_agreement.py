"""``--pod`` answers what NVIDIA's device plugin 0.20 answered for the same node and devices."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvgraft_cli.shell.main import main

SHARED = Path(__file__).parent.parent.parent / "shared" / "reference"
pytestmark = pytest.mark.requires("shared-records")

#: Compute instance profile of NVML -> its slices.
_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def host_document(name: str) -> dict[str, Any]:
    """Return the host document of a recorded node."""
    node = json.loads((SHARED / f"simhost/hosts/{name}.json").read_text())
    files: dict[str, Any] = {
        f"/dev/{path}": {"type": "char", "mode": "0666", "rdev": numbers}
        for path, numbers in node["nodes"].items()
    }
    if node.get("mig_minors"):
        content = "\n".join(node["mig_minors"]) + "\n"
        files["/proc/driver/nvidia-caps/mig-minors"] = {
            "type": "file", "mode": "0444", "size": 0, "content": content,
        }  # fmt: skip
    libraries = [f"/usr/lib64/lib{name}.so.{node['driver']}" for name in ("nvidia-ml", "cuda")]
    files |= {path: {"type": "file", "mode": "0755", "size": 1} for path in libraries}
    nvml = {"type": "symlink", "target": Path(libraries[0]).name}
    files["/usr/lib64/libnvidia-ml.so.1"] = nvml
    return {
        "schema": "nvgraft.host/1",
        "name": name,
        "root": "/",
        "ld_so_cache": [
            [f"{Path(path).name.partition('.')[0]}.so.1", "libc6,x86-64", path]
            for path in libraries
        ],
        "nvml": {
            "driver_version": node["driver"],
            "cuda_version": f"{node['cuda'] // 1000}.{node['cuda'] % 1000 // 10}",
            "gpus": [_gpu(gpu) for gpu in node["gpus"]],
        },
        "char_majors": {"nvidia": 195},
        "files": files,
    }


def _gpu(gpu: dict[str, Any]) -> dict[str, Any]:
    domain, bus, rest = gpu["pci"].split(":")
    rows = {row["index"]: row for row in gpu.get("gi_profiles", ())}
    gigabytes = gpu["memory_mib"] // 1024

    def profile(device: dict[str, Any]) -> str:
        row = rows[device["gi_profile"]]
        eighths = -(-8 * row["memory_mib"] // gpu["memory_mib"])
        slices = _COMPUTE_SLICES[device["ci_profile"]]
        part = "" if slices == row["slices"] else f"{slices}c."
        return f"{part}{row['slices']}g.{eighths * gigabytes // 8}gb"

    return {
        "minor": gpu["minor"],
        "uuid": gpu["uuid"],
        "pci": {"domain": int(domain, 16), "bus": int(bus, 16), "device": int(rest[:2], 16)},
        "brand": gpu["brand"],
        "compute_capability": gpu["compute_capability"],
        "mig": gpu["mig"],
        "model": gpu["model"],
        "mig_devices": [
            {
                "uuid": device["uuid"],
                "gpu_instance": device["gpu_instance"],
                "compute_instance": device["compute_instance"],
                "profile": profile(device),
            }
            for device in gpu.get("mig_devices", ())
        ],
    }


def records() -> list[Any]:
    """Return the records whose answers of Allocate depend on flags and the config file alone."""
    path = SHARED / "kubernetes/device-plugin.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        given = record["input"]
        # GDS and its like have specifications of nodes that the documents lack.
        if not record.get("resources") or set(given) - {"args", "config"}:
            continue
        if any("enabled" in word or "imex" in word for word in given.get("args", ())):
            continue
        if record["host"] in {"tegra", "wsl"} or "gdsEnabled" in json.dumps(given):
            continue
        found.append(pytest.param(record, id=f"{record['host']}/{record['id']}"))
    return found


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without empty members, random parts, and orders that mean nothing."""
    kept = {name: value for name, value in answer.items() if value}
    if "annotations" in kept:
        kept["annotations"] = {
            _UUID.sub("", key): value for key, value in kept["annotations"].items()
        }
    for name in ("mounts", "devices", "cdi_devices"):
        if name in kept:
            kept[name] = sorted(kept[name], key=lambda item: json.dumps(item, sort_keys=True))
    for name in ("annotations", "envs"):
        if name in kept:
            kept[name] = {key: sorted(value.split(",")) for key, value in kept[name].items()}
    return kept


@pytest.mark.parametrize("record", records())
def test_allocate_answers_as_recorded(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each recorded request with one container, the plan has the recorded answer, or the
    recorded error.
    """
    host = tmp_path / "host.json"
    host.write_text(json.dumps(host_document(record["host"])))
    words = [f"--plugin-flag={word.removeprefix('--')}" for word in record["input"].get("args", ())]
    words = [word if word.count("=") > 1 else f"{word}=true" for word in words]
    if "config" in record["input"]:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(record["input"]["config"]))
        words.append(f"--plugin-flag=config-file={config}")
    for resource, facts in record["resources"].items():
        for number, call in enumerate(facts.get("allocate", ())):
            known = {device["ID"] for device in facts["list"]}
            (ids, *more) = call["request"]
            if more or not ids or not set(ids) <= known or len(set(ids)) < len(ids):
                continue
            pod = tmp_path / f"pod{number}.yaml"
            limits = {resource: len(ids)}
            container = {"name": "c", "resources": {"limits": limits}}
            pod.write_text(yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container]}}))
            main(
                ["plan", "--pod", str(pod), "--host", str(host), "--format", "json",
                 "--plugin-devices", ",".join(ids), *words]
            )  # fmt: skip
            document = json.loads(capsys.readouterr().out)
            if isinstance(call["response"], dict):
                assert call["response"]["error"]["message"] in document["reason"]
                continue
            assert document["pod"]["allocated"], document["reason"]
            (granted,) = document["pod"]["allocated"]
            assert comparable(granted["answer"]) == comparable(call["response"][0])
