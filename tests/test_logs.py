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
    """Reset the settings and structlog after every test."""
    yield
    logs.setup("")
    structlog.reset_defaults()


def test_text_lines_go_to_stderr_without_a_set_up(capsys: Captured) -> None:
    """Without a set-up, log lines are text on stderr without debug lines, and stdout stays
    empty.
    """
    logs.setup("watch")
    log = logs.get()
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
    logs.setup("plan", debug=True)
    logs.debug("confined", landlock=0)
    assert capsys.readouterr().err == "nvgraft plan: debug: confined: landlock=0\n"


def test_values_cannot_control_a_terminal(capsys: Captured) -> None:
    """Escapes, newlines and undecodable names in values are printed as text."""
    logs.setup("register")
    logs.get().info("changed \x1b[2J", path="/etc/\nforged: line\udc80\x9b")
    assert (
        capsys.readouterr().err
        == "nvgraft register: changed \\x1b[2J: path=/etc/\\x0aforged: line\\udc80\\x9b\n"
    )


def test_json_lines_have_one_object_each(capsys: Captured) -> None:
    """With ``json`` each line is an object with time, level and command; control characters are
    escaped.
    """
    logs.setup("recover", json=True)
    logs.get().error("left behind", path="/run/x\x1b")
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


def test_facts_of_the_text_are_members_in_json(capsys: Captured) -> None:
    """Facts that the text tells already are shown in JSON alone."""
    for json_lines, shown in ((False, False), (True, True)):
        logs.setup("register", json=json_lines)
        logs.get().info("/x: registered", facts={"state": "registered"})
        assert ('"state": "registered"' in capsys.readouterr().err) is shown


def test_structlog_is_loaded_with_the_first_line() -> None:
    """structlog is loaded with the first line, not with nvgraft's module."""
    check = "print('structlog' in sys.modules, end=' ')"
    program = f"import sys; from nvgraft_cli.shell import logs; {check}; logs.debug('x'); {check}; logs.get(); {check}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    assert done.stdout == "False False True "
