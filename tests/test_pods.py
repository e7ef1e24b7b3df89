"""``--pod``: from resources.limits to the mounted file, with the device plugin's own decisions."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvgraft_cli.case import hosts
from nvgraft_cli.pods.manifest import read_pod
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.host_maker import config_toml
from nvgraft_specs import gallery
from nvgraft_specs.models.plan import parse_plan

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

#: The GPU that the plugin prefers on h100-580.
FIRST = "GPU-51797975-9784-5797-9639-2a2bce4c454c"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPU = "nvidia.com/gpu"


def pod_file(
    directory: Path,
    limits: Document | None = None,
    *,
    requests: Document | None = None,
    runtime_class: str | None = "nvidia",
    **container: Any,
) -> str:
    """Write a pod with one container, and return the path of its manifest."""
    resources = {
        name: numbers
        for name, numbers in (("limits", limits), ("requests", requests))
        if numbers is not None
    }
    spec: Document = {"containers": [{"name": "cuda", "resources": resources, **container}]}
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    path = directory / "pod.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", "metadata": {"name": "train"}, "spec": spec}))
    return str(path)


def of_container(members: str) -> str:
    """Return the manifest of a pod with more members of its container."""
    return f"kind: Pod\nspec: {{containers: [{{name: a, {members}}}]}}"


def plan(capsys: Captured, *words: str, host: str = "h100-580", code: int = 0) -> Document:
    """Return the plan's document for a pod."""
    assert main(["plan", "--host", host, "--format", "json", "--pod", *words]) == code
    out = capsys.readouterr().out
    parse_plan(out.encode(), "plan")
    document: Document = json.loads(out)
    return document


def steps(document: Document) -> dict[str, str]:
    """Return step -> what happens there, of a plan's chain."""
    return {link["step"]: link["how"] for link in document["pod"]["chain"]}


def devices(document: Document) -> list[str]:
    """Return the device nodes of GPUs that a plan mounts."""
    return [
        action["target"]
        for action in document["actions"]
        if action["op"] == "mount" and action["target"].startswith("/dev/nvidia")
        and action["target"][11:].isdecimal()
    ]  # fmt: skip


# ---- the chain


def test_the_chain_leads_from_the_limits_to_the_mounted_file(
    tmp_path: Path, capsys: Captured
) -> None:
    """why has one chain: limits, the node's offer, the kubelet's choice, Allocate, config.json, the
    runtime and its mode, and the mount.
    """
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    words = ["--pod", path, "--host", "h100-580", "--format", "json"]
    assert main(["why", "libcuda.so.1", *words]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    chain = {step["step"]: step["how"] for step in answer["chain"]}
    assert [*chain][:4] == [
        "resources.limits",
        "node offers",
        "kubelet chooses",
        "Allocate answers",
    ]
    assert chain["node offers"] == "nvidia.com/gpu x 8"
    assert chain["Allocate answers"] == f"{VISIBLE}={FIRST}"
    assert chain["config.json"] == f"{VISIBLE}={FIRST} (from Allocate)"
    assert chain["runtime"] == "nvidia (runtimeClassName nvidia)"
    assert chain["mode"] == "Auto-detected mode as 'jit-cdi'"
    assert chain["asked for"].startswith(FIRST)
    assert "libcuda.so.580" in chain["mounted"]
    assert chain["link"].startswith("/usr/lib/x86_64-linux-gnu/libcuda.so.1 -> ")


@pytest.mark.parametrize(
    ("words", "answered", "mode"),
    [
        ([], f"{VISIBLE}={FIRST}", "Auto-detected mode as 'jit-cdi'"),
        (["--mode", "legacy"], f"{VISIBLE}={FIRST}", "Using requested mode 'legacy'"),
        (["--mode", "hook"], f"{VISIBLE}={FIRST}", "none: the engine calls the hook itself (--mode hook)"),
        (["--plugin-flag", "device-id-strategy=index"], f"{VISIBLE}=0", "Auto-detected mode as 'jit-cdi'"),
        (["--plugin-flag", "device-list-strategy=cdi-cri"], f"CDI device k8s.device-plugin.nvidia.com/gpu={FIRST}", "Auto-detected mode as 'jit-cdi'"),
        (["--plugin-flag", "device-list-strategy=cdi-annotations"], f"annotation cdi.k8s.io/nvidia-device-plugin_UUID=k8s.device-plugin.nvidia.com/gpu={FIRST}", "Auto-detected mode as 'jit-cdi'"),
    ],
)  # fmt: skip
def test_every_strategy_gives_the_chosen_gpu(
    words: list[str], answered: str, mode: str, tmp_path: Path, capsys: Captured
) -> None:
    """By each strategy and mode the container gets the one GPU that the kubelet has chosen."""
    document = plan(capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}), *words)
    assert steps(document)["Allocate answers"] == answered
    assert steps(document)["mode"] == mode
    assert devices(document) == ["/dev/nvidia0"]


def test_an_engine_with_cdi_needs_no_runtime_class(tmp_path: Path, capsys: Captured) -> None:
    """With cdi-cri the engine adds the driver, and runc is enough."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 2}, runtime_class=None)
    document = plan(capsys, path, "--plugin-flag", "device-list-strategy=cdi-cri")
    assert len(devices(document)) == 2
    assert steps(document)["runtime"] == "runc (the default of containerd)"
    assert "the CDI edits are all" in steps(document)["mode"]


@pytest.mark.parametrize(
    "words",
    [
        ["--plugin-flag", "device-list-strategy=envvar"],
        ["--plugin-flag", "device-list-strategy=cdi-cri", "--kube", "engine=containerd-1"],
        ["--plugin-flag", "device-list-strategy=cdi-cri", "--kube", "cdi=off"],
    ],
)
def test_without_a_runtime_class_nobody_adds_the_driver(
    words: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """runc does not read the variable, and an engine without CDI does not heed CDI devices."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class=None)
    document = plan(capsys, path, *words)
    assert (document["decision"], document["actions"]) == ("skip", [])
    assert document["reason"].startswith("the pod has no runtimeClassName")
    assert [link["layer"] for link in document["pod"]["chain"] if link["fault"]][-1] == "engine"


def test_the_handler_of_a_runtime_class_counts(tmp_path: Path, capsys: Captured) -> None:
    """A RuntimeClass in the manifest says which runtime its name means, and a handler's ending
    which mode.
    """
    path = Path(pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class="gpu"))
    assert plan(capsys, str(path))["decision"] == "skip"
    of_class = {"kind": "RuntimeClass", "metadata": {"name": "gpu"}, "handler": "nvgraft-legacy"}
    path.write_text(f"{path.read_text()}---\n{yaml.safe_dump(of_class)}")
    document = plan(capsys, str(path))
    assert steps(document)["mode"] == "Using requested mode 'legacy'"
    assert devices(document) == ["/dev/nvidia0"]


def test_the_default_runtime_of_the_engine_counts(tmp_path: Path, capsys: Captured) -> None:
    """A pod without runtimeClassName gets the engine's default runtime."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class=None)
    document = plan(capsys, path, "--kube", "default-runtime=nvidia")
    assert devices(document) == ["/dev/nvidia0"]


def test_the_pods_own_variable_hides_allocates_answer(tmp_path: Path, capsys: Captured) -> None:
    """The kubelet writes the pod's variables behind those of the device plugin."""
    env = [{"name": VISIBLE, "value": "all"}]
    document = plan(capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}, env=env))
    assert (
        steps(document)["config.json"]
        == f"{VISIBLE}=all of the pod's env, in place of Allocate's {FIRST}"
    )
    assert len(devices(document)) == 8


def test_device_specs_stand_in_config_json(tmp_path: Path, capsys: Captured) -> None:
    """pass-device-specs names the control nodes of the host and the GPU's."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    document = plan(capsys, path, "--plugin-flag", "pass-device-specs=true")
    (granted,) = document["pod"]["allocated"]
    nodes = [spec["container_path"] for spec in granted["answer"]["devices"]]
    assert nodes[-1] == "/dev/nvidia0" and "/dev/nvidiactl" in nodes
    assert steps(document)["device nodes"].startswith("/dev/nvidiactl, ")


def test_mig_devices_and_shares(tmp_path: Path, capsys: Captured) -> None:
    """MIG devices under single, and shares of a config file, are chosen like GPUs."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 2})
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}")
    document = plan(capsys, path, "--plugin-flag", f"config-file={config}", host="runfile-a10x2")
    (granted,) = document["pod"]["allocated"]
    assert [identifier[-3:] for identifier in granted["devices"]] == ["::0", "::0"]
    assert len(devices(document)) == 2
    chosen = "MIG-22222222-aaaa-bbbb-cccc-000000000001"
    document = plan(
        capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}),
        "--plugin-devices", "GPU-11111111-aaaa-bbbb-cccc-000000000001", host="mig-h100",
    )  # fmt: skip
    assert devices(document) == ["/dev/nvidia1"]
    assert chosen not in json.dumps(document["pod"])


@pytest.mark.parametrize(
    ("simulated", "mode", "where"),
    [
        ("h100-580", "legacy", "{directory}/nvidia-container-runtime/config.toml"),
        ("h100-550", "auto", "the default: a recorded host has no config.toml; --config names one"),
        (None, "auto", "the default: a recorded host has no config.toml; --config names one"),
    ],
)
def test_the_simulated_host_on_which_it_runs_has_its_own_configuration(
    simulated: str | None,
    mode: str,
    where: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the simulated host that --host names, its config.toml is in force; the chain names the
    mode and the file, or the assumption.
    """
    config = tmp_path / "nvidia-container-runtime/config.toml"
    config.parent.mkdir()
    config.write_text(config_toml("/", None))
    if simulated is not None:
        monkeypatch.setattr(hosts, "is_simulated_host", lambda: True)
        monkeypatch.setattr(hosts, "SIMULATED_DOCUMENT", gallery.path(simulated))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    document = plan(capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}))
    told = steps(document)
    assert told["config.toml"] == f'mode = "{mode}" ({where.format(directory=tmp_path)})'
    assert ("inserted" in told["hook"]) == (mode == "legacy")


def test_a_given_config_is_named_and_a_given_mode_needs_none(
    tmp_path: Path, capsys: Captured
) -> None:
    """--config is in force for any host; --mode, and a handler with a mode, do without."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    config = tmp_path / "config.toml"
    config.write_text('[nvidia-container-runtime]\nmode = "legacy"\n')
    told = steps(plan(capsys, path, "--config", str(config)))
    assert told["config.toml"] == f'mode = "legacy" ({config})'
    assert "config.toml" not in steps(plan(capsys, path, "--mode", "legacy"))
    fixed = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class="nvidia-cdi")
    assert "config.toml" not in steps(plan(capsys, fixed))


def several(directory: Path, **asked: Any) -> str:
    """Write a pod whose containers ask for GPUs; ``i`` is an init container, ``s`` a sidecar."""
    made = {
        name: {
            "name": name,
            "resources": {"limits": number if isinstance(number, dict) else {GPU: number}},
            **({"restartPolicy": "Always"} if name == "s" else {}),
        }
        for name, number in asked.items()
    }
    first = [one for name, one in made.items() if name in "is"]
    spec = {"initContainers": first, "containers": [made[n] for n in made if n not in "is"]}
    path = directory / "several.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", "spec": {"runtimeClassName": "nvidia", **spec}}))
    return str(path)


def given(capsys: Captured, path: str, names: str, *words: str) -> dict[str, list[str]]:
    """Return container -> the devices that it gets by the plan."""
    found = {}
    for name in names:
        document = plan(capsys, path, "--pod-container", name, *words)
        found[name] = [one for part in document["pod"]["allocated"] for one in part["devices"]]
    return found


def test_containers_of_a_pod_have_different_gpus(tmp_path: Path, capsys: Captured) -> None:
    """The kubelet gives no GPU twice, but those of an init container, which has ended, again."""
    found = given(capsys, several(tmp_path, i=2, a=1, b=2), "iab")
    assert found["a"] == found["i"][:1]
    assert found["b"][0] == found["i"][1]
    assert len({*found["a"], *found["b"]}) == 3
    found = given(capsys, several(tmp_path, s=2, i=1, a=3), "sia")
    assert not {*found["s"]} & {*found["i"], *found["a"]}
    assert found["i"][0] in found["a"] and len({*found["a"]}) == 3


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        ({"a": 5, "b": 4}, 9),
        ({"i": 9, "a": 1}, 9),
        ({"s": 4, "i": 5, "a": 1}, 9),
        ({"s": 4, "a": 5}, 9),
        ({"i": 8, "a": 4, "b": 4}, 0),
        ({"s": 4, "i": 4, "a": 4}, 0),
    ],
)
def test_the_scheduler_counts_the_whole_pod(
    asked: dict[str, int], number: int, tmp_path: Path, capsys: Captured
) -> None:
    """Containers and sidecars count together, init containers one by one; eight GPUs are there."""
    path = several(tmp_path, **asked)
    for name in asked:
        document = plan(capsys, path, "--pod-container", name, code=1 if number else 0)
        told = json.dumps(document.get("refusal"))
        assert (f"the pod asks for {number}, the node offers" in told) == bool(number), told


def test_another_container_can_keep_a_pod_from_starting(tmp_path: Path, capsys: Captured) -> None:
    """The API server and Allocate look at all containers, and refuse the pod for one."""
    path = several(tmp_path, a=1, b=0.5)
    document = plan(capsys, path, "--pod-container", "a", code=1)
    assert "spec.containers[1].resources.limits[nvidia.com/gpu]" in document["reason"]
    config = tmp_path / "config.yaml"
    config.write_text(
        "sharing: {timeSlicing: {failRequestsGreaterThanOne: true,"
        " resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    )
    words = ("--pod-container", "a", "--plugin-flag", f"config-file={config}")
    document = plan(capsys, several(tmp_path, a=1, b=2), *words, code=1)
    assert "maximum request size for shared resources is 1; found 2" in document["reason"]


TWO_PROFILES = {"a": {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-3g.40gb": 1}}
MIG = "MIG-22222222-aaaa-bbbb-cccc-00000000000"


def test_of_two_resources_the_kubelet_keeps_one_variable(tmp_path: Path, capsys: Captured) -> None:
    """With envvar the container gets the devices of one, and the chain says so; with CDI of both.
    The devices that the kubelet chose are told apart by their resources.
    """
    path = several(tmp_path, **TWO_PROFILES)
    mixed = ("--plugin-flag", "mig-strategy=mixed", "--plugin-devices", f"{MIG}1,{MIG}3")
    document = plan(capsys, path, *mixed, host="mig-h100")
    assert steps(document)["variables"].startswith(
        f"nvidia.com/mig-1g.10gb and nvidia.com/mig-3g.40gb set {VISIBLE}, and the kubelet keeps"
    )
    assert document["request"]["devices"] == [f"{MIG}3"]
    cdi = (*mixed, "--plugin-flag", "device-list-strategy=cdi-cri")
    document = plan(capsys, path, *cdi, host="mig-h100")
    assert "variables" not in steps(document)
    nodes = [action.get("target", "") for action in document["actions"]]
    assert {"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap84"} <= set(nodes)


def test_a_driver_root_is_the_plugins_too(tmp_path: Path, capsys: Captured) -> None:
    """The plugin of a host with a driver root names sources below it."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class=None)
    document = plan(
        capsys, path, "--plugin-flag", "device-list-strategy=cdi-cri", host="operator-driver-root"
    )
    sources = [action for action in document["actions"] if action["op"] == "allow-device"]
    assert document["host"]["root"] == "/run/nvidia/driver"
    assert all(action["major"] for action in sources) and sources


def test_a_node_without_numbers_has_those_of_the_host(tmp_path: Path, capsys: Captured) -> None:
    """GDRCopy's node has no numbers in its specification, also below a driver root."""
    host = json.loads(Path(gallery.path("operator-driver-root")).read_text())
    host["files"]["/dev/gdrdrv"] = {"type": "char", "mode": "0666", "rdev": [241, 0]}
    (tmp_path / "host.json").write_text(json.dumps(host))
    document = plan(
        capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}), "--plugin-flag", "gdrcopy-enabled=true",
        "--plugin-flag", "device-list-strategy=cdi-cri", host=str(tmp_path / "host.json"),
    )  # fmt: skip
    rules = [
        (action["major"], action["minor"])
        for action in document["actions"]
        if action["op"] == "allow-device"
    ]
    assert (241, 0) in rules and (0, 0) not in rules


def test_a_variable_from_elsewhere_is_not_known(tmp_path: Path, capsys: Captured) -> None:
    """The chain says so where it could change the devices."""
    env = [{"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]
    document = plan(capsys, pod_file(tmp_path, {"nvidia.com/gpu": 1}, env=env))
    assert "of a ConfigMap, Secret or field" in steps(document)["config.json"]


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ("$(A)", [{"name": "A", "value": "0"}], "0"),
        ("$(B)", [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A),2"}], "1,2"),
        ("$$(A)", [{"name": "A", "value": "0"}], "$(A)"),
        ("$(A)", [], "$(A)"),
        ("$(A", [{"name": "A", "value": "0"}], "$(A"),
        ("$(A)$(A", [{"name": "A", "value": "0"}], "0$(A"),
    ],
)
def test_references_in_values_are_expanded(
    value: str, known: list[Document], expected: str, tmp_path: Path, capsys: Captured
) -> None:
    """The kubelet puts in variables that stand before it in the list; $$ is an escape."""
    env = [*known, {"name": VISIBLE, "value": value}, {"name": "A", "value": "7"}]
    path = pod_file(tmp_path, env=env)
    assert read_pod(path).containers[0].env[VISIBLE] == expected
    if expected == "0":
        assert devices(plan(capsys, path)) == ["/dev/nvidia0"]


@pytest.mark.parametrize(
    "more",
    [
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": VISIBLE, "value": "$(A)"}]},
        {"env": [{"name": VISIBLE, "value": "$(A)"}], "envFrom": [{"configMapRef": {"name": "x"}}]},
    ],
)
def test_references_to_variables_from_elsewhere_are_not_known(
    more: Document, tmp_path: Path, capsys: Captured
) -> None:
    """A value that refers to a ConfigMap, Secret or field is not known either."""
    assert VISIBLE in read_pod(pod_file(tmp_path, **more)).containers[0].unknown_env


def test_references_cannot_grow_without_end(tmp_path: Path, capsys: Captured) -> None:
    """A chain of references that doubles each time is refused in one line."""
    env = [{"name": "A0", "value": "xx"}]
    env += [{"name": f"A{n}", "value": f"$(A{n - 1})$(A{n - 1})"} for n in range(1, 64)]
    assert main(["plan", "--pod", pod_file(tmp_path, env=env), "--host", "eks-t4"]) == 2
    assert "make the environment larger than" in capsys.readouterr().err


def test_a_privileged_container_has_each_node(tmp_path: Path, capsys: Captured) -> None:
    """why says that the engine gives it, and what the host lacks stays out."""
    limits = {"nvidia.com/gpu": 1}
    path = pod_file(tmp_path, limits, securityContext={"privileged": True})
    words = ["--pod", path, "--host", "h100-580"]
    assert main(["why", "/dev/nvidia3", *words]) == 0
    assert "privileged: containerd gives it all device nodes" in capsys.readouterr().out
    assert main(["why", "/dev/nvidia33", *words]) == 1


@pytest.mark.parametrize("mode", ["legacy", "jit-cdi"])
@pytest.mark.parametrize(
    ("limits", "mend"),
    [
        (None, "write `resources.limits: nvidia.com/gpu: 1` into container cuda"),
        ({"nvidia.com/gpu": 1}, "the kubelet chooses the devices: ask for more under"),
    ],
)
def test_a_pod_is_not_told_to_take_gpus_by_the_variable(
    limits: Document | None, mend: str, mode: str, tmp_path: Path, capsys: Captured
) -> None:
    """The kubelet would not count such GPUs: the change is in resources.limits."""
    words = ["--pod", pod_file(tmp_path, limits), "--host", "h100-580", "--mode", mode]
    assert main(["why", "/dev/nvidia3", *words, "--format", "json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["smallest_change"] == []
    assert answer["excluded_by"]["mend"].startswith(mend)


def test_devices_for_the_whole_pod_are_refused(tmp_path: Path, capsys: Captured) -> None:
    """The API server takes CPUs and memory alone there."""
    path = Path(pod_file(tmp_path))
    path.write_text(path.read_text() + "  resources: {limits: {nvidia.com/gpu: 1}}\n")
    assert main(["plan", "--pod", str(path), "--host", "eks-t4"]) == 1
    assert (
        'spec.resources.limits[nvidia.com/gpu]: Unsupported value: "nvidia.com/gpu": supported'
        in capsys.readouterr().err
    )


def test_workloads_and_lists_have_pods(tmp_path: Path, capsys: Captured) -> None:
    """The template of a workload is a pod, also in a List and in JSON."""
    pod = yaml.safe_load(Path(pod_file(tmp_path, {"nvidia.com/gpu": 1})).read_text())
    template = {"spec": pod["spec"]}
    for document in (
        {"kind": "Deployment", "spec": {"template": template}},
        {"kind": "Job", "spec": {"template": template}},
        {"kind": "DaemonSet", "spec": {"template": template}},
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}},
        {"kind": "List", "items": [{"kind": "Service"}, pod]},
    ):
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(document))
        assert devices(plan(capsys, str(path))) == ["/dev/nvidia0"]


# ---- what is refused


@pytest.mark.parametrize(
    ("limits", "requests", "text"),
    [
        (None, {"nvidia.com/gpu": 1}, "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"),
        ({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1}, 'spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2'),
        ({"nvidia.com/gpu": "500m"}, None, 'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer'),
        ({"nvidia.com/gpu": 0.5}, None, 'Invalid value: "0.5": must be an integer'),
        ({"nvidia.com/gpu": "one"}, None, "quantities must match the regular expression '^([+-]?[0-9.]+)"),
        ({"nvidia.com/gpu": -1}, None, "must be greater than or equal to 0"),
        ({"nvidia.com/gpu": 9}, None, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"),
        ({"nvidia.com/mig-1g.10gb": 1}, None, "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.10gb"),
    ],
)  # fmt: skip
def test_numbers_that_are_refused(
    limits: Document, requests: Document, text: str, tmp_path: Path, capsys: Captured
) -> None:
    """A wrong number is refused in the words of the API server, one that the node lacks in the
    scheduler's.
    """
    path = pod_file(tmp_path, limits, requests=requests)
    assert main(["plan", "--pod", path, "--host", "h100-580"]) == 1
    assert text in capsys.readouterr().err
    assert plan(capsys, path, code=1)["decision"] == "refuse"


@pytest.mark.parametrize("value", ["2", 2, "2k", "2e0", "2.0", 2.0, "2000m"])
def test_quantities_are_read_like_kubernetes_does(
    value: object, tmp_path: Path, capsys: Captured
) -> None:
    """Each spelling of a whole number is that number."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": value})
    enough = value != "2k"
    document = plan(capsys, path, code=0 if enough else 1)
    assert ("2000" in document["reason"] or "Insufficient" in document["reason"]) != enough
    assert len(devices(document)) == (2 if enough else 0)


def test_what_allocate_refuses_ends_the_pod(tmp_path: Path, capsys: Captured) -> None:
    """The kubelet's words are around those of the device plugin."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "sharing: {timeSlicing: {failRequestsGreaterThanOne: true,"
        " resources: [{name: nvidia.com/gpu, replicas: 3}]}}"
    )
    path = pod_file(tmp_path, {"nvidia.com/gpu": 2})
    words = ["--pod", path, "--host", "eks-t4", "--plugin-flag", f"config-file={config}"]
    assert main(["plan", *words]) == 1
    assert (
        "Allocate failed due to rpc error: code = Unknown desc = invalid allocation request for"
        ' "nvidia.com/gpu": invalid request: maximum request size for shared resources is 1;'
        " found 2, which is unexpected" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--kube", "engine=docker"], "engine takes containerd, containerd-1, cri-o"),
        (["--kube", "motor=x"], "no such fact | write one of engine, default-runtime"),
        (["--plugin-flag", "no-such-flag=1"], "flag provided but not defined: -no-such-flag"),
        (["--plugin-flag", "device-list-strategy=x"], "invalid strategy: x"),
        (["--pod-container", "cudo"], "the pod has no container 'cudo'"),
        (["--plugin-devices", "a,b"], "2 ids for nvidia.com/gpu: 1"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used(
    words: list[str], text: str, tmp_path: Path, capsys: Captured
) -> None:
    """A wrong option is a wrong usage, and the line says what is possible."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    assert main(["plan", "--pod", path, "--host", "eks-t4", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: Service", "has no pod (it has Service)"),
        ("", "has no pod (it has nothing)"),
        ("- a", "not an object"),
        ("kind: Pod\nspec: {containers: []}", "spec.containers: missing"),
        ("kind: Pod\nspec: {containers: [{name: a}, {name: b}]}", "several containers: a, b | name one"),
        ("a: &a [x]\nb: [" + "*a, " * 90000 + "]", "more than 80,000 values"),
        ("kind: [", "not YAML"),
        ("kind: [Pod]\nspec: {}", "has no pod (it has ['Pod'])"),
        ("kind: Pod\n---\nkind: Job", "has 2 pods (it has Job, Pod) | pass a manifest of one"),
        ("kind: Deployment\nspec: {replicas: 1}", "spec.template.spec.containers: missing"),
        ("kind: Pod\nspec: {containers: [1]}", "spec.containers[0]: input should be an object"),
        ("kind: Pod\nspec: {containers: [{image: a}]}", "spec.containers[0].name: field required"),
        (of_container("command: 5"), "spec.containers[0].command: input should be a valid list"),
        (of_container("env: [{name: A, value: 1}]"), ".env[0].value: input should be a valid str"),
        (of_container("env: [{name: A=B}]"), ".env[0].name: string should match"),
        (of_container("securityContext: {runAsUser: true}"), ".securityContext.runAsUser: input"),
        (of_container("volumeMounts: [{name: [], mountPath: /a}]"), ".volumeMounts[0].name: input"),
        ("kind: Pod\nspec: {volumes: [{name: []}], containers: [{name: a}]}", ".volumes[0].name"),
    ],
)  # fmt: skip
def test_manifests_that_cannot_be_used(
    text: str, error: str, tmp_path: Path, capsys: Captured
) -> None:
    """What is wrong with a manifest is one line."""
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    assert main(["plan", "--pod", str(path), "--host", "eks-t4"]) == 2
    assert error in capsys.readouterr().err


def test_options_of_pods_need_a_pod(capsys: Captured) -> None:
    """They would have no effect."""
    words = ["--container", "docs/examples/one-gpu", "--host", "eks-t4"]
    for command in ("plan", "explain", "doctor", "prove"):
        assert main([command, *words, "--kube", "dra=on"]) == 2
        assert "--kube: there is no pod" in capsys.readouterr().err


# ---- explain


def test_the_page_shows_the_layers(tmp_path: Path, capsys: Captured) -> None:
    """The page has a picture of the layers in order, and marks the one that is broken."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class=None)
    page = tmp_path / "story.html"
    assert main(["explain", "--pod", path, "--host", "eks-t4", "--html", str(page)]) == 0
    text = page.read_text()
    titles = ["Pod", "Kubelet and device plugin", "Engine", "Runtime", "Hook", "Container"]
    places = [text.index(f"<h3>{title}</h3>") for title in titles]
    assert places == sorted(places)
    assert text.count('class="slice broken"') == 1
    assert text.index('class="slice broken"') < places[2] < places[3]
    assert main(["explain", "--pod", path, "--host", "eks-t4"]) == 0
    assert "Nobody adds the driver" in capsys.readouterr().out.splitlines()[0]


def test_the_page_of_an_unknown_image(tmp_path: Path) -> None:
    """The tree of an image that was not given has the driver's files and their directories."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    page = tmp_path / "story.html"
    words = ["--pod", path, "--host", "eks-t4", "--mode", "legacy", "--html", str(page)]
    assert main(["explain", *words]) == 0
    assert "libcuda.so" in page.read_text().partition('id="tree"')[2]


def test_why_advises_a_runtime_class(tmp_path: Path, capsys: Captured) -> None:
    """What keeps a file out is the runtime, and no variable changes that."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1}, runtime_class=None)
    assert main(["why", "libcuda.so.1", "--pod", path, "--host", "eks-t4"]) == 1
    assert "adds it: set runtimeClassName in the pod" in capsys.readouterr().out


def test_prove_follows_the_loader_in_the_pods_image(tmp_path: Path, capsys: Captured) -> None:
    """With an image, prove answers for the pod's container."""
    path = pod_file(tmp_path, {"nvidia.com/gpu": 1})
    words = ["--pod", path, "--host", "eks-t4", "--container", "docs/examples/one-gpu"]
    main(["prove", *words])
    assert "libcuda.so" in capsys.readouterr().out
    assert main(["prove", "--pod", path, "--host", "eks-t4"]) == 2
