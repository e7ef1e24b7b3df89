"""Every command that prints JSON prints a versioned document that passes its shipped schema."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest

from bundles import EVERYTHING, make_bundle
from documents import read_document
from images import docker_save
from nvgraft_cli.shell import main as cli
from nvgraft_cli.shell.parser import whole_program
from nvgraft_specs import gallery
from nvgraft_specs.models.schemas import MODELS

Captured = pytest.CaptureFixture[str]

#: A request, and the environment that makes it.
CONTAINERS = {
    "everything": EVERYTHING,
    "default": ("NVIDIA_VISIBLE_DEVICES=0",),
    "no-devices": ("NVIDIA_VISIBLE_DEVICES=none",),
    "not-asked": (),
    "unknown-device": ("NVIDIA_VISIBLE_DEVICES=97",),
    "bad-capability": ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=nothing"),
    "unmet": ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"),
    "mig": ("NVIDIA_VISIBLE_DEVICES=0:0", "NVIDIA_MIG_CONFIG_DEVICES=all"),
    "imex": ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0"),
    "odd": ("NVIDIA_VISIBLE_DEVICES=all", "LD_LIBRARY_PATH=/opt/\udcffodd"),
}

NAMES = (
    *(
        "libcuda.so.1",
        "libcuda.so.1.0",
        "libnvidia-encode.so.1",
        "libnvidia-nscq.so",
        "libcudart.so.12",
        "nvidia-smi",
        "graphics",
    ),
    *(
        "/dev/nvidia0",
        "/dev/nvidia-modeset",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels/x",
        "GPU-0",
        "5",
        "/etc/passwd",
    ),
)

#: A command, and its arguments beside --bundle, --host and --format.
ABOUT_A_CASE: dict[str, tuple[str, ...]] = {
    "plan": (),
    "explain": (),
    "why": NAMES,
    "doctor": (),
    "prove": ("libcuda.so.1", "/usr/bin/nvidia-smi", "libnone.so"),
}

#: A command, and command lines that need no --host and --bundle, or have their own.
ALONE: dict[str, tuple[tuple[str, ...], ...]] = {
    "diff": (("eks-t4", "debian-a100x8", "--bundle", "{bundle}"),),
    "matrix": (("eks-t4", "mig-h100", "--bundles", "{bundle}"),),
    "explain-error": (
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.0",),
        (
            (
                "Error: OCI runtime error: crun: error executing hook "
                "`/usr/bin/nvidia-container-runtime-hook` (exit code: 1)"
            ),
        ),
        ("an unknown error",),
    ),
    "simulate": (("--list",),),
    "doctor": (("--host", "mig-h100"),),
}

#: Commands whose own tests use ``read_document``, and the modules of these tests.
ELSEWHERE = {
    "inventory": "test_inventory_command",
    "recover": "test_recover",
    "last-error": "test_last_error",
    "register": "test_register",
    "unregister": "test_register",
}
#: JSON without a schema of ours: a log on stderr, and formats of CDI and Kubernetes.
OTHER = {"watch", "cdi", "dra", "export"}


def output(capsys: Captured, *words: str) -> str:
    """Return the standard output of a command, which ends with exit code 0 or 1."""
    assert cli.main([*words, "--format", "json"]) in {0, 1, 3}, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "container"),
    [
        (host, container)
        for host in gallery.names()
        for container in CONTAINERS
        # Each container on a host with NVSwitches and on one with MIG, each host with all.
        if host in {"h100-550", "mig-h100"} or container == "everything"
    ],
)
def test_a_case_is_a_document_in_every_command(
    host: str, container: str, tmp_path: Path, capsys: Captured
) -> None:
    """Every command prints a document for a case, `prove` an error for a refused container."""
    files = (
        ("etc/debian_version", "usr/bin/nvidia-smi", "tmp/x")
        if container in {"everything", "imex"}
        else ()
    )
    bundle = make_bundle(tmp_path / "b", *CONTAINERS[container], files=files, mounts=("/data",))
    for command, words in ABOUT_A_CASE.items():
        text = output(capsys, command, *words, "--bundle", str(bundle), "--host", host)
        assert read_document(text)["schema"] in MODELS


def test_an_image_is_a_document_in_every_command(tmp_path: Path, capsys: Captured) -> None:
    """Every command prints a document for an image archive that asks for everything."""
    archive = docker_save(
        tmp_path / "image.tar",
        [("etc/debian_version", b"12\n")],
        config={"Env": list(EVERYTHING), "Cmd": ["sh"]},
    )
    for command, words in ABOUT_A_CASE.items():
        read_document(
            output(capsys, command, *words, "--bundle", archive, "--host", "runfile-a10x2")
        )


@pytest.mark.parametrize(
    ("command", "words"), [(command, words) for command, lines in ALONE.items() for words in lines]
)
def test_other_commands_print_documents(
    command: str, words: tuple[str, ...], tmp_path: Path, capsys: Captured
) -> None:
    """Commands with other inputs than a host and a container print documents as well."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    read_document(output(capsys, command, *(word.format(bundle=bundle) for word in words)))


def test_a_refused_plan_says_what_a_person_reads(tmp_path: Path, capsys: Captured) -> None:
    """The JSON of a refused plan has id, stage, cause and fix beside the original's words."""
    bundle = make_bundle(
        tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"
    )
    case = ("--bundle", str(bundle), "--host", "eks-t4", "--format", "json")
    assert cli.main(["plan", *case]) == 1
    out, err = capsys.readouterr()
    refusal = read_document(out)["refusal"]
    assert (refusal["id"], refusal["stage"]) == ("requirement-unmet", "requirement")
    assert err == f"{refusal['message']} | {refusal['fix']}\n"
    assert refusal["cause"] not in refusal["message"]
    assert cli.main(["prove", *case]) == 3
    assert read_document(capsys.readouterr().out) == refusal | {
        "schema": "nvgraft.error/1",
        "command": "prove",
        "exit_code": 3,
    }
    assert cli.main(["matrix", "eks-t4", "--bundles", str(bundle), "--format", "json"]) == 1
    (row,) = read_document(capsys.readouterr().out)["hosts"]
    assert row["cells"][0]["refusal"] == refusal


@pytest.mark.parametrize(
    ("words", "command", "cause", "fix"),
    [
        (
            ("why", "--format", "json", "--hots", "x"),
            "why",
            "unknown option --hots; did you mean --host?",
            "`nvgraft why --help` shows the usage",
        ),
        (
            ("plan", "--format=json", "--mode", "x"),
            "plan",
            "argument --mode: invalid choice: 'x'",
            "choose hook, runtime, legacy, jit-cdi, cdi or csv",
        ),
        (
            ("plam", "--format", "json"),
            "",
            "there is no command 'plam'; did you mean plan?",
            "`nvgraft help` lists the commands",
        ),
    ],
)
def test_a_wrong_command_line_is_an_error_document(
    words: tuple[str, ...], command: str, cause: str, fix: str, capsys: Captured
) -> None:
    """With --format json a wrong command line has cause and fix in a document on stdout."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(words))
    assert caught.value.code == 2
    document = read_document(capsys.readouterr().out)
    assert (document["schema"], document["exit_code"]) == ("nvgraft.error/1", 2)
    assert (document["command"], document["cause"], document["fix"]) == (command, cause, fix)


@pytest.mark.parametrize(
    ("words", "cause", "fix"),
    [
        (
            ("cdi", "generate", "--host", "{missing}"),
            "cannot be read",
            "pass the path of a readable file",
        ),
        (
            ("doctor", "--bundle", "{missing}", "--host", "eks-t4"),
            "no such file",
            "--container must",
        ),
        (("why", "x", "--host", "eks-t4", "--config", "{missing}"), "no such file", "-config"),
        (("why", "x", "--host", "ekst4"), "did you mean eks-t4?", "`nvgraft simulate --list`"),
        (("explain-error", " "), "no text", "pass the error as an argument"),
    ],
)
def test_bad_input_is_a_document_too(
    words: tuple[str, ...],
    cause: str,
    fix: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --format json an input that cannot be used is a document with the cause and the fix."""
    line = [word.format(missing=tmp_path / "missing") for word in words]
    monkeypatch.chdir(make_bundle(tmp_path / "b"))
    assert cli.main([*line, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    document = read_document(out)
    assert (document["command"], document["id"], document["exit_code"]) == (words[0], "input", 2)
    assert cause in document["cause"]
    assert fix in document["fix"]
    assert err.startswith(f"nvgraft {words[0]}: {document['message']}")


def with_json(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the names of the commands that can print JSON."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, subparser in action.choices.items():
                formats = [
                    option.choices or ()
                    for option in subparser._actions
                    if "--format" in option.option_strings
                ]
                if any("json" in choices for choices in formats) or list(with_json(subparser)):
                    yield name


def test_every_command_with_json_is_tested() -> None:
    """The tests of a command with --format json are here or in its own module."""
    assert set(with_json(whole_program())) == {*ABOUT_A_CASE, *ALONE, *ELSEWHERE, *OTHER}
    for name in ELSEWHERE.values():
        assert "read_document(" in Path(__file__).with_name(f"{name}.py").read_text()


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("explain", "--bundle", "{bundle}", "--host", "eks-t4"), ("steps", 0, "facts", 0)),
        (("why", "nvidia-smi", "--bundle", "{bundle}", "--host", "eks-t4"), ("answers", 0)),
        (("doctor", "--bundle", "{bundle}", "--host", "eks-t4"), ("results", 0)),
        (("prove", "--bundle", "{bundle}", "--host", "eks-t4"), ("proofs", 0, "failures", 0)),
        (("explain-error", "nvidia-container-cli: requirement error: x"), ()),
        (("simulate", "--list"), ("hosts", 0)),
    ],
    ids=lambda value: value[0] if value else "",
)
def test_an_extra_or_missing_member_is_refused(
    words: tuple[str, ...], path: tuple[str | int, ...], tmp_path: Path, capsys: Captured
) -> None:
    """An extra or missing member at any depth fails the schema: the check can fail."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    text = output(capsys, *(word.format(bundle=bundle) for word in words))
    for extra in (True, False):
        data = json.loads(text)
        inner = data
        for step in path:
            inner = inner[step]
        if extra:
            inner["extra"] = 1
        else:
            inner.popitem()
        with pytest.raises(jsonschema_rs.ValidationError):
            read_document(json.dumps(data))


@pytest.mark.parametrize(
    "words",
    [
        ["explain-error", "cuda>=12.0"],
        ["plan", "--container", "{bundle}", "--host", "eks-t4"],
        ["why", "nvidia-smi", "--container", "{bundle}", "--host", "eks-t4"],
    ],
    ids=lambda words: words[0],
)
def test_an_answer_does_not_load_pydantic(words: list[str], tmp_path: Path) -> None:
    """Printing a document, and reading a host of the gallery, loads neither pydantic nor structlog,
    which take longer than the command.
    """
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    program = (
        "import sys; from nvgraft_cli.shell.main import main; main(sys.argv[1:]); "
        "assert not {'pydantic', 'structlog'} & sys.modules.keys()"
    )
    words = [word.format(bundle=bundle) for word in words]
    command = [sys.executable, "-c", program, *words, "--format", "json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60
    )
    assert (done.stderr, json.loads(done.stdout)["schema"]) == ("", f"nvgraft.{words[0]}/1")
