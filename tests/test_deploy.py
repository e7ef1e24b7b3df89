"""The manifests in deploy/: valid for Kubernetes, and as little power as the plugin needs."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from nvgraft_device_plugin import configuration, prepare

DEPLOY = Path(__file__).parent.parent / "deploy"
#: The versions of Kubernetes whose schemas are asked: an old one, and the newest.
VERSIONS = ("1.27", "1.36")


def read(name: str) -> dict[str, Any]:
    """Return the one object of a manifest."""
    (found,) = yaml.safe_load_all((DEPLOY / name).read_text())
    assert isinstance(found, dict)
    return found


def patched(daemon_set: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply a JSON patch of ``add`` and ``remove`` to an object."""
    changed: Any = copy.deepcopy(daemon_set)
    for step in patch:
        *way, last = step["path"].strip("/").split("/")
        place = changed
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if step["op"] == "remove":
            del place[last]
        else:
            assert (step["op"], last) == ("add", "-")
            place.append(step["value"])
    return changed  # type: ignore[no-any-return]


def daemon_sets() -> dict[str, dict[str, Any]]:
    """Return the DaemonSet of nodes with GPUs, and that of nodes without."""
    plain = read("device-plugin.yaml")
    (patch,) = read("simulated/kustomization.yaml")["patches"]
    assert patch["target"] == {"kind": plain["kind"], "name": plain["metadata"]["name"]}
    return {"plain": plain, "simulated": patched(plain, yaml.safe_load(patch["patch"]))}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str) -> None:
    """Every member of every object is one that Kubernetes knows."""
    resources = read("kustomization.yaml")["resources"]
    assert {*resources, "kustomization.yaml"} == {path.name for path in DEPLOY.glob("*.yaml")}
    for found in [*map(read, resources), *daemon_sets().values()]:
        kubernetes_validate.validate(found, version, strict=True)


def test_a_wrong_member_is_noticed() -> None:
    """The check can fail."""
    wrong = read("device-plugin.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["runasUser"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="runasUser"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", ["plain", "simulated"])
def test_no_container_has_more_power_than_it_needs(name: str) -> None:
    """No capability, a read-only root file system, and root only where it prepares directories."""
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == prepare.USER
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in [*pod["initContainers"], *pod["containers"]]:
        container.setdefault("args", [])
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert "privileged" not in context
        assert ("runAsUser" in context) == (container["args"][:1] == ["prepare"])


@pytest.mark.parametrize("name", ["plain", "simulated"])
def test_commands_fit_the_program_and_the_mounts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory that is prepared is mounted, and flags and variables are known."""
    pod = daemon_sets()[name]["spec"]["template"]["spec"]
    opened: list[str] = []
    monkeypatch.setattr(prepare, "open_directory", lambda path, _: opened.append(path))
    (first,) = pod["initContainers"]
    assert first["args"][0] == "prepare"
    assert prepare.run(first["args"][1:]) == 0
    assert opened == [mount["mountPath"] for mount in first["volumeMounts"]]
    hosts = {volume["name"]: volume.get("hostPath") for volume in pod["volumes"]}
    assert opened == [hosts[mount["name"]]["path"] for mount in first["volumeMounts"]]
    config = read("config.yaml")["data"]["config.yaml"].encode()
    plugin, labels, keeper = pod["containers"]
    assert keeper["args"] == ["prepare", "--keep", opened[0]]
    assert [mount["mountPath"] for mount in keeper["volumeMounts"]] == opened[:1]
    assert labels["args"][0] == "labels"
    for container, words, flags in (
        (plugin, [], configuration.FLAGS),
        (labels, labels["args"][1:], configuration.LABEL_FLAGS),
    ):
        environ = {item["name"]: item["value"] for item in container["env"]}
        given = configuration.load(words, environ, lambda _: config, flags)
        configuration.check(given, has_nvml=True)
        assert given.warnings == ()
        assert not given.switch("fail-on-init-error")
        assert (given.text("host") != "") == ("runtimeClassName" not in pod)
    assert Path(given.text("output-file")).parent.as_posix() in opened


def test_pods_find_the_runtime_class() -> None:
    """The class that the plugin's own pod names is the one that pods use."""
    runtime_class = read("runtimeclass.yaml")
    pod = read("device-plugin.yaml")["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == runtime_class["metadata"]["name"] == "nvidia"
