"""A whole command line: which program reads it, what it prints on which stream, and the exit
code.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from nvgraft.host.components import Host
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft.report.debug_log import DebugLog
from nvgraft.request.config import Config
from nvgraft_cli.container_cli import detection
from nvgraft_cli.container_cli.options import GlobalOptions
from nvgraft_cli.shell import main as program

HOST = Path(__file__).parent / "fixtures" / "reference" / "hosts" / "d470.json"
LINE = re.compile(r"^[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [a-z_]+\.py:\d+\] .+$")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine the recorded host."""
    recorded = snapshot_host(json.loads(HOST.read_text()))
    monkeypatch.setattr(detection, "read_host", lambda config: recorded)
    monkeypatch.setattr(detection, "load_config", lambda *_, **__: Config())
    monkeypatch.setenv("PATH", OFFLINE_PATH)


@pytest.mark.parametrize(
    ("called", "name"),
    [("/usr/bin/nvidia-container-cli", "nvidia-container-cli"), ("/opt/bin/nvgraft", "nvgraft")],
)
def test_errors_carry_the_name_of_the_program(
    called: str,
    name: str,
    host: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Errors begin with the original's name when the program is called by it."""
    monkeypatch.setattr(sys, "argv", [called])
    assert program.main(["list", "--device=99"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{name}: device error: 99: unknown device | ")
    assert printed.out == ""


def test_under_the_originals_name_nothing_else_is_reachable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the original's name, nvgraft's own commands print its usage, with exit code 1."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/nvidia-container-cli"])
    assert program.main(["simulate", "--list"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(
        "Usage: nvidia-container-cli [OPTION...] COMMAND [ARG...]\n"
        "Try `nvidia-container-cli --help'"
    )
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cli-version: ")


def test_nvgrafts_own_commands_keep_their_parser(capsys: pytest.CaptureFixture[str]) -> None:
    """Under nvgraft's name its own commands and --help work as ever."""
    assert program.main(["simulate", "--list"]) == 0
    with pytest.raises(SystemExit) as left:
        program.main(["--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    for name in ("info", "list", "configure", "plan"):
        assert re.search(rf"^ +{name}\b", printed, re.MULTILINE)


def test_list_prints_a_path_a_line(host: None, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` prints one path in each line, and nothing on stderr."""
    assert program.main(["list", "--device=1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia0",
    ]
    assert printed.err == ""


def test_questions_are_answered_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """--help prints on stdout and exits with 0."""
    assert program.main(["configure", "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: nvgraft configure [OPTION...] ROOTFS\n")
    assert printed.err == ""


def test_control_characters_do_not_reach_the_terminal(
    host: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters of a device name or an option are printed escaped."""
    program.main(["list", "--device=\x1b[2J"])
    program.main(["list", "--\x1b[2J"])
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert printed.count(r"\x1b[2J") == 2


def test_no_path_is_a_detection_error(
    host: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without PATH, in which binaries are looked up, detection fails as the original's does."""
    monkeypatch.delenv("PATH")
    assert program.main(["list"]) == 1
    assert capsys.readouterr().err.startswith(
        "nvgraft: detection error: environment variable PATH not found | "
    )


@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_debug_log_is_appended_in_the_originals_format(
    by: str,
    host: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The log gets a header between blank lines, then lines with level, time, thread and place.

    Its last line is the refusal.
    """
    log = tmp_path / "log"
    log.write_text("before\n")
    words = ["list", "--device=99"]
    if by == "option":
        words = [f"--debug={log}", *words]
    else:
        monkeypatch.setenv("NVC_DEBUG_FILE", str(log))
    assert program.main(words) == 1
    before, blank, header, empty, *lines = log.read_text().splitlines()
    assert (before, blank, empty) == ("before", "", "")
    assert header == "-- WARNING, the following logs are for debugging purposes only --"
    assert [line for line in lines if not LINE.match(line)] == []
    assert any(line.endswith("] selecting /usr/lib/nvidia/tesla-470/nvidia-smi") for line in lines)
    assert any("] listing device /dev/nvidia1 (GPU-30b312ae" in line for line in lines)
    assert lines[-1].startswith("E")
    assert lines[-1].endswith("] 99: unknown device")


def test_a_log_that_cannot_be_written_is_a_warning(
    host: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that cannot be written is a warning, and the command works without it."""
    assert program.main([f"--debug={tmp_path}/no/log", "list", "--device=1"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(
        f"nvgraft: warning: no debug log: open {tmp_path}/no/log: no such file or directory | "
    )
    assert printed.out.endswith("/dev/nvidia0\n")


def test_a_driver_root_and_user_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """--root, --ldcache and --user become the engine's configuration, without config.toml."""
    seen: list[Config] = []

    def read(config: Config) -> Host:
        seen.append(config)
        return snapshot_host(json.loads(HOST.read_text()))

    monkeypatch.setattr(detection, "read_host", read)
    assert program.main(["--root=/run/nvidia/driver/", "--ldcache=/x", "--user=0:7", "list"]) == 0
    assert (seen[0].cli_root, seen[0].cli_ldcache, seen[0].cli_user) == (
        "/run/nvidia/driver",
        "/x",
        "0:7",
    )


def test_a_faulty_config_toml_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty config.toml is ignored, because the original does not read the file.

    Only nvgraft.simulated-host is taken from it.
    """
    toml = tmp_path / "config.toml"
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(toml))
    for text, simulated in (
        ("= broken", False),
        ("[nvgraft]\nsimulated-host = true\n", True),
        ('[nvidia-container-cli]\nroot = "/x"', False),
    ):
        toml.write_text(text)
        config = detection.engine_config(GlobalOptions())
        assert (config.simulated_host, config.cli_root) == (simulated, "")


def test_an_image_has_the_bounds_of_config_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that raise the bounds of an image hold for `configure` as for the hook."""
    toml = tmp_path / "config.toml"
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(toml))
    keys = ("names", "directories", "libraries", "seconds")
    lines = [f"image-{key} = {number}" for number, key in enumerate(keys, 1)]
    toml.write_text("\n".join(["[nvgraft]", *lines]))
    assert detection.engine_config(GlobalOptions()).image_limits == (1, 2, 3, 4)


def test_the_inventory_is_the_hooks(host: None) -> None:
    """The listed inventory is the one that the hook would mount from."""
    config, log = detection.engine_config(GlobalOptions()), DebugLog()
    inventory = detection.detect(config, (), log)
    assert inventory == read_inventory(snapshot_host(json.loads(HOST.read_text())), OFFLINE_PATH)
