"""``nvgraft doctor`` and CDI: containers that get CDI edits, or have them already, and what keeps
engines from finding CDI devices.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from loaders import Captured
from nvgraft.formats.tree import open_tree_at
from nvgraft.host.snapshot import snapshot_host
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.doctor.host_checks import cdi_stale
from nvgraft_cli.doctor.patient import NotChecked, Patient
from nvgraft_cli.shell.main import main
from nvgraft_specs.cdi_hooks import REFERENCE_PROGRAM
from patients import ALL, Document, Node, Setup, entry, ids

HOST = "eks-t4"
UPDATE = ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"]
LINKS = ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"]
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}


def cdi_hook(args: list[str], path: str = f"/usr/bin/{REFERENCE_PROGRAM}") -> Document:
    """Return an entry of hooks.createContainer, as CDI edits have it."""
    return {"path": path, "args": args, "env": ["NVIDIA_CTK_DEBUG=false"]}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def examine(setup: Setup, capsys: Captured, *words: str) -> dict[str, Document]:
    """Return the results of doctor by their ids."""
    main(["doctor", *setup.arguments(), *words, "--format", "json"])
    results: list[Document] = json.loads(capsys.readouterr().out)["results"]
    return {result["id"]: result for result in results}


def first_line(setup: Setup, capsys: Captured, *words: str) -> str:
    """Return the first line that a command prints."""
    main([*words, *setup.arguments()])
    return capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("hook", "program"),
    [
        (cdi_hook(UPDATE), "nvidia-cdi-hook"),
        (cdi_hook(["nvidia-ctk", "hook", *UPDATE[1:]], "/usr/bin/nvidia-ctk"), "nvidia-ctk hook"),
        (
            cdi_hook(["nvgraft-cdi-hook", "steps", *UPDATE[1:]], "/usr/bin/nvgraft-cdi-hook"),
            "nvgraft-cdi-hook",
        ),
    ],
    ids=["nvidia-cdi-hook", "nvidia-ctk", "nvgraft"],
)
def test_a_rewritten_config_is_recognised(
    hook: Document, program: str, setup: Setup, capsys: Captured
) -> None:
    """plan, explain and doctor say in their first line that CDI edits are in config.json already,
    why in its reason, and doctor does not say that the container gets nothing.
    """
    setup.env = ["NVIDIA_VISIBLE_DEVICES=void"]
    setup.config = {"hooks": {"createContainer": [hook]}}
    words = setup.arguments()
    told = f"CDI edits are in this config.json already: {program}"
    for command, expected in (
        (["plan"], f"skip: {told}; not a GPU container: NVIDIA_VISIBLE_DEVICES=void"),
        (["explain"], f"The hook does nothing: {told}"),
        (["doctor"], f"note: {told}"),
    ):
        main([*command, *words])
        assert capsys.readouterr().out.startswith(expected)
    main(["why", "libcuda.so.1", *words])
    answer = capsys.readouterr().out
    assert answer.startswith(f"libcuda.so.1 may be in the container\n  because {told};")
    assert "NVIDIA_VISIBLE_DEVICES=all" not in answer
    assert main(["doctor", *words]) == 0
    assert "What this container gets was not checked: " in capsys.readouterr().out


def test_the_variable_of_cdi_edits_is_a_sign(setup: Setup, capsys: Captured) -> None:
    """Edits without a hook are recognised by the variable that only they set."""
    setup.env = ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"]
    line = first_line(setup, capsys, "plan")
    assert "already: NVIDIA_CTK_LIBCUDA_DIR; " in line


@pytest.mark.parametrize(
    "hooks",
    [
        {},
        {"createContainer": [cdi_hook(LINKS), cdi_hook(["x", "enable-cuda-compat"])]},
        {"createContainer": [cdi_hook(UPDATE, "/usr/bin/other")]},
        {"createContainer": [cdi_hook(UPDATE, "/usr/bin/nvidia-ctk")]},
        {"createContainer": [None, {"path": 1}, {"path": "/x/nvidia-cdi-hook", "args": 7}]},
        {"createContainer": {"path": "/usr/bin/nvidia-cdi-hook"}},
    ],
    ids=["none", "legacy-links", "other", "ctk-without-hook", "foreign-types", "no-list"],
)
def test_other_hooks_are_no_sign(hooks: Any, setup: Setup, capsys: Captured) -> None:
    """The hooks that a runtime adds in mode legacy, and those of others, are not CDI edits."""
    setup.env = ["NVIDIA_VISIBLE_DEVICES=void"]
    setup.config = {"hooks": hooks}
    assert first_line(setup, capsys, "plan") == (
        "skip: not a GPU container: NVIDIA_VISIBLE_DEVICES=void"
    )


def test_cdi_edits_and_the_hook_together(setup: Setup, capsys: Captured) -> None:
    """Both act on a container with CDI edits, a prestart hook and a request: a warning. Without one
    of the three there is none.
    """
    both = {"hooks": {"createContainer": [cdi_hook(UPDATE)], "prestart": [HOOK]}}
    setup.config = dict(both)
    (finding,) = examine(setup, capsys)["cdi-and-legacy"]["findings"]
    assert finding["level"] == "warning"
    assert finding["message"] == (
        "CDI edits are in this config.json already: nvidia-cdi-hook, and "
        "/usr/bin/nvidia-container-runtime-hook is called as well: NVIDIA_VISIBLE_DEVICES=all"
    )
    for env, hooks in (
        ("NVIDIA_VISIBLE_DEVICES=void", both["hooks"]),
        (ALL, {"prestart": [HOOK]}),
        (ALL, {"createContainer": [cdi_hook(UPDATE)]}),
        (ALL, {"prestart": [HOOK], "createContainer": [cdi_hook(LINKS)]}),
    ):
        setup.env, setup.config = [env], {"hooks": hooks}
        assert examine(setup, capsys)["cdi-and-legacy"]["status"] == "ok"


def test_cdi_and_the_hook_are_not_judged_unseen(setup: Setup, capsys: Captured) -> None:
    """Without hooks in config.json, and where the runtime removes the hook, it is not checked."""
    assert examine(setup, capsys)["cdi-and-legacy"]["status"] == "not-checked"
    setup.config = {"hooks": {"createContainer": [cdi_hook(UPDATE)], "prestart": [HOOK]}}
    assert examine(setup, capsys, "--mode", "jit-cdi")["cdi-and-legacy"]["status"] == "not-checked"


@pytest.mark.parametrize(
    ("mode", "device", "words"),
    [
        ("cdi", "7", "there is no nvidia.com/gpu=7: did you mean nvidia.com/gpu="),
        ("jit-cdi", "nvidia.com/gpu=9", "there is no nvidia.com/gpu=9: did you mean nvidia.com/gp"),
        ("jit-cdi", "7", "there is no 7: request one of 0, "),
        ("csv", "7", "a Tegra board has one device: request 0 or all"),
        ("csv", "tegra", "0 or all (--device-id-strategy=index of the device plugin)"),
    ],
)
def test_an_unknown_cdi_device_is_the_containers_fault(
    mode: str, device: str, words: str, setup: Setup, capsys: Captured
) -> None:
    """A device that no specification has is an error of the container, with those that exist."""
    setup.env = [f"NVIDIA_VISIBLE_DEVICES={device}"]
    results = examine(setup, capsys, "--mode", mode)
    assert ids(results) == {"unknown-device"}
    assert results["unknown-device"]["about"] == "container"
    (finding,) = results["unknown-device"]["findings"]
    assert finding["level"] == "error"
    assert words in (finding["fix"] if "nvidia.com" in words else finding["message"])


def test_the_cdi_modes_say_nothing_of_the_hooks_device_rules(
    setup: Setup, capsys: Captured
) -> None:
    """The runtime writes the device rules of CDI edits, so that systemd and no-cgroups take none
    away, and the hook's settings for rootless engines do not matter.
    """
    setup.config = {
        "linux": {
            "cgroupsPath": "system.slice:docker:abc",
            "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        },
        "annotations": {"io.container.manager": "libpod", "run.oci.hooks.stderr": "/dev/null"},
    }
    assert {"device-rules-lost", "rootless", "hook-not-installed"} <= ids(examine(setup, capsys))
    for mode in ("jit-cdi", "cdi"):
        results = examine(setup, capsys, "--mode", mode)
        assert ids(results) == set()
        for name in ("device-rules-lost", "rootless", "device-filter", "cgroup-not-found"):
            assert results[name]["lacking"].startswith("in this mode the engine's runtime adds CDI")


def test_graphics_is_checked_in_a_cdi_mode_if_it_is_requested(
    setup: Setup, capsys: Captured
) -> None:
    """CDI edits give all of the driver: a container that requests no graphics is not told to bring
    libraries for it, and the cause of what is missing does not name the hook.
    """
    assert ids(examine(setup, capsys, "--mode", "jit-cdi")) == set()
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=graphics"]
    (finding,) = examine(setup, capsys, "--mode", "jit-cdi")["graphics-incomplete"]["findings"]
    assert finding["cause"].startswith("CDI edits mount what the host's driver has")
    assert finding["fix"].endswith("libvulkan1)")


def test_a_requirement_that_cdi_edits_do_not_check(setup: Setup, capsys: Captured) -> None:
    """A container that the hook refuses starts with CDI edits: a warning says so."""
    setup.env = [ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99"]
    (refused,) = examine(setup, capsys)["requirement-unmet"]["findings"]
    assert refused["level"] == "error"
    (finding,) = examine(setup, capsys, "--mode", "jit-cdi")["requirement-unmet"]["findings"]
    assert finding["level"] == "warning"
    assert "CDI edits do not check them, so the container starts" in finding["cause"]
    setup.env = [ALL, "NVIDIA_REQUIRE_CUDA=cuda>=11"]
    assert examine(setup, capsys, "--mode", "jit-cdi")["requirement-unmet"]["status"] == "ok"


def test_the_gpu_of_a_tegra_board_counts(tmp_path: Path, capsys: Captured) -> None:
    """A Jetson's GPU has other device nodes; without CSV files a container gets no driver file."""
    for host, words in (("jetson-orin", "CUDA does not load"), (HOST, ", without the driver's fi")):
        bundle = tmp_path / "bundle"
        (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(
            json.dumps(
                {"ociVersion": "1.0.2", "process": {"env": [ALL]}, "root": {"path": "rootfs"}}
            )
        )
        main(["doctor", "--host", host, "--container", str(bundle), "--mode", "csv"])
        assert words in capsys.readouterr().out.splitlines()[-1]


SPECIFICATION = json.dumps(
    {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "all", "containerEdits": {"env": ["A=1"]}}],
    }
)
CONTAINERD_2 = "[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/opt/cdi']\n"
#: Configurations of engines that read /opt/cdi alone: file, text, and the name in the fix.
CONFIGURED = [
    ("/etc/docker/daemon.json", '{"cdi-spec-dirs": ["/opt/cdi"]}', "restart docker"),
    (
        "/etc/containerd/config.toml",
        '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\ncdi_spec_dirs = ["/opt/cdi"]\n',
        "restart containerd",
    ),
    (
        "/etc/containerd/config.toml",
        CONTAINERD_2,
        "restart containerd",
    ),
    ("/etc/crio/crio.conf.d/9.conf", '[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]', "crio"),
]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.write("/run/cdi/nvidia.yaml", SPECIFICATION)
    (node.root / "var").mkdir()
    (node.root / "var/run").symlink_to("../run")
    return node


def directories(node: Node) -> Document:
    """Return the result of the check, of the node without a container."""
    return node.examine(bundle=False)["cdi-directories"]


@pytest.mark.parametrize(("file", "text", "engine"), CONFIGURED)
def test_an_engine_that_does_not_read_the_specifications(
    file: str, text: str, engine: str, node: Node
) -> None:
    """The specifications are in none of the directories that the engine's configuration names."""
    node.write(file, text)
    (finding,) = directories(node)["findings"]
    assert finding["level"] == "warning"
    assert (
        "/opt/cdi, and the CDI specifications of NVIDIA devices are in /var/run/cdi"
        in (finding["message"])
    )
    assert engine in finding["fix"]
    node.write(file, text.replace("/opt/cdi", "/run/cdi"))
    assert directories(node)["status"] == "ok"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("/etc/docker/daemon.json", '{"features": {"cdi": false}, "cdi-spec-dirs": ["/opt/cdi"]}'),
        (
            "/etc/containerd/config.toml",
            f"imports = ['/etc/containerd/conf.d/*.toml']\n{CONTAINERD_2}",
        ),
        (
            "/etc/containerd/config.toml",
            '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\ncdi_spec_dirs = ["/x"]\n',
        ),
        ("/etc/containerd/config.toml", "["),
        ("/etc/crio/crio.conf", "[crio]\nruntime = 1"),
        ("/etc/docker/daemon.json", '{"cdi-spec-dirs": []}'),
    ],
    ids=["cdi-off", "imports", "containerd-off", "damaged", "other-types", "empty"],
)
def test_an_engine_is_not_judged_unseen(file: str, text: str, node: Node) -> None:
    """Without a setting, without CDI, and where other files may change it, it is not checked."""
    node.write(file, text)
    result = directories(node)
    assert result["status"] == "not-checked", result


def test_the_last_file_of_crio_counts(node: Node) -> None:
    """CRI-O's drop-in files override crio.conf, the last one wins."""
    node.write("/etc/crio/crio.conf", '[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]')
    node.write("/etc/crio/crio.conf.d/1.conf", '[crio.runtime]\ncdi_spec_dirs = ["/var/run/cdi"]')
    node.write("/etc/crio/crio.conf.d/2.conf", "[crio.runtime]\n")
    assert directories(node)["status"] == "ok"


def test_specifications_of_others_do_not_count(node: Node) -> None:
    """Without a specification of NVIDIA devices the engines' directories are not checked."""
    node.write("/run/cdi/nvidia.yaml", SPECIFICATION.replace("nvidia.com", "example.com"))
    node.write("/etc/docker/daemon.json", '{"cdi-spec-dirs": ["/opt/cdi"]}')
    assert directories(node)["lacking"] == "no CDI specification of NVIDIA devices is installed"


def test_docker_may_serve_gpus_with_the_cdi_hook_alone(node: Node) -> None:
    """Newer versions of dockerd serve --gpus by CDI: without the hook it is not known."""
    node.remove("/usr/bin/nvidia-container-runtime-hook")
    node.remove("/etc/containers/oci/hooks.d/gpu.json")
    node.remove("/etc/docker/daemon.json")
    assert node.examine(bundle=False)["hook-not-installed"]["status"] == "found"
    node.write("/usr/bin/nvidia-cdi-hook", "", 0o755)
    result = node.examine(bundle=False)["hook-not-installed"]
    assert result["status"] == "not-checked"
    assert "depends on dockerd's version" in result["lacking"]


def test_hooks_of_cdi_edits_are_registered_in_their_own_way(setup: Setup, capsys: Captured) -> None:
    """A createContainer hook of CDI edits is right, unless it has no environment of its own."""
    setup.env = ["NVIDIA_VISIBLE_DEVICES=void"]
    setup.config = {"hooks": {"createContainer": [cdi_hook(UPDATE)]}}
    assert examine(setup, capsys)["hook-registration"]["status"] == "ok"
    setup.config = {"hooks": {"createContainer": [cdi_hook(UPDATE) | {"env": []}]}}
    (finding,) = examine(setup, capsys)["hook-registration"]["findings"]
    assert finding["level"] == "error"
    assert "env: no variable is set" in finding["message"]


def test_the_loader_cache_step_of_edits_makes_soname_links(setup: Setup, capsys: Captured) -> None:
    """Where the host has no SONAME links that edits could copy, the step for the loader cache makes
    them, as ldconfig does, so that libcuda.so.1 loads.
    """
    words = setup.arguments()
    main(["doctor", *words, "--mode", "jit-cdi"])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "This container starts, and CUDA finds 2 GPUs (driver 535.1)."
    )
    main(["plan", *words, "--mode", "jit-cdi", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["links"]["/usr/lib/libcuda.so.1"] == (
        "libcuda.so.535.1"
    )


def test_a_stale_specification_of_others_is_their_own(node: Node) -> None:
    """Missing sources of NVIDIA's specifications count, those of other vendors do not; the source
    of a mount that is no bind mount is not a file.
    """
    edits = {"mounts": [{"hostPath": "/usr/lib/libx.so.1", "containerPath": "/x"}]}
    device = {"name": "all", "containerEdits": edits}
    text = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device]})
    side = HostSide("node", node.config, None)
    side.facts = snapshot_host(node.setup.host)
    patient = Patient(side, None, [], node.machine)
    patient.host_tree = open_tree_at(str(node.root), "")
    node.write("/run/cdi/nvidia.yaml", text)
    (found,) = cdi_stale(patient)
    assert "1 of 1 host paths do not exist, such as /usr/lib/libx.so.1" in found.message
    edits["mounts"][0] |= {"hostPath": "tmpfs", "type": "tmpfs"}
    node.write(
        "/run/cdi/nvidia.yaml",
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device]}),
    )
    assert list(cdi_stale(patient)) == []
    node.write("/run/cdi/nvidia.yaml", text.replace("nvidia.com", "example.com"))
    with pytest.raises(NotChecked, match="none is installed"):
        list(cdi_stale(patient))


def test_groups_that_edits_add_open_device_nodes(setup: Setup, capsys: Captured) -> None:
    """CDI edits add the group of a device node to the process, as the hook cannot."""
    for number in (0, 1):
        entry(setup, f"/dev/nvidia{number}", mode="0660", gid=1005)
    setup.config["process"] = {"user": {"uid": 1000, "gid": 1000}}
    assert "device-permissions" in ids(examine(setup, capsys))
    setup.config["process"] = {"user": {"uid": 1000, "gid": 1000}}
    assert "device-permissions" not in ids(examine(setup, capsys, "--mode", "jit-cdi"))


def test_graphics_files_that_edits_mount_are_not_missing(setup: Setup, capsys: Captured) -> None:
    """What the host has of the files for Vulkan and EGL comes with CDI edits."""
    for path in (
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    ):
        entry(setup, path, type="file", mode="0644", content="{}")
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=graphics"]
    (finding,) = examine(setup, capsys, "--mode", "jit-cdi")["graphics-incomplete"]["findings"]
    assert finding["message"].endswith("the image lacks libXext.so.6 (which libGLX_nvidia needs)")
