"""rewrite: the changes that the runtime wrapper makes to a config.json, by mode, request and
hooks.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from looks import FixedLook, link_hooks
from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.cdi.generation import CdiRequest
from nvgraft.host.graphics_files import CharDevice, FileMount
from nvgraft.request.config import Config
from nvgraft.wrapper.additions import Additions
from nvgraft.wrapper.rewrite import RefusedRewrite, Rewrite, rewrite

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
    return rewrite(text, Config(**settings), mode, HOOK, lambda: FixedLook(host), link_hooks)


def link_hook(links: Sequence[str]) -> dict[str, object]:
    return {"path": "/own/nvgraft-hook", "args": ["nvgraft-hook", *links]}


def rewritten(
    document: dict[str, Any], mode: str = "legacy", **settings: Any
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return the new document and the log lines."""
    done = rewrite_text(json.dumps(document).encode(), mode, **settings)
    return json.loads(done.data), tuple(done.log.lines)


def edited(
    document: dict[str, Any], mode: str, *edits: CdiEdits, platform: str = "nvml", **settings: Any
) -> tuple[dict[str, Any], list[object]]:
    """Return the new document on a host whose devices have these edits, and what the host was
    asked.
    """
    look = FixedLook(edits=edits, platform=platform)
    text = json.dumps(document).encode()
    done = rewrite(text, Config(**settings), mode, HOOK, lambda: look, link_hooks)
    return json.loads(done.data), look.asked


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
    """Mode legacy always inserts the hook; the other modes pass a container without a GPU request
    on, and do not look at the host.
    """
    assert prestart(document, mode) == ([HOOK] if inserted else None)


JIT = "runtime.nvidia.com/gpu"


@pytest.mark.parametrize(
    ("document", "mode", "asked"),
    [
        (visible("all"), "auto", CdiRequest(["all"])),
        (visible("none"), "auto", CdiRequest(["none"])),
        (spec("CUDA_VERSION=10.0"), "auto", CdiRequest(["all"])),
        (visible(f"{JIT}=1"), "auto", CdiRequest(["1"])),
        (visible("1,0,1"), "jit-cdi", CdiRequest(["0", "1"])),
        (visible(" 0 ,, 1"), "jit-cdi", CdiRequest(["0", "1"])),
        (visible(f"0,{JIT}=0"), "jit-cdi", CdiRequest(["0"])),
        (visible(CDI), "jit-cdi", [CDI]),
        (visible(CDI), "auto", [CDI]),
        (visible("0,1"), "cdi", [CDI, "nvidia.com/gpu=1"]),
        (visible("0,0"), "cdi", [CDI]),
        (visible("none"), "cdi", ["nvidia.com/gpu=none"]),
        (visible("0", annotations={"cdi.k8s.io/x": CDI}), "auto", [CDI]),
        (visible("1", annotations={"cdi.k8s.io/x": CDI}), "jit-cdi", CdiRequest(["1"])),
        (
            spec(annotations={"cdi.k8s.io/b": "gpu1", "cdi.k8s.io/a": f"{CDI},"}),
            "cdi",
            [CDI, "nvidia.com/gpu=none", "nvidia.com/gpu=gpu1"],
        ),
        (visible("0", annotations={"cdi.k8s.io/x": "gpu0"}), "auto", CdiRequest(["0"])),
        (visible("0"), "csv", CdiRequest(["0"], csv=True)),
        (visible("none"), "csv", CdiRequest([], csv=True)),
    ],
)
def test_the_host_is_asked_for_the_devices_of_the_mode(
    document: dict[str, Any], mode: str, asked: object
) -> None:
    """Modes with CDI edits ask for generated devices, or for devices of specifications by their
    qualified names. A repeated id counts once, and annotations are read in mode cdi alone.
    """
    assert edited(document, mode, CdiEdits(env=["A=1"]))[1] == [asked]


def test_a_board_is_served_by_its_csv_files() -> None:
    """Mode auto means csv on a Tegra board, unless all names are qualified; requirements are
    checked there, and NVIDIA_REQUIRE_JETPACK chooses the files.
    """
    everything = ("NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_CUDA=cuda>=11.0")
    document = spec("NVIDIA_VISIBLE_DEVICES=all", *everything)
    assert edited(document, "auto", CdiEdits(), platform="tegra")[1] == [
        CdiRequest(["all"], csv=True, every_csv_file=True, requirements=["cuda>=11.0"])
    ]
    assert edited(visible(CDI), "auto", CdiEdits(), platform="tegra")[1] == [[CDI]]


def test_components_and_channels_are_generated_with_the_devices() -> None:
    """Gated components and IMEX channels are asked for together with generated devices, and not
    with devices of specifications.
    """
    more = ("NVIDIA_GDS=enabled", "NVIDIA_MOFED=1", "NVIDIA_IMEX_CHANNELS=3,channel0")
    document = spec("NVIDIA_VISIBLE_DEVICES=0", *more)
    wanted = CdiRequest(["0"], gates=["NVIDIA_GDS"], channels=["3", "channel0"])
    assert edited(document, "jit-cdi", CdiEdits())[1] == [wanted]
    assert edited(document, "cdi", CdiEdits())[1] == [[CDI]]
    off = edited(document, "auto", CdiEdits(), features_ignore_imex_channel_requests=True)[1]
    assert off == [CdiRequest(["0"], gates=["NVIDIA_GDS"])]


def test_the_default_kind_and_the_prefixes_are_those_of_config_toml() -> None:
    """default-kind qualifies ids, and annotation-prefixes chooses annotations."""
    settings: dict[str, Any] = {
        "runtime_cdi_default_kind": "vendor.com/net",
        "runtime_cdi_annotation_prefixes": ["my.io/"],
    }
    document = visible("0", annotations={"cdi.k8s.io/x": CDI})
    assert edited(document, "cdi", CdiEdits(), **settings)[1] == [["vendor.com/net=0"]]
    document["annotations"]["my.io/x"] = CDI
    assert edited(document, "cdi", CdiEdits(), **settings)[1] == [[CDI]]


@pytest.mark.parametrize(
    ("document", "mode", "said"),
    [
        (visible(f"{JIT}=all,{CDI}"), "auto", "requesting a CDI device with vendor"),
        (visible(f"0,{CDI}"), "jit-cdi", "requesting a CDI device with vendor"),
        (spec(), "nonsense", 'failed to construct OCI spec modifier: invalid mode "nonsense" | '),
        (spec(), "", "failed to construct OCI spec modifier: a mode must be specified | "),
    ],
)
def test_modes_and_mixtures_that_do_not_exist_are_refused(
    document: dict[str, Any], mode: str, said: str
) -> None:
    """An unknown mode, and generated devices beside those of specifications, are refused."""
    with pytest.raises(Refusal) as error:
        edited(document, mode, CdiEdits())
    assert said in error.value.line()


def test_a_refusal_keeps_the_lines_before_it() -> None:
    """The log says which mode was chosen before it says what is refused."""
    with pytest.raises(RefusedRewrite) as error:
        edited(visible(f"{JIT}=all,{CDI}"), "auto", CdiEdits())
    assert ("info", "Auto-detected mode as 'cdi'") in error.value.log.lines
    assert (error.value.log.mode, error.value.log.hook_reason[:8]) == ("cdi", "mode cdi")


NODE = CdiNode("/dev/nvidia0", major=195, minor=0, mode=0o666, permissions="rw")
MOUNT = CdiMount("/host/a", "/a/b", ("ro",))
STEP = CdiHook("createContainer", "/hook", ("hook", "x"), ("A=b",))


def test_edits_are_written_as_by_the_reference() -> None:
    """Edits are appended in their order: variables, nodes with rules, hooks and groups; mounts are
    sorted by depth.
    """
    parts = (
        CdiEdits(env=["A=1"], nodes=[NODE], gids=[44]),
        CdiEdits(env=["A=1"], nodes=[NODE], mounts=[MOUNT], hooks=[STEP], gids=[44, 45]),
    )
    document = visible("0", mounts=[{"destination": "/x/y/z"}])
    made = edited(document, "jit-cdi", *parts)[0]
    assert made["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=0", "A=1", "A=1"]
    assert made["process"]["user"] == USER | {"additionalGids": [44, 45]}
    assert made["linux"]["devices"] == [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666}
    ]
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    assert made["linux"]["resources"] == {"devices": [rule, rule]}
    assert made["mounts"] == [
        {"destination": "/a/b", "source": "/host/a", "options": ["ro"]},
        {"destination": "/x/y/z"},
    ]
    assert made["hooks"] == {
        "createContainer": [{"path": "/hook", "args": ["hook", "x"], "env": ["A=b"]}]
    }


def test_rare_edits_are_written_too() -> None:
    """A FIFO has no rule; network interfaces, RDT settings and timeouts have their members."""
    fifo = CdiNode("/dev/fifo", type="p", uid=7)
    slow = CdiHook("poststop", "/hook", timeout=3)
    part = CdiEdits(
        nodes=[fifo], hooks=[slow], net_devices=[("eth1", "net0")], intel_rdt={"closID": "x"}
    )
    made = edited(visible("0"), "jit-cdi", part)[0]
    assert made["linux"] == {
        "devices": [{"path": "/dev/fifo", "type": "p", "major": 0, "minor": 0, "uid": 7}],
        "netDevices": {"eth1": {"name": "net0"}},
        "intelRdt": {"closID": "x"},
    }
    assert made["hooks"] == {"poststop": [{"path": "/hook", "timeout": 3}]}


@pytest.mark.parametrize(("permissions", "access"), [("", "rwm"), ("r", "r"), ("none", "")])
def test_the_access_of_a_node(permissions: str, access: str) -> None:
    """A node without permissions gets all; "none" is a rule without access, as CDI has it."""
    node = CdiNode("/dev/x", type="c", major=7, minor=1, permissions=permissions)
    made = edited(visible("0"), "jit-cdi", CdiEdits(nodes=[node]))[0]
    assert [rule["access"] for rule in made["linux"]["resources"]["devices"]] == [access]


def test_a_process_that_is_missing_gets_no_variable() -> None:
    """Without a process the low-level runtime refuses the container; edits do not invent one."""
    document = visible("0")
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    del document["process"]
    made = edited(
        document | {"mounts": mounts},
        "jit-cdi",
        CdiEdits(env=["A=1"]),
        accept_nvidia_visible_devices_as_volume_mounts=True,
    )[0]
    assert "process" not in made


def test_the_hook_gives_way_to_the_edits() -> None:
    """In modes with CDI edits a prestart hook of ours is removed, and hooks of the edits are added
    in the same member.
    """
    ours = {"path": "/usr/bin/nvgraft-hook"}
    other = {"path": "/x"}
    begins = CdiHook("prestart", "/hook")
    for before, after in (
        ({"prestart": [ours]}, {}),
        ({"prestart": [ours], "poststop": [other]}, {"poststop": [other]}),
        ({"poststop": [other], "prestart": [ours, ours]}, {"poststop": [other]}),
        ({"prestart": [other, ours]}, {"prestart": [other]}),
    ):
        added = {"createContainer": [{"path": "/hook", "args": ["hook", "x"], "env": ["A=b"]}]}
        made = edited(visible("0", hooks=before), "jit-cdi", CdiEdits(hooks=[STEP]))[0]
        assert made["hooks"] == after | added
        made = edited(visible("0", hooks=before), "jit-cdi", CdiEdits(hooks=[begins]))[0]
        prestart = [*after.get("prestart", []), {"path": "/hook"}]
        assert made["hooks"] == after | {"prestart": prestart}


def test_requests_follow_the_rules_of_the_hook() -> None:
    """Requests by mount, and by variable of an unprivileged container, follow the rules of the
    hook.
    """
    mounts = [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}]
    assert edited(spec(mounts=mounts), "auto", CdiEdits())[1] == []
    assert edited(
        spec(mounts=mounts),
        "auto",
        CdiEdits(),
        accept_nvidia_visible_devices_as_volume_mounts=True,
    )[1] == [CdiRequest(["0"])]
    document, log = rewritten(
        visible("0"), "auto", accept_nvidia_visible_devices_envvar_when_unprivileged=False
    )
    assert document == visible("0")
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
    look = FixedLook(Additions())
    for env in (
        GRAPHICS,
        ("NVIDIA_VISIBLE_DEVICES=1,GPU-x", "NVIDIA_GDS=enabled"),
        ("NVIDIA_VISIBLE_DEVICES=none", GRAPHICS[1]),
    ):
        rewrite(json.dumps(spec(*env)).encode(), Config(), "legacy", HOOK, lambda: look, link_hooks)
    assert look.asked == [([], ("0",)), (["NVIDIA_GDS"], None), ([], ())]


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

    class Refusing(FixedLook):
        def additions(self, _gates: Sequence[str], _devices: Sequence[str] | None) -> Additions:
            raise Refusal("", "last", "why", first_line="first\nsecond")

    with pytest.raises(Refusal) as error:
        rewrite_with = json.dumps(spec(*GRAPHICS)).encode()
        rewrite(rewrite_with, Config(), "legacy", HOOK, Refusing, link_hooks)
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
