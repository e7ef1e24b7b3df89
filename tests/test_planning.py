"""From a bundle, a host and a config.toml to a plan, or to the reason why there is none."""

import json
from pathlib import Path

import pytest

import hosts
from bundles import EVERYTHING, make_bundle
from hosts import finding_ids, mount_targets
from nvgraft.host import kept_inventory
from nvgraft.host.components import Host
from nvgraft.host.snapshot import snapshot_host
from nvgraft.plan.actions import AllowDevice, Injection, Plan
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs import gallery
from planned import plan_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b", *EVERYTHING)


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return str(path)


def allowed(plan: Plan) -> int:
    return sum(isinstance(action, AllowDevice) for action in plan.actions)


def test_a_gallery_host_is_known_by_name(bundle: Path) -> None:
    """The name of a gallery host and the path of its document give the same plan."""
    by_name, refusal = plan_bundle(str(bundle), "eks-t4", None)
    assert refusal is None
    assert isinstance(by_name, Injection)
    assert by_name.host.name == "eks-t4"
    assert plan_bundle(str(bundle), gallery.path("eks-t4"), None) == (by_name, None)


def test_a_document_without_a_schema_is_a_host(bundle: Path, tmp_path: Path) -> None:
    """A document without a schema member is accepted as nvgraft.host/1."""
    document = hosts.full_host()
    del document["schema"]
    path = tmp_path / "node17.json"
    path.write_text(json.dumps(document))
    plan, _ = plan_bundle(str(bundle), str(path), None)
    assert isinstance(plan, Injection)
    assert plan.host.name == "test-host"
    assert plan.target.rootfs == f"{bundle}/rootfs"
    assert "/dev/nvidia1" in mount_targets(plan)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "not JSON"),
        ("[]", "should be an object"),
        ('{"schema": "nvgraft.host/2"}', "nvgraft.host/2"),
        ("{}", "$.name"),
    ],
)
def test_a_bad_document_is_an_input_error(
    bundle: Path, tmp_path: Path, text: str, cause: str
) -> None:
    """A bad document is refused in one line with its path and the cause."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        plan_bundle(str(bundle), str(path), None)
    assert str(path) in str(caught.value)
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_inputs_are_input_errors(bundle: Path, tmp_path: Path) -> None:
    """A missing bundle, host or config.toml is refused with its path."""
    none = str(tmp_path / "none")
    for arguments in (
        (none, "eks-t4", None),
        (str(bundle), none, None),
        (str(bundle), "eks-t4", none),
    ):
        with pytest.raises(InputError) as caught:
            plan_bundle(*arguments)
        assert none in str(caught.value)


def test_a_recorded_host_without_config_toml_gets_the_defaults(bundle: Path) -> None:
    """A recorded host without a config.toml gets the defaults and its own driver root."""
    plan, _ = plan_bundle(str(bundle), "operator-driver-root", None)
    assert isinstance(plan, Injection)
    assert plan.host.root == read_snapshot("operator-driver-root")["root"] != "/"
    assert allowed(plan) > 0


def test_config_toml_is_used(bundle: Path, tmp_path: Path) -> None:
    """no-cgroups and simulated-host of config.toml change the plan."""
    usual, _ = plan_bundle(str(bundle), "eks-t4", toml(tmp_path, ""))
    assert allowed(usual) > 0
    changed, _ = plan_bundle(
        str(bundle),
        "eks-t4",
        toml(
            tmp_path, "[nvidia-container-cli]\nno-cgroups = true\n[nvgraft]\nsimulated-host = true"
        ),
    )
    assert allowed(changed) == 0
    assert mount_targets(changed) == ["/proc/driver", *mount_targets(usual)]


@pytest.mark.parametrize(
    ("configured", "fits"),
    [
        ("/run/nvidia/driver", True),
        ("/run/nvidia/driver/", True),
        ("", False),
        ("/", False),
        ("/other", False),
    ],
)
def test_the_driver_root_must_be_the_snapshots(
    bundle: Path, tmp_path: Path, configured: str, fits: bool
) -> None:
    """A config.toml with another driver root than the snapshot's is an error."""
    assert read_snapshot("operator-driver-root")["root"] == "/run/nvidia/driver"
    path = toml(tmp_path, f'[nvidia-container-cli]\nroot = "{configured}"')
    if fits:
        assert plan_bundle(str(bundle), "operator-driver-root", path)[0].decision == "inject"
        return
    with pytest.raises(
        InputError, match=r"its driver root is .*, the snapshot's is /run/nvidia/driver"
    ):
        plan_bundle(str(bundle), "operator-driver-root", path)


@pytest.mark.parametrize("configured", ["", "/"])
def test_an_empty_root_is_the_root(bundle: Path, tmp_path: Path, configured: str) -> None:
    """An empty root in config.toml means /, as "/" does."""
    assert (
        plan_bundle(
            str(bundle), "eks-t4", toml(tmp_path, f'[nvidia-container-cli]\nroot = "{configured}"')
        )[0].decision
        == "inject"
    )


def test_this_machines_environment_is_ignored_offline(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan for a recorded host does not depend on this machine's config.toml, PATH and MPS
    directory.
    """
    whole, _ = plan_bundle(str(bundle), "eks-t4", None)
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", toml(tmp_path, "syntax error"))
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/usr")
    assert plan_bundle(str(bundle), "eks-t4", None) == (whole, None)
    assert plan_bundle(str(bundle), "eks-t4", toml(tmp_path, "")) == (whole, None)


def test_a_container_without_a_request_is_skipped(tmp_path: Path) -> None:
    """A container without a request is skipped without looking for its rootfs."""
    plan, refusal = plan_bundle(str(make_bundle(tmp_path / "b", root="/none")), "eks-t4", None)
    assert (plan.decision, plan.actions, refusal) == ("skip", (), None)
    assert "NVIDIA_VISIBLE_DEVICES" in plan.reason


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (("NVIDIA_VISIBLE_DEVICES=9",), "nvgraft: device error: 9: unknown device"),
        (
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=x"),
            "unsupported capabilities found in 'x' (allowed '')",
        ),
        (
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=x"),
            "nvgraft: error parsing IMEX info: unsupported IMEX channel value: x",
        ),
        (
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99"),
            "nvgraft: requirement error: unsatisfied condition: cuda>=99",
        ),
    ],
)
def test_a_refusal_is_a_plan_with_the_hooks_error(
    tmp_path: Path, env: tuple[str, ...], line: str
) -> None:
    """If the hook would refuse the container, the plan's decision is refuse, with the hook's own
    error.
    """
    plan, refusal = plan_bundle(str(make_bundle(tmp_path / "b", *env)), "eks-t4", None)
    assert refusal is not None
    assert refusal.reference_line().startswith(line)
    assert (plan.decision, plan.reason, plan.actions) == ("refuse", refusal.reference_line(), ())


def test_a_malformed_config_json_is_refused(bundle: Path) -> None:
    """A config.json that the hook cannot read is refused, as the hook does."""
    (bundle / "config.json").write_text("{")
    plan, refusal = plan_bundle(str(bundle), "eks-t4", None)
    assert plan.decision == "refuse"
    assert refusal is not None


@pytest.mark.parametrize("text", ["= 1", None])
def test_an_unreadable_config_toml_is_an_input_error(
    bundle: Path, tmp_path: Path, text: str | None
) -> None:
    """A given config.toml that cannot be read is bad input with the hook's words, not a refusal of
    the container.
    """
    config = toml(tmp_path, text or "")
    if text is None:
        Path(config).unlink()
    with pytest.raises(
        InputError, match=r"^.*config\.toml: error getting hook config: failed to load config: "
    ):
        plan_bundle(str(bundle), "eks-t4", config)


def test_optional_files_on_a_volume_are_left_out(tmp_path: Path) -> None:
    """An optional file that would have to be created on a volume of config.json is left out."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING, mounts=("/lib/firmware",))
    plan, refusal = plan_bundle(str(bundle), "runfile-a10x2", None)
    assert refusal is None
    assert "firmware-skipped" in finding_ids(plan.findings)


def test_this_host_is_planned_without_a_snapshot(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --host this host is read with the hook's own config.toml, PATH and MPS directory."""
    users: list[str] = []

    def live(config: object, *, keep: bool) -> Host:
        assert not keep
        users.append(str(getattr(config, "cli_user", None)))
        return snapshot_host(hosts.full_host("/opt/bin/nvidia-debugdump mode=0755\n/mps/"))

    monkeypatch.setattr(kept_inventory, "read_host", live)
    monkeypatch.setenv(
        "NVIDIA_CTK_CONFIG_FILE_PATH", toml(tmp_path, '[nvidia-container-cli]\nuser = "root:video"')
    )
    monkeypatch.setenv("PATH", "/opt/bin")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/mps")
    plan, refusal = plan_bundle(str(bundle), None, None)
    assert refusal is None
    assert users == ["root:video"]
    assert {"/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-smi", "/mps"} <= set(mount_targets(plan))
