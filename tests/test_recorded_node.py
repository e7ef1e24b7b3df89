"""A node of the device plugin from a host document."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from nvgraft.cdi.discovery import recorded_facts
from nvgraft.host.snapshot import snapshot_host
from nvgraft_device_plugin import cdi_files, recorded
from nvgraft_device_plugin.configuration import load
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.labels import node_labels
from nvgraft_device_plugin.resources import divide
from nvgraft_specs import gallery
from nvgraft_specs.models.host import parse_host


def document(name: str) -> dict[str, Any]:
    """Return the document of a gallery host."""
    found: dict[str, Any] = json.loads(Path(gallery.path(name)).read_text())
    return found


def node(host: dict[str, Any]) -> Node:
    """Read the node of a document."""
    return recorded.read_node(parse_host(json.dumps(host).encode(), "host"), snapshot_host(host))


def with_mig_profiles() -> dict[str, Any]:
    """Return the gallery's host with MIG, and profiles of its MIG devices."""
    host = copy.deepcopy(document("mig-h100"))
    host["nvml"]["gpus"][0]["mig_devices"] = [
        {**device, "profile": profile}
        for device, profile in zip(
            host["nvml"]["gpus"][0]["mig_devices"],
            ["3g.40gb", "1g.10gb+me", "1c.2g.20gb"],
            strict=True,
        )
    ]
    return host


def without_mig_profiles() -> dict[str, Any]:
    """Return the gallery's host with MIG as an older document: no MIG device has its profile."""
    host = copy.deepcopy(document("mig-h100"))
    for device in host["nvml"]["gpus"][0]["mig_devices"]:
        del device["profile"]
    return host


@pytest.mark.parametrize("name", gallery.names())
def test_every_host_of_the_gallery_is_a_node(name: str) -> None:
    """Each host of the gallery offers its GPUs, or the one device of its platform."""
    host = document(name)
    divided = divide(node(host), load([], {}))
    gpus = [gpu["uuid"] for gpu in host["nvml"]["gpus"]]
    expected = {"jetson-orin": ["tegra"], "wsl2-rtx3090": ["all"]}.get(name, gpus)
    assert [device.id for device in divided.resources[0].devices] == expected


def test_mig_devices_have_the_names_of_their_profiles() -> None:
    """A recorded MIG profile gives the resource's name, as NVML's numbers of it do."""
    divided = divide(node(with_mig_profiles()), load(["--mig-strategy=mixed"], {}))
    assert [resource.name for resource in divided.resources] == [
        "nvidia.com/gpu",
        "nvidia.com/mig-3g.40gb",
        "nvidia.com/mig-1g.10gb.me",
    ]
    (warning,) = divided.warnings
    assert warning.startswith("MIG profile '1c.2g.20gb' does not match any resource patterns")


def test_the_gallerys_mig_devices_are_served_and_labelled() -> None:
    """Under mixed, each has the resource of its profile, with the numbers of NVIDIA's guide."""
    configuration = load(["--mig-strategy=mixed"], {})
    host = node(document("mig-h100"))
    divided = divide(host, configuration)
    assert divided.warnings == ()
    assert {one.name: len(one.devices) for one in divided.resources} == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-3g.40gb": 1,
        "nvidia.com/mig-2g.20gb": 1,
        "nvidia.com/mig-1g.10gb": 1,
    }
    labels = node_labels(host, configuration)
    start = "nvidia.com/mig-3g.40gb"
    assert labels[f"{start}.product"] == "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"
    assert (labels[f"{start}.multiprocessors"], labels[f"{start}.slices.gi"]) == ("60", "3")


def test_a_mig_device_without_a_recorded_profile_is_left_out() -> None:
    """Under mixed, a warning names each, and the other GPU is served and labelled."""
    configuration = load(["--mig-strategy=mixed"], {})
    host = node(without_mig_profiles())
    divided = divide(host, configuration)
    assert [(one.name, len(one.devices)) for one in divided.resources] == [("nvidia.com/gpu", 1)]
    assert [warning.partition(" was ")[0] for warning in divided.warnings] == [
        f"the profile of MIG device MIG-22222222-aaaa-bbbb-cccc-00000000000{number}"
        for number in (1, 2, 3)
    ]
    labels = node_labels(host, configuration)
    assert labels["nvidia.com/mig.strategy"] == "mixed"
    assert not [name for name in labels if name.startswith("nvidia.com/mig-")]


def test_near_gpus_have_a_higher_score() -> None:
    """The recorded levels and links give the scores that NVML's answers give."""
    host = document("runfile-a10x2")
    first, second = (gpu["uuid"] for gpu in host["nvml"]["gpus"])
    assert node(host).scores[first, second] == 10
    host["topology"] = {"numa": [{"node": 1, "cpus": "0-3", "gpus": [0, 1]}]}
    assert node(host).scores[second, first] == 20
    assert node(host).gpus[1].numa_node == 1
    host["topology"] = {
        "levels": [["X", "PIX"], ["PIX", "X"]],
        "nvlink": [{"gpus": [0, 1], "links": 2}],
    }
    host["nvml"]["gpus"][0]["values"] = host["nvml"]["gpus"][1]["values"] = {"nvlinks": 4}
    assert node(host).scores[first, second] == 250


def test_a_specification_of_a_recorded_host() -> None:
    """It has the plugin's kind, the names of the id strategy, and each node's path on the host."""
    host = document("operator-driver-root")
    given = load(["--device-id-strategy=index", "--driver-root=/run/nvidia/driver"], {})
    spec: Any = cdi_files.gpu_specification(snapshot_host(host), recorded_facts(host), given)
    spec = spec.document()
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"]] == ["0", "1"]
    (gpu, *_) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert gpu["hostPath"] == f"/run/nvidia/driver{gpu['path']}"
