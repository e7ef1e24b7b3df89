"""``nvgraft doctor --pod``: the failures between a pod and its runtime, present and absent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from images import docker_save
from nvgraft_cli.doctor.examination import CHECKS, POD_CHECKS
from nvgraft_cli.shell.main import main
from test_pods import VISIBLE, pod_file

Captured = pytest.CaptureFixture[str]

GPU = {"nvidia.com/gpu": 1}
MOUNTS = "--plugin-flag=device-list-strategy=volume-mounts"
CRI = "--plugin-flag=device-list-strategy=cdi-cri"
ANNOTATIONS = "--plugin-flag=device-list-strategy=cdi-annotations"


def found(capsys: Captured, pod: str, *words: str) -> dict[str, Any]:
    """Return the findings of checks of pods by their ids."""
    main(["doctor", "--pod", pod, "--host", "h100-580", "--format", "json", *words])
    results = json.loads(capsys.readouterr().out)["results"]
    return {
        result["id"]: result["findings"]
        for result in results
        if result["id"].startswith("pod-") and result["findings"]
    }


def config(directory: Path, *lines: str) -> str:
    """Write a config.toml, and return the option that names it."""
    path = directory / "config.toml"
    path.write_text("\n".join(lines))
    return f"--config={path}"


@pytest.mark.parametrize(
    ("words", "runtime_class", "present"),
    [
        ([], None, True),
        ([], "gvisor", True),
        ([], "nvidia", False),
        (["--kube=default-runtime=nvgraft"], None, False),
        (["--mode=hook"], None, False),
        ([CRI], None, False),
        ([CRI, "--kube=cdi=off"], None, True),
    ],
)
def test_pod_runtime_class(
    words: list[str], runtime_class: str | None, present: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A pod needs a runtime that adds the driver, unless the engine itself does."""
    pod = pod_file(tmp_path, GPU, runtime_class=runtime_class)
    assert ("pod-runtime-class" in found(capsys, pod, *words)) == present


@pytest.mark.parametrize(
    ("words", "lines", "present"),
    [
        ([MOUNTS], (), True),
        ([MOUNTS], ("accept-nvidia-visible-devices-as-volume-mounts = true",), False),
        ([], (), False),
        ([], ("accept-nvidia-visible-devices-envvar-when-unprivileged = false",), True),
        ([CRI, "--kube=engine=containerd-1"], (), True),
        ([CRI], (), False),
        ([CRI, "--kube=engine=containerd-1", "--kube=cdi=on"], (), False),
        ([ANNOTATIONS, "--kube=engine=containerd-1"], (), True),
        ([ANNOTATIONS, "--kube=engine=cri-o"], (), False),
        ([ANNOTATIONS, "--plugin-flag=cdi-annotation-prefix=nvidia.cdi.k8s.io/"], (), True),
    ],
)
def test_pod_strategy(
    words: list[str], lines: tuple[str, ...], present: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Each strategy needs a runtime or an engine that heeds it."""
    pod = pod_file(tmp_path, GPU)
    assert ("pod-strategy" in found(capsys, pod, config(tmp_path, *lines), *words)) == present


@pytest.mark.parametrize(
    ("words", "limits", "privileged", "lines", "present"),
    [
        ([], None, False, (), True),
        ([], GPU, False, (), False),
        ([], None, False, ("accept-nvidia-visible-devices-envvar-when-unprivileged = false",), False),
        ([], None, True, ("accept-nvidia-visible-devices-envvar-when-unprivileged = false",), True),
        ([CRI], GPU, False, (), False),
        (["--kube=default-runtime=runc", "--env=NVIDIA_VISIBLE_DEVICES=void"], None, False, (), False),
    ],
)  # fmt: skip
def test_pod_all_gpus(
    words: list[str],
    limits: dict[str, Any] | None,
    privileged: bool,
    lines: tuple[str, ...],
    present: bool,
    tmp_path: Path,
    capsys: Captured,
) -> None:
    """A CUDA image gives a pod without GPUs all of them, where the runtime accepts the variable."""
    image = tmp_path / "image.tar"
    docker_save(image, config={"Env": [f"{VISIBLE}=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"]})
    pod = pod_file(tmp_path, limits, securityContext={"privileged": privileged})
    problems = found(capsys, pod, "--container", str(image), config(tmp_path, *lines), *words)
    assert ("pod-all-gpus" in problems) == present


def test_the_variable_of_a_pod_is_named(tmp_path: Path, capsys: Captured) -> None:
    """A variable of the pod itself hides Allocate's answer."""
    env = [{"name": VISIBLE, "value": "all"}]
    (finding,) = found(capsys, pod_file(tmp_path, GPU, env=env))["pod-all-gpus"]
    assert "of the pod gives GPUs, and the pod asks for 1" in finding["message"]


def test_a_variable_that_is_ignored_gives_no_gpus(tmp_path: Path, capsys: Captured) -> None:
    """Where mounts count and the variable does not, a pod's own variable does no harm."""
    settings = config(
        tmp_path,
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
        "accept-nvidia-visible-devices-as-volume-mounts = true",
    )
    pod = pod_file(tmp_path, GPU, env=[{"name": VISIBLE, "value": "all"}])
    assert found(capsys, pod, settings, MOUNTS) == {}


@pytest.mark.parametrize(("gpus", "present"), [(1, True), (8, False)])
def test_a_privileged_pod_has_all_nodes(
    gpus: int, present: bool, tmp_path: Path, capsys: Captured
) -> None:
    """The engine gives a privileged container the nodes of all GPUs, counted or not."""
    pod = pod_file(tmp_path, {"nvidia.com/gpu": gpus}, securityContext={"privileged": True})
    problems = found(capsys, pod)
    assert ("pod-all-gpus" in problems) == present
    if present:
        (finding,) = problems["pod-all-gpus"]
        assert "8 GPUs among them, and the pod asks for 1" in finding["message"]


def advice(capsys: Captured, pod: str) -> dict[str, Any]:
    """Return the result of the check for containers that ask for no GPU."""
    main(["doctor", "--pod", pod, "--host", "h100-580", "--format", "json"])
    results = json.loads(capsys.readouterr().out)["results"]
    (result,) = [one for one in results if one["id"] == "devices-not-requested"]
    found: dict[str, Any] = result
    return found


@pytest.mark.parametrize(
    ("limits", "before"),
    [(None, ""), ({"amd.com/gpu": 1}, "amd.com/gpu: another vendor's device plugin gives it; ")],
)
def test_a_pod_that_asks_for_nothing_is_told_to_ask_the_kubelet(
    limits: dict[str, Any] | None, before: str, tmp_path: Path, capsys: Captured
) -> None:
    """The fix is in resources.limits: the variable would hide GPUs from the kubelet."""
    (finding,) = advice(capsys, pod_file(tmp_path, limits))["findings"]
    fix = "write `resources.limits: nvidia.com/gpu: 1` into container cuda"
    assert finding["fix"] == before + fix


def test_a_pod_that_asks_by_claims_is_not_judged(tmp_path: Path, capsys: Captured) -> None:
    """What a claim brings is another program's answer."""
    pod = Path(pod_file(tmp_path))
    pod.write_text(
        pod.read_text()
        .replace("resources: {}", "resources: {claims: [{name: big}]}")
        .replace("spec:", "spec:\n  resourceClaims: [{name: big}]")
    )
    said = "the pod asks by resourceClaims (big), not evaluated here: nvgraft dra prepare"
    result = advice(capsys, str(pod))
    assert (result["status"], result["lacking"]) == ("not-checked", said)
    assert main(["why", "/dev/nvidia0", "--pod", str(pod), "--host", "h100-580"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("/dev/nvidia0 may be in the container") and f"because {said}" in out


@pytest.mark.parametrize(("words", "present"), [([], True), ([MOUNTS], False), ([CRI], False)])
def test_two_resources_of_one_container(
    words: list[str], present: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Only one of two values of the variable arrives; mounts and CDI devices add up."""
    asked = {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-3g.40gb": 1}
    accept = config(tmp_path, "accept-nvidia-visible-devices-as-volume-mounts = true")
    mixed = ["--host", "mig-h100", "--plugin-flag=mig-strategy=mixed", accept]
    findings = found(capsys, pod_file(tmp_path, asked), *mixed, *words)
    assert ("the kubelet keeps one of them" in json.dumps(findings)) == present


def test_device_specs_without_a_runtime_give_nodes_and_no_driver(
    tmp_path: Path, capsys: Captured
) -> None:
    """With pass-device-specs the engine makes the device nodes, whatever the runtime is."""
    pod = pod_file(tmp_path, GPU, runtime_class=None)
    for words, text in (
        ([], "neither driver nor device nodes"),
        (["--plugin-flag=pass-device-specs=true"], "has no driver"),
    ):
        assert text in json.dumps(found(capsys, pod, *words)["pod-runtime-class"])


@pytest.mark.parametrize("identifier", sorted(POD_CHECKS))
def test_each_check_names_the_threads_that_reported_it(identifier: str) -> None:
    """A reader can look up where a failure was reported."""
    assert re.search(r"Reported in\s+[\w./-]+#\d+", str(CHECKS[identifier].__doc__))


@pytest.mark.parametrize(
    ("words", "present"),
    [
        (["--kube=cpu-manager=static", "--mode=legacy"], True),
        (["--kube=cpu-manager=none", "--mode=legacy"], False),
        (["--kube=cpu-manager=static", "--mode=jit-cdi"], False),
        (["--kube=cpu-manager=static", CRI], False),
        (["--kube=cpu-manager=static", "--mode=legacy", "--plugin-flag=pass-device-specs=1"], False),
    ],
)  # fmt: skip
def test_pod_cpu_manager(words: list[str], present: bool, tmp_path: Path, capsys: Captured) -> None:
    """The static CPU manager takes devices that only the hook has allowed."""
    assert ("pod-cpu-manager" in found(capsys, pod_file(tmp_path, GPU), *words)) == present


def test_pod_dra_and_plugin(tmp_path: Path, capsys: Captured) -> None:
    """Both on one node, or both in one pod, give the same GPUs twice."""
    pod = pod_file(tmp_path, GPU)
    assert "pod-dra-and-plugin" not in found(capsys, pod)
    assert "pod-dra-and-plugin" in found(capsys, pod, "--kube=dra=on")
    text = Path(pod).read_text()
    Path(pod).write_text(text.replace("spec:", "spec:\n  resourceClaims: [{name: big}]"))
    (finding,) = found(capsys, pod)["pod-dra-and-plugin"]
    assert finding["message"] == "the pod has the resource claims big beside nvidia.com/gpu"


def test_a_pod_that_is_refused_is_told_once(tmp_path: Path, capsys: Captured) -> None:
    """The verdict has the scheduler's words, and no check says that the hook does nothing."""
    pod = pod_file(tmp_path, {"nvidia.com/gpu": 99})
    assert main(["doctor", "--pod", pod, "--host", "eks-t4"]) == 1
    out = capsys.readouterr().out
    assert "refused: this pod's container is not created" in out
    assert "devices-not-requested" not in out
    assert out.splitlines()[-1].startswith("This container does not start: 0/1 nodes")
