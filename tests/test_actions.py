"""Plans as documents: how ``nvgraft.plan/1`` writes each action, checked against the shipped
schema.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import pytest

import hosts
from hosts import full_host, mig_host, plan
from nvgraft.base.finding import Finding
from nvgraft.host.components import Inventory
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    MakeDirectory,
    Plan,
    PlanHost,
    PlanTarget,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    Why,
    WriteFile,
)
from nvgraft.plan.document import action_document, plan_document
from nvgraft.plan.edit_actions import AddGroup, AllowNode, MakeNode, RunHook, SetVariable
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.request import Request
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_specs import gallery, names
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models import schema_path
from nvgraft_specs.models.plan import SCHEMA, parse_plan

WHY = Why("compute", "libcuda.so", "loader cache")
REASON = {"capability": "compute", "row": "libcuda.so", "found": "loader cache"}


@pytest.mark.parametrize(
    ("action", "document"),
    [
        (
            MakeDirectory("/a", 0o755, WHY),
            {"op": "dir", "path": "/a", "mode": "0755", "why": REASON},
        ),
        (
            Bind("file", "driver", "/s", "/t", ("nodev", "ro"), 0o44, WHY, size=9),
            {
                "op": "mount",
                "type": "bind",
                "kind": "file",
                "source": "/s",
                "target": "/t",
                "options": ["nodev", "ro"],
                "mode": "0044",
                "why": REASON,
            },
        ),
        (
            Bind("device", "dev", "/s", "/t", ("ro",), 0o644, WHY, (195, 255)),
            {
                "op": "mount",
                "type": "bind",
                "kind": "device",
                "source": "/s",
                "target": "/t",
                "options": ["ro"],
                "mode": "0644",
                "rdev": [195, 255],
                "why": REASON,
            },
        ),
        (
            Tmpfs("/t", ("nodev", "rw"), 0o555, WHY),
            {
                "op": "mount",
                "type": "tmpfs",
                "source": "tmpfs",
                "target": "/t",
                "options": ["nodev", "rw"],
                "data": {"mode": "0555"},
                "why": REASON,
            },
        ),
        (
            WriteFile("/f", 0o444, "text\n", WHY),
            {"op": "file", "path": "/f", "mode": "0444", "content": "text\n", "why": REASON},
        ),
        (Symlink("/l", "t", WHY), {"op": "symlink", "path": "/l", "target": "t", "why": REASON}),
        (
            AllowDevice(195, 0, WHY),
            {
                "op": "allow-device",
                "type": "c",
                "major": 195,
                "minor": 0,
                "access": "rw",
                "why": REASON,
            },
        ),
        (
            UpdateLoaderCache(("/a", "/b"), WHY),
            {"op": "ldcache", "dirs": ["/a", "/b"], "why": REASON},
        ),
        (SetVariable("A", "b", WHY), {"op": "env", "name": "A", "value": "b", "why": REASON}),
        (
            MakeNode("/h", "/dev/x", "b", (7, 1), 0o660, 5, 44, WHY, placeholder=True),
            {
                "op": "mount",
                "type": "bind",
                "kind": "device",
                "source": "/h",
                "target": "/dev/x",
                "options": ["rw"],
                "mode": "0660",
                "rdev": [7, 1],
                "node": "b",
                "uid": 5,
                "gid": 44,
                "why": REASON,
            },
        ),
        (
            AllowNode("b", 7, 1, "rwm", WHY),
            {
                "op": "allow-device",
                "type": "b",
                "major": 7,
                "minor": 1,
                "access": "rwm",
                "why": REASON,
            },
        ),
        (AddGroup(44, WHY), {"op": "group", "gid": 44, "why": REASON}),
        (
            RunHook("createContainer", "/h", ["h", "x"], ["A=b"], None, WHY),
            {
                "op": "hook",
                "stage": "createContainer",
                "path": "/h",
                "args": ["h", "x"],
                "env": ["A=b"],
                "timeout": None,
                "why": REASON,
            },
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Action) else "",
)
def test_each_action_has_its_entry(action: Action, document: dict[str, Any]) -> None:
    """An action's members have a fixed order, so that equal plans are byte-equal text."""
    assert json.dumps(action_document(action)) == json.dumps(document)


@pytest.mark.parametrize("access", ["", "m", "rwm"])
def test_a_container_may_never_create_devices(access: str) -> None:
    """An AllowDevice action is to read, to write or both, never to create device nodes."""
    with pytest.raises(ValueError, match="no such access"):
        AllowDevice(195, 0, WHY, access)


def test_every_kind_of_action_is_tested() -> None:
    """Every kind of action has its line in the test of entries.

    A new kind needs one there, and an entry in the schema, unless it is in no document: ChangeMode
    and PlaceFile are not.
    """
    assert {kind.__name__ for kind in Action.__subclasses__()} == {
        "AddGroup",
        "AllowDevice",
        "Bind",
        ChangeMode.__name__,
        "MakeDirectory",
        PlaceFile.__name__,
        "RunHook",
        "SetVariable",
        "Symlink",
        "Tmpfs",
        "UpdateLoaderCache",
        "WriteFile",
    }
    without_kind = Action()
    without_kind.why = WHY
    with pytest.raises(TypeError, match="no action"):
        action_document(without_kind)


def test_the_document_has_its_members_in_order() -> None:
    """A plan's document has the members that DESIGN.md shows, in its order."""
    injection = Injection(
        "r",
        PlanHost(name="h", root="/", driver_version="535.1", cuda_version="12.2"),
        Request(
            ("0",),
            ("compute",),
            devices_from="NVIDIA_VISIBLE_DEVICES=0",
            capabilities_from="default",
        ),
        PlanTarget(
            rootfs="/r",
            libs_dir="/usr/lib64",
            libs32_dir="/usr/lib",
            bins_dir="/usr/bin",
            uid=0,
            gid=0,
        ),
        (),
        (("/l", "t"),),
        (Finding("id", "info", "m"),),
    )
    document = plan_document(injection)
    assert list(document) == [
        "schema",
        "decision",
        "reason",
        "host",
        "request",
        "target",
        "actions",
        "links",
        "findings",
    ]
    assert list(document["host"].items()) == [
        ("name", "h"),
        ("root", "/"),
        ("driver_version", "535.1"),
        ("cuda_version", "12.2"),
    ]
    assert list(document["request"].items()) == [
        ("devices", ["0"]),
        ("capabilities", ["compute"]),
        ("requirements", []),
        ("mig_config", ""),
        ("mig_monitor", ""),
        ("imex_channels", []),
        ("devices_from", "NVIDIA_VISIBLE_DEVICES=0"),
        ("capabilities_from", "default"),
    ]
    assert list(document["target"].items()) == [
        ("rootfs", "/r"),
        ("libs_dir", "/usr/lib64"),
        ("libs32_dir", "/usr/lib"),
        ("bins_dir", "/usr/bin"),
        ("uid", 0),
        ("gid", 0),
    ]
    assert document["links"] == {"/l": "t"}
    assert document["findings"] == [{"id": "id", "level": "info", "message": "m", "hint": ""}]


@cache
def _schema() -> Any:
    schema = json.loads(schema_path(SCHEMA).read_text())
    jsonschema_rs.meta.validate(schema)
    return jsonschema_rs.Draft202012Validator(schema)


@cache
def _inventory(host: str) -> Inventory:
    return read_inventory(snapshot_host(read_snapshot(host)), OFFLINE_PATH)


def _gallery_plans() -> Iterator[Any]:
    for host in gallery.with_hook():
        for capabilities, simulated in (
            (names.CAPABILITIES, False),
            (("compute", "utility"), True),
            ((), False),
        ):
            yield pytest.param(host, capabilities, simulated, id=f"{host}-{len(capabilities)}")


@pytest.mark.parametrize(("host", "capabilities", "simulated"), list(_gallery_plans()))
def test_plans_of_gallery_hosts_follow_the_schema(
    host: str, capabilities: tuple[str, ...], simulated: bool
) -> None:
    """Plans of gallery hosts pass the JSON schema and the model.

    The model gives back the same document.
    """
    target = hosts.target(module=not simulated)
    plan_of_host = make_plan(
        Request(("all",), capabilities),
        _inventory(host),
        target,
        Settings(cgroups=True, simulated=simulated),
    )
    text = json.dumps(plan_document(plan_of_host))
    _schema().validate(json.loads(text))
    model = parse_plan(text.encode(), "plan.json")
    assert model.model_dump(mode="json", by_alias=True, exclude_none=True) == json.loads(text)


@pytest.mark.parametrize(
    "special",
    [
        plan(mig_host(), mig_config="all", mig_monitor="all"),
        plan(mig_host(), devices="0:0", capabilities=",".join(names.CAPABILITIES)),
        plan(full_host(gpus=[]), devices=""),
        Plan("skip", "not a GPU container"),
        Plan("refuse", "nvgraft: device error: 9: unknown device"),
    ],
    ids=["mig-config", "mig", "no GPU", "skip", "refuse"],
)
def test_special_plans_follow_the_schema(special: Plan) -> None:
    """Plans with MIG or without a GPU, and decisions to skip or refuse, follow it as well."""
    text = json.dumps(plan_document(special))
    _schema().validate(json.loads(text))
    assert parse_plan(text.encode(), "plan.json").decision == special.decision


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("decision", "maybe"),
        ("actions", [{"op": "chmod", "path": "/x"}]),
        ("actions", [{"op": "dir", "path": "relative", "mode": "0755", "why": REASON}]),
        ("actions", [{"op": "dir", "path": "/x", "mode": 493, "why": REASON}]),
        ("links", {"relative": "x"}),
        ("surprise", 1),
        ("schema", "nvgraft.plan/2"),
    ],
)
def test_a_damaged_plan_fails_the_schema_and_the_model(member: str, value: object) -> None:
    """A damaged document fails the schema and the model: the checks of this file can fail."""
    document = plan_document(plan(full_host())) | {member: value}
    assert not _schema().is_valid(document)
    with pytest.raises(DocumentError):
        parse_plan(json.dumps(document).encode(), "plan.json")
