"""rewrite: what the runtime wrapper makes of a config.json, by mode, request and hooks."""

import json
from typing import Any

import pytest

from nvgraft.config import Config
from nvgraft.errors import Refusal
from nvgraft.rewrite import rewrite

HOOK = {"path": "/own/nvgraft-hook", "args": ["nvgraft-hook", "prestart"], "env": ["PATH=/bin"], "timeout": 9}
CDI = "nvidia.com/gpu=0"
USER = {"uid": 0, "gid": 0}


def spec(*env: str, **members: object) -> dict[str, Any]:
    return {"ociVersion": "1.0.2", "process": {"env": list(env), "user": USER}, "root": {"path": "rootfs"}, **members}


def rewritten(document: dict[str, Any], mode: str = "legacy", **settings: object) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the new document, and the lines of the log."""
    done = rewrite(json.dumps(document).encode(), Config(**settings), mode, HOOK)
    return json.loads(done.data), done.log


def visible(value: str, **members: object) -> dict[str, Any]:
    return spec(f"NVIDIA_VISIBLE_DEVICES={value}", **members)


def prestart(document: dict[str, Any], mode: str = "legacy", **settings: object) -> object:
    return rewritten(document, mode, **settings)[0].get("hooks", {}).get("prestart")


@pytest.mark.parametrize(
    ("document", "mode", "inserted"),
    [
        (visible("all"), "legacy", True),
        (visible("none"), "legacy", True),
        (visible("void"), "legacy", True),
        (spec(), "legacy", True),
        (visible(CDI), "legacy", True),
        (visible("all"), "auto", True),
        (visible("none"), "auto", True),
        (visible(f"{CDI},0"), "auto", True),
        (spec("CUDA_VERSION=10.0"), "auto", True),
        (visible("void"), "auto", False),
        (spec(), "auto", False),
        (spec(), "cdi", False),
        (spec(), "jit-cdi", False),
        (visible("void"), "csv", False),
    ],
)
def test_when_the_hook_is_inserted(document: dict[str, Any], mode: str, inserted: bool) -> None:
    """Always in mode legacy; in mode auto for a container that asks for a GPU; in other modes containers without one just start."""
    assert prestart(document, mode) == ([HOOK] if inserted else None)


@pytest.mark.parametrize(
    ("document", "mode", "named"),
    [
        (visible("all"), "cdi", "mode cdi is not served by nvgraft-runtime"),
        (visible("none"), "cdi", "asks for none"),
        (visible("0"), "jit-cdi", "mode jit-cdi is not served"),
        (visible("0"), "csv", "mode csv is not served"),
        (visible(CDI), "auto", f"mode cdi is not served by nvgraft-runtime | this container asks for {CDI} (NVIDIA_VISIBLE_DEVICES={CDI})"),
        (spec(annotations={"cdi.k8s.io/x": CDI}), "auto", f"asks for {CDI} (CDI annotations)"),
        (spec(annotations={"cdi.k8s.io/x": "gpu0"}), "cdi", "asks for gpu0 (CDI annotations)"),
        (spec(), "nonsense", 'invalid mode "nonsense" | '),
    ],
)
def test_modes_that_are_not_served(document: dict[str, Any], mode: str, named: str) -> None:
    """A container that asks for a GPU in another mode is refused with the mode, what it asked for, and what to do."""
    with pytest.raises(Refusal) as error:
        rewritten(document, mode)
    line = error.value.line()
    assert line.startswith("could not apply required modification to OCI specification: error modifying OCI spec: ")
    assert named in line


def test_annotations_decide_only_about_cdi() -> None:
    """Annotations that are no CDI names, or have another prefix, do not make a request; the variable does."""
    document = visible("0", annotations={"cdi.k8s.io/x": "gpu0", "other/x": CDI})
    assert prestart(document, "auto") == [HOOK]
    assert prestart(spec(annotations={"other/x": CDI}), "auto") is None
    assert prestart(spec(annotations=None), "auto") is None
    assert prestart(spec(annotations={"cdi.k8s.io/x": CDI}), "legacy") == [HOOK]


def test_requests_by_mounts_and_privileges() -> None:
    """The same rules as the hook's: mounts when they are accepted, variables of unprivileged containers when they are."""
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    assert prestart(spec(mounts=mounts), "auto") is None
    assert prestart(spec(mounts=mounts), "auto", accept_nvidia_visible_devices_as_volume_mounts=True) == [HOOK]
    document, log = rewritten(visible("0"), "auto", accept_nvidia_visible_devices_envvar_when_unprivileged=False)
    assert "hooks" not in document
    ignored = "Ignoring devices requested by environment variable(s) in unprivileged container: [NVIDIA_VISIBLE_DEVICES]"
    assert ("warning", ignored) in log


@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvgraft-hook"])
def test_a_hook_that_is_there_is_enough(name: str) -> None:
    """A prestart hook of any of the three names stays as it is, and no second one is inserted."""
    hooks = {"prestart": [{"path": f"/usr/bin/{name}", "args": ["x"]}]}
    assert rewritten(visible("all", hooks=hooks))[0]["hooks"] == hooks


@pytest.mark.parametrize("hooks", [{}, None, {"prestart": None}, {"prestart": []}, {"prestart": [None]}, {"poststart": [{"path": "/x"}]}])
def test_the_hook_is_appended(hooks: dict[str, list[object] | None] | None) -> None:
    """Whatever there is of hooks, ours is the last of the prestart hooks and the others stay."""
    document = rewritten(visible("all", hooks=hooks))[0]
    assert document["hooks"] == {**(hooks or {}), "prestart": [*((hooks or {}).get("prestart") or []), HOOK]}


def test_names_elsewhere_do_not_count() -> None:
    """Only the last part of a prestart hook's path counts: not its arguments, not another stage, not a longer name."""
    others = [{"path": "/x", "args": ["nvgraft-hook"]}, {"path": "/nvgraft-hook/x"}, {"path": "/nvgraft-hook.sh"}]
    hooks = {"prestart": others, "poststop": [{"path": "/usr/bin/nvgraft-hook"}]}
    assert prestart(visible("all", hooks=hooks)) == [*others, HOOK]


def test_hooks_are_removed_where_the_reference_would_make_cdi_edits() -> None:
    """In the modes in which nothing is inserted, a hook that somebody else inserted goes, and nothing but that."""
    ours, other = {"path": "/usr/bin/nvidia-container-toolkit"}, {"path": "/x"}
    assert rewritten(spec(hooks={"prestart": [ours, other, ours], "poststop": [ours]}), "auto")[0]["hooks"] == {
        "prestart": [other],
        "poststop": [ours],
    }
    assert rewritten(spec(hooks={"prestart": [ours], "poststop": [ours]}), "jit-cdi")[0]["hooks"] == {"poststop": [ours]}
    assert rewritten(spec(hooks={"prestart": [ours]}), "csv")[0]["hooks"] == {}


@pytest.mark.parametrize(
    ("user", "wanted"), [({}, USER), (None, USER), ({"uid": 7}, {"uid": 7, "gid": 0}), ({"username": "x"}, {"username": "x", **USER})]
)
def test_the_user_is_completed(user: dict[str, object] | None, wanted: dict[str, object]) -> None:
    """uid and gid are written out as 0 where they are missing, as the reference writes them."""
    document = spec()
    document["process"]["user"] = user
    assert rewritten(document)[0]["process"]["user"] == wanted
    del document["process"]["user"]
    assert rewritten(document)[0]["process"]["user"] == USER


@pytest.mark.parametrize("process", [None, {}])
def test_an_incomplete_configuration_is_passed_on(process: dict[str, object] | None) -> None:
    """What the low-level runtime will refuse is not the wrapper's business, as with the original."""
    assert prestart({"process": process}) == [HOOK]
    assert prestart({}) == [HOOK]


@pytest.mark.parametrize("name", ["NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"])
def test_gated_components_switch_the_hook_off(name: str) -> None:
    """As recorded: the void that the reference appends makes the hook do nothing; here the log says so."""
    document, log = rewritten(spec("NVIDIA_VISIBLE_DEVICES=0", f"{name}=enabled"))
    assert document["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=0", f"{name}=enabled", "NVIDIA_VISIBLE_DEVICES=void"]
    assert [line for level, line in log if level == "warning" and f"{name}=enabled" in line and "the hook adds no GPU" in line]
    for other in (spec(f"{name}=enabled"), spec("NVIDIA_VISIBLE_DEVICES=0", f"{name}=1")):
        assert rewritten(other)[0]["process"]["env"] == other["process"]["env"]


def test_gates_of_a_container_that_asks_by_mounts() -> None:
    """A request by mounts opens gates as well."""
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    document = rewritten(spec("NVIDIA_GDS=enabled", mounts=mounts), accept_nvidia_visible_devices_as_volume_mounts=True)[0]
    assert document["process"]["env"][-1] == "NVIDIA_VISIBLE_DEVICES=void"


@pytest.mark.parametrize(("value", "warned"), [("graphics", True), ("compute,display", True), ("all", True), ("compute,utility", False)])
def test_graphics_is_said_to_be_incomplete(value: str, warned: bool) -> None:
    """For graphics the log says which part of the reference's edits is missing; the hook is inserted all the same."""
    document, log = rewritten(spec("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}"))
    assert document["hooks"]["prestart"] == [HOOK]
    assert any(line.startswith("graphics: ") for level, line in log if level == "warning") == warned


def test_the_compatibility_hook_is_said_to_be_missing() -> None:
    """cuda-compat-mode hook adds nothing; the log says so unless the feature is switched off."""
    for settings, warned in (({}, True), ({"features_disable_cuda_compat_lib_hook": True}, False)):
        log = rewritten(visible("0"), "legacy", runtime_cuda_compat_mode="hook", **settings)[1]
        assert any("cuda-compat-mode hook" in line for _, line in log) == warned


def test_nothing_else_changes() -> None:
    """Unknown members, large numbers, repeated members and white space of config.json survive to the byte."""
    odd = (
        b'{ "process" : {"env": ["A=\\u00e9"], "user": {"uid": 1, "gid": 2}, "future": 1.50}, "root": {"path": "r"},\n'
        b'  "linux": {"resources": {"memory": {"limit": 18446744073709551615}}}, "x": 1, "x": 2 }\n'
    )
    done = rewrite(odd, Config(), "legacy", HOOK)
    added = b',"hooks":{"prestart":[' + json.dumps(HOOK, separators=(",", ":")).encode() + b"]}}\n"
    assert done.data == odd.removesuffix(b"}\n") + added
    assert rewrite(done.data, Config(), "legacy", HOOK).data == done.data
