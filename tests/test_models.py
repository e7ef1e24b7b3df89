"""Documents: which are accepted, which are refused, and that errors name member, cause and fix."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from nvgraft_specs import gallery
from nvgraft_specs.documents import SIZE_LIMIT, DocumentError
from nvgraft_specs.models import schema_path, schema_text
from nvgraft_specs.models.host import load_host, parse_host
from nvgraft_specs.models.plan import load_plan, parse_plan
from nvgraft_specs.models.schemas import MODELS

HOST: dict[str, Any] = {
    "schema": "nvgraft.host/1",
    "name": "tiny",
    "root": "/",
    "ld_so_cache": [["libcuda.so.1", "libc6,x86-64", "/usr/lib/libcuda.so.1"]],
    "nvml": {
        "driver_version": "535.0",
        "cuda_version": "12.2",
        "gpus": [
            {
                "minor": 0,
                "uuid": "GPU-1",
                "pci": {"domain": 0, "bus": 7, "device": 0},
                "brand": 14,
                "compute_capability": "8.0",
                "mig": "disabled",
                "model": "NVIDIA A100",
                "mig_devices": [],
            }
        ],
    },
    "char_majors": {"nvidia": 195},
    "files": {
        "/dev/nvidia0": {"type": "char", "mode": "0666", "uid": 0, "gid": 0, "rdev": [195, 0]},
        "/usr/lib/libcuda.so.1": {
            "type": "symlink",
            "uid": 0,
            "gid": 0,
            "target": "libcuda.so.535.0",
        },
    },
}
WHY = {"capability": "utility", "row": "nvidia-smi", "found": "on PATH"}
PLAN: dict[str, Any] = {
    "schema": "nvgraft.plan/1",
    "decision": "inject",
    "reason": "1 GPU",
    "host": {"name": "tiny", "root": "/", "driver_version": "535.0", "cuda_version": "12.2"},
    "request": {"devices": ["all"]},
    "target": {"rootfs": "/b/rootfs", "libs_dir": "/usr/lib64", "libs32_dir": "/usr/lib"},
    "actions": [
        {"op": "dir", "path": "/usr/bin", "mode": "0755", "why": WHY},
        {
            "op": "mount",
            "type": "bind",
            "kind": "device",
            "source": "/dev/nvidiactl",
            "target": "/dev/nvidiactl",
            "options": ["noexec", "nosuid", "ro"],
            "mode": "0666",
            "rdev": [195, 255],
            "why": WHY,
        },
        {
            "op": "mount",
            "type": "tmpfs",
            "source": "tmpfs",
            "target": "/proc/driver/nvidia",
            "options": ["nodev", "noexec", "nosuid", "rw"],
            "data": {"mode": "0555"},
            "why": WHY,
        },
        {
            "op": "file",
            "path": "/proc/driver/nvidia/version",
            "mode": "0444",
            "content": "x\n",
            "why": WHY,
        },
        {"op": "symlink", "path": "/usr/lib64/libcuda.so", "target": "libcuda.so.1", "why": WHY},
        {"op": "allow-device", "type": "c", "major": 195, "minor": 255, "access": "rw", "why": WHY},
        {"op": "ldcache", "dirs": ["/usr/lib64"], "why": WHY},
    ],
    "links": {"/usr/lib64/libcuda.so.1": "libcuda.so.535.0"},
    "findings": [
        {
            "id": "firmware-missing",
            "level": "warning",
            "message": "no firmware",
            "hint": "install it",
        }
    ],
}


def changed(document: dict[str, Any], path: str, value: object) -> bytes:
    """Replace a member of a document.

    :param path: keys and indices, separated by spaces.
    :param value: the new value; ``...`` removes the member.
    """
    result = json.loads(json.dumps(document))  # shares no WHY, unlike a deep copy
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split()]
    parent: Any = result
    for part in parents:
        parent = parent[part]
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return json.dumps(result).encode()


def test_host_keeps_unknown_members() -> None:
    """A newer snapshot may have more members, at every level."""
    raw = json.loads(changed(HOST, "cgroup", {"version": 2}))
    raw["nvml"]["gpus"][0]["serial"] = "7"
    host = parse_host(json.dumps(raw).encode(), "h.json")
    assert host.model_extra == {"cgroup": {"version": 2}}
    assert host.nvml.gpus[0].model_extra == {"serial": "7"}


def test_host_without_schema_is_version_one() -> None:
    """The hosts recorded with the reference have no schema member."""
    assert parse_host(changed(HOST, "schema", ...), "h.json").version == "nvgraft.host/1"


@pytest.mark.parametrize(
    ("path", "value", "where", "cause"),
    [
        ("nvml gpus 0 minor", "0", "$.nvml.gpus[0].minor", "valid integer"),
        ("nvml gpus 0 minor", True, "$.nvml.gpus[0].minor", "valid integer"),
        ("nvml gpus 0 minor", 10**30, "$.nvml.gpus[0].minor", "less than 1048576"),
        ("nvml gpus 0 mig_devices", ..., "$.nvml.gpus[0].mig_devices", "required"),
        ("nvml gpus 0 model", "two\nlines", "$.nvml.gpus[0].model", "pattern"),
        ("nvml gpus 0 pci bus", 256, "$.nvml.gpus[0].pci.bus", "less than or equal"),
        ("nvml driver_version", 535.0, "$.nvml.driver_version", "valid string"),
        ("files /dev/nvidia0 rdev", ..., "$.files['/dev/nvidia0'].rdev", "required"),
        ("files /dev/nvidia0 rdev", [195, "0"], "$.files['/dev/nvidia0'].rdev[1]", "valid integer"),
        ("files /dev/nvidia0 mode", "rw-rw-rw-", "$.files['/dev/nvidia0'].mode", "pattern"),
        ("files /dev/nvidia0 type", "door", "$.files['/dev/nvidia0']", "'door'"),
        ("files dev/nvidia0", {"type": "dir", "mode": "0755"}, "$.files['dev/nvidia0']", "pattern"),
        ("ld_so_cache 0", ["a", "b"], "$.ld_so_cache[0][2]", "required"),
        ("files", ..., "$.files", "required"),
        ("root", "run/nvidia", "$.root", "pattern"),
    ],
)
def test_host_errors_name_the_member(path: str, value: object, where: str, cause: str) -> None:
    """The error is one line with the file, the JSON path, the cause and the schema to look at."""
    with pytest.raises(DocumentError) as caught:
        parse_host(changed(HOST, path, value), "h.json")
    assert caught.value.where == where
    assert cause in caught.value.cause
    assert str(caught.value).startswith(f"h.json: {where}: ")
    assert "nvgraft.host-1.json" in caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"", "an empty file"),
        (b"9" * 5000, "a number with too many digits"),
        (b'{"name": "x"', "not JSON"),
        (b"\xff{}", "byte 0 is not UTF-8"),
        (b'{"name": NaN}', "NaN is not a JSON number"),
        (b"[" * 1000, "nested too deeply"),
        (b"[" * 100_000, "it has 100,000 values, more than 80,000"),
        (b"[]", "should be an object, is an array"),
        (b"null", "should be an object, is null"),
    ],
)
def test_text_that_is_not_a_document(raw: bytes, cause: str) -> None:
    """Truncated, binary and foreign JSON input is refused with one line."""
    with pytest.raises(DocumentError) as caught:
        parse_host(raw, "h.json")
    assert cause.lower() in caught.value.cause.lower()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["nvgraft.host/2", "nvgraft.host/1.1", "nvgraft.host/"])
def test_future_host_version_is_refused(version: str) -> None:
    """The fix is to upgrade nvgraft."""
    with pytest.raises(DocumentError, match="is not known") as caught:
        parse_host(changed(HOST, "schema", version), "h.json")
    assert caught.value.fix.startswith("upgrade nvgraft")


@pytest.mark.parametrize("version", ["nvgraft.plan/1", None, 1])
def test_other_kinds_of_document_are_refused(version: object) -> None:
    """A plan is not a host."""
    with pytest.raises(DocumentError, match=r"should be 'nvgraft\.host/1'"):
        parse_host(changed(HOST, "schema", version), "h.json")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """The error of a missing file or a directory has the system's reason."""
    with pytest.raises(DocumentError, match="no such file"):
        load_host(str(tmp_path / "none.json"))
    with pytest.raises(DocumentError, match="is a directory"):
        load_host(str(tmp_path))


def test_huge_files_are_refused(tmp_path: Path) -> None:
    """Only SIZE_LIMIT bytes are read into memory."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)
    with pytest.raises(DocumentError, match="larger than 8 MiB"):
        load_host(str(path))


def test_recorded_hosts_load_unchanged(records: Path) -> None:
    """Every host recorded with the reference loads, and is written back unchanged."""
    paths = sorted((records / "hosts").glob("*.json"))
    assert len(paths) >= 6
    for path in paths:
        host = load_host(str(path))
        assert host.name == path.stem
        assert json.loads(host.model_dump_json(by_alias=True, exclude_unset=True)) == json.loads(
            path.read_text()
        )


def test_plan_loads(tmp_path: Path) -> None:
    """A plan with every kind of action loads, and is written back unchanged."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert (
        json.loads(load_plan(str(path)).model_dump_json(by_alias=True, exclude_unset=True)) == PLAN
    )


#: Paths of an edited plan that must be refused (case T40).
EDITED = ("/../..", "/..", "/.", "/a/../b", "/a/./b", "//a", "/a//b", "/a/", "/a\0b", "a/../..", "")


@pytest.mark.parametrize("path", ["/", "/.a", "/..a", "/...", "/a.b/..c/.d", "/a b/\u00e9\n"])
def test_unusual_names_are_accepted(path: str) -> None:
    """A driver or an image may have them."""
    plan = json.loads(
        parse_plan(changed(PLAN, "actions 1 target", path), "p.json").model_dump_json()
    )
    assert plan["actions"][1]["target"] == path


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("extra", 1, "$.extra"),
        ("actions 0 owner", 0, "$.actions[0].owner"),
        ("actions 1 why found", ..., "$.actions[1].why.found"),
        ("actions 1 kind", "door", "$.actions[1].kind"),
        ("actions 1 target", "usr", "$.actions[1].target"),
        *(("actions 1 target", path, "$.actions[1].target") for path in EDITED),
        *(("actions 1 source", path, "$.actions[1].source") for path in EDITED),
        ("actions 0 path", "/a/..", "$.actions[0].path"),
        ("actions 1 options", ["suid"], "$.actions[1].options[0]"),
        ("actions 1 options", ["ro,bind=/"], "$.actions[1].options[0]"),
        ("actions 1 options", [], "$.actions[1].options"),
        ("actions 2 source", "none", "$.actions[2].source"),
        ("actions 5 major", -1, "$.actions[5].major"),
        ("decision", "maybe", "$.decision"),
        ("host rooot", "/", "$.host.rooot"),
    ],
)
def test_plan_errors_name_the_member(path: str, value: object, where: str) -> None:
    """Unknown members and wrong types are refused."""
    with pytest.raises(DocumentError) as caught:
        parse_plan(changed(PLAN, path, value), "p.json")
    assert caught.value.where == where


def test_plan_needs_its_schema() -> None:
    """Only a host may have no schema member."""
    with pytest.raises(DocumentError, match=r"should be 'nvgraft\.plan/1', is None"):
        parse_plan(changed(PLAN, "schema", ...), "p.json")


@pytest.mark.parametrize("schema", MODELS)
def test_shipped_schemas_are_current(schema: str) -> None:
    """The schema file equals the model's (python -m nvgraft_specs.models.schemas writes it)."""
    assert schema_path(schema).read_text() == schema_text(MODELS[schema], schema)


def test_schemas_judge_like_the_models() -> None:
    """The shipped schemas accept valid documents, and refuse a wrong type and an unknown action."""
    schemas = [
        json.loads(schema_path(name).read_text()) for name in ("nvgraft.host/1", "nvgraft.plan/1")
    ]
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)
    host, plan = map(jsonschema_rs.Draft202012Validator, schemas)
    for name in gallery.names():
        host.validate(json.loads(Path(gallery.path(name)).read_text()))
    host.validate(HOST)
    plan.validate(PLAN)
    assert not host.is_valid(json.loads(changed(HOST, "files /dev/nvidia0 rdev", ...)))
    assert not plan.is_valid(json.loads(changed(PLAN, "actions 0 op", "format")))
