"""`nvgraft export`: manifests of Kubernetes for a recorded host."""

import json

import pytest
import yaml

from nvgraft_cli.shell.main import main


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
