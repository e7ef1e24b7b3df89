"""``nvgraft dra``: ResourceSlices of a host, and prepared claims."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.dra.slices import quantity
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from test_recorded_node import with_mig_profiles, without_mig_profiles

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

FIRST = "GPU-51797975-9784-5797-9639-2a2bce4c454c"
UID = "6d7bbf84-0b6a-4f0c-8d6c-2f2a9d1f6f15"


def slices(capsys: Captured, host: str, *words: str) -> list[Document]:
    """Return the slices of a host."""
    assert main(["dra", "slices", "--host", host, *words]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def devices(capsys: Captured, host: str) -> dict[str, Document]:
    """Return the devices of a host by their names."""
    return {
        device["name"]: device
        for document in slices(capsys, host)
        for device in document["spec"]["devices"]
    }


def mig_host(directory: Path) -> str:
    """Write a host with MIG devices whose profiles are known, and return its path."""
    path = directory / "mig.json"
    path.write_text(json.dumps(with_mig_profiles()))
    return str(path)


def claim_file(directory: Path, *names: str, driver: str = "gpu.nvidia.com", **changes: Any) -> str:
    """Write a claim with these allocated devices, and return its path."""
    results = [
        {"request": "gpu", "driver": driver, "pool": "h100-580", "device": name} for name in names
    ]
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "big", "namespace": "default", "uid": UID},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {"allocation": {"devices": {"results": results, **changes}}},
    }
    path = directory / "claim.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_a_gpu_has_the_drivers_names_and_attributes(capsys: Captured) -> None:
    """Names, attributes and capacities are those by which claims select."""
    (document,) = slices(capsys, "h100-580")
    assert (document["apiVersion"], document["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert document["spec"]["driver"] == "gpu.nvidia.com"
    assert document["spec"]["pool"] == {
        "name": document["spec"]["nodeName"], "generation": 1, "resourceSliceCount": 1,
    }  # fmt: skip
    assert [device["name"] for device in document["spec"]["devices"]] == [
        f"gpu-{minor}" for minor in range(8)
    ]
    gpu = document["spec"]["devices"][0]
    attributes = gpu["attributes"]
    assert attributes["type"] == {"string": "gpu"}
    assert attributes["uuid"] == {"string": FIRST}
    assert attributes["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    assert attributes["brand"] == {"string": "Nvidia"}
    assert attributes["architecture"] == {"string": "Hopper"}
    assert attributes["cudaComputeCapability"] == {"version": "9.0.0"}
    assert attributes["driverVersion"] == {"version": "580.95.5"}
    assert attributes["cudaDriverVersion"] == {"version": "13.0.0"}
    address = attributes["pcieBusID"]["string"]
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": address}
    assert address.count(":") == 2 and address == address.lower() and len(address) == 12
    assert gpu["capacity"] == {"memory": {"value": "81559Mi"}}


def test_mig_devices_take_the_place_of_their_gpu(tmp_path: Path, capsys: Captured) -> None:
    """A GPU in MIG mode is not published, its MIG devices are, with parent, profile and slices."""
    found = devices(capsys, mig_host(tmp_path))
    assert [*found] == ["gpu-0-mig-3g40gb-9-0", "gpu-0-mig-1g10gb-me-20-6", "gpu-1"]
    mig = found["gpu-0-mig-3g40gb-9-0"]
    attributes = mig["attributes"]
    assert attributes["type"] == {"string": "mig"}
    assert attributes["parentUUID"] == {"string": "GPU-11111111-aaaa-bbbb-cccc-000000000000"}
    assert attributes["profile"] == {"string": "3g.40gb"}
    assert attributes["uuid"] == {"string": "MIG-22222222-aaaa-bbbb-cccc-000000000001"}
    capacity = {name: value["value"] for name, value in mig["capacity"].items()}
    assert capacity == {
        "multiprocessors": "60", "copyEngines": "3", "decoders": "3", "encoders": "0",
        "jpegEngines": "3", "ofaEngines": "0", "memory": "40448Mi",
        "memorySlice0": "1", "memorySlice1": "1", "memorySlice2": "1", "memorySlice3": "1",
    }  # fmt: skip


def test_what_is_left_out_is_said(tmp_path: Path, capsys: Captured) -> None:
    """A MIG device with a part of its GPU instance, or without a recorded profile, is left out."""
    assert main(["dra", "slices", "--host", mig_host(tmp_path)]) == 0
    assert "1c.2g.20gb is a part of a GPU instance" in capsys.readouterr().err
    older = tmp_path / "older.json"
    older.write_text(json.dumps(without_mig_profiles()))
    assert main(["dra", "slices", "--host", str(older)]) == 0
    assert capsys.readouterr().err.count("its profile was not recorded") == 3


@pytest.mark.parametrize("name", gallery.names())
def test_every_host_of_the_gallery_has_slices(name: str, capsys: Captured) -> None:
    """Device names are unique, and values are of the types of the API."""
    (document,) = slices(capsys, name, "--node-name", "node-17")
    assert document["spec"]["nodeName"] == "node-17"
    found = document["spec"]["devices"]
    assert len({device["name"] for device in found}) == len(found)
    for device in found:
        for value in device["attributes"].values():
            ((kind, content),) = value.items()
            assert isinstance(content, {"string": str, "version": str, "int": int}[kind])


def test_slices_as_json_are_a_list(capsys: Captured) -> None:
    """kubectl reads both forms."""
    assert main(["dra", "slices", "--host", "eks-t4", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "List"
    assert document["items"][0]["spec"]["devices"][0]["attributes"]["architecture"] == {
        "string": "Turing"
    }


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1, "1"), (1024, "1Ki"), (1536, "1536"), (3 << 30, "3Gi"), (81559 << 20, "81559Mi")],
)
def test_quantities_are_written_like_kubernetes_does(number: int, text: str) -> None:
    """The largest binary unit that leaves a whole number."""
    assert quantity(number) == text


# ---- claims


def test_a_prepared_claim(tmp_path: Path, capsys: Captured) -> None:
    """The specification has the claim's devices alone, under names that the ids lead to."""
    path = claim_file(tmp_path, "gpu-0", "gpu-3")
    words = ["dra", "prepare", "--claim", path, "--host", "h100-580", "--format", "json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    answers = document["claims"][UID]["devices"]
    assert [answer["deviceName"] for answer in answers] == ["gpu-0", "gpu-3"]
    assert answers[0]["requestNames"] == ["gpu"]
    spec = document["cdi"]
    assert spec["kind"] == "k8s.gpu.nvidia.com/claim"
    ids = [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
    assert ids == [one for answer in answers for one in answer["cdiDeviceIDs"]]
    nodes = [
        node["path"] for device in spec["devices"] for node in device["containerEdits"]["deviceNodes"]
    ]  # fmt: skip
    assert [path for path in nodes if "dri" not in path] == ["/dev/nvidia0", "/dev/nvidia3"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec["containerEdits"]["env"]


def test_a_prepared_mig_device_has_its_capability_nodes(tmp_path: Path, capsys: Captured) -> None:
    """A MIG device gets its GPU's node and the two of its instances."""
    path = claim_file(tmp_path, "gpu-0-mig-3g40gb-9-0")
    assert main(["dra", "prepare", "--claim", path, "--host", mig_host(tmp_path)]) == 0
    spec = yaml.safe_load(capsys.readouterr().out)["cdi"]
    nodes = [node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes[0] == "/dev/nvidia0" and len(nodes) == 3
    assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in nodes[1:])


def test_the_specification_is_one_that_engines_accept(tmp_path: Path, capsys: Captured) -> None:
    """The reader of CDI specifications accepts it."""
    path = claim_file(tmp_path, "gpu-0")
    words = ["dra", "prepare", "--claim", path, "--host", "runfile-a10x2", "--format", "cdi"]
    assert main(words) == 0
    spec = parse_specification(capsys.readouterr().out.encode(), "claim.json")
    assert [device.name for device in spec.devices] == [f"{UID}-gpu-0"]


def test_a_uid_that_is_no_name(tmp_path: Path, capsys: Captured) -> None:
    """Engines refuse such names of devices, so no specification is written."""
    path = Path(claim_file(tmp_path, "gpu-0"))
    path.write_text(path.read_text().replace(UID, "../../etc"))
    assert main(["dra", "prepare", "--claim", str(path), "--host", "h100-580"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "metadata.uid '../../etc': no name for a CDI device" in err


@pytest.mark.parametrize(("host", "said"), [("h100-580", False), ("eks-t4", True)])
def test_a_claim_of_another_node_is_said(
    host: str, said: bool, tmp_path: Path, capsys: Captured
) -> None:
    """The pool of a device is the name of its node."""
    path = claim_file(tmp_path, "gpu-0")
    assert main(["dra", "prepare", "--claim", path, "--host", host]) == 0
    assert ("pool h100-580, and the pool of this host is" in capsys.readouterr().err) == said


def test_parameters_of_the_driver_are_said_to_be_left_out(tmp_path: Path, capsys: Captured) -> None:
    """Sharing needs a driver that runs."""
    config = [{"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]
    path = claim_file(tmp_path, "gpu-0", config=config)
    assert main(["dra", "prepare", "--claim", path, "--host", "h100-580"]) == 0
    assert "are not applied here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ("kind: Pod", 2, "has no ResourceClaim"),
        ("kind: ResourceClaim\nmetadata: {name: big}", 2, "claim big is not allocated | take it from the cluster (kubectl get resourceclaim big"),
        ("kind: ResourceClaim\nstatus: {allocation: {devices: {results: [{driver: a.example, device: x}]}}}", 2, "has no device of the driver gpu.nvidia.com"),
        ("kind: ResourceClaim\nstatus: {allocation: {devices: {results: [{driver: gpu.nvidia.com, device: gpu-9}]}}}", 1, "requested device is not allocatable: gpu-9"),
    ],
)  # fmt: skip
def test_claims_that_cannot_be_prepared(
    text: str, code: int, error: str, tmp_path: Path, capsys: Captured
) -> None:
    """Each has one line with the cause and what to do."""
    path = tmp_path / "claim.yaml"
    path.write_text(text)
    assert main(["dra", "prepare", "--claim", str(path), "--host", "h100-580"]) == code
    err = capsys.readouterr().err
    assert error in err and err.count("\n") == 1
