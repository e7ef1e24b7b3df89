"""``why``, ``doctor`` and ``prove`` of containers that get their GPUs by CDI edits: they answer from
the specification that counts, or from the edits that config.json has already.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bundles import make_bundle
from loaders import Captured
from nvgraft.host.snapshot import snapshot_host
from nvgraft.request.config import Config
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.cdi_requests import unresolved
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.edit_checks import cdi_incomplete
from nvgraft_cli.doctor.machine import Machine
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.shell.main import main
from patients import Document, Setup, healthy_host

ONE_GPU = Path(__file__).parent.parent / "docs" / "examples" / "one-gpu"
LIBCUDA = "/usr/lib/libcuda.so.535.1"
ANNOTATION = {"annotations": {"cdi.k8s.io/app": "nvidia.com/gpu=1"}}


class Node:
    """A host with a CDI specification, and a container on it."""

    def __init__(self, place: Path, capsys: Captured) -> None:
        self.setup = Setup(place)
        self.setup.env = []
        self.words = self.setup.arguments()
        self._capsys = capsys
        self.file = place / "nvidia.json"
        host = self.words[:2]
        assert main(["cdi", "generate", *host, "--format", "json", "-o", str(self.file)]) == 0
        capsys.readouterr()
        self.spec: Document = json.loads(self.file.read_text())
        self.bundle = Path(self.words[-1])
        self.config: Document = json.loads((self.bundle / "config.json").read_text())

    @property
    def edits(self) -> Document:
        """The edits that all devices of the specification share."""
        edits: Document = self.spec["containerEdits"]
        return edits

    def request(self, *env: str, **members: Any) -> None:
        """Let the container ask for devices."""
        self.config["process"]["env"] += env
        self.config |= members

    def ask(self, command: str, *words: str) -> tuple[int, Document]:
        """Return the exit code and the document of a command."""
        self.file.write_text(json.dumps(self.spec))
        (self.bundle / "config.json").write_text(json.dumps(self.config))
        code = main([command, *words, *self.words, "--cdi", str(self.file), "--format", "json"])
        return code, json.loads(self._capsys.readouterr().out)

    def why(self, what: str, mode: str) -> Document:
        """Return the answer of why about one subject."""
        (answer,) = self.ask("why", what, "--mode", mode)[1]["answers"]
        assert isinstance(answer, dict)
        return answer

    def doctor(self, *words: str) -> tuple[dict[str, list[Document]], str]:
        """Return doctor's findings by their ids, and the verdict of the container."""
        document = self.ask("doctor", *words)[1]
        found = {result["id"]: result["findings"] for result in document["results"]}
        return {key: value for key, value in found.items() if value}, document["verdict"]

    def rewrite(self, device: str) -> None:
        """Write the edits of a device into config.json, as an engine does."""
        own = next(one["containerEdits"] for one in self.spec["devices"] if one["name"] == device)
        for edits in (self.edits, own):
            self.config["process"]["env"] += edits.get("env", [])
            self.config.setdefault("linux", {}).setdefault("devices", []).extend(
                {"path": node["path"], "type": "c", "major": node["major"]}
                | {"minor": node.get("minor", 0)}
                for node in edits.get("deviceNodes", [])
            )
            self.config.setdefault("mounts", []).extend(
                {"source": mount["hostPath"], "destination": mount["containerPath"]}
                | {"type": "bind", "options": mount["options"]}
                for mount in edits.get("mounts", [])
            )
            stage = self.config.setdefault("hooks", {}).setdefault("createContainer", [])
            stage += [
                {key: hook[key] for key in ("path", "args", "env") if key in hook}
                for hook in edits.get("hooks", [])
            ]


@pytest.fixture
def node(tmp_path: Path, capsys: Captured) -> Node:
    return Node(tmp_path, capsys)


def steps(answer: Document) -> dict[str, str]:
    """Return the steps of an answer of why; of equal ones the first."""
    return {link["step"]: link["how"] for link in reversed(answer["chain"])}


@pytest.mark.parametrize(
    ("mode", "env", "members", "asked"),
    [
        ("cdi", (), ANNOTATION, "nvidia.com/gpu=1 (annotation cdi.k8s.io/app)"),
        ("runtime", (), ANNOTATION, "nvidia.com/gpu=1 (annotation cdi.k8s.io/app)"),
        ("cdi", ("NVIDIA_VISIBLE_DEVICES=1",), {}, "1 (NVIDIA_VISIBLE_DEVICES=1)"),
        (
            "jit-cdi",
            ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1",),
            {},
            "nvidia.com/gpu=1 (NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1)",
        ),
    ],
)
def test_why_names_the_specification_and_the_edit(
    mode: str, env: tuple[str, ...], members: Document, asked: str, node: Node
) -> None:
    """The chain has what asks for the device, the mode, the file, whose edits they are, and the
    hook that makes the link.
    """
    node.request(*env, **members)
    library = steps(node.why("libcuda.so.1", mode))
    assert library["asked for"] == asked
    assert library["mode"].startswith("jit-cdi (" if mode == "jit-cdi" else "cdi (")
    assert library["edit"] == f"a mount of {node.file}, for every device of nvidia.com/gpu"
    assert library["SONAME link"] == (
        "/usr/lib/libcuda.so.1 -> libcuda.so.535.1, made by the hook update-ldcache"
        " (nvidia-cdi-hook, createContainer)"
    )
    device = steps(node.why("/dev/nvidia1", mode))
    assert device["edit"] == f"a device node of device nvidia.com/gpu=1 in {node.file}"
    other = node.why("/dev/nvidia0", mode)
    assert other["excluded_by"]["rule"] == "device"
    assert f"does not request nvidia.com/gpu=0 of {node.file}" in other["excluded_by"]["text"]


def _no_library(edits: Document) -> None:
    edits["mounts"] = [one for one in edits["mounts"] if "libcuda.so" not in one["hostPath"]]


def _no_hooks(edits: Document) -> None:
    edits["hooks"] = []


def _no_uvm(edits: Document) -> None:
    edits["deviceNodes"] = [one for one in edits["deviceNodes"] if one["path"] != "/dev/nvidia-uvm"]


@pytest.mark.parametrize(
    ("change", "subject", "text", "message", "end"),
    [
        (
            _no_library,
            "libcuda.so.1",
            f"has no mount of libcuda.so, although the host has {LIBCUDA}",
            f"libcuda.so is not mounted, and the host has {LIBCUDA}",
            "CUDA does not load: libcuda.so.1: cannot open shared object file",
        ),
        (
            _no_hooks,
            "libcuda.so.1",
            f"has a mount of {LIBCUDA}, and no hook makes the link libcuda.so.1",
            f"{LIBCUDA} is mounted, and no hook makes the link libcuda.so.1",
            "CUDA does not load: libcuda.so.1: cannot open shared object file",
        ),
        (
            _no_uvm,
            "/dev/nvidia-uvm",
            "has no node /dev/nvidia-uvm, although the host has it",
            "there is no device node /dev/nvidia-uvm, which the host has",
            "CUDA fails with error 999 (unknown error) because ",
        ),
    ],
)
def test_what_the_specification_lacks_is_found_in_it(
    change: Any, subject: str, text: str, message: str, end: str, node: Node
) -> None:
    """A mount, a hook or a node that the specification lacks and the host has is named with the
    file, and the command that writes it again; the whole specification has none of these faults.
    """
    node.request("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all")
    findings, verdict = node.doctor("--mode", "cdi")
    assert "cdi-incomplete" not in findings
    assert "CUDA finds 2 GPUs" in verdict
    change(node.edits)
    excluded = node.why(subject, "cdi")["excluded_by"]
    assert excluded["rule"] == "not-in-edits"
    assert f"{node.file} {text}" in excluded["text"]
    assert f"nvidia-ctk cdi generate --output={node.file}" in excluded["mend"]
    findings, verdict = node.doctor("--mode", "cdi")
    finding = findings["cdi-incomplete"][0]
    assert f"{node.file}: {message}" in finding["message"]
    assert f"nvgraft cdi generate --output {node.file}" in finding["fix"]
    assert end in verdict


def test_a_stale_specification_is_the_cause(node: Node) -> None:
    """Files of an older driver in the specification: the refusal names it and how to write it."""
    node.request("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0")
    node.spec = json.loads(json.dumps(node.spec).replace("535.1", "530.30"))
    excluded = node.why("libcuda.so.1", "cdi")["excluded_by"]
    assert excluded["rule"] == "refused"
    assert f"{node.file} is older than the driver: write it again (nvgraft" in excluded["text"]
    findings, verdict = node.doctor("--mode", "cdi")
    assert set(findings) == {"cdi-stale"}
    assert "containers that use it will not start" in findings["cdi-stale"][0]["cause"]
    assert 'This container does not start: failed to mount "' in verdict


def test_a_stale_specification_whose_files_are_still_there(node: Node) -> None:
    """Libraries of another driver that the host has kept are mounted, and CUDA fails with 803."""
    for path, entry in list(node.setup.host["files"].items()):
        if "535.1" in path:
            node.setup.host["files"][path.replace("535.1", "530.30")] = entry
    node.words[1] = str(node.bundle.parent / "two.json")
    Path(node.words[1]).write_text(json.dumps(node.setup.host))
    node.request("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0")
    node.spec = json.loads(json.dumps(node.spec).replace("535.1", "530.30"))
    findings, verdict = node.doctor("--mode", "cdi")
    assert "do not fit the kernel module" in findings["cdi-stale"][0]["cause"]
    assert "CUDA fails with error 803" in verdict
    assert f"because {node.file} is of driver 530.30" in verdict


@pytest.mark.parametrize("mode", ["hook", "legacy", "jit-cdi"])
@pytest.mark.parametrize("env", [(), ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1",)])
def test_cdi_names_that_nobody_reads(mode: str, env: tuple[str, ...], node: Node) -> None:
    """The hook takes no CDI names, and mode jit-cdi reads no annotations: that is the cause, not a
    variable that is not set.
    """
    if mode == "jit-cdi" and env:
        return
    node.request(*env, **({} if env else ANNOTATION))
    who = "nvgraft-runtime in mode jit-cdi reads" if mode == "jit-cdi" else "the hook takes"
    excluded = node.why("libcuda.so.1", mode)["excluded_by"]
    assert "the container asks for nvidia.com/gpu=1 (" in excluded["text"]
    assert f"and {who} no" in excluded["text"]
    findings, _ = node.doctor("--mode", mode)
    (finding,) = [one for found in findings.values() for one in found if one["level"] == "error"]
    assert f"and {who} no" in finding["cause"]
    assert "--mode cdi shows what it gets" in finding["fix"]


NVIDIA = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits: {env: [A=b]}\n"


@pytest.mark.parametrize(
    ("files", "device", "cause", "fix"),
    [
        ({}, "0", "no CDI specification of nvidia.com/gpu is in DIR", "nvgraft cdi generate"),
        (
            {"a.yaml": NVIDIA, "b.yaml": NVIDIA},
            "0",
            "DIR/a.yaml and DIR/b.yaml both have nvidia.com/gpu=0",
            "remove nvidia.com/gpu=0 from all but one of them",
        ),
        (
            {"a.yaml": "cdiVersion: ["},
            "0",
            "DIR/a.yaml: not YAML",
            "cdi generate --output DIR/a.yaml",
        ),
        ({"a.yaml": NVIDIA}, "7", "DIR/a.yaml has no device 7", "there is no nvidia.com/gpu=7"),
        (
            {"a.yaml": NVIDIA},
            "vendor.com/net=eth",
            "no CDI specification of vendor.com/net is in DIR",
            "install the program that writes the specification of vendor.com/net",
        ),
    ],
    ids=["none", "twice", "broken", "unknown", "vendor"],
)
def test_an_unresolvable_device_has_cause_and_fix(
    files: dict[str, str], device: str, cause: str, fix: str, tmp_path: Path
) -> None:
    """Of this machine's directories: which file is missing, broken, or has not the device."""
    directory = tmp_path / "cdi"
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    host = HostSide("here", Config(runtime_cdi_spec_dirs=(str(directory),)), None)
    bundle = make_bundle(tmp_path / "b", f"NVIDIA_VISIBLE_DEVICES={device}")
    with open_container(str(bundle)) as container:
        found = unresolved(Case(host, container, "cdi"))
    assert found is not None
    assert cause.replace("DIR", str(directory)) in found.cause
    assert fix.replace("DIR", str(directory)) in found.fix


@pytest.mark.parametrize("installed", [False, True])
def test_a_hook_program_that_is_not_installed(installed: bool, tmp_path: Path) -> None:
    """A specification whose hook program this machine lacks keeps containers from starting."""
    hook = {
        "hookName": "createContainer",
        "path": "/opt/nvidia-cdi-hook",
        "args": ["x", "update-ldcache"],
    }
    edits: Document = {"devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}
    edits |= {"containerEdits": {"hooks": [hook]}, "kind": "nvidia.com/gpu", "cdiVersion": "0.5.0"}
    (tmp_path / "cdi.json").write_text(json.dumps(edits))
    (tmp_path / "opt").mkdir()
    if installed:
        (tmp_path / "opt/nvidia-cdi-hook").touch()
    host = HostSide("node", Config(), None)
    host.facts = snapshot_host(healthy_host())
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=0")
    with open_container(str(bundle)) as container:
        case = Case(host, container, "cdi", cdi=[str(tmp_path / "cdi.json")])
        patient = Patient(host, container, [], Machine(root=str(tmp_path)), case=case)
        found = [one.message for one in cdi_incomplete(patient) if one.stops]
    named = [f"{tmp_path}/cdi.json: the hook /opt/nvidia-cdi-hook is not on this host"]
    assert found == ([] if installed else named)


# ---- a config.json that has the edits already


def test_a_rewritten_config_is_answered_from_its_own_edits(node: Node) -> None:
    """Its mounts and hooks decide what loads, its device nodes which GPUs there are; nothing is
    planned again, and plan says that the hook does nothing.
    """
    node.rewrite("1")
    code, proved = node.ask("prove")
    assert code == 0
    assert proved["proofs"][0]["file"]["path"] == LIBCUDA
    assert proved["proofs"][0]["file"]["from"] == "host"
    _, verdict = node.doctor()
    assert verdict == "This container starts, and CUDA finds 1 GPU (driver 535.1)."
    answer = node.why("libcuda.so.1", "hook")
    assert steps(answer)["mode"] == "config.json has the edits already"
    assert steps(answer)["edit"] == "a mount of config.json"
    assert node.why("/dev/nvidia1", "hook")["in_plan"]
    assert not node.why("/dev/nvidia0", "hook")["in_plan"]
    assert node.ask("plan")[1]["decision"] == "skip"


@pytest.mark.parametrize("without", ["create-symlinks", "mount", "all hooks"])
def test_what_a_rewritten_config_lacks_is_not_planned_again(without: str, node: Node) -> None:
    """A hook or a mount that this document has not is missing in the container, although the
    host's specification has it.
    """
    node.rewrite("0")
    if without == "mount":
        node.config["mounts"] = [
            one for one in node.config["mounts"] if "libcuda.so" not in one["source"]
        ]
    else:
        node.config["hooks"]["createContainer"] = [
            hook
            for hook in node.config["hooks"]["createContainer"]
            if without == "create-symlinks" and without not in hook["args"]
        ]
        # What tells that there are edits where no hook is left.
        node.config["process"]["env"].append("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib")
    code, proved = node.ask("prove", "--mode", "cdi")
    # update-ldcache alone makes the SONAME links too.
    assert code == (0 if without == "create-symlinks" else 1)
    assert (proved["proofs"][0]["verdict"] == "no") is bool(code)
    findings, verdict = node.doctor()
    assert ("cdi-incomplete" in findings) is bool(code)
    assert ("CUDA does not load" in verdict) is bool(code)


def test_edits_without_hooks_and_variables_are_recognised(node: Node) -> None:
    """A GPU's node and a file of the driver at their own paths, with the variable that keeps the
    hook from acting, are edits; without this variable they were passed by hand.
    """
    node.rewrite("0")
    del node.config["hooks"]
    own = [entry for entry in node.config["process"]["env"] if "NVIDIA" not in entry]
    node.config["process"]["env"] = [*own, "NVIDIA_VISIBLE_DEVICES=void"]
    assert steps(node.why("/dev/nvidia0", "hook"))["edit"] == "a device node of config.json"
    node.config["process"]["env"] = own
    assert not node.why("/dev/nvidia0", "hook")["in_plan"]


def test_volumes_of_users_stay_volumes(node: Node) -> None:
    """A directory or another file that config.json mounts is not taken for an edit: what loads from
    it is not known. Bind mounts of device nodes, which rootless podman makes, are.
    """
    node.rewrite("0")
    devices = node.config["linux"].pop("devices")
    node.config["mounts"] += [
        {"source": one["path"], "destination": one["path"], "type": "bind", "options": ["rbind"]}
        for one in devices
    ]
    _, verdict = node.doctor()
    assert verdict == "This container starts, and CUDA finds 1 GPU (driver 535.1)."
    tool = {"source": "/usr/bin/nvidia-smi", "destination": "/opt/tool", "options": ["bind"]}
    node.config["mounts"].append(tool)
    assert not node.why("/opt/tool", "hook")["in_plan"]
    data = {"source": "/data", "destination": "/opt/data", "type": "bind", "options": ["rbind"]}
    node.config["mounts"].append(data)
    node.config["process"]["env"].append("LD_LIBRARY_PATH=/opt/data")
    assert "/opt/data" in str(node.ask("prove")[1]["proofs"][0]["unknown"])


def test_a_specification_that_cannot_be_read_has_its_title(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The title is not that of missing files; a file that is too large has the reader's limit."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("{")
    words = ["doctor", "--host", "eks-t4", "--cdi", str(broken)]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "cdi-stale: a CDI specification is out of date or cannot be read" in said
    assert "error stat'ing file" not in said
    broken.write_bytes(b"a" * ((4 << 20) + 1))
    assert main(words) == 2
    assert "larger than 4 MiB" in capsys.readouterr().err


def test_what_the_generation_lacks_the_hook_finds(capsys: pytest.CaptureFixture[str]) -> None:
    """A driver's library that the runtime's generation does not find: the advice is mode legacy."""
    words = ["--container", str(ONE_GPU), "--host", "debian-a10g-index"]
    main(["doctor", *words, "--mode", "jit-cdi"])
    said = capsys.readouterr().out
    assert 'fix        set mode = "legacy" under [nvidia-container-runtime] in config.toml' in said
    main(["why", *words, "--mode", "jit-cdi", "libcuda.so.1"])
    assert 'set mode = "legacy"' in capsys.readouterr().out


@pytest.mark.parametrize("gate", ["NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY"])
def test_a_gate_that_makes_the_hook_skip(gate: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The runtime in mode legacy adds NVIDIA_VISIBLE_DEVICES=void: the reason names the variable
    for which it does, and the smallest change closes it.
    """
    words = ["--container", str(ONE_GPU), "--host", "eks-t4", "--mode", "legacy"]
    words += ["--env", f"{gate}=enabled"]
    assert main(["plan", *words]) == 0
    said = capsys.readouterr().out
    assert f"NVIDIA_VISIBLE_DEVICES=void, which the runtime adds because of {gate}=enabled" in said
    main(["why", *words, "libcuda.so.1"])
    assert f"{gate}=disabled" in capsys.readouterr().out


@pytest.mark.parametrize("devices", ["none", "all"])
def test_a_library_of_two_capabilities_is_of_both(devices: str, capsys: Captured) -> None:
    """Edits bring the libraries of graphics and display: both are in the container, with them."""
    words = ["--container", str(ONE_GPU), "--host", "b200-580", "--mode", "jit-cdi"]
    env = f"NVIDIA_VISIBLE_DEVICES={devices}"
    assert main(["why", "graphics", "display", *words, "--env", env]) == 0
    brought = [line for line in capsys.readouterr().out.splitlines() if "  brings" in line]
    assert len(brought) == 2
    assert all("libGLX_nvidia.so.580.95.05" in line for line in brought)
