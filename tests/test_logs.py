"""The log of long-running and changing commands: for people, or for machines."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from nvgraft_cli.shell import logs

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Reset structlog before and after every test."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_text_lines_go_to_stderr_without_a_set_up(capsys: Captured) -> None:
    """Without a set-up, log lines are text on stderr without debug lines, and stdout stays
    empty.
    """
    log = logs.get("watch")
    log.debug("not shown")
    log.info("inventory refreshed", gpus=8, reason="uevent")
    log.warning("cannot listen")
    assert capsys.readouterr() == (
        "",
        (
            "nvgraft watch: inventory refreshed: gpus=8 reason=uevent\nnvgraft watch: warning:"
            " cannot listen\n"
        ),
    )


def test_debug_lines_are_shown_on_request(capsys: Captured) -> None:
    """Debug lines are shown on request, with a label."""
    logs.setup(debug=True)
    logs.get("plan").debug("confined", landlock=0)
    assert capsys.readouterr().err == "nvgraft plan: debug: confined: landlock=0\n"


def test_values_cannot_control_a_terminal(capsys: Captured) -> None:
    """Escapes, newlines and undecodable names in values are printed as text."""
    logs.get("register").info("changed \x1b[2J", path="/etc/\nforged: line\udc80\x9b")
    assert (
        capsys.readouterr().err
        == "nvgraft register: changed \\x1b[2J: path=/etc/\\x0aforged: line\\udc80\\x9b\n"
    )


def test_json_lines_have_one_object_each(capsys: Captured) -> None:
    """With ``json`` each line is an object with time, level and command; control characters are
    escaped.
    """
    logs.setup(debug=False, json=True)
    logs.get("recover").error("left behind", path="/run/x\x1b")
    line = capsys.readouterr().err
    assert line.endswith("\n") and line.count("\n") == 1 and "\x1b" not in line
    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "level": "error",
        "command": "recover",
        "event": "left behind",
        "path": "/run/x\x1b",
    }


def test_structlog_is_loaded_with_the_first_line() -> None:
    """structlog is loaded with the first line, not with nvgraft's module."""
    check = "print('structlog' in sys.modules, end=' ')"
    program = f"import sys; from nvgraft_cli.shell import logs; {check}; logs.get('x'); {check}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    assert done.stdout == "False True "
