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
    """Every test starts and ends without a set-up."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_lines_for_people_are_on_stderr_without_a_set_up(capsys: Captured) -> None:
    """A command that says nothing about its log gets text lines, no debug ones, and nothing on stdout."""
    log = logs.get("watch")
    log.debug("not shown")
    log.info("inventory refreshed", gpus=8, reason="uevent")
    log.warning("cannot listen")
    assert capsys.readouterr() == (
        "",
        "nvgraft watch: inventory refreshed: gpus=8 reason=uevent\nnvgraft watch: warning: cannot listen\n",
    )


def test_debug_lines_are_shown_on_request(capsys: Captured) -> None:
    """With a label, so that they are not taken for news."""
    logs.setup(debug=True)
    logs.get("plan").debug("confined", landlock=0)
    assert capsys.readouterr().err == "nvgraft plan: debug: confined: landlock=0\n"


def test_nothing_in_a_fact_steers_a_terminal(capsys: Captured) -> None:
    """Escapes, newlines and undecodable names are shown, not sent."""
    logs.get("register").info("changed \x1b[2J", path="/etc/\nforged: line\udc80\x9b")
    assert (
        capsys.readouterr().err
        == "nvgraft register: changed \\x1b[2J: path=/etc/\\x0aforged: line\\udc80\\x9b\n"
    )


def test_machines_get_one_object_a_line(capsys: Captured) -> None:
    """With time, level and command; control characters are JSON's to escape."""
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


def test_the_library_is_loaded_only_for_a_line() -> None:
    """Importing the module costs a command that logs nothing nothing."""
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
