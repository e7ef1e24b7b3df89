"""``nvgraft explain-error``: pasted errors are recognised in any wrapping; others are not."""

import io
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvgraft_cli.explain_error.analysis import LIMIT, STAGES, analyse, plain
from nvgraft_cli.shell.main import main
from nvgraft_specs.checks import FAILURES

Captured = pytest.CaptureFixture[str]

DATA = tomllib.loads((files("nvgraft_specs") / "errors.toml").read_text("utf-8"))

#: A pasted error and the failure that its thread determined; "" where doctor has no check.
PASTES = [
    (text, failure)
    for line in (Path(__file__).parent / "fixtures/pasted-errors.tsv").read_text().splitlines()
    for failure, _, text in (line.partition("\t"),)
]


@pytest.mark.parametrize(("paste", "failure"), PASTES, ids=[paste[:60] for paste, _ in PASTES])
def test_a_pasted_error_is_recognised(paste: str, failure: str) -> None:
    """A pasted error has exactly one meaning, with a cause, a next step and no unfilled group."""
    meanings = analyse(paste).meanings
    assert [meaning.failure for meaning in meanings] == [failure]
    assert meanings[0].cause
    assert meanings[0].next
    assert "{" not in meanings[0].cause + "".join(meanings[0].next)


def test_every_row_is_used() -> None:
    """Each row of the table explains one of the pastes; none is hidden by another row."""
    used = {meaning.cause for paste, _ in PASTES for meaning in analyse(paste).meanings}
    fixed = [row["cause"] for row in DATA["error"] if "{" not in row["cause"]]
    assert [cause for cause in fixed if cause not in used] == []
    assert len({cause for cause in used if cause not in fixed}) == len(DATA["error"]) - len(fixed)


def test_rows_are_well_formed() -> None:
    """Each row of the table has a known stage and a known failure."""
    ids = {failure.id for failure in FAILURES} | {""}
    for row in DATA["error"]:
        assert row["stage"] in STAGES
        assert row["failure"] in ids
    assert len(ids) == len(FAILURES) + 1


WRAPPINGS = {
    "docker and runc": (
        "docker: Error response from daemon: failed to create task for container: "
        "failed to create shim task: OCI runtime create failed: runc create failed: "
        "unable to start container process: error during container init: "
        "error running prestart hook #0: exit status 1, stdout: , "
        "stderr: Auto-detected mode as 'legacy'\n{}: unknown."
    ),
    "old docker": (
        "docker: Error response from daemon: OCI runtime create failed: container_linux.go:345: "
        'starting container process caused "process_linux.go:430: container init caused '
        '\\"process_linux.go:413: running prestart hook 0 caused '
        '\\\\\\"error running hook: exit status 1, stdout: , stderr: {}\\\\n\\\\\\"\\"": unknown.'
    ),
    "crun with stderr": (
        "Error: OCI runtime error: crun: error executing hook "
        "`/usr/bin/nvidia-container-runtime-hook` (exit code: 1)\n{}"
    ),
    "enroot": "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1\n{}",
    "a terminal": "\x1b[31m{}\x1b[0m",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS)
@pytest.mark.parametrize("paste", [PASTES[0][0], PASTES[20][0], PASTES[24][0]])
def test_a_wrapped_error_is_recognised(wrapping: str, paste: str) -> None:
    """A wrapped error has the meanings and the stage of the bare error."""
    bare, wrapped = analyse(paste), analyse(wrapping.replace("{}", paste))
    assert wrapped.meanings == bare.meanings != ()
    assert wrapped.stage == bare.stage != ""


def test_wrappers_are_listed_from_the_outermost() -> None:
    """Wrappers are listed from the outermost, so that a reader sees which program started which."""
    text = WRAPPINGS["docker and runc"].replace("{}", PASTES[0][0])
    names = [wrapper.name for wrapper in analyse(text).wrappers]
    assert names == ["docker", "containerd", "runc", "prestart hook", "nvidia-container-cli"]


def test_nvgrafts_own_line_is_recognised_too() -> None:
    """nvgraft's own line is recognised, because it begins with the reference's words."""
    analysis = analyse("nvgraft: device error: 9: unknown device | the host has GPU 0,1")
    assert analysis.stage == "device"
    assert [meaning.failure for meaning in analysis.meanings] == ["unknown-device"]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "exit status 1",
        "docker: Error response from daemon: no such image",
        "\x00\xff" * 100,
        "{0}{1}",
    ],
)
def test_an_unknown_error_is_not_guessed(text: str, capsys: Captured) -> None:
    """An unknown error exits with 1 and advice on where to look."""
    assert main(["explain-error", text]) == 1
    assert "this text contains no known error of GPU containers" in capsys.readouterr().out


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Without an argument standard input is read; bytes that are not UTF-8 do no harm."""
    stdin = SimpleNamespace(
        buffer=io.BytesIO(b"\xff\n" + PASTES[0][0].encode()), isatty=lambda: False
    )
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["explain-error"]) == 0
    out = capsys.readouterr().out
    assert "driver-library-mismatch: the driver was upgraded while its old kernel module" in out
    assert "failed at the stage: initialization" in out


def test_json_has_stage_and_meanings(capsys: Captured) -> None:
    """The JSON document holds the stage and the meanings that the text shows."""
    assert main(["explain-error", "--format", "json", PASTES[0][0]]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stage"] == "initialization"
    assert document["meanings"][0]["failure"] == "driver-library-mismatch"


def test_no_text_is_an_input_error(capsys: Captured) -> None:
    """An empty text is one line and exit 2."""
    assert main(["explain-error", "  "]) == 2
    assert (
        capsys.readouterr().err
        == "nvgraft explain-error: no text: pass the error as an argument, or on standard input\n"
    )


def test_a_paste_cannot_steer_the_terminal(capsys: Captured) -> None:
    """Quoted words are printed without control characters."""
    main(["explain-error", "device error: \x1b]0;x\x07\x1b[2J9\x9b: unknown device"])
    assert not {"\x1b", "\x07", "\x9b"} & set(capsys.readouterr().out)


def test_long_hostile_text_takes_no_time() -> None:
    """Patterns are linear in 256 KiB of near misses; one that backtracks would take minutes."""
    for piece in (
        "file creation failed: a",
        "device error: ",
        "\\",
        "load library failed: lib",
        "unsatisfied condition: ",
        'exec: "',
        "\x1b[0",
    ):
        analyse(piece * (LIMIT // len(piece)))


def test_only_the_end_of_a_long_paste_is_read() -> None:
    """Only the end of a long paste is read, where the error is."""
    assert len(plain("x" * (2 << 20))) == LIMIT
    assert analyse("y" * (2 << 20) + PASTES[0][0]).meanings[0].failure == "driver-library-mismatch"
