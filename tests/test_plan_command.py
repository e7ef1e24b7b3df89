"""``nvgraft plan``: exit codes, standard output and standard error."""

import json
import os
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft_cli.pods import opening
from nvgraft_cli.shell.main import main
from nvgraft_specs.models.plan import parse_plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(make_bundle(tmp_path / "b", *EVERYTHING))


def test_a_plan_is_text_by_default(bundle: str, capsys: Captured) -> None:
    """The default output is text without colours; the exit code is 0 and stderr is empty."""
    assert main(["plan", "--bundle", bundle, "--host", "runfile-a10x2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("inject: the container asks for all\n  host      runfile-a10x2: driver ")
    assert (
        "\nloader cache  rebuilt with /usr/lib/x86_64-linux-gnu, /usr/lib/i386-linux-gnu\n" in out
    )
    assert "\x1b" not in out
    assert out.endswith("\n")
    assert not out.endswith("\n\n")


def test_a_plan_as_json_is_a_document(bundle: str, capsys: Captured) -> None:
    """The JSON output passes the model, and two runs print the same bytes."""
    texts = []
    for _ in range(2):
        assert (
            main(["plan", "--bundle", bundle, "--host", "runfile-a10x2", "--format", "json"]) == 0
        )
        out, err = capsys.readouterr()
        assert err == ""
        texts.append(out)
    assert texts[0] == texts[1]
    assert parse_plan(texts[0].encode(), "stdout").decision == "inject"


def test_this_directory_is_the_default_bundle(
    bundle: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --bundle the working directory is used, in which runtimes start hooks."""
    monkeypatch.chdir(bundle)
    assert main(["plan", "--host", "eks-t4", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["rootfs"] == f"{bundle}/rootfs"


def test_a_container_without_gpus_is_planned_as_skip(tmp_path: Path, capsys: Captured) -> None:
    """A container that needs no GPU is skipped with exit code 0."""
    assert main(["plan", "--bundle", str(make_bundle(tmp_path / "b")), "--host", "eks-t4"]) == 0
    assert (
        capsys.readouterr().out == "skip: not a GPU container: NVIDIA_VISIBLE_DEVICES is not set\n"
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_refusal_is_exit_1(tmp_path: Path, capsys: Captured, form: str) -> None:
    """A refusal prints the hook's error line on stderr and, with JSON, the document on stdout."""
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=9")
    assert main(["plan", "--bundle", str(bundle), "--host", "eks-t4", "--format", form]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(
        "nvgraft: device error: 9: unknown device | this host has 1 GPU(s): 0 (GPU-"
    )
    assert err.count("\n") == 1
    if form == "json":
        assert parse_plan(out.encode(), "stdout").decision == "refuse"
    else:
        assert out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bundle", "{none}", "--host", "eks-t4"],
        ["--bundle", "{bundle}", "--host", "{none}"],
        ["--bundle", "{bundle}", "--host", "eks-t4", "--config", "{none}"],
        ["--bundle", "{bundle}", "--host", "{bundle}"],
        ["--bundle", "{bundle}", "--host", "operator-driver-root", "--config", "{toml}"],
    ],
)
def test_bad_input_is_exit_2(
    bundle: str, tmp_path: Path, capsys: Captured, arguments: list[str]
) -> None:
    """Bad input is one line on stderr with path, cause and fix, and nothing on stdout."""
    toml = tmp_path / "config.toml"
    toml.touch()
    names = {"none": f"{tmp_path}/none", "bundle": bundle, "toml": str(toml)}
    assert main(["plan", *(word.format(**names) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"nvgraft plan: {tmp_path}/")
    assert err.count("\n") == 1


def test_a_bundle_without_its_rootfs_is_exit_2(tmp_path: Path, capsys: Captured) -> None:
    """A missing rootfs is named by the path in config.json."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING, root="/run/no/such/place")
    assert main(["plan", "--bundle", str(bundle), "--host", "eks-t4"]) == 2
    assert capsys.readouterr().err.startswith(
        "nvgraft plan: /run/no/such/place: no such directory: "
    )


@pytest.mark.parametrize(
    "arguments", [["--format", "yaml"], ["--no-such-option"], ["surplus"], ["--bundle"]]
)
def test_bad_usage_is_exit_2(arguments: list[str], capsys: Captured) -> None:
    """Bad usage prints the usage on stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["plan", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: nvgraft")


def test_help_has_an_example(capsys: Captured) -> None:
    """--help has an example and the exit codes."""
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "nvgraft plan --container /run/bundles/web --host eks-t4" in out
    assert "exit code: 0" in out


def test_a_missing_permission_is_one_line(
    bundle: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of the rootfs that this user may not read is named in one line."""

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/b/rootfs/root/\x1bx")

    monkeypatch.setattr(opening, "opened_case", forbidden)
    assert main(["plan", "--bundle", bundle, "--host", "eks-t4"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nvgraft plan: /b/rootfs/root/\\x1bx: permission denied | ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_that_are_not_utf_8_are_escaped(tmp_path: Path, capsys: Captured, form: str) -> None:
    """The output is ASCII without control characters, whatever names the image has."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    os.symlink(b"/opt/\xff\x1b[31m", bytes(bundle / "rootfs/usr"))
    assert main(["plan", "--bundle", str(bundle), "--host", "eks-t4", "--format", form]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert ("\\udcff\\u001b[31m" if form == "json" else "\\udcff\\x1b[31m") in out


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"),
    [(True, None, True), (True, "1", False), (True, "", True), (False, None, False)],
)
def test_colour_only_on_a_terminal(
    bundle: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    no_color: str | None,
    coloured: bool,
) -> None:
    """The output has colours only on a terminal, and not if NO_COLOR has a value."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert main(["plan", "--bundle", bundle, "--host", "eks-t4"]) == 0
    assert ("\x1b[1m" in capsys.readouterr().out) == coloured
