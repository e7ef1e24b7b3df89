"""``nvgraft diff``: every kind of side, every kind of change, nothing ignored, and one line for what cannot be read."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bundles import EVERYTHING, make_bundle
from nvgraft_cli.case.planning import plan_bundle
from nvgraft_cli.diff.compare import compare
from nvgraft_cli.diff.readers import (
    Context,
    cdi_side,
    log_side,
    mountinfo_side,
    plan_side,
    read_side,
)
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from nvgraft_specs.models.cdi import parse_cdi
from nvgraft_specs.models.diff import Change, Diff

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

REFERENCE = Path(__file__).parent / "fixtures/reference"
NOTHING = Context(None, (), None, None)


def plan_of(tmp_path: Path, host: str, *env: str) -> Document:
    bundle = make_bundle(tmp_path / f"b-{len(list(tmp_path.iterdir()))}", *(env or EVERYTHING))
    plan, refusal = plan_bundle(str(bundle), host, None)
    assert refusal is None
    document: Document = json.loads(json.dumps(plan.document()))
    document["target"]["rootfs"] = "/rootfs"
    return document


def diff(a: Document, b: Document) -> Diff:
    return compare(plan_side("a", a, "plan"), plan_side("b", b, "plan"))


def changes(found: Diff, what: str) -> list[Change]:
    return [change for change in found.changes if change.what == what]


def leaves(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(document, dict):
        return [
            leaf for key, value in document.items() for leaf in leaves(value, (*path, key))
        ] or [path]
    if isinstance(document, list):
        return [
            leaf for index, value in enumerate(document) for leaf in leaves(value, (*path, index))
        ] or [path]
    return [path]


def other(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a different value of the same kind."""
    if isinstance(value, bool) or value is None:
        return "changed"
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list | dict):
        return (
            ["changed"]
            if isinstance(value, list)
            else {"/changed": "x"}
            if path == ("links",)
            else {"changed": "x"}
        )
    return value + "x"


def test_a_plan_is_equal_to_itself(tmp_path: Path) -> None:
    """On every gallery host."""
    for host in gallery.names():
        document = plan_of(tmp_path, host)
        found = diff(document, copy.deepcopy(document))
        assert found.equal
        assert found.changes == []
        assert found.not_compared == []


def test_no_member_of_a_plan_is_ignored(tmp_path: Path) -> None:
    """Whichever single member of a whole plan is changed, the plans differ; so do they when an action is left out."""
    document = plan_of(tmp_path, "mig-h100", *EVERYTHING)
    for path in leaves(document):
        if path[-1] in {"op", "schema"}:
            continue
        changed = copy.deepcopy(document)
        place = changed
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = other(place[path[-1]], path)
        if path[0] == "actions" and path[-1] == "kind":
            place["kind"] = "socket"
        assert not diff(document, changed).equal, path
    for index in range(len(document["actions"])):
        changed = copy.deepcopy(document)
        if changed["actions"].pop(index)["op"] != "ldcache":
            assert not diff(document, changed).equal, index


def test_a_driver_upgrade_is_a_change_of_versions(tmp_path: Path) -> None:
    """What differs in the version alone is called so, and nothing else is."""
    old = plan_of(tmp_path, "runfile-a10x2")
    new = json.loads(json.dumps(old).replace("560.35.03", "570.10"))
    found = diff(old, new)
    assert {change.kind for change in found.changes} == {"version"}
    libcuda = next(change for change in changes(found, "mount") if change.name == "libcuda.so")
    assert isinstance(libcuda.a, dict)
    assert isinstance(libcuda.b, dict)
    assert (libcuda.a["target"], libcuda.b["target"]) == tuple(
        f"/usr/lib/x86_64-linux-gnu/libcuda.so.{v}" for v in ("560.35.03", "570.10")
    )
    assert {change.name for change in changes(found, "fact")} == {"host.driver_version"}


def test_a_version_that_is_part_of_another_is_not_it(tmp_path: Path) -> None:
    """535.1 is not in 535.12."""
    old = plan_of(tmp_path, "runfile-a10x2")
    text = json.dumps(old).replace("560.35.03", "535.1")
    a, b = json.loads(text), json.loads(text.replace("nvidia-smi", "nvidia-smi-535.12"))
    assert "version" not in {change.kind for change in diff(a, b).changes}


@pytest.mark.parametrize(
    ("change", "what", "kind", "name"),
    [
        (
            lambda action: action.update(options=["nodev", "nosuid", "rw"]),
            "mount",
            "changed",
            "nvidia-smi",
        ),
        (
            lambda action: action.update(target="/opt/bin/nvidia-smi"),
            "mount",
            "moved",
            "nvidia-smi",
        ),
        (lambda action: action.update(target="/usr/bin/other"), "mount", "removed", "nvidia-smi"),
        (lambda action: action.update(source="/opt/nvidia-smi"), "mount", "changed", "nvidia-smi"),
    ],
)
def test_a_change_is_called_by_what_it_means(
    change: Any, what: str, kind: str, name: str, tmp_path: Path
) -> None:
    """Other options, another place, another name."""
    document = plan_of(tmp_path, "runfile-a10x2")
    changed = copy.deepcopy(document)
    change(
        next(
            action for action in changed["actions"] if action.get("target") == "/usr/bin/nvidia-smi"
        )
    )
    assert (kind, name) in {
        (entry.kind, entry.name) for entry in changes(diff(document, changed), what)
    }


def test_the_order_counts(tmp_path: Path) -> None:
    """The same actions, two of them exchanged: one change, which says where."""
    document = plan_of(tmp_path, "runfile-a10x2")
    changed = copy.deepcopy(document)
    mounts = [
        index
        for index, action in enumerate(document["actions"])
        if action["op"] == "mount" and action.get("kind") == "file"
    ]
    first, second = mounts[:2]
    actions = changed["actions"]
    actions[first], actions[second] = actions[second], actions[first]
    found = diff(document, changed)
    assert [(change.what, change.kind) for change in found.changes] == [("order", "order")]


def mountinfo_of(document: Document, prefix: str = "") -> str:
    """Return the mountinfo of a container that a plan has configured."""
    lines = [
        "1 0 0:1 / / rw,relatime - overlay overlay rw",
        "2 1 0:2 / /proc rw - proc proc rw",
        f"3 1 0:3 / {prefix}/etc/hosts rw - ext4 x rw",
    ]
    for number, action in enumerate(document["actions"]):
        if action["op"] == "mount":
            source = (
                "/"
                if action["type"] == "tmpfs"
                else action["source"].removeprefix("/dev").removeprefix("/proc/driver")
            )
            options = ",".join(action["options"])
            lines.append(
                f"{10 + number} 1 0:1 {source} {prefix}{action['target']} {options},relatime - {action['type']} x rw"
            )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("prefix", ["", "/var/lib/x/rootfs"])
def test_a_live_container_is_compared_with_its_plan(prefix: str, tmp_path: Path) -> None:
    """From inside or from the hook's view: equal, and it is said what a mountinfo does not tell."""
    document = plan_of(tmp_path, "mig-h100")
    found = compare(
        plan_side("plan", document, "plan"), mountinfo_side("live", mountinfo_of(document, prefix))
    )
    assert [change.model_dump() for change in found.changes] == []
    assert {entry.what for entry in found.not_compared} >= {
        "device rules",
        "links",
        "files",
        "facts",
    }


def test_a_mount_that_a_live_container_lost_is_told(tmp_path: Path) -> None:
    """And one that the engine made, or whose flags were changed."""
    document = plan_of(tmp_path, "runfile-a10x2")
    text = mountinfo_of(document)
    lines = [line for line in text.splitlines() if "/usr/bin/nvidia-smi " not in line]
    lines = [
        line.replace("nodev,nosuid,ro", "nodev,nosuid,rw") if "libcuda.so" in line else line
        for line in lines
    ]
    found = compare(plan_side("plan", document, "plan"), mountinfo_side("live", "\n".join(lines)))
    assert [(change.kind, change.name, change.fields) for change in found.changes] == [
        ("changed", "libcuda.so", ["options"]),
        ("removed", "nvidia-smi", []),
    ]


@pytest.mark.parametrize("name", ["compute", "graphics", "mig"])
def test_a_debug_log_is_compared_with_the_container_that_it_made(name: str) -> None:
    """The recorded pairs: the same mounts, devices and order; firmware, which 1.15 mounts through a link, has moved by it."""
    side = log_side("log", (REFERENCE / f"logs/{name}.log").read_text())
    live = mountinfo_side("live", (REFERENCE / f"logs/{name}.mountinfo").read_text())
    assert len(side.mounts) + len(side.nodes) > 8
    found = compare(side, live)
    assert {(change.kind, change.name.partition("_")[0]) for change in found.changes} <= {
        ("moved", "gsp"),
        ("order", "mount 1"),
    }


def test_a_debug_log_of_a_driver_root_below_dev() -> None:
    """What goes to /dev is a device node; what comes from there need not be one."""
    mounts = {
        "/dev/shm/x/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
        "/dev/nvidia0": "/dev/nvidia0",
    }
    lines = [f"mounting {source} at /r{target}" for source, target in mounts.items()]
    head = "I0101 00:00:00.000000 1 nvc_mount.c:1] "
    side = log_side("log", "\n".join(head + line for line in ["setting rootfs to /r", *lines]))
    assert list(side.nodes) == ["/dev/nvidia0"]
    assert [mount.source for mount in side.mounts.values()] == ["/dev/shm/x/usr/bin/nvidia-smi"]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_cdi_specification_is_read_in_both_forms(form: str, tmp_path: Path) -> None:
    """To the same side."""
    raw = (REFERENCE / "cdi/d535.json").read_bytes()
    path = tmp_path / f"nvidia.{form}"
    path.write_text(raw.decode() if form == "json" else yaml.safe_dump(json.loads(raw)))
    found = compare(read_side(str(path), NOTHING), cdi_side("same", parse_cdi(raw, "x"), "all"))
    assert found.equal
    one = compare(read_side(str(path), NOTHING), read_side(str(path), Context(None, (), None, "0")))
    assert {change.name for change in changes(one, "device node")} == {
        f"/dev/nvidia{number}" for number in range(1, 8)
    }


def test_legacy_against_cdi_is_told_as_files_that_move(tmp_path: Path) -> None:
    """The hook flattens the driver's directories, CDI keeps them."""
    legacy = plan_side("legacy", plan_of(tmp_path, "debian-a100x8"), "plan")
    found = compare(
        legacy, cdi_side("cdi", parse_cdi((REFERENCE / "cdi/d535.json").read_bytes(), "x"), None)
    )
    moved = next(change for change in changes(found, "mount") if change.name == "libcuda.so")
    assert moved.kind == "moved"
    assert isinstance(moved.b, dict)
    assert moved.b["target"] == "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.309.01"
    assert {entry.what for entry in found.not_compared} >= {"the order of mounts"}
    assert {change.name for change in changes(found, "environment variable")} == {
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_CTK_LIBCUDA_DIR",
    }


# ---- the command line


def test_equal_is_exit_0_and_different_is_exit_1(tmp_path: Path, capsys: Captured) -> None:
    """As diff(1)."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert main(["diff", "eks-t4", "eks-t4", "--bundle", bundle]) == 0
    assert capsys.readouterr().out.endswith("\nequal\n")
    assert main(["diff", "eks-t4", "runfile-a10x2", "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert (
        "\n  ~ libcuda.so: source /usr/lib64/libcuda.so.460.106.00 → /usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03; "
        in out
    )
    assert "\n  + /dev/nvidia1 at /dev/nvidia1 (noexec,nosuid,ro)\n" in out
    assert "\x1b" not in out


def test_what_only_the_version_changes_is_folded(tmp_path: Path, capsys: Captured) -> None:
    """--all unfolds it; the exit code is the same."""
    old = plan_of(tmp_path, "runfile-a10x2")
    (tmp_path / "old.json").write_text(json.dumps(old))
    (tmp_path / "new.json").write_text(json.dumps(old).replace("560.35.03", "570.10"))
    arguments = ["diff", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert main(arguments) == 1
    folded = capsys.readouterr().out
    assert "differ in the version alone (560.35.03 → 570.10): " in folded
    assert "libcuda.so.570.10" not in folded
    assert main([*arguments, "--all"]) == 1
    assert "\n  ^ libcuda.so: libcuda.so.560.35.03 → libcuda.so.570.10\n" in capsys.readouterr().out


def test_json_passes_the_model_and_markdown_is_for_pull_requests(
    tmp_path: Path, capsys: Captured
) -> None:
    """Both tell the same changes."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    main(["diff", "debian-a100x8", "debian-compat32", "--bundle", bundle, "--format", "json"])
    found = Diff.model_validate_json(capsys.readouterr().out)
    assert not found.equal
    main(
        [
            "diff",
            "debian-a100x8",
            "debian-compat32",
            "--bundle",
            bundle,
            "--format",
            "markdown",
            "--all",
        ]
    )
    out = capsys.readouterr().out
    assert out.count("\n- ") == len(found.changes)
    assert "| **A** | `debian-a100x8` | snapshot, driver 535.309.01 |" in out


def test_this_process_is_a_live_container(capsys: Captured) -> None:
    """One without any mount of the driver; a process that is not there is an input error."""
    assert main(["diff", "pid:1", "pid:1"]) == 0
    for name, words in (
        ("pid:x", "no process number"),
        ("pid:4999999", "no such file or directory: name a running process"),
    ):
        assert main(["diff", name, "pid:1"]) == 2
        assert words in capsys.readouterr().err


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "text": (b"hello\n", "not known what it is"),
    "truncated json": (b'{"schema": "nvgraft.plan/1", "actions": [', "not JSON"),
    "future plan": (b'{"schema": "nvgraft.plan/2"}', "version 'nvgraft.plan/2' is not known"),
    "future host": (b'{"schema": "nvgraft.host/7"}', "version 'nvgraft.host/7' is not known"),
    "another document": (b'{"schema": "nvgraft.matrix/1"}', "$.schema: nvgraft.matrix/1"),
    "plan with nothing": (b'{"schema": "nvgraft.plan/1"}', "$.decision"),
    "future cdi": (b'{"cdiVersion": "9.0.0"}', "$.cdiVersion: version '9.0.0' is not known"),
    "cdi with junk": (
        b'{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": 3}',
        "$.devices",
    ),
    "yaml bomb": (b"cdiVersion: 0.5.0\n" + BOMB.encode(), "aliases are not read"),
    "yaml code": (b"cdiVersion: !!python/object/apply:os.system ['false']\n", "not YAML"),
    "broken yaml": (b"cdiVersion: 0.5.0\n  devices: [\n", "not YAML"),
    "broken mountinfo": (
        b"1 0 0:1 / / rw - ext4 x rw\n2 1 0:1 / /proc/driver/nvidia rw\n",
        "line 2: not a line of mountinfo",
    ),
    "log of list": (
        b"I1120 21:31:38.877648 14936 nvc.c:393] initializing library context\n",
        "this log tells of no mount",
    ),
    "deep json": (b"[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize(("raw", "words"), BAD.values(), ids=BAD)
def test_a_bad_document_is_one_line(
    raw: bytes, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """Exit 2, with path and cause, whichever side it is."""
    path = tmp_path / "bad"
    path.write_bytes(raw)
    for arguments in ([str(path), "pid:1"], ["pid:1", str(path)]):
        assert main(["diff", *arguments, "--bundle", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"nvgraft diff: {path}: ")
        assert words in err
        assert err.count("\n") == 1


def test_a_document_of_200_mb_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    """It is not read to its end."""
    path = tmp_path / "huge.json"
    with open(path, "wb") as file:
        file.truncate(200 << 20)
    assert main(["diff", str(path), "pid:1"]) == 2
    assert "larger than 64 MiB" in capsys.readouterr().err


def test_a_host_alone_has_no_plan(capsys: Captured) -> None:
    """The container has to be named; a device that a specification lacks, too."""
    assert main(["diff", "eks-t4", "mig-h100"]) == 2
    assert "name the container with --bundle PATH" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"it has no device 9: --device takes one of 0, GPU-"):
        read_side(str(REFERENCE / "cdi/al460.json"), Context(None, (), None, "9"))


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    """Nor break out of Markdown's code."""
    document = plan_of(tmp_path, "runfile-a10x2")
    evil = copy.deepcopy(document)
    evil["actions"][-2]["why"]["row"] = "x\x1b[31m`|<b>"
    for name, content in (("a.json", document), ("b.json", evil)):
        (tmp_path / name).write_text(json.dumps(content))
    for form in ("text", "markdown"):
        assert (
            main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--format", form])
            == 1
        )
        assert "\x1b" not in capsys.readouterr().out
