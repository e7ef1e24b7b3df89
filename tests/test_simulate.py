"""The command line of `nvgraft simulate` as far as it needs no root; integration/test_simulate.py
tests the rest.
"""

import json
import os
from pathlib import Path

import pytest

from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models.host import load_host


@pytest.fixture(autouse=True)
def _no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a child is started, and run as a user who is not root."""

    def refused() -> int:
        raise AssertionError("a child was started")

    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def run(*arguments: str) -> int:
    """Return the exit code of `nvgraft simulate ARGUMENTS`."""
    return main(["simulate", *arguments])


def test_list_names_every_host(capsys: pytest.CaptureFixture[str]) -> None:
    """--list prints a line for each host of the gallery."""
    assert run("--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == gallery.names()


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--list --format json prints name, description, versions, GPUs, root and path; the path
    loads.
    """
    assert run("--list", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["hosts"]
    assert [row["name"] for row in rows] == gallery.names()
    eks = next(row for row in rows if row["name"] == "eks-t4")
    assert (eks["driver_version"], eks["cuda_version"], eks["gpus"], eks["root"]) == (
        "460.106.00",
        "11.2",
        ["Tesla T4"],
        "/",
    )
    assert load_host(eks["path"]).name == "eks-t4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "HOST or COMMAND is missing"),
        (("eks-t4",), "HOST or COMMAND is missing"),
        (("eks-t4", "--"), "HOST or COMMAND is missing"),
        (("eks-t4", "--no-nvml", "--", "id"), "'--no-nvml' after HOST"),
        (
            ("eks-t5", "--", "id"),
            "there is no simulated host and no file 'eks-t5'; did you mean eks-t4? | name one of ",
        ),
        (("/", "--", "id"), "/: cannot be read: is a directory"),
        (
            ("eks-t4", "--", "id", "-u", "a b"),
            (
                "only root can make device nodes and mounts in a private namespace | run sudo"
                " nvgraft simulate eks-t4 -- id -u 'a b'"
            ),
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad usage, an unknown host, an unreadable file and a caller other than root exit with 2 and
    one line with the fix.
    """
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("nvgraft simulate: ")
    assert message in error
    assert error.count("\n") == 1


def test_bad_document_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken host document is refused with the model's own message before anything is started."""
    path = tmp_path / "host.json"
    path.write_text('{"schema": "nvgraft.host/9"}')
    assert run(str(path), "--", "id") == 2
    with pytest.raises(DocumentError) as caught:
        load_host(str(path))
    assert capsys.readouterr().err == f"nvgraft simulate: {caught.value}\n"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """--help has an example."""
    with pytest.raises(SystemExit):
        run("--help")
    assert "nvgraft simulate runfile-a10x2 -- ls" in capsys.readouterr().out
