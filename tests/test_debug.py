"""``--debug``: every command says on stderr what it reads, decides and skips."""

import json
from pathlib import Path

import pytest

from bundles import make_bundle
from console import EXAMPLES
from images import docker_save
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(
        make_bundle(
            tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"
        )
    )


@pytest.mark.parametrize("place", [0, 1, 5])
def test_debug_may_stand_anywhere(place: int, bundle: str, capsys: Captured) -> None:
    """--debug counts before the command, behind it and at the end; the answer stays the same."""
    words = ["plan", "--bundle", bundle, "--host", "eks-t4"]
    assert main(words) == 0
    plain = capsys.readouterr()
    assert main([*words[:place], "--debug", *words[place:]]) == 0
    logged = capsys.readouterr()
    assert (logged.out, plain.err) == (plain.out, "")
    assert all(line.startswith("nvgraft plan: debug: ") for line in logged.err.splitlines())


def test_a_plan_tells_what_it_read_decided_and_skipped(bundle: str, capsys: Captured) -> None:
    """The log has the files that are read, the decision, and what is not planned, with reasons."""
    words = ["plan", "--bundle", bundle, "--host", "eks-t4", "--debug", "--log-format", "json"]
    assert main(words) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    facts = {(line["event"], line.get("name", "")): line for line in lines}
    assert facts["read", ""]["host"].endswith("/gallery/eks-t4.json")
    assert facts["opened", ""]["container"] == bundle
    assert facts["decided", ""]["verdict"] == "inject"
    assert facts["skipped", "libvdpau_nvidia.so"]["reason"] == "not on this host"
    (cuda,) = (line for line in lines if "libcuda.so" in line.get("name", ""))
    assert cuda["reason"] == "not planned; it is for compute"
    assert {line["level"] for line in lines} == {"debug"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("doctor", "--host", "eks-t4"), "skipped: check="),
        (("why", "x", "--bundle", "{image}", "--host", "eks-t4"), "read: layer="),
        (("explain", "--bundle", "{bundle}", "--host", "eks-t4"), "decided: verdict=inject"),
        (
            ("prove", "libnone.so", "--bundle", "{training}", "--host", "runfile-a10x2"),
            "/libnone.so reason=does not exist",
        ),
        (("diff", "{document}", "{document}"), "read: side={document}"),
        (
            ("matrix", "eks-t4", "{document}", "--bundles", "{bundle}"),
            "skipped: name={document} reason=planned with eks-t4: they are equal",
        ),
        (("cdi", "generate", "--host", "eks-t4"), "read: host="),
        (("last-error",), "last-error"),
        (("register", "docker", "--file", "{file}", "--dry-run"), "read: file={file} exists=True"),
        (("explain-error", "mount error: x"), "read: characters=14"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_every_command_tells(
    words: tuple[str, ...],
    line: str,
    bundle: str,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each command logs what is particular to it."""
    monkeypatch.setattr("nvgraft_cli.register.installation.check", lambda prefix, names: None)
    document = tmp_path / "host.json"
    document.write_bytes(Path(gallery.path("eks-t4")).read_bytes())
    (tmp_path / "daemon.json").write_text("{}")
    places = {
        "bundle": bundle,
        "training": str(EXAMPLES / "training"),
        "image": docker_save(tmp_path / "image.tar", [("etc/debian_version", b"12\n")]),
        "document": str(document),
        "file": str(tmp_path / "daemon.json"),
    }
    main(["--debug", *(word.format(**places) for word in words)])
    logged = [text for text in capsys.readouterr().err.splitlines() if " debug: " in text]
    assert any(line.format(**places) in text for text in logged)


def test_notes_are_lines_of_the_log(bundle: str, capsys: Captured) -> None:
    """A note beside an answer is a line of the log, so --log-format json makes it an object."""
    words = ["plan", "--bundle", bundle, "--host", "eks-t4", "--format", "cdi"]
    assert main([*words, "--log-format", "json"]) == 0
    notes = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(note["event"].startswith("not in the CDI specification: ") for note in notes)
    assert notes != []
