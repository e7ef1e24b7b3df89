"""Plans of containers that the runtime starts with CDI edits: modes jit-cdi, cdi and csv."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bundles import make_bundle
from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.cdi.reader import SpecificationFile
from nvgraft.cdi.specification import HookProgram
from nvgraft.plan.actions import Injection
from nvgraft.plan.document import action_document
from nvgraft.plan.edit_actions import RunHook
from nvgraft.request.config import Config
from nvgraft.request.decision import Decision
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.edits import Edited, Origin
from nvgraft_cli.case.edits_plan import plan_edits, requested
from nvgraft_cli.case.hosts import HostSide, read_snapshot
from nvgraft_cli.case.planning import Case
from nvgraft_cli.case.specifications import read_specifications
from nvgraft_cli.cdi.planned import planned_spec
from nvgraft_cli.diff.readers import cdi_side
from nvgraft_cli.shell.main import main
from nvgraft_specs import cdi_hooks
from nvgraft_specs.models.plan import parse_plan
from nvgraft_specs.names import HOOK_TIMEOUT

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
Captured = pytest.CaptureFixture[str]


def planned(capsys: Captured, *words: str, code: int = 0) -> dict[str, Any]:
    """Return the checked document of a plan."""
    assert main(["plan", "--format", "json", *words]) == code
    out = capsys.readouterr().out
    parse_plan(out.encode(), "plan")
    document: dict[str, Any] = json.loads(out)
    return document


def of(document: dict[str, Any], op: str) -> list[dict[str, Any]]:
    """Return the actions with an operation."""
    return [action for action in document["actions"] if action["op"] == op]


def test_generated_devices_are_a_plan(capsys: Captured) -> None:
    """Mode jit-cdi gives all of the driver, and variables and a hook; the hook's steps are actions
    too, the loader cache included.
    """
    plan = planned(
        capsys,
        "--container",
        str(EXAMPLES / "one-gpu"),
        "--host",
        "runfile-a10x2",
        "--mode",
        "jit-cdi",
    )
    targets = {action["target"] for action in of(plan, "mount")}
    assert "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.560.35.03" in targets
    assert {"/dev/nvidia0", "/dev/nvidiactl"} <= targets
    assert "/dev/nvidia1" not in targets
    assert {action["name"]: action["value"] for action in of(plan, "env")}[
        "NVIDIA_VISIBLE_DEVICES"
    ] == "void"
    (hook,) = of(plan, "hook")
    assert hook["stage"] == "createContainer"
    assert {"create-symlinks", "update-ldcache"} <= set(hook["args"])
    links = {action["path"]: action["target"] for action in of(plan, "symlink")}
    assert links["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == "libcuda.so.560.35.03"
    assert of(plan, "ldcache")


@pytest.mark.parametrize(
    "host", ["runfile-a10x2", "eks-t4", "operator-driver-root", "debian-a100x8"]
)
def test_the_loader_finds_the_driver_as_in_mode_legacy(host: str, capsys: Captured) -> None:
    """The same program loads the same file of the host in both modes."""
    found = []
    for mode in ("legacy", "jit-cdi", "cdi"):
        words = ["prove", "--container", str(EXAMPLES / "training"), "--host", host, "--mode", mode]
        words += ["--env", "NVIDIA_DISABLE_REQUIRE=1", "--format", "json"]
        assert main(words) == 0
        file = json.loads(capsys.readouterr().out)["proofs"][0]["file"]
        # CDI keeps the host's directory, the hook takes that of the image.
        found.append({**file, "path": Path(file["path"]).name})
    assert found[0] == found[1] == found[2]


def test_a_group_for_a_node_that_only_its_group_may_open(capsys: Captured) -> None:
    """The operation has the number of the group."""
    host = HostSide("eks-t4", Config(), read_snapshot("eks-t4"))
    node = CdiNode("/dev/nvidia0", major=195, mode=0o660)
    with open_container(str(EXAMPLES / "one-gpu")) as container:
        target = container.target("x86_64", module=True)
        decision = Decision("inject", "asked", request=requested(container, host.config))
        edited = Edited(CdiEdits(nodes=[node], gids=[44, 44]))
        plan = plan_edits([edited], host, decision, target, (0, 0))
    groups = [action for action in plan.actions if action.op == "group"]
    assert [vars(action)["gid"] for action in groups] == [44]


def plan_of(edits: CdiEdits) -> Injection:
    """Plan edits for an example container on a host of the gallery."""
    host = HostSide("eks-t4", Config(), read_snapshot("eks-t4"))
    with open_container(str(EXAMPLES / "one-gpu")) as container:
        target = container.target("x86_64", module=True)
        decision = Decision("inject", "asked", request=requested(container, host.config))
        edited = Edited(edits, Origin("/etc/cdi/nvidia.yaml", "nvidia.com/gpu", "0"))
        plan = plan_edits([edited], host, decision, target, (1000, 1001))
    assert isinstance(plan, Injection)
    return plan


def test_a_node_is_made_as_the_edits_say() -> None:
    """A node has its type, mode and owner, by default those of the process; its rule has the access
    that the edits name, by default to make nodes, too. A FIFO has no rule, and equal rules are one.
    """
    nodes = [
        CdiNode("/dev/a", host_path="/dev/nvidia0", major=195, mode=0o100640, uid=7, gid=44),
        CdiNode("/dev/b", type="c", major=195, minor=0),
        CdiNode("/dev/c", type="b", major=7, minor=1, permissions="r", uid=0),
        CdiNode("/dev/d", type="p", mode=0o600),
    ]
    actions = [action_document(action) for action in plan_of(CdiEdits(nodes=nodes)).actions]
    made = [action for action in actions if action["op"] == "mount"]
    of_nodes = ("target", "source", "node", "rdev", "mode", "uid", "gid")
    assert [[action[name] for name in of_nodes] for action in made] == [
        ["/dev/a", "/dev/nvidia0", "c", [195, 0], "0640", 7, 44],
        ["/dev/b", "/dev/b", "c", [195, 0], "0666", 1000, 1001],
        ["/dev/c", "/dev/c", "b", [7, 1], "0666", 0, 1001],
        ["/dev/d", "/dev/d", "p", [0, 0], "0600", 1000, 1001],
    ]
    rules = [action for action in actions if action["op"] == "allow-device"]
    of_rules = ("type", "major", "minor", "access")
    assert [[action[name] for name in of_rules] for action in rules] == [
        ["c", 195, 0, "rwm"],
        ["b", 7, 1, "r"],
    ]


def test_mounts_of_other_file_systems() -> None:
    """A tmpfs is one of the plan, with the mode that a runtime gives it; another file system is
    named.
    """
    mounts = [
        CdiMount("tmpfs", "/opt/a", ("nosuid", "mode=1777"), "tmpfs"),
        CdiMount("none", "/opt/b", ("ro",), "tmpfs"),
        CdiMount("/dev/x", "/opt/c", ("ro",), "ext4"),
        CdiMount("/etc", "/opt/d", ("ro", "rbind"), "none"),
    ]
    plan = plan_of(CdiEdits(mounts=mounts))
    made = [action_document(action) for action in plan.actions if action.op == "mount"]
    assert [(a["type"], a["target"], a["options"], a.get("data")) for a in made] == [
        ("tmpfs", "/opt/a", ["nosuid", "rw"], {"mode": "1777"}),
        ("tmpfs", "/opt/b", ["ro"], {"mode": "0755"}),
        ("bind", "/opt/d", ["ro"], None),
    ]
    assert [finding.id for finding in plan.findings] == ["cdi-edit-not-shown"]


def test_edits_without_an_action() -> None:
    """Network interfaces and resource control, which NVIDIA's devices do not use, are findings."""
    plan = plan_of(CdiEdits(net_devices=[("mlx0", "rdma0")], intel_rdt={"closID": "x"}))
    assert plan.actions == ()
    assert [finding.message.partition(" is of")[0] for finding in plan.findings] == [
        "the network interface mlx0 as rdma0",
        "linux.intelRdt",
    ]


def test_a_specification_of_edits_lacks_nothing() -> None:
    """`--format cdi` writes the edits as they are: variables, groups, owners, options, and hooks of
    anybody.
    """
    whole = CdiEdits(
        env=["A=b"],
        nodes=[CdiNode("/dev/nvidia0", type="c", major=195, mode=0o640, uid=7, permissions="rw")],
        hooks=[CdiHook("poststop", "/opt/x/hook", ("hook", "do"), ("C=d",), 7)],
        mounts=[CdiMount("/etc", "/opt/d", ("ro", "rbind", "rslave"))],
        gids=[44],
    )
    written = planned_spec(plan_of(whole), None)
    assert written.left_out == []
    assert [device.edits for device in written.document.devices] == [whole]


@pytest.mark.parametrize("each", [False, True])
def test_another_program_for_the_hooks_of_a_specification(each: bool) -> None:
    """--nvidia-cdi-hook-path names the program of the known steps, which gets each in a hook of its
    own; hooks of strangers stay.
    """
    steps = [["create-symlinks", "--link", "x::/y"], ["update-ldcache", "--folder", "/z"]]
    stranger = CdiHook("createContainer", "/opt/x/hook", ("hook", "do"))
    hooks = HookProgram("/usr/bin/nvgraft-cdi-hook", together=not each).hooks(steps)
    document = planned_spec(plan_of(CdiEdits(hooks=[*hooks, stranger])), "/bin/nvidia-ctk").document
    assert [hook.args for hook in document.devices[0].edits.hooks] == [
        ("nvidia-ctk", "hook", *steps[0]),
        ("nvidia-ctk", "hook", *steps[1]),
        ("hook", "do"),
    ]


@pytest.mark.parametrize(
    ("settings", "words"), [({}, {"steps"}), ({"cdi_hooks": "each"}, {*cdi_hooks.ALL_STEPS})]
)
def test_the_hooks_are_those_of_the_runtime(settings: dict[str, Any], words: set[str]) -> None:
    """The program, one hook or one for each step, environment and time limit are as in
    config.json.
    """
    host = HostSide("runfile-a10x2", Config(**settings), read_snapshot("runfile-a10x2"))
    with open_container(str(EXAMPLES / "one-gpu")) as container:
        plan = Case(host, container, "jit-cdi").outcome[0]
    runs = [action for action in plan.actions if isinstance(action, RunHook)]
    assert {run.args[1] for run in runs} == words
    assert {(run.path, run.env, run.timeout) for run in runs} == {
        ("/usr/bin/nvgraft-cdi-hook", cdi_hooks.ENVIRONMENT, HOOK_TIMEOUT)
    }


@pytest.mark.parametrize("mode", ["cdi", "runtime"])
def test_devices_of_annotations(mode: str, tmp_path: Path, capsys: Captured) -> None:
    """The plan has the devices that annotations name, and says so; those of variables do not
    count.
    """
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0")
    config = bundle / "config.json"
    document = json.loads(config.read_text())
    document["annotations"] = {"cdi.k8s.io/x": "nvidia.com/gpu=1"}
    config.write_text(json.dumps(document))
    words = ["--container", str(bundle), "--host", "runfile-a10x2", "--mode", mode]
    plan = planned(capsys, *words)
    assert plan["request"]["devices"] == ["nvidia.com/gpu=1"]
    assert plan["request"]["devices_from"] == "annotation cdi.k8s.io/x"
    nodes = {action["target"] for action in of(plan, "mount") if "node" in action}
    assert "/dev/nvidia1" in nodes
    assert "/dev/nvidia0" not in nodes


def test_the_loader_searches_what_its_configuration_names(tmp_path: Path) -> None:
    """An image whose ld.so.conf does not include ld.so.conf.d gets the driver's files, but its
    loader does not find those of another directory, as with the reference.
    """
    folder = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_9c2f6e0b1a7d4c35"
    host = HostSide("wsl2-rtx3090", Config(), read_snapshot("wsl2-rtx3090"))
    found: list[dict[str, str]] = []
    for line in ("/usr/lib64", "include /etc/ld.so.conf.d/*.conf"):
        bundle = make_bundle(tmp_path / str(len(found)), "NVIDIA_VISIBLE_DEVICES=all")
        (bundle / "rootfs/etc").mkdir(exist_ok=True)
        (bundle / "rootfs/etc/ld.so.conf").write_text(f"{line}\n")
        with open_container(str(bundle)) as container:
            found.append(dict(Case(host, container, "jit-cdi").outcome[0].links))
    assert found == [{}, {f"{folder}/libcuda.so.1": "libcuda_loader.so"}]


def test_a_stale_specification() -> None:
    """A mount of a file that is gone is what engines refuse after an upgrade of the driver."""
    gone = CdiMount("/usr/lib64/libcuda.so.450.1", "/usr/lib64/libcuda.so.450.1", ("ro",))
    with pytest.raises(Refusal) as caught:
        plan_of(CdiEdits(mounts=[gone]))
    assert (
        caught.value.text
        == 'failed to mount "/usr/lib64/libcuda.so.450.1": no such file or directory'
    )
    assert caught.value.hint.startswith("/etc/cdi/nvidia.yaml is older than the driver: write it")


def test_a_file_that_the_document_of_the_host_lacks() -> None:
    """A recorded host need not have all files of its specification: one of its own driver, or of no
    version, is left out with a finding.
    """
    there = [f"/usr/lib64/{name}" for name in ("libX.so.460.106.00", "x.json", "libX.so.1.2")]
    plan = plan_of(CdiEdits(mounts=[CdiMount(path, path, ("ro",)) for path in there]))
    (finding,) = [one for one in plan.findings if one.id == "cdi-not-recorded"]
    assert finding.message == (
        f"the document of the host lacks 3 files of the edits, such as {there[0]}"
    )


def test_a_hook_of_a_strangers_program() -> None:
    """Nobody knows what it does, and the plan says so."""
    plan = plan_of(CdiEdits(hooks=[CdiHook("createContainer", "/opt/x/hook", ("hook", "do"))]))
    assert [(finding.id, finding.level) for finding in plan.findings] == [
        ("cdi-hook-unknown", "info")
    ]


def test_hooks_of_the_reference_are_known() -> None:
    """One hook for each step, also as nvidia-ctk, has the same effect."""
    link = ("create-symlinks", "--link", "libx.so.1::/usr/lib/libx.so")
    hooks = [
        CdiHook("createContainer", "/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", *link)),
        CdiHook(
            "createContainer",
            "/usr/bin/nvidia-ctk",
            ("nvidia-ctk", "hook", "chmod", "--mode", "755", "--path", "/etc"),
        ),
    ]
    plan = plan_of(CdiEdits(hooks=hooks))
    assert [vars(action)["path"] for action in plan.actions if action.op == "symlink"] == [
        "/usr/lib/libx.so"
    ]
    assert all(finding.id != "cdi-hook-unknown" for finding in plan.findings)


@pytest.mark.parametrize(("mode", "name"), [("jit-cdi", "7"), ("cdi", "nvidia.com/gpu=7")])
def test_a_device_that_does_not_exist(mode: str, name: str, capsys: Captured) -> None:
    """The refusal has the reference's words, and the names that do exist."""
    words = ["--container", str(EXAMPLES / "one-gpu"), "--env", "NVIDIA_VISIBLE_DEVICES=7"]
    assert main(["plan", *words, "--host", "runfile-a10x2", "--mode", mode]) == 1
    error = capsys.readouterr().err
    assert f"there is no {name}: " in error
    assert "request one of" in error


def test_a_board_with_csv_files(capsys: Captured) -> None:
    """Mode csv has the board's files, and no driver of another platform."""
    plan = planned(
        capsys, "--container", str(EXAMPLES / "one-gpu"), "--host", "jetson-orin", "--mode", "csv"
    )
    targets = {action["target"] for action in of(plan, "mount")}
    assert "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1" in targets


def test_one_container_in_two_modes(capsys: Captured) -> None:
    """The question after an update: what is another now?"""
    words = ["diff", "--mode", "legacy,jit-cdi", str(EXAMPLES / "training"), "--host", "eks-t4"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "training in mode legacy" in out
    assert "cuda>=12.0" in out.split("→")[0]  # which jit-cdi does not check


def test_nodes_of_both_modes_differ_by_what_is_unusual(tmp_path: Path, capsys: Captured) -> None:
    """A node that the runtime makes for root is the one that the hook binds; one of another owner
    is not.
    """
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0")
    words = ["diff", "--mode", "legacy,jit-cdi", "--host", "runfile-a10x2", str(bundle)]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "~ device node" not in out
    assert "  + environment variable NVIDIA_VISIBLE_DEVICES=void\n" in out
    config = bundle / "config.json"
    document = json.loads(config.read_text())
    document["process"]["user"] = {"uid": 7, "gid": 8}
    config.write_text(json.dumps(document))
    assert main(words) == 1
    assert re.search(
        r"~ \d device nodes \(.*\): uid null → 7; gid null → 8", capsys.readouterr().out
    )


def test_the_container_of_two_modes_is_named_by_the_option(capsys: Captured) -> None:
    """--container names the one side as well as A, and the summary tells what is not checked."""
    container = str(EXAMPLES / "training")
    words = ["diff", "--mode", "legacy,jit-cdi", "--host", "h100-550"]
    assert main([*words, container]) == 1
    by_position = capsys.readouterr().out
    assert main([*words, "--container", container]) == 1
    assert capsys.readouterr().out == by_position
    (line,) = [line for line in by_position.splitlines() if line.startswith("requirements")]
    assert line.split("→")[1].strip() == "none checked"


def test_what_cdi_edits_lack_is_no_difference(capsys: Captured) -> None:
    """One list of links is compared, each hook by its steps, and neither the entries of
    /proc/driver/nvidia nor how device nodes are made: a note says why.
    """
    words = ["diff", "--mode", "legacy,jit-cdi", "--host", "runfile-a10x2", "--format", "json"]
    assert main([*words, str(EXAMPLES / "one-gpu")]) == 1
    diff = json.loads(capsys.readouterr().out)
    names = [(change["kind"], change["what"], change["name"]) for change in diff["changes"]]
    links = [name for _, what, name in names if what in {"link", "SONAME link"}]
    assert len(links) == len(set(links))
    assert not any("/proc/driver" in name for _, _, name in names)
    assert ("added", "hook", "update-ldcache") in names
    nodes = [change["fields"] for change in diff["changes"] if change["what"] == "device node"]
    assert not any({"options", "mode"} & set(fields) for fields in nodes)
    assert "/proc/driver/nvidia" in {entry["what"] for entry in diff["not_compared"]}


@pytest.mark.parametrize("hooks", ["nvgraft", "nvidia"])
def test_a_specification_with_one_hook_is_read_like_one_with_each(
    hooks: str, tmp_path: Path, capsys: Captured
) -> None:
    """The links and the steps of a specification do not depend on how many hooks take them."""
    path = tmp_path / "spec.json"
    words = ["cdi", "generate", "--host", "runfile-a10x2", "--format", "json"]
    assert main([*words, "--hooks", hooks, "--output", str(path)]) == 0
    capsys.readouterr()
    (file,) = read_specifications([str(path)])
    assert isinstance(file, SpecificationFile)
    side = cdi_side("spec", file.spec, None)
    assert side.links is not None
    assert side.links["/usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.0"]
    assert side.hooks is not None
    assert {"create-symlinks", "update-ldcache"} <= set(side.hooks)
    assert "steps" not in side.hooks


@pytest.mark.parametrize("host", ["jetson-orin", "wsl2-rtx3090"])
def test_mode_cdi_takes_the_specification_of_the_platform(host: str, capsys: Captured) -> None:
    """A board without NVML and WSL2 have a specification, with the libraries of their platform."""
    words = ["--container", str(EXAMPLES / "one-gpu"), "--host", host]
    both = [
        {action["target"] for action in of(planned(capsys, *words, *mode), "mount")}
        for mode in (
            ("--mode", "jit-cdi"),
            ("--mode", "cdi", "--env", "NVIDIA_VISIBLE_DEVICES=all"),
        )
    ]
    assert both[0] == both[1] != set()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--container", "b"], "A is missing | name two sides"),
        (["--mode", "legacy,jit-cdi"], "A is missing | name two sides"),
        (["--mode", "legacy,jit-cdi", "eks-t4", "mig-h100"], "mig-h100 is one side too many"),
        (["eks-t4"], "B is missing | name the other side, or two modes"),
    ],
)
def test_sides_and_modes(words: list[str], text: str, capsys: Captured) -> None:
    """Two modes take one side, one mode takes two."""
    assert main(["diff", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["jit_cdi", "legacy,jit-cdi,cdi"])
def test_a_mode_that_does_not_exist(mode: str, capsys: Captured) -> None:
    """The modes are named."""
    with pytest.raises(SystemExit, match="2"):
        main(["diff", "eks-t4", "--mode", mode])
    assert "legacy" in capsys.readouterr().err


def test_an_operation_that_a_reader_does_not_know(tmp_path: Path, capsys: Captured) -> None:
    """A plan of a later version is refused, with the name of the operation."""
    plan = planned(capsys, "--container", str(EXAMPLES / "one-gpu"), "--host", "eks-t4")
    plan["actions"][0]["op"] = "teleport"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    assert main(["diff", str(path), "eks-t4", "--container", str(EXAMPLES / "one-gpu")]) == 2
    error = capsys.readouterr().err
    assert "teleport" in error
    assert len(error.splitlines()) == 1


LIBS = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("mode", "volume", "options", "refused"),
    [
        ("jit-cdi", "/usr/bin/nvidia-smi", ["rbind"], ""),
        ("jit-cdi", "/usr/bin/nvidia-smi", ["rbind", "ro"], ""),
        ("jit-cdi", LIBS, ["rbind", "ro", "rw"], ""),
        ("jit-cdi", "/lib/firmware", ["rbind"], ""),
        ("jit-cdi", LIBS, ["rbind", "ro"], f"mount the volume {LIBS} elsewhere, or make it"),
        ("jit-cdi", f"{LIBS}/libcuda.so.1", [], f"is mounted on {LIBS}/libcuda.so.1"),
        ("jit-cdi", "/etc", [], "on the volume /etc"),
        ("jit-cdi", "/etc/ld.so.cache", [], "on the volume /etc/ld.so.cache"),
        ("legacy", "/etc/ld.so.cache", [], "on the volume /etc/ld.so.cache"),
        ("legacy", "/etc", [], "on the volume /etc"),
        ("legacy", "/usr/bin/nvidia-smi", [], ""),
        ("legacy", f"{LIBS}/libcuda.so", [], ""),
        ("legacy", LIBS, [], f"on the volume {LIBS}"),
    ],
)
def test_volumes_where_the_driver_comes(
    tmp_path: Path,
    capsys: Captured,
    mode: str,
    volume: str,
    options: list[str],
    refused: str,
) -> None:
    """A runtime makes mount points on volumes, the hook does not; neither puts a link or the loader
    cache on a mount point, and the refusal names the volume.
    """
    config = json.loads((EXAMPLES / "one-gpu" / "config.json").read_text())
    config["root"]["path"] = str(EXAMPLES / "one-gpu" / "rootfs")
    mount = {"destination": volume, "type": "bind", "source": "/x", "options": options}
    config["mounts"] = [*config.get("mounts", []), mount]
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = main(["plan", "--container", str(tmp_path), "--host", "runfile-a10x2", "--mode", mode])
    said = capsys.readouterr()
    assert code == (1 if refused else 0), said
    assert refused in said.out + said.err
