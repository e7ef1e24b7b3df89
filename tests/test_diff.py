"""``nvgraft diff``: every kind of side and of change; nothing is ignored, bad input is one line."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bundles import EVERYTHING, make_bundle
from console import EXAMPLES
from images import docker_save, link
from nvgraft.plan.document import plan_document
from nvgraft_cli.case.specifications import parse_specification
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
from nvgraft_specs.models.diff import Change, Diff
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

REFERENCE = Path(__file__).parent / "fixtures/reference"
NOTHING = Context(None, (), None, None)


def plan_of(tmp_path: Path, host: str, *env: str) -> Document:
    bundle = make_bundle(tmp_path / f"b-{len(list(tmp_path.iterdir()))}", *(env or EVERYTHING))
    plan, refusal = plan_bundle(str(bundle), host, None)
    assert refusal is None
    document: Document = json.loads(json.dumps(plan_document(plan)))
    document["target"]["rootfs"] = "/rootfs"
    return document


def diff(a: Document, b: Document) -> Diff:
    return compare(plan_side("a", a, "plan"), plan_side("b", b, "plan"))


def changes(difference: Diff, what: str) -> list[Change]:
    return [change for change in difference.changes if change.what == what]


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
    if isinstance(value, list):
        return ["changed"]
    if isinstance(value, dict):
        return {"/changed": "x"} if path == ("links",) else {"changed": "x"}
    return value + "x"


def test_a_plan_is_equal_to_itself(tmp_path: Path) -> None:
    """A plan for any host of the gallery is equal to itself."""
    for host in gallery.with_hook():
        document = plan_of(tmp_path, host)
        difference = diff(document, copy.deepcopy(document))
        assert difference.equal
        assert difference.changes == []
        assert difference.not_compared == []


def test_no_member_of_a_plan_is_ignored(tmp_path: Path) -> None:
    """A plan differs after a change of any single member but the host's name, and without any
    single action.
    """
    document = plan_of(tmp_path, "mig-h100", *EVERYTHING)
    for path in leaves(document):
        if path[-1] in {"op", "schema"} or path == ("host", "name"):
            continue
        changed = copy.deepcopy(document)
        parent = changed
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = other(parent[path[-1]], path)
        if path[0] == "actions" and path[-1] == "kind":
            parent["kind"] = "socket"
        assert not diff(document, changed).equal, path
    for index in range(len(document["actions"])):
        changed = copy.deepcopy(document)
        if changed["actions"].pop(index)["op"] != "ldcache":
            assert not diff(document, changed).equal, index


def test_a_driver_upgrade_is_a_change_of_versions(tmp_path: Path) -> None:
    """An upgrade of the driver gives changes of kind version only."""
    old = plan_of(tmp_path, "runfile-a10x2")
    new = json.loads(json.dumps(old).replace("560.35.03", "570.10"))
    difference = diff(old, new)
    assert {change.kind for change in difference.changes} == {"version"}
    libcuda = next(change for change in changes(difference, "mount") if change.name == "libcuda.so")
    assert isinstance(libcuda.a, dict)
    assert isinstance(libcuda.b, dict)
    assert (libcuda.a["target"], libcuda.b["target"]) == tuple(
        f"/usr/lib/x86_64-linux-gnu/libcuda.so.{v}" for v in ("560.35.03", "570.10")
    )
    assert {change.name for change in changes(difference, "fact")} == {"host.driver_version"}


def test_a_longer_version_is_another_version(tmp_path: Path) -> None:
    """The version 535.1 is not found in the text 535.12."""
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
def test_the_kind_of_a_change(change: Any, what: str, kind: str, name: str, tmp_path: Path) -> None:
    """Other options or sources are changed, another directory is moved, another name is removed."""
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
    """Two exchanged actions are one change of the order."""
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
    difference = diff(document, changed)
    assert [(change.what, change.kind) for change in difference.changes] == [("order", "order")]


def mountinfo_of(document: Document, prefix: str = "") -> str:
    """Return the mountinfo of a container after a plan is applied."""
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
            options = ",".join([*action["options"], "relatime"])
            target = f"{prefix}{action['target']}"
            lines.append(f"{10 + number} 1 0:1 {source} {target} {options} - {action['type']} x rw")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("prefix", ["", "/var/lib/x/rootfs"])
def test_a_live_container_is_compared_with_its_plan(prefix: str, tmp_path: Path) -> None:
    """A container equals its plan, seen from inside or by the hook.

    Aspects that mountinfo lacks are not compared.
    """
    document = plan_of(tmp_path, "mig-h100")
    difference = compare(
        plan_side("plan", document, "plan"), mountinfo_side("live", mountinfo_of(document, prefix))
    )
    assert [change.model_dump() for change in difference.changes] == []
    assert {entry.what for entry in difference.not_compared} >= {
        "device rules",
        "links",
        "files",
        "directories",
        "facts",
    }


def test_changed_mounts_of_a_live_container_are_found(tmp_path: Path) -> None:
    """A missing mount is removed, and one with other options is changed."""
    document = plan_of(tmp_path, "runfile-a10x2")
    text = mountinfo_of(document)
    lines = [line for line in text.splitlines() if "/usr/bin/nvidia-smi " not in line]
    lines = [
        line.replace("nodev,nosuid,ro", "nodev,nosuid,rw") if "libcuda.so" in line else line
        for line in lines
    ]
    difference = compare(
        plan_side("plan", document, "plan"), mountinfo_side("live", "\n".join(lines))
    )
    assert [(change.kind, change.name, change.fields) for change in difference.changes] == [
        ("changed", "libcuda.so", ["options"]),
        ("removed", "nvidia-smi", []),
    ]


@pytest.mark.parametrize("name", ["compute", "graphics", "mig"])
def test_a_debug_log_is_compared_with_the_container_that_it_made(name: str) -> None:
    """A log has its container's mounts and devices; firmware 1.15 is moved by a link."""
    side = log_side("log", (REFERENCE / f"logs/{name}.log").read_text())
    live = mountinfo_side("live", (REFERENCE / f"logs/{name}.mountinfo").read_text())
    assert len(side.mounts) + len(side.nodes) > 8
    difference = compare(side, live)
    assert {(change.kind, change.name.partition("_")[0]) for change in difference.changes} <= {
        ("moved", "gsp"),
        ("order", "mount 1"),
    }


def test_a_debug_log_of_a_driver_root_below_dev() -> None:
    """A target in /dev is a device node; a source in /dev need not be one."""
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
    """A specification gives the same side in JSON and in YAML."""
    raw = (REFERENCE / "cdi/d535.json").read_bytes()
    path = tmp_path / f"nvidia.{form}"
    path.write_text(raw.decode() if form == "json" else yaml.safe_dump(json.loads(raw)))
    difference = compare(
        read_side(str(path), NOTHING), cdi_side("same", parse_specification(raw, "x"), "all")
    )
    assert difference.equal
    single = read_side(str(path), Context(None, (), None, "0"))
    difference = compare(read_side(str(path), NOTHING), single)
    assert {change.name for change in changes(difference, "device node")} == {
        f"/dev/nvidia{number}" for number in range(1, 8)
    }


def test_files_move_between_legacy_and_cdi(tmp_path: Path) -> None:
    """The hook mounts all libraries in one directory, CDI keeps the driver's directories."""
    legacy = plan_side("legacy", plan_of(tmp_path, "debian-a100x8"), "plan")
    difference = compare(
        legacy,
        cdi_side("cdi", parse_specification((REFERENCE / "cdi/d535.json").read_bytes(), "x"), None),
    )
    moved = next(change for change in changes(difference, "mount") if change.name == "libcuda.so")
    assert moved.kind == "moved"
    assert isinstance(moved.b, dict)
    assert moved.b["target"] == "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.309.01"
    assert {entry.what for entry in difference.not_compared} >= {"the order of mounts"}
    assert {change.name for change in changes(difference, "environment variable")} == {
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_CTK_LIBCUDA_DIR",
    }


# ---- the command line


def test_equal_is_exit_0_and_different_is_exit_1(tmp_path: Path, capsys: Captured) -> None:
    """Equal sides exit with 0 and different ones with 1, as in diff(1)."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert main(["diff", "eks-t4", "eks-t4", "--bundle", bundle]) == 0
    assert capsys.readouterr().out.endswith("\nequal\n")
    assert main(["diff", "eks-t4", "runfile-a10x2", "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert "\ndriver        460.106.00 → 560.35.03\nCUDA          11.2 → 12.6\n" in out
    assert "\n  + device node /dev/nvidia1\n" in out
    assert "\x1b" not in out
    main(["diff", "eks-t4", "runfile-a10x2", "--bundle", bundle, "--all"])
    out = capsys.readouterr().out
    assert (
        "\n  ~ libcuda.so: source /usr/lib64/libcuda.so.460.106.00 → "
        "/usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03; mode "
    ) in out
    assert "\n  + /dev/nvidia1 at /dev/nvidia1 (noexec,nosuid,ro)\n" in out


def test_version_changes_are_folded(tmp_path: Path, capsys: Captured) -> None:
    """Changes of versions are folded unless --all is given; the exit code is the same."""
    old = plan_of(tmp_path, "runfile-a10x2")
    (tmp_path / "old.json").write_text(json.dumps(old))
    (tmp_path / "new.json").write_text(json.dumps(old).replace("560.35.03", "570.10"))
    arguments = ["diff", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert main(arguments) == 1
    folded = capsys.readouterr().out
    assert "differ only in the version (560.35.03 → 570.10): " in folded
    assert "libcuda.so.570.10" not in folded
    assert main([*arguments, "--all"]) == 1
    assert "\n  ^ libcuda.so: libcuda.so.560.35.03 → libcuda.so.570.10\n" in capsys.readouterr().out


def test_json_and_markdown_list_the_same_changes(tmp_path: Path, capsys: Captured) -> None:
    """JSON follows the model and lists the changes that Markdown lists."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    words = ["diff", "debian-a100x8", "debian-compat32", "--bundle", bundle]
    main([*words, "--format", "json"])
    difference = Diff.model_validate_json(capsys.readouterr().out)
    assert not difference.equal
    main([*words, "--format", "markdown", "--all"])
    out = capsys.readouterr().out
    assert out.count("\n- ") == len(difference.changes)
    assert "| **A** | `debian-a100x8` | host |" in out
    assert "| driver | **535.309.01 → 535.261.03** | |" in out


def part(out: str, title: str) -> list[str]:
    """Return the lines of one part of the text."""
    lines = out.split("\n")
    start = lines.index(title) + 1
    return lines[start : lines.index("", start)]


def lines_of(out: str) -> dict[str, str]:
    """Return the summary: what -> its words."""
    rows = (line.partition("  ") for line in out.split("\n") if "  " in line)
    return {what: words.strip() for what, _, words in rows if what}


def test_two_refusals_say_so_first(tmp_path: Path, capsys: Captured) -> None:
    """Two refusals are told in the first line: exit 0 for the same words, 1 for different ones."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=99.0"))
    assert main(["diff", "eks-t4", "runfile-a10x2", "--bundle", bundle]) == 0
    out = capsys.readouterr().out
    assert out.startswith("both refuse: nvgraft: requirement error: unsatisfied condition: cuda>=")
    assert not out.endswith("\nequal\n")
    assert lines_of(out)["driver"] == "460.106.00 → 560.35.03"
    assert "GPUs" not in lines_of(out)  # no plan was made that names them
    plans = []
    for name in ("one", "two"):
        document = plan_of(tmp_path, "eks-t4") | {"decision": "refuse", "reason": name}
        plans.append(str(tmp_path / f"{name}.json"))
        (tmp_path / f"{name}.json").write_text(json.dumps(document | {"actions": [], "links": {}}))
    assert main(["diff", *plans]) == 1
    assert capsys.readouterr().out.startswith("both refuse: A: one; B: two\n")
    assert main(["diff", *plans, "--format", "markdown"]) == 1
    assert capsys.readouterr().out.startswith("**both refuse: A: one; B: two**\n")


def test_a_container_that_gets_nothing_requests_no_capability(
    tmp_path: Path, capsys: Captured
) -> None:
    """The capabilities of a skipped container are known: there are none."""
    nothing = str(make_bundle(tmp_path / "a", "NVIDIA_VISIBLE_DEVICES=void"))
    some = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert main(["diff", "--host", "eks-t4", nothing, some]) == 1
    summary = lines_of(capsys.readouterr().out)
    assert summary["capabilities"].startswith("none → ")
    assert summary["GPUs"].startswith("none → ")


@pytest.mark.parametrize("hosts", [("eks-t4", "mig-h100"), ("mig-h100", "eks-t4"), ("eks-t4",) * 2])
def test_a_refusal_is_exit_2_where_it_must_inject(
    hosts: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    """With --require-inject a refusal on either side is exit 2, and stderr names the side."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=12.0"))
    assert main(["diff", *hosts, "--bundle", bundle, "--require-inject"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("nvgraft diff: eks-t4: refuse: nvgraft: requirement error: ")
    assert "refuse: " in out
    assert main(["diff", "mig-h100", "mig-h100", "--bundle", bundle, "--require-inject"]) == 0


def test_the_outcome_and_its_reason_come_first(tmp_path: Path, capsys: Captured) -> None:
    """The summary tells that B refuses and why; the plan's parts are then counted, not listed."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=12.0"))
    assert main(["diff", "mig-h100", "eks-t4", "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    summary = lines_of(out)
    assert summary["outcome"].startswith("inject → refuse: nvgraft: requirement error: unsatisfied")
    assert summary["GPUs"].endswith(" → none (refused)")
    assert summary["CUDA"] == "12.8 → 11.2"
    assert all(line.endswith("(--all)") for line in part(out, "gone"))


def test_a_directory_that_moved_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    """All files of a directory that moved are one line, on the host and in the container."""
    document = plan_of(tmp_path, "runfile-a10x2")
    old, new = "/usr/lib/x86_64-linux-gnu", "/opt/driver"
    text = json.dumps(document)
    (tmp_path / "a.json").write_text(text)
    for changed, where in (
        (text.replace(f'"source": "{old}/', f'"source": "{new}/'), "on the host"),
        (text.replace(f'"target": "{old}/', f'"target": "{new}/'), "in the container"),
    ):
        (tmp_path / "b.json").write_text(changed)
        assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
        moved = part(capsys.readouterr().out, "moved")
        assert len(moved) == 1
        assert moved[0].startswith(f"  > {old} → {new} {where}: ")


def test_reasons_and_modes_are_for_all(tmp_path: Path, capsys: Captured) -> None:
    """Entries that differ in reason or mode alone are counted; --all lists them. The exit code is
    that of different sides.
    """
    document = plan_of(tmp_path, "runfile-a10x2")
    changed = copy.deepcopy(document)
    smi = next(a for a in changed["actions"] if a.get("target") == "/usr/bin/nvidia-smi")
    smi["mode"] = "0700"
    smi["why"]["found"] = "elsewhere"
    for name, content in (("a.json", document), ("b.json", changed)):
        (tmp_path / name).write_text(json.dumps(content))
    words = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert part(out, "details") == ["  ~ 1 mount: only reasons, modes or notes, which --all lists"]
    assert main([*words, "--all"]) == 1
    assert "→ [elsewhere]" in capsys.readouterr().out


def test_the_name_of_a_host_is_a_label(capsys: Captured, tmp_path: Path) -> None:
    """Nodes that differ in their names alone are equal, and so are the plans for them."""
    document = json.loads(Path(gallery.path("eks-t4")).read_text()) | {"name": "node17"}
    (tmp_path / "node17.json").write_text(json.dumps(document))
    assert main(["diff", "eks-t4", str(tmp_path / "node17.json")]) == 0
    assert capsys.readouterr().out.endswith("equal\n")
    plans: list[str] = []
    for host in ("eks-t4", str(tmp_path / "node17.json")):
        plans.append(str(tmp_path / f"plan{len(plans)}.json"))
        words = ["--host", host, "--container", str(EXAMPLES / "one-gpu"), "--format", "json"]
        assert main(["plan", *words, "-o", plans[-1]]) == 0
    assert main(["diff", *plans]) == 0


def test_the_legend_explains_the_marks_that_are_used(tmp_path: Path, capsys: Captured) -> None:
    """The legend has the marks of this answer and no others."""
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["nvml"]["gpus"][0]["model"] = "NVIDIA T4G"
    (tmp_path / "t4g.json").write_text(json.dumps(document))
    main(["diff", "eks-t4", str(tmp_path / "t4g.json")])
    assert capsys.readouterr().out.endswith("\n~ changed from A to B\n")
    main(["diff", "eks-t4", "mig-h100"])
    assert "\n- only in A; + only in B; > in another directory; " in capsys.readouterr().out


def test_hosts_are_compared_without_a_container(capsys: Captured) -> None:
    """Two hosts are compared by their inventories and by the documentation's containers."""
    assert main(["diff", "eks-t4", "eks-t4"]) == 0
    assert capsys.readouterr().out.endswith("\nequal\n")
    assert main(["diff", "debian-a100x8", "debian-compat32"]) == 1
    out = capsys.readouterr().out
    assert lines_of(out)["GPUs"] == "8 x NVIDIA A100-SXM4-40GB → 2 x NVIDIA RTX A6000"
    assert lines_of(out)["example one-gpu"] == "inject (both)"
    assert lines_of(out)["example shell"].startswith("skip: not a GPU container: ")
    assert "  - device node /dev/nvidia7" in part(out, "gone")
    assert any("libcudadebugger.so.535.309.01" in line for line in part(out, "gone"))
    assert main(["diff", "eks-t4", "mig-h100"]) == 1
    moved = part(capsys.readouterr().out, "moved")
    assert moved[0].startswith("  > /usr/lib64 → /usr/lib/x86_64-linux-gnu: 6 driver files: ")


@pytest.mark.parametrize("bundle", [False, True])
def test_another_architecture_is_told_first(bundle: bool, tmp_path: Path, capsys: Captured) -> None:
    """Drivers of two architectures may have one version: what moved is no upgrade."""
    case = ["--bundle", str(make_bundle(tmp_path / "b", *EVERYTHING))] if bundle else []
    assert main(["diff", "h100-580", "gb200-580", *case]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("architecture ")]
    assert row == ["architecture", "x86_64", "→", "aarch64"]
    assert main(["diff", "h100-580", "h100-550", *case]) == 1
    assert "architecture" not in capsys.readouterr().out


def test_changes_that_are_alike_have_one_line(capsys: Captured) -> None:
    """Eight GPUs of another model are one line; --all has one for each."""
    assert main(["diff", "h100-550", "b200-580"]) == 1
    (line,) = [line for line in part(capsys.readouterr().out, "details") if "GPU" in line]
    assert line == (
        "  ~ 8 GPUs (0, 1, 2 and 5 more): model NVIDIA H100 80GB HBM3 → NVIDIA B200; "
        "compute capability 9.0 → 10.0"
    )
    main(["diff", "h100-550", "b200-580", "--all"])
    assert capsys.readouterr().out.count("compute capability 9.0 → 10.0") == 8
    assert main(["diff", "debian-compat32", "debian-a10g-index"]) == 1
    assert any(line.startswith("  ~ GPU 0: ") for line in capsys.readouterr().out.splitlines())


def test_a_side_that_is_no_file_is_taken_for_a_host(capsys: Captured) -> None:
    """A name that is none of a file is near that of a host."""
    assert main(["diff", "eks-t5", "eks-t4"]) == 2
    error = capsys.readouterr().err
    assert "there is no simulated host and no file 'eks-t5'; did you mean eks-t4? | " in error
    assert main(["diff", "/none/eks-t5", "eks-t4"]) == 2
    assert "/none/eks-t5: cannot be read: no such file or directory" in capsys.readouterr().err


def test_a_directory_of_another_version_that_moved_is_one_line(
    tmp_path: Path, capsys: Captured
) -> None:
    """Libraries whose SONAME has the version in it, and firmware whose place in the container has
    it, are one line for each directory of the host.
    """
    main(["diff", "eks-t4", "runfile-a10x2"])
    out = capsys.readouterr().out
    (moved,) = part(out, "moved")
    assert moved.startswith("  > /usr/lib64 → /usr/lib/x86_64-linux-gnu: 21 driver files: ")
    assert "  > " not in "\n".join(part(out, "details"))
    text = Path(gallery.path("runfile-a10x2")).read_text().replace("560.35.03", "565.57.01")
    document = json.loads(text.replace("/usr/lib/firmware/", "/opt/firmware/"))
    link = {"type": "symlink", "target": "/opt/firmware"}
    document["files"]["/usr/lib/firmware"] = link
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    assert main(["diff", "runfile-a10x2", str(other)]) == 1
    (moved,) = part(capsys.readouterr().out, "moved")
    assert moved.endswith(": 2 driver files: gsp_ga10x.bin, gsp_tu10x.bin")


def test_containers_are_sides(tmp_path: Path, capsys: Captured) -> None:
    """A bundle, a config.json and an image archive are sides with --host."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    other = make_bundle(tmp_path / "c", "NVIDIA_VISIBLE_DEVICES=0")
    host = ["--host", "runfile-a10x2"]
    assert main(["diff", str(bundle), str(bundle), *host]) == 0
    assert main(["diff", str(bundle), str(bundle / "config.json"), *host]) == 0
    capsys.readouterr()
    assert main(["diff", str(bundle), str(other), *host]) == 1
    out = capsys.readouterr().out
    assert f"A  {bundle}: container\n" in out
    assert lines_of(out)["GPUs"] == "2 x NVIDIA A10 → 1 x NVIDIA A10"
    image = docker_save(tmp_path / "web", [("usr", None)], config={"Env": list(EVERYTHING)})
    assert main(["diff", image, str(other), *host]) == 1
    assert lines_of(capsys.readouterr().out)["GPUs"] == "2 x NVIDIA A10 → 1 x NVIDIA A10"


def test_where_a_container_lies_is_no_difference(tmp_path: Path, capsys: Captured) -> None:
    """Two copies of a container get the same, or are refused with the same words."""
    host = ["--host", "runfile-a10x2"]
    usr, in_the_way = ("usr", None), ("usr/bin/nvidia-smi", link("sh"))
    layers: list[list[tuple[str, Any]]] = [[usr], [usr, in_the_way]]
    for number, layer in enumerate(layers):
        copies = [
            docker_save(tmp_path / f"{name}{number}.tar", layer, config={"Env": list(EVERYTHING)})
            for name in ("a", "b")
        ]
        assert main(["diff", *copies, *host]) == 0
        out = capsys.readouterr().out
        assert "rootfs" not in out
        assert out.startswith("both refuse: nvgraft: mount error: ") is bool(number)
    bundles = [str(make_bundle(tmp_path / name, *EVERYTHING)) for name in ("c", "d")]
    assert main(["diff", *bundles, *host]) == 0


def test_a_specification_knows_no_capabilities(tmp_path: Path, capsys: Captured) -> None:
    """The summary says that a CDI specification does not contain the capabilities."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    specification = str(REFERENCE / "cdi/d535.json")
    assert main(["diff", "debian-a100x8", specification, "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert lines_of(out)["capabilities"].endswith(
        " (A; not known of B: a CDI specification does not contain them)"
    )
    inside = "/usr/lib/x86_64-linux-gnu → /usr/lib/x86_64-linux-gnu/nvidia/current"
    (line,) = [line for line in part(out, "moved") if line.startswith(f"  > {inside} in the cont")]
    assert " mounts, " in line
    assert " links: " in line


# ---- what a name alone does not tell

WIDE, NARROW = "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [(f"{WIDE}/nvidia/current", f"{NARROW}/nvidia/current"), ("/usr/lib64", "/usr/lib")],
)
def test_a_32_bit_library_is_not_the_64_bit_one_elsewhere(
    wide: str, narrow: str, tmp_path: Path
) -> None:
    """Libraries and links for 32-bit programs have moved to a directory of such, or are gone."""
    both = plan_of(tmp_path, "debian-compat32")
    names = json.dumps(both).replace(f"{WIDE}/", f"{wide}/").replace(f"{NARROW}/", f"{narrow}/")
    moved = json.loads(names)
    for one, other in ((both, moved), (moved, both)):
        pairs = [entry for entry in diff(one, other).changes if entry.kind == "moved"]
        assert {"mount", "link", "SONAME link"} == {entry.what for entry in pairs}
        for entry in pairs:
            assert isinstance(entry.a, dict)
            assert isinstance(entry.b, dict)
            old, new = (
                str(Path(str(side.get("path", side["target"]))).parent)
                for side in (entry.a, entry.b)
            )
            assert (old in {NARROW, narrow}) == (new in {NARROW, narrow}), entry
    alone = copy.deepcopy(moved)
    alone["actions"] = [
        action
        for action in moved["actions"]
        if not str(action.get("path", action.get("target", ""))).startswith(f"{narrow}/lib")
    ]
    alone["links"] = {
        path: link for path, link in moved["links"].items() if not path.startswith(f"{narrow}/lib")
    }
    difference = diff(both, alone)
    gone = {entry.name for entry in changes(difference, "SONAME link") if entry.kind == "removed"}
    assert gone
    assert all(path.startswith(NARROW) for path in gone)


def test_a_socket_of_another_service_has_not_moved(tmp_path: Path) -> None:
    """The sockets of two services have one name, and so have the files of two MIG devices."""
    document = plan_of(tmp_path, "runfile-a10x2")
    one, other = (
        {
            **document,
            "actions": [
                action for action in document["actions"] if name not in str(action.get("target"))
            ],
        }
        for name in ("fabricmanager/socket", "persistenced/socket")
    )
    assert [entry.kind for entry in changes(diff(one, other), "mount")] == ["removed", "added"]
    moved = json.loads(json.dumps(one).replace("/run/nvidia-persist", "/var/run/nvidia-persist"))
    assert [entry.kind for entry in changes(diff(one, moved), "mount")] == ["moved"]
    first, second = (
        plan_of(tmp_path, "mig-h100", f"NVIDIA_VISIBLE_DEVICES=0:{number}") for number in (0, 1)
    )
    difference = diff(first, second)
    assert {entry.kind for entry in changes(difference, "mount")} == {"removed", "added"}


def test_mig_devices_are_told_with_their_gpu(tmp_path: Path, capsys: Captured) -> None:
    """A part of a GPU is not the whole one, and a GPU in MIG mode alone is not usable."""
    bundles = [
        str(make_bundle(tmp_path / name, f"NVIDIA_VISIBLE_DEVICES={devices}"))
        for name, devices in (("a", "0:0"), ("b", "1"), ("c", "0"), ("d", "all"))
    ]
    told = []
    for bundle in bundles[1:]:
        assert main(["diff", "--host", "mig-h100", bundles[0], bundle]) == 1
        told.append(lines_of(capsys.readouterr().out)["GPUs"])
    h100 = "NVIDIA H100 80GB HBM3"
    part_of = f"1 x {h100} (MIG 3g.40gb)"
    assert told == [
        f"{part_of} → 1 x {h100}",
        f"{part_of} → 1 x {h100} (no MIG device)",
        f"{part_of} → 1 x {h100} (MIG 3g.40gb, 2g.20gb, 1g.10gb), 1 x {h100}",
    ]
    main(["diff", "mig-h100", "h100-580"])
    assert lines_of(capsys.readouterr().out)["GPUs"] == (
        f"1 x {h100} (MIG 3g.40gb, 2g.20gb, 1g.10gb), 1 x {h100} → 8 x {h100}"
    )


@pytest.mark.parametrize(
    ("host", "mode", "gpus"),
    [
        ("jetson-orin", "csv", "none (refused) → 1 x integrated GPU"),
        ("wsl2-rtx3090", "jit-cdi", "none (refused) → 1 x NVIDIA GeForce RTX 3090"),
    ],
)
def test_gpus_without_a_node_of_their_own_are_counted(
    host: str, mode: str, gpus: str, tmp_path: Path, capsys: Captured
) -> None:
    """A Tegra board has its GPU, and WSL2 has one node for all GPUs of the host."""
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all"))
    assert main(["diff", "--mode", f"legacy,{mode}", bundle, "--host", host]) == 1
    assert lines_of(capsys.readouterr().out)["GPUs"] == gpus


def test_the_gpu_of_a_tegra_board_is_told_without_a_container(capsys: Captured) -> None:
    """NVML does not name it, but the board is known by its files."""
    assert main(["diff", "jetson-orin", "eks-t4"]) == 1
    assert lines_of(capsys.readouterr().out)["GPUs"] == "1 x integrated GPU → 1 x Tesla T4"


# ---- the words of the short answer


def test_what_comes_with_another_entry_is_counted(tmp_path: Path, capsys: Captured) -> None:
    """The links of a library, the rule of a node and the directories above a mount are one line.
    A link whose library is still there is a line of its own, as all are with --all.
    """
    document = plan_of(tmp_path, "debian-compat32", "NVIDIA_VISIBLE_DEVICES=all")
    gone = ("libcuda.so", "/dev/nvidia1", "0000:0f:00.0", "'minor': 1,")
    fewer = copy.deepcopy(document)
    fewer["actions"] = [
        action for action in document["actions"] if not any(name in str(action) for name in gone)
    ]
    for name in ("libcuda.so.1", "libnvidia-cfg.so.1"):
        del fewer["links"][f"{WIDE}/{name}"]
    for name, side in (("a.json", document), ("b.json", fewer)):
        (tmp_path / name).write_text(json.dumps(side))
    sides = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert main(["diff", *sides]) == 1
    assert part(capsys.readouterr().out, "gone") == [
        f"  - mount {WIDE}/libcuda.so.535.261.03",
        "  - mount /proc/driver/nvidia/gpus/0000:0f:00.0",
        "  - device node /dev/nvidia1",
        "  - device rule c 510:1",
        f"  - SONAME link {WIDE}/libnvidia-cfg.so.1 -> libnvidia-cfg.so.535.261.03",
        "  - with them 1 device rule, 1 link, 1 SONAME link, 1 directory (--all)",
    ]
    assert main(["diff", "--all", *sides]) == 1
    assert len(part(capsys.readouterr().out, "2 SONAME links")) == 2


def test_a_refusal_tells_the_requirement_that_it_is_about(tmp_path: Path, capsys: Captured) -> None:
    """The requirements of a side that refuses are known; what its plan lacks is not news."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=12.0"))
    assert main(["diff", "eks-t4", "mig-h100", "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert lines_of(out)["requirements"] == "cuda>=12.0 (both)"
    assert not any(" fact" in line for line in part(out, "new"))
    plan = tmp_path / "refused.json"
    main(["plan", "--container", bundle, "--host", "eks-t4", "--format", "json", "-o", str(plan)])
    capsys.readouterr()
    assert main(["diff", str(plan), str(REFERENCE / "cdi/d535.json")]) == 1
    assert all(line.endswith("(--all)") for line in part(capsys.readouterr().out, "new"))


def test_all_that_moved_between_two_directories_is_one_line(
    tmp_path: Path, capsys: Captured
) -> None:
    """Mounts and links of one directory have a line together, wherever the files come from."""
    document = plan_of(tmp_path, "debian-compat32", "NVIDIA_VISIBLE_DEVICES=all")
    text = json.dumps(document)
    (tmp_path / "a.json").write_text(text)
    for member in ("target", "path"):
        text = text.replace(f'"{member}": "{WIDE}/', f'"{member}": "/usr/lib64/')
    links = json.loads(text)
    links["links"] = {
        path.replace(WIDE, "/usr/lib64"): link for path, link in document["links"].items()
    }
    (tmp_path / "b.json").write_text(json.dumps(links))
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    (moved,) = part(capsys.readouterr().out, "moved")
    assert moved.startswith(f"  > {WIDE} → /usr/lib64 in the container: ")
    assert " mounts, 1 link, " in moved
    everywhere = json.dumps(document).replace(f"{WIDE}/", "/opt/driver/")
    everywhere = everywhere.replace("/opt/driver/nvidia/current/", "/opt/driver/")
    plain = json.dumps(document).replace(f"{WIDE}/nvidia/current/", f"{WIDE}/")
    (tmp_path / "a.json").write_text(plain)
    (tmp_path / "b.json").write_text(everywhere)
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    moved = part(capsys.readouterr().out, "moved")[0]
    assert moved.startswith(f"  > {WIDE} → /opt/driver on the host and in the container: ")


def test_other_devices_are_told_once(tmp_path: Path, capsys: Captured) -> None:
    """What a container asks for is one line, not again its variable and the reason."""
    one, other = (
        str(make_bundle(tmp_path / devices, f"NVIDIA_VISIBLE_DEVICES={devices}"))
        for devices in ("0", "1")
    )
    assert main(["diff", one, other, "--host", "runfile-a10x2"]) == 1
    facts = [line for line in part(capsys.readouterr().out, "details") if " fact " in line]
    assert facts == ["  ~ fact request.devices: 0 → 1"]


def test_a_gpu_that_is_gone_is_told_with_its_model(capsys: Captured) -> None:
    """The number of a GPU alone says little."""
    assert main(["diff", "debian-compat32", "eks-t4"]) == 1
    assert "  - GPU 1: NVIDIA RTX A6000" in part(capsys.readouterr().out, "gone")


def test_the_kernels_own_files_are_not_gone_with_a_specification(
    tmp_path: Path, capsys: Captured
) -> None:
    """With a CDI specification a container sees the kernel's /proc/driver/nvidia: not compared."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    specification = str(REFERENCE / "cdi/d535.json")
    assert main(["diff", "debian-a100x8", specification, "--bundle", bundle]) == 1
    out = capsys.readouterr().out
    assert "not compared: /proc/driver/nvidia: CDI edits leave the kernel's own" in out
    assert not any("/proc/driver/nvidia" in line for line in part(out, "gone"))


def test_a_side_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    """A file whose reading fails, and the error that nvgraft has written in place of an answer."""
    assert main(["diff", "/proc/self/mem", "eks-t4"]) == 2
    assert "/proc/self/mem: cannot be read: input/output error" in capsys.readouterr().err
    written = tmp_path / "plan.json"
    nowhere = str(tmp_path / "nowhere")
    assert main(["plan", "--container", nowhere, "--host", "eks-t4", "--format", "json"]) == 2
    written.write_text(capsys.readouterr().out)
    assert main(["diff", str(written), "eks-t4"]) == 2
    assert (
        f"{written}: nvgraft plan has failed and written its error: {nowhere}: no such file"
        in capsys.readouterr().err
    )


def test_what_is_not_known_without_gpus_is_told(tmp_path: Path, capsys: Captured) -> None:
    """Two drivers without GPUs are compared in their files, and the answer says so."""
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["nvml"]["gpus"] = []
    document |= {"without_gpus": True, "char_majors": {}}
    document["files"] = {
        path: entry
        for path, entry in document["files"].items()
        if not path.startswith(("/dev", "/proc"))
    }
    host = tmp_path / "driver.json"
    host.write_text(json.dumps(document))
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    for words in ([], ["--container", bundle]):
        assert main(["diff", str(host), str(host), *words]) == 0
        out = capsys.readouterr().out
        assert "GPUs" in out
        assert "both drivers were recorded without GPUs" in out
    assert main(["diff", "eks-t4", str(host), "--container", bundle]) == 0
    order = "the order of mounts: a driver recorded without GPUs does not define it"
    assert order in capsys.readouterr().out


def test_a_simulated_hosts_procfs_is_no_difference(tmp_path: Path) -> None:
    """The tmpfs /proc/driver of a simulated host is in the live plan and in the container, and not
    in the plan of the recorded host: all are equal.
    """
    recorded = plan_of(tmp_path, "eks-t4")
    live = copy.deepcopy(recorded)
    first = next(
        index
        for index, action in enumerate(live["actions"])
        if action.get("target") == "/proc/driver/nvidia"
    )
    tmpfs = copy.deepcopy(live["actions"][first]) | {"target": "/proc/driver"}
    live["actions"].insert(first, tmpfs)
    container = mountinfo_side("live", mountinfo_of(live))
    for document in (live, recorded):
        difference = compare(plan_side("plan", document, "plan"), container)
        assert [change.model_dump() for change in difference.changes] == []
    assert not diff(live, recorded).equal


def test_nodes_that_a_runtime_has_made_are_not_missing(tmp_path: Path, capsys: Captured) -> None:
    """docker, and a runtime with CDI edits, make the device nodes: no mount shows them."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    live = tmp_path / "mountinfo"
    document = plan_of(tmp_path, "runfile-a10x2")
    lines = mountinfo_of(document).splitlines(keepends=True)
    live.write_text("".join(line for line in lines if " /dev/nvidia" not in line))
    assert main(["diff", bundle, str(live), "--host", "runfile-a10x2"]) == 0
    out = capsys.readouterr().out
    assert lines_of(out)["GPUs"] == "2 x NVIDIA A10 (A; not known of B)"
    why = "a mountinfo shows those that are mounted, and has none"
    assert f"not compared: device nodes: {why}" in out


def test_this_process_is_a_live_container(capsys: Captured) -> None:
    """This process has no mount of the driver; a missing process is an input error."""
    assert main(["diff", "pid:1", "pid:1"]) == 0
    for name, words in (
        ("pid:x", "not a process number"),
        ("pid:4999999", "no such file or directory | name a running process"),
    ):
        assert main(["diff", name, "pid:1"]) == 2
        assert words in capsys.readouterr().err


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file | pass a plan"),
    "text": (b"hello\n", "an unknown format | pass a plan"),
    "truncated json": (b'{"schema": "nvgraft.plan/1", "actions": [', "not JSON"),
    "future plan": (b'{"schema": "nvgraft.plan/2"}', "version 'nvgraft.plan/2' is not known"),
    "future host": (b'{"schema": "nvgraft.host/7"}', "version 'nvgraft.host/7' is not known"),
    "another document": (b'{"schema": "nvgraft.matrix/1"}', "$.schema: nvgraft.matrix/1"),
    "plan with nothing": (b'{"schema": "nvgraft.plan/1"}', "$.decision"),
    "future cdi": (
        b'{"cdiVersion": "9.0.0"}',
        "cdiVersion: invalid version '9.0.0' | upgrade nvgraft",
    ),
    "cdi with junk": (
        b'{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": 3}',
        "devices: is number instead of array",
    ),
    "yaml bomb": (b"cdiVersion: 0.5.0\n" + BOMB.encode(), "values, as its aliases are followed"),
    "yaml code": (b"cdiVersion: !!python/object/apply:os.system ['false']\n", "not YAML"),
    "broken yaml": (b"cdiVersion: 0.5.0\n  devices: [\n", "not YAML"),
    "broken mountinfo": (
        b"1 0 0:1 / / rw - ext4 x rw\n2 1 0:1 / /proc/driver/nvidia rw\n",
        "line 2: not a line of mountinfo",
    ),
    "log of list": (
        b"I1120 21:31:38.877648 14936 nvc.c:393] initializing library context\n",
        "this log contains no mount",
    ),
    "deep json": (b"[" * 1000, "nested too deeply"),
    "many values": (b"[" * 100_000, "it has 100,000 values, more than 80,000"),
}


@pytest.mark.parametrize(("raw", "words"), BAD.values(), ids=BAD)
def test_a_bad_document_is_one_line(
    raw: bytes, words: str, tmp_path: Path, capsys: Captured
) -> None:
    """A bad document on either side is one line with path and cause, and exit 2."""
    path = tmp_path / "bad"
    path.write_bytes(raw)
    for arguments in ([str(path), "pid:1"], ["pid:1", str(path)]):
        assert main(["diff", *arguments, "--bundle", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"nvgraft diff: {path}:")
        assert words in err
        assert err.count("\n") == 1


def test_a_side_that_is_no_container_is_named(tmp_path: Path, capsys: Captured) -> None:
    """The error for a directory that is none names the side, or the option that gave it."""
    for words, named in (
        (["eks-t4", str(tmp_path)], "for B, pass a plan, a host snapshot, a container"),
        ([str(tmp_path), "eks-t4"], "for A, pass a plan, a host snapshot, a container"),
        (["eks-t4", "eks-t4", "--container", str(tmp_path)], "--container must name a bundle"),
        (["--mode", "hook,cdi", "--container", str(tmp_path)], "for --container, pass a plan"),
    ):
        assert main(["diff", *words, "--host", "eks-t4"]) == 2
        error = capsys.readouterr().err
        assert f"{tmp_path}: has neither a config.json nor a root file system: {named}" in error


def test_a_document_of_200_mb_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    """A document over 8 MiB is refused without being read whole."""
    path = tmp_path / "huge.json"
    with open(path, "wb") as file:
        file.truncate(200 << 20)
    assert main(["diff", str(path), "pid:1"]) == 2
    assert "larger than 8 MiB" in capsys.readouterr().err


def test_a_host_needs_a_container(capsys: Captured) -> None:
    """A host without a container cannot be compared with a plan; a device that a specification
    lacks is an input error.
    """
    assert main(["diff", "eks-t4", "pid:1"]) == 2
    assert "name the container with --container PATH" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"no device 9 \| pass --device one of 0, GPU-"):
        read_side(str(REFERENCE / "cdi/al460.json"), Context(None, (), None, "9"))


def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: Captured) -> None:
    """Control characters in names are escaped in text and in Markdown's code."""
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


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: main
    env: [{name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}]
    resources: {limits: {alpha.kubernetes.io/nvidia-gpu: 2}}
    volumeMounts:
    - {name: cuda, mountPath: /usr/local/nvidia/lib64/libcuda.so.1, readOnly: true}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - {name: cuda, hostPath: {path: /usr/lib64/libcuda.so.460.106.00}}
  - {name: scratch, emptyDir: {}}
"""


def test_a_pod_that_mounts_the_driver_itself(tmp_path: Path, capsys: Captured) -> None:
    """Its hostPath volumes are mounts, and the kubelet gives it the nodes of the GPUs that it asks
    for; as YAML and as JSON.
    """
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "pod.json").write_text(json.dumps(yaml.safe_load(POD)))
    (tmp_path / "none.yaml").write_text(POD.replace(": 2}", ": 0}"))
    assert main(["diff", str(tmp_path / "pod.yaml"), str(tmp_path / "pod.json")]) == 0
    capsys.readouterr()
    words = [str(tmp_path / "none.yaml"), str(tmp_path / "pod.yaml")]
    assert main(["diff", "--all", *words]) == 1
    out = capsys.readouterr().out
    assert "driver  460.106.00 (both)\nGPUs    none → 2\n" in out
    assert "+ /dev/nvidia1 at /dev/nvidia1\n" in out
    assert "libcuda" not in out
    assert "scratch" not in out


@pytest.mark.parametrize(
    "pod",
    [
        {"kind": "Pod"},
        {"kind": "Pod", "spec": {"containers": []}},
        {"kind": "Pod", "spec": {"containers": [{"volumeMounts": [{}]}]}},
        {"kind": "Pod", "spec": {"containers": ["x"]}},
        {"kind": "Pod", "spec": {"containers": [{"resources": {"limits": {"alpha.kubernetes.io/nvidia-gpu": "x"}}}]}},
        {"kind": "Pod", "spec": {"containers": [{}], "volumes": [{"hostPath": 1}]}},
    ],
)  # fmt: skip
def test_a_pod_that_cannot_be_read(pod: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    """One line with cause and fix."""
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    assert main(["diff", str(tmp_path / "pod.json"), "eks-t4"]) == 2
    assert "pod.json: not a pod that can be read: " in capsys.readouterr().err


def test_a_pod_for_the_device_plugin_is_sent_to_the_planner(
    tmp_path: Path, capsys: Captured
) -> None:
    """It names a number of GPUs, but no file of the driver."""
    (tmp_path / "pod.yaml").write_text(
        POD.replace("alpha.kubernetes.io/nvidia-gpu", "nvidia.com/gpu")
    )
    assert main(["diff", str(tmp_path / "pod.yaml"), "eks-t4"]) == 2
    assert "| plan it, and compare the plan: nvgraft plan --pod" in capsys.readouterr().err
