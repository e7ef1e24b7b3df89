"""rewrite: the changes that the runtime wrapper makes to a config.json, by mode, request and
hooks.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.host.graphics_files import CharDevice, FileMount
from nvgraft.request.config import Config
from nvgraft.wrapper.additions import Additions
from nvgraft.wrapper.rewrite import Rewrite, rewrite

HOOK = {
    "path": "/own/nvgraft-hook",
    "args": ["nvgraft-hook", "prestart"],
    "env": ["PATH=/bin"],
    "timeout": 9,
}
CDI = "nvidia.com/gpu=0"
USER = {"uid": 0, "gid": 0}


def spec(*env: str, **members: object) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {"env": list(env), "user": USER},
        "root": {"path": "rootfs"},
        **members,
    }


def rewrite_text(
    text: bytes, mode: str = "legacy", host: Additions | None = None, **settings: object
) -> Rewrite:
    """Rewrite the text of a config.json on a host with these additions; without them, reading the
    host fails.
    """

    def look(gates: Sequence[str], devices: Sequence[str] | None) -> Additions:
        assert host is not None, "the host was read"
        return host

    return rewrite(text, Config(**settings), mode, HOOK, look, link_hook)


def link_hook(links: Sequence[str]) -> dict[str, object]:
    return {"path": "/own/nvgraft-hook", "args": ["nvgraft-hook", *links]}


def rewritten(
    document: dict[str, Any], mode: str = "legacy", **settings: Any
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the new document and the log lines."""
    done = rewrite_text(json.dumps(document).encode(), mode, **settings)
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
def test_the_hook_is_inserted_by_mode_and_request(
    document: dict[str, Any], mode: str, inserted: bool
) -> None:
    """Mode legacy always inserts the hook, mode auto only for a GPU request; other modes pass a
    container without one on.
    """
    assert prestart(document, mode) == ([HOOK] if inserted else None)


@pytest.mark.parametrize(
    ("document", "mode", "named"),
    [
        (visible("all"), "cdi", "mode cdi is not served by nvgraft-runtime"),
        (visible("none"), "cdi", "asks for none"),
        (visible("0"), "jit-cdi", "mode jit-cdi is not served"),
        (visible("0"), "csv", "mode csv is not served"),
        (
            visible(CDI),
            "auto",
            (
                f"mode cdi is not served by nvgraft-runtime | this container asks for {CDI}"
                f" (NVIDIA_VISIBLE_DEVICES={CDI})"
            ),
        ),
        (spec(annotations={"cdi.k8s.io/x": CDI}), "auto", f"asks for {CDI} (CDI annotations)"),
        (spec(annotations={"cdi.k8s.io/x": "gpu0"}), "cdi", "asks for gpu0 (CDI annotations)"),
        (spec(), "nonsense", 'invalid mode "nonsense" | '),
    ],
)
def test_other_modes_are_refused(document: dict[str, Any], mode: str, named: str) -> None:
    """A GPU request in another mode is refused with the mode, the request and the fix."""
    with pytest.raises(Refusal) as error:
        rewritten(document, mode)
    line = error.value.line()
    assert line.startswith(
        "could not apply required modification to OCI specification: error modifying OCI spec: "
    )
    assert named in line


def test_only_cdi_annotations_are_requests() -> None:
    """Annotations with another prefix, or without CDI names, are not a request; the variable still
    is.
    """
    document = visible("0", annotations={"cdi.k8s.io/x": "gpu0", "other/x": CDI})
    assert prestart(document, "auto") == [HOOK]
    assert prestart(spec(annotations={"other/x": CDI}), "auto") is None
    assert prestart(spec(annotations=None), "auto") is None
    assert prestart(spec(annotations={"cdi.k8s.io/x": CDI}), "legacy") == [HOOK]


def test_requests_follow_the_rules_of_the_hook() -> None:
    """Requests by mount, and by variable of an unprivileged container, follow the rules of the
    hook.
    """
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    assert prestart(spec(mounts=mounts), "auto") is None
    assert prestart(
        spec(mounts=mounts), "auto", accept_nvidia_visible_devices_as_volume_mounts=True
    ) == [HOOK]
    document, log = rewritten(
        visible("0"), "auto", accept_nvidia_visible_devices_envvar_when_unprivileged=False
    )
    assert "hooks" not in document
    ignored = (
        "Ignoring devices requested by environment variable(s) in unprivileged container:"
        " [NVIDIA_VISIBLE_DEVICES]"
    )
    assert ("warning", ignored) in log


@pytest.mark.parametrize(
    "name", ["nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvgraft-hook"]
)
def test_an_existing_hook_is_kept(name: str) -> None:
    """An existing prestart hook with any of the three names stays, and no second one is
    inserted.
    """
    hooks = {"prestart": [{"path": f"/usr/bin/{name}", "args": ["x"]}]}
    assert rewritten(visible("all", hooks=hooks))[0]["hooks"] == hooks


@pytest.mark.parametrize(
    "hooks",
    [
        {},
        None,
        {"prestart": None},
        {"prestart": []},
        {"prestart": [None]},
        {"poststart": [{"path": "/x"}]},
    ],
)
def test_the_hook_is_appended(hooks: dict[str, list[object] | None] | None) -> None:
    """The hook is the last of the prestart hooks, and other hooks stay."""
    document = rewritten(visible("all", hooks=hooks))[0]
    assert document["hooks"] == {
        **(hooks or {}),
        "prestart": [*((hooks or {}).get("prestart") or []), HOOK],
    }


def test_only_the_name_of_a_prestart_hook_is_compared() -> None:
    """Only the last part of a prestart hook's path is compared: no arguments, other stages or
    longer names.
    """
    others = [
        {"path": "/x", "args": ["nvgraft-hook"]},
        {"path": "/nvgraft-hook/x"},
        {"path": "/nvgraft-hook.sh"},
    ]
    hooks = {"prestart": others, "poststop": [{"path": "/usr/bin/nvgraft-hook"}]}
    assert prestart(visible("all", hooks=hooks)) == [*others, HOOK]


def test_hooks_are_removed_in_modes_with_cdi_edits() -> None:
    """In modes in which the reference makes CDI edits, existing hooks of these names are removed,
    and nothing else.
    """
    ours, other = {"path": "/usr/bin/nvidia-container-toolkit"}, {"path": "/x"}
    assert rewritten(spec(hooks={"prestart": [ours, other, ours], "poststop": [ours]}), "auto")[0][
        "hooks"
    ] == {"prestart": [other], "poststop": [ours]}
    assert rewritten(spec(hooks={"prestart": [ours], "poststop": [ours]}), "jit-cdi")[0][
        "hooks"
    ] == {"poststop": [ours]}
    assert rewritten(spec(hooks={"prestart": [ours]}), "csv")[0]["hooks"] == {}


@pytest.mark.parametrize(
    ("user", "completed"),
    [
        ({}, USER),
        (None, USER),
        ({"uid": 7}, {"uid": 7, "gid": 0}),
        ({"username": "x"}, {"username": "x", **USER}),
    ],
)
def test_the_user_is_completed(
    user: dict[str, object] | None, completed: dict[str, object]
) -> None:
    """A missing uid or gid is written as 0, as by the reference."""
    document = spec()
    document["process"]["user"] = user
    assert rewritten(document)[0]["process"]["user"] == completed
    del document["process"]["user"]
    assert rewritten(document)[0]["process"]["user"] == USER


@pytest.mark.parametrize("process", [None, {}])
def test_an_incomplete_configuration_is_passed_on(process: dict[str, object] | None) -> None:
    """A configuration that the low-level runtime will refuse is passed on, as by the reference."""
    assert prestart({"process": process}) == [HOOK]
    assert prestart({}) == [HOOK]


@pytest.mark.parametrize(
    "name", ["NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"]
)
def test_gated_components_switch_the_hook_off(name: str) -> None:
    """A gated component appends "void", with which the hook does nothing, as in the reference; the
    log warns.
    """
    document, log = rewritten(spec("NVIDIA_VISIBLE_DEVICES=0", f"{name}=enabled"), host=Additions())
    assert document["process"]["env"] == [
        "NVIDIA_VISIBLE_DEVICES=0",
        f"{name}=enabled",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    assert [
        line
        for level, line in log
        if level == "warning" and f"{name}=enabled" in line and "the hook then adds no GPU" in line
    ]
    for other in (spec(f"{name}=enabled"), spec("NVIDIA_VISIBLE_DEVICES=0", f"{name}=1")):
        assert rewritten(other)[0]["process"]["env"] == other["process"]["env"]


def test_each_gate_appends_a_void() -> None:
    """Each gate appends its own "void", as the reference applies one CDI specification for each."""
    document = rewritten(
        spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"),
        host=Additions(),
    )[0]
    assert document["process"]["env"][3:] == ["NVIDIA_VISIBLE_DEVICES=void"] * 2


def test_a_request_by_mounts_opens_gates() -> None:
    """A request by mounts opens gates as well."""
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    document = rewritten(
        spec("NVIDIA_GDS=enabled", mounts=mounts),
        accept_nvidia_visible_devices_as_volume_mounts=True,
        host=Additions(),
    )[0]
    assert document["process"]["env"][-1] == "NVIDIA_VISIBLE_DEVICES=void"


CARD = CharDevice("/dev/dri/card1", (226, 1), 0o660, 44)
RENDER = CharDevice("/dev/dri/renderD128", (226, 128), 0o666, 44)
ICD = FileMount("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json")
LINK = "../card1::/dev/dri/by-path/pci-0000:05:00.0-card"
DISPLAY = Additions([CARD, RENDER], [ICD, FileMount("/usr/bin/nvidia-xconfig")], [LINK])
GRAPHICS = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("graphics", True),
        ("compute,display", True),
        ("all", True),
        ("compute,utility", False),
        ("compute, graphics", False),  # the runtime does not trim names
        ("Graphics", False),
        ("", False),
        (None, False),
    ],
)
def test_the_host_is_read_for_graphics_and_display(value: str | None, read: bool) -> None:
    """The host is read for graphics or display only; otherwise config.json does not depend on
    it.
    """
    capabilities = () if value is None else (f"NVIDIA_DRIVER_CAPABILITIES={value}",)
    text = json.dumps(spec("NVIDIA_VISIBLE_DEVICES=all", *capabilities)).encode()
    if read:
        with pytest.raises(AssertionError, match="the host was read"):
            rewrite_text(text)
    else:
        added = (
            b', "hooks":{"prestart":[' + json.dumps(HOOK, separators=(",", ":")).encode() + b"]}}"
        )
        assert rewrite_text(text).data == text[:-1] + added.replace(b", ", b",", 1)


def test_a_container_without_gpus_gets_no_graphics() -> None:
    """Without a request for devices, neither graphics nor a gate changes anything."""
    for value in ("void", ""):
        assert "linux" not in rewritten(visible(value) | {"x": 1})[0]
        rewritten(
            spec(
                f"NVIDIA_VISIBLE_DEVICES={value}",
                "NVIDIA_DRIVER_CAPABILITIES=all",
                "NVIDIA_GDS=enabled",
            )
        )


def test_the_host_is_asked_for_gates_and_devices() -> None:
    """The host is asked for the open gates and, with graphics, for the devices as written (none for
    "none"); without, None.
    """
    queries: list[tuple[list[str], Sequence[str] | None]] = []

    def look(gates: Sequence[str], devices: Sequence[str] | None) -> Additions:
        queries.append((list(gates), devices))
        return Additions()

    for env in (
        GRAPHICS,
        ("NVIDIA_VISIBLE_DEVICES=1,GPU-x", "NVIDIA_GDS=enabled"),
        ("NVIDIA_VISIBLE_DEVICES=none", GRAPHICS[1]),
    ):
        rewrite(json.dumps(spec(*env)).encode(), Config(), "legacy", HOOK, look, link_hook)
    assert queries == [([], ("0",)), (["NVIDIA_GDS"], None), ([], ())]


def test_graphics_adds_nodes_rules_groups_files_and_links() -> None:
    """Graphics adds nodes with mode and group, device rules, groups, files ordered by depth, and a
    hook for links.
    """
    document, log = rewritten(spec(*GRAPHICS), host=DISPLAY)
    assert document == spec(*GRAPHICS) | {
        "process": {"env": list(GRAPHICS), "user": USER | {"additionalGids": [44]}},
        "linux": {
            "devices": [
                {
                    "path": "/dev/dri/card1",
                    "type": "c",
                    "major": 226,
                    "minor": 1,
                    "fileMode": 0o660,
                    "gid": 44,
                },
                {
                    "path": "/dev/dri/renderD128",
                    "type": "c",
                    "major": 226,
                    "minor": 128,
                    "fileMode": 0o666,
                    "gid": 44,
                },
            ],
            "resources": {
                "devices": [
                    {"allow": True, "type": "c", "major": 226, "minor": 1, "access": "rwm"},
                    {"allow": True, "type": "c", "major": 226, "minor": 128, "access": "rwm"},
                ]
            },
        },
        "mounts": [
            {
                "destination": path,
                "source": source,
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
            for path, source in (("/usr/bin/nvidia-xconfig",) * 2, (ICD.target, ICD.path))
        ],
        "hooks": {"prestart": [HOOK], "createRuntime": [link_hook([LINK])]},
    }
    assert ("info", "Injecting /dev/dri/card1") in log
    assert ("info", f"Mounting {ICD.path} at {ICD.target}") in log


def test_additional_groups_can_be_switched_off() -> None:
    """With features.no-additional-gids-for-device-nodes the process gets no groups."""
    document = rewritten(
        spec(*GRAPHICS), host=DISPLAY, features_no_additional_gids_for_device_nodes=True
    )[0]
    assert document["process"]["user"] == USER


def test_a_node_of_root_belongs_to_the_process() -> None:
    """A node that belongs to root on the host gets the ids of the process, as the reference leaves
    them out.
    """
    document = spec(*GRAPHICS)
    document["process"]["user"] = {"uid": 1000, "gid": 1001, "additionalGids": [44]}
    plain = CharDevice("/dev/gdrdrv", (240, 0), 0o660, 0)
    made = rewritten(document, host=Additions([CARD, plain]))[0]
    owners = [(entry.get("uid"), entry.get("gid")) for entry in made["linux"]["devices"]]
    assert owners == [(1000, 44), (1000, 1001)]
    assert made["process"]["user"] == document["process"]["user"]


@pytest.mark.parametrize(
    "linux",
    [None, {}, {"devices": None, "resources": None}, {"devices": [], "resources": {"devices": []}}],
)
def test_missing_members_are_created(linux: dict[str, object] | None) -> None:
    """Members that are missing or null are created around the additions, and the rest stays."""
    document = spec(
        *GRAPHICS,
        linux=linux,
        mounts=None,
        hooks={"createRuntime": None, "poststop": [{"path": "/x"}]},
    )
    document["process"]["user"] = None
    made = rewritten(document, host=DISPLAY)[0]
    plain = rewritten(spec(*GRAPHICS), host=DISPLAY)[0]
    assert made == plain | {"hooks": {"poststop": [{"path": "/x"}], **plain["hooks"]}}


def test_existing_entries_are_replaced_or_kept() -> None:
    """A device or mount of the same name is replaced, other entries and rules stay, and mounts are
    sorted.
    """
    volume = {"destination": "/etc/vulkan/icd.d/", "source": "/v", "type": "bind"}
    document = spec(
        *GRAPHICS,
        linux={
            "devices": [
                {"path": "/dev/dri/card1", "type": "c", "major": 1, "minor": 3},
                {"path": "/dev/fuse", "type": "c"},
            ],
            "resources": {"devices": [{"allow": False}], "memory": {"limit": 1}},
        },
        mounts=[
            {"destination": ICD.target, "source": "/evil"},
            volume,
            {"destination": "/proc", "type": "proc"},
        ],
        hooks={"createRuntime": [{"path": "/x"}]},
    )
    made = rewritten(document, host=DISPLAY)[0]
    assert [entry["path"] for entry in made["linux"]["devices"]] == [
        "/dev/fuse",
        "/dev/dri/card1",
        "/dev/dri/renderD128",
    ]
    assert made["linux"]["devices"][1]["major"] == 226
    assert made["linux"]["resources"]["devices"][0] == {"allow": False}
    assert made["linux"]["resources"]["memory"] == {"limit": 1}
    assert [mount.get("source") for mount in made["mounts"]] == [
        None,
        "/v",
        "/usr/bin/nvidia-xconfig",
        ICD.path,
    ]
    assert made["hooks"]["createRuntime"] == [{"path": "/x"}, link_hook([LINK])]


def test_a_second_create_adds_nothing_more() -> None:
    """A second create adds nothing, because all additions of the first are recognised."""
    once = rewrite_text(json.dumps(spec(*GRAPHICS)).encode(), host=DISPLAY)
    assert rewrite_text(once.data, host=DISPLAY).data == once.data


def test_entries_keep_their_text() -> None:
    """The items of a sorted array keep their text."""
    odd = '{"destination": "/a/b", "limit": 1.50, "x": 18446744073709551616, "x": 2}'
    text = (
        json.dumps(spec(*GRAPHICS)).removesuffix("}")
        + f', "mounts": [ {odd} ,{{"destination":"/a"}}]}}'
    )
    made = rewrite_text(text.encode(), host=DISPLAY).data.decode()
    assert f'"mounts": [{{"destination":"/a"}},{odd},' in made


@pytest.mark.parametrize(
    "members",
    [
        {"linux": 7},
        {"linux": {"devices": {}}},
        {"linux": {"devices": [7]}},
        {"linux": {"devices": [{"path": 7}]}},
        {"linux": {"resources": []}},
        {"linux": {"resources": {"devices": {}}}},
        {"mounts": [{"destination": "/a", "Destination": "/b"}]},
        {"hooks": {"createRuntime": {}}},
        {"process": {"env": list(GRAPHICS), "user": {"uid": "0"}}},
        {"process": {"env": list(GRAPHICS), "user": {"additionalGids": 7}}},
        {"linux": {}, "Linux": {}},
    ],
)
def test_members_of_a_wrong_type_are_refused(members: dict[str, object]) -> None:
    """A member of a wrong type, or given twice, in the place of an addition is refused in the
    reference's words.
    """
    with pytest.raises(Refusal) as error:
        rewritten(spec(*GRAPHICS) | members, host=DISPLAY)
    assert error.value.line().startswith(
        "could not apply required modification to OCI specification: error loading OCI"
        " specification for"
    )


def test_a_refusal_of_the_host_is_quoted() -> None:
    """A refusal of the host is quoted after the reference's phrase, and nothing is rewritten."""

    def look(_gates: Sequence[str], _devices: Sequence[str] | None) -> Additions:
        raise Refusal("", "last", "why", first_line="first\nsecond")

    with pytest.raises(Refusal) as error:
        rewrite(json.dumps(spec(*GRAPHICS)).encode(), Config(), "legacy", HOOK, look, link_hook)
    assert error.value.line() == (
        "could not apply required modification to OCI specification: error modifying OCI"
        " spec: first\nsecond\nlast | why"
    )


def test_a_missing_compatibility_hook_is_logged() -> None:
    """cuda-compat-mode "hook" adds nothing, and the log says so unless the feature is switched
    off.
    """
    for settings, warned in (({}, True), ({"features_disable_cuda_compat_lib_hook": True}, False)):
        log = rewritten(visible("0"), "legacy", runtime_cuda_compat_mode="hook", **settings)[1]
        assert any("cuda-compat-mode hook" in line for _, line in log) == warned


def test_nothing_else_changes() -> None:
    """Unknown members, large numbers, repeated members and white space stay to the byte."""
    odd = (
        b'{ "process" : {"env": ["A=\\u00e9"], "user": {"uid": 1, "gid": 2}, "future":'
        b' 1.50}, "root": {"path": "r"},\n'
        b'  "linux": {"resources": {"memory": {"limit": 18446744073709551615}}}, "x": 1, "x": 2 }\n'
    )
    done = rewrite_text(odd)
    added = b',"hooks":{"prestart":[' + json.dumps(HOOK, separators=(",", ":")).encode() + b"]}}\n"
    assert done.data == odd.removesuffix(b"}\n") + added
    assert rewrite_text(done.data).data == done.data
