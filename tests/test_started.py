"""--mode: what the hook gets to see of a container that nvgraft-runtime starts."""

import json
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft.request.config import Config
from nvgraft.system import child
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.started import HostSpecifications
from nvgraft_cli.case.started import start as start_container
from nvgraft_cli.shell.main import main
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
HOST = "runfile-a10x2"


def runtime(*lines: str) -> str:
    """Return a config.toml with lines in the runtime's section."""
    return "\n".join(["[nvidia-container-runtime]", *lines])


def legacy(path: Path) -> str:
    """Return a config.toml that sets mode legacy."""
    config = path / "legacy.toml"
    config.write_text(runtime('mode = "legacy"'))
    return str(config)


@pytest.mark.parametrize("mode", ["runtime", "legacy"])
def test_a_gpu_container_gets_the_plan_of_the_hook(tmp_path: Path, mode: str) -> None:
    """In the runtime's mode legacy the actions are those of the hook; the remarks of the runtime
    come before the findings.
    """
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0"))
    plain, _ = plan_bundle(bundle, HOST, None)
    plan, refusal = plan_bundle(bundle, HOST, legacy(tmp_path), mode=mode)
    assert refusal is None
    assert (plan.actions, plan.links) == (plain.actions, plain.links)
    remarks = plan.findings[: len(plan.findings) - len(plain.findings)]
    assert {remark.id for remark in remarks} == {"runtime"}
    assert any("the prestart hook is inserted" in remark.message for remark in remarks)
    assert plan.findings[len(remarks) :] == plain.findings


def test_the_hook_is_left_out_of_other_containers(tmp_path: Path) -> None:
    """In the runtime's mode auto a container without a request gets no hook, and the reason says
    so; in mode legacy the hook itself decides.
    """
    bundle = str(make_bundle(tmp_path / "b"))
    left_out = "nvgraft-runtime leaves the hook out: not a GPU container"
    for mode, reason in (("runtime", left_out), ("legacy", "not a GPU container")):
        plan, _ = plan_bundle(bundle, HOST, None, mode=mode)
        assert plan.decision == "skip"
        assert plan.reason.startswith(reason)


def test_a_hook_of_the_bundle_is_removed_with_the_others(tmp_path: Path) -> None:
    """Where the runtime removes a hook that the bundle has already, it is not called."""
    bundle = make_bundle(tmp_path / "b")
    document = json.loads((bundle / "config.json").read_text())
    hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
    document["hooks"] = {"prestart": [hook]}
    (bundle / "config.json").write_text(json.dumps(document))
    plan, _ = plan_bundle(str(bundle), HOST, None, mode="runtime")
    assert plan.reason.startswith("nvgraft-runtime leaves the hook out")


@pytest.mark.parametrize("entry", [None, {"path": "/x/nvgraft-hook", "args": 1}], ids=repr)
def test_entries_of_other_types_are_no_hook(tmp_path: Path, entry: object) -> None:
    """Entries that the runtime keeps and that do not call the hook are passed over."""
    bundle = make_bundle(
        tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0", hooks={"prestart": [entry, entry]}
    )
    plan, refusal = plan_bundle(str(bundle), HOST, None, mode="runtime")
    assert refusal is None
    assert plan.decision in ("inject", "skip")


def test_a_gate_takes_the_gpus_away(tmp_path: Path) -> None:
    """With NVIDIA_GDS=enabled mode legacy of the runtime hides the GPUs from the hook, with a warning and what to
    do; the hook alone would add them.
    """
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_GDS=enabled"))
    assert plan_bundle(bundle, HOST, None)[0].decision == "inject"
    plan, _ = plan_bundle(bundle, HOST, None, mode="legacy")
    assert plan.decision == "skip"
    warning = next(remark for remark in plan.findings if remark.level == "warning")
    assert warning.id == "runtime"
    assert "unset these variables" in warning.hint


def test_the_hook_is_left_out_where_the_runtime_adds_the_devices(tmp_path: Path) -> None:
    """In modes auto and jit-cdi the runtime adds the devices itself, and the reason says so."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0"))
    plan, refusal = plan_bundle(bundle, HOST, None, mode="runtime")
    assert refusal is None
    assert plan.decision == "inject"
    assert "mode jit-cdi adds the devices: NVIDIA_VISIBLE_DEVICES=0" in plan.reason


def test_a_board_of_the_gallery_is_served_by_its_csv_files(tmp_path: Path) -> None:
    """On a recorded Jetson the runtime's mode auto is csv."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all"))
    plan, refusal = plan_bundle(bundle, "jetson-orin", None, mode="runtime")
    assert refusal is None
    assert "mode csv adds the devices: NVIDIA_VISIBLE_DEVICES=all" in plan.reason


def test_devices_of_specifications_are_taken_from_a_new_one(tmp_path: Path) -> None:
    """A recorded host has no specifications: mode cdi takes the one that would be generated; mode
    legacy does not look at config.toml, and the hook refuses.
    """
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0"))
    config = tmp_path / "config.toml"
    config.write_text(runtime('mode = "cdi"'))
    plan, refusal = plan_bundle(bundle, HOST, str(config), mode="runtime")
    assert refusal is None
    assert plan.reason == "mode cdi adds the devices: NVIDIA_VISIBLE_DEVICES=0"
    assert any("just generated" in finding.message for finding in plan.findings)
    _, refusal = plan_bundle(bundle, HOST, str(config), mode="legacy")
    assert refusal is not None and "the mode is cdi" in refusal.line()


def test_an_unreadable_config_json_is_refused_in_the_words_of_the_runtime(tmp_path: Path) -> None:
    """What the runtime cannot read is refused before the hook could."""
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0")
    (bundle / "config.json").write_text("{")
    plan, refusal = plan_bundle(str(bundle), HOST, None, mode="runtime")
    assert plan.decision == "refuse"
    assert refusal is not None and "error loading OCI specification" in refusal.line()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "--host", HOST], 0),
        (["explain", "--host", HOST], 0),
        (["why", "nvidia-smi", "--host", HOST], 1),
        (["doctor", "--host", HOST], 1),
        (["diff", HOST, "eks-t4"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_command_about_a_container_has_the_mode(
    words: list[str], code: int, tmp_path: Path, capsys: Captured
) -> None:
    """With --mode runtime each command answers about the container that the runtime passes on."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"))
    main([*words, "--container", bundle])
    plain = capsys.readouterr()
    main([*words, "--container", bundle, "--mode", "runtime"])
    assert capsys.readouterr() != plain


def test_a_matrix_has_the_mode(tmp_path: Path, capsys: Captured) -> None:
    """In the runtime's mode a requirement is not checked, so that the container runs."""
    bundle = str(
        make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99")
    )
    for more, outcome in (([], "refused"), (["--mode", "runtime"], "runs")):
        assert main(["matrix", HOST, "--containers", bundle, "--format", "json", *more]) == int(
            outcome == "refused"
        )
        (row,) = json.loads(capsys.readouterr().out)["hosts"]
        assert row["cells"][0]["outcome"] == outcome


def test_the_smallest_change_is_that_of_a_started_container(
    tmp_path: Path, capsys: Captured
) -> None:
    """why --mode runtime tries its changes on containers that the runtime starts."""
    bundle = str(make_bundle(tmp_path / "b"))
    words = ["why", "nvidia-smi", "--host", HOST, "--container", bundle, "--mode", "runtime"]
    words += ["--config", legacy(tmp_path)]
    assert main([*words, "--format", "json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["smallest_change"] == ["NVIDIA_VISIBLE_DEVICES=all"]


def test_a_command_reads_yaml_without_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A specification of this machine in YAML is converted in the command's own process: a confined
    one cannot make a child that gives up root's rights.
    """

    def start(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(child, "start", start)
    (tmp_path / "gpu.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
        "- name: '0'\n  containerEdits:\n    env: [A=b]\n"
    )
    host = HostSide("here", Config(runtime_cdi_spec_dirs=(str(tmp_path),)), None)
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0")
    with open_container(str(bundle)) as container:
        started = start_container(container, host, "cdi", HostSpecifications(host, ()))
    assert [part.edits.env for part in started.edits] == [(), ("A=b",)]
    file = str(tmp_path / "gpu.yaml")
    assert [str(part.origin) for part in started.edits] == [
        f"{file}, for every device of nvidia.com/gpu",
        f"device nvidia.com/gpu=0 in {file}",
    ]
