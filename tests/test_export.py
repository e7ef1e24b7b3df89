"""`nvgraft export`: manifests of Kubernetes for a recorded host."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery


def test_a_pod_of_kubernetes_1_3_mounts_the_driver_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each file that CUDA needs is a hostPath volume, under the name by which it is loaded; the
    kubelet gives the device nodes.
    """
    code = main(["export", "pod-volumes", "--host", "eks-t4"])
    out = capsys.readouterr().out
    assert code == 0
    pod = yaml.safe_load(out)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"alpha.kubernetes.io/nvidia-gpu": 1}
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: sources[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/usr/local/nvidia/lib64/libcuda.so.1"] == "/usr/lib64/libcuda.so.460.106.00"
    assert mounts["/usr/local/nvidia/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert not any("GL" in target for target in mounts)
    assert {"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"} in container["env"]


def test_files_of_a_driver_root_are_named_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    """A hostPath is the node's, not the driver container's."""
    code = main(["export", "pod-volumes", "--host", "operator-driver-root", "--format", "json"])
    out = capsys.readouterr().out
    assert code == 0
    paths = [volume["hostPath"]["path"] for volume in json.loads(out)["spec"]["volumes"]]
    assert paths
    assert all(path.startswith("/run/nvidia/driver/") for path in paths)


@pytest.mark.parametrize("number", ["0", "-1", "x", "2000"])
def test_a_wrong_number_of_gpus(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is checked before the host is read."""
    with pytest.raises(SystemExit, match="2"):
        main(["export", "pod-volumes", "--host", "eks-t4", f"--gpus={number}"])
    err = capsys.readouterr().err
    assert "is not a number of GPUs | write 1 to 1024" in err


def test_more_gpus_than_the_node_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Kubernetes shares no GPU: the pod would never be scheduled."""
    code = main(["export", "pod-volumes", "--host", "eks-t4", "--gpus", "2"])
    err = capsys.readouterr().err
    assert code == 2
    assert "--gpus 2: eks-t4 has 1 | " in err


# ---- nodes


def nodes(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """Return the Node objects that the command writes."""
    assert main(["export", "nodes", *words]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    for node in found:
        kubernetes_validate.validate(node, "1.36", strict=True)
    return found


@pytest.mark.parametrize("name", gallery.names())
def test_every_host_of_the_gallery_is_a_node_of_kwok(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has KWOK's annotation and taint, the resources of the device plugin and its labels."""
    (node,) = nodes(capsys, name)
    metadata, status = node["metadata"], node["status"]
    assert metadata["name"] == metadata["labels"]["kubernetes.io/hostname"] == f"{name}-0"
    assert metadata["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert node["spec"]["taints"] == [
        {"effect": "NoSchedule", "key": "kwok.x-k8s.io/node", "value": "fake"}
    ]
    assert status["capacity"] == status["allocatable"]
    assert int(status["capacity"]["nvidia.com/gpu"]) > 0
    host = json.loads(Path(gallery.path(name)).read_text())
    if host["nvml"]["gpus"]:
        assert metadata["labels"]["nvidia.com/gpu.count"] == str(len(host["nvml"]["gpus"]))


def test_nodes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """So many of each host, with the processors of its topology and of its architecture."""
    found = nodes(capsys, "--count=2", "h100-580", "gb200-580")
    assert [node["metadata"]["name"] for node in found] == [
        *("h100-580-0", "h100-580-1", "gb200-580-0", "gb200-580-1")
    ]
    assert [node["status"]["capacity"]["cpu"] for node in found] == ["64"] * 4
    assert [node["status"]["nodeInfo"]["architecture"] for node in found[1:3]] == ["amd64", "arm64"]
    (plain,) = nodes(capsys, "eks-t4")
    assert plain["status"]["capacity"]["cpu"] == "32"


def test_flags_of_the_plugin_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MIG devices are resources, and shared GPUs are more."""
    line = "2 x h100-sxm, driver 570.172.08, mig 3g.40gb 1g.10gb"
    assert main(["simulate", "--make", line, "--name", "Node_17"]) == 0
    (tmp_path / "host.json").write_text(capsys.readouterr().out)
    (tmp_path / "plugin.yaml").write_text(
        "version: v1\nsharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 5}]}}\n"
    )
    flags = ["mig-strategy=mixed", f"config-file={tmp_path}/plugin.yaml"]
    words = [word for flag in flags for word in ("--plugin-flag", flag)]
    (node,) = nodes(capsys, *words, str(tmp_path / "host.json"))
    assert node["metadata"]["name"] == "node-17-0"
    assert node["status"]["capacity"]["nvidia.com/mig-3g.40gb"] == "2"
    assert node["status"]["capacity"]["nvidia.com/mig-1g.10gb"] == "10"
    assert node["metadata"]["labels"]["nvidia.com/mig-1g.10gb.sharing-strategy"] == "time-slicing"


def test_a_host_without_such_files_has_no_pod(capsys: pytest.CaptureFixture[str]) -> None:
    """WSL2 came after such pods: nothing is written."""
    assert main(["export", "pod-volumes", "--host", "wsl2-rtx3090"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "has no driver file that such pods mounted" in err


def test_nodes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """They are one list, as kubectl reads it."""
    assert main(["export", "nodes", "--format=json", "eks-t4", "h100-580"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], len(found["items"])) == ("List", 2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["eks-t4", "eks-t4"], "there is a host eks-t4 already | name each host once"),
        (["nosuch"], "there is no simulated host and no file 'nosuch'"),
        (["--plugin-flag=x=1", "eks-t4"], "--plugin-flag: flag provided but not defined: -x | "),
        (["--plugin-flag=mig-strategy=x", "eks-t4"], "--plugin-flag: unknown MIG strategy: x"),
        (["--plugin-flag=mig-strategy=single", "mig-h100"], "mig-h100: the device plugin refuses it: invalid MIG configuration"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_written(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with cause and fix, and nothing is written."""
    assert main(["export", "nodes", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err


@pytest.mark.parametrize("count", ["0", "x", "10001"])
def test_a_wrong_number_of_nodes(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is checked before hosts are read."""
    with pytest.raises(SystemExit, match="2"):
        main(["export", "nodes", f"--count={count}", "eks-t4"])
    assert "is not a number of nodes | write 1 to 10000" in capsys.readouterr().err


def test_the_pod_of_the_guide_is_the_one_that_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file that the guide compares is the output of the command that the guide shows."""
    assert main(["export", "pod-volumes", "--host", "runfile-a10x2"]) == 0
    history = Path(__file__).parent.parent / "docs/history/pod-1.6.yaml"
    assert capsys.readouterr().out == history.read_text()
