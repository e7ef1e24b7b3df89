"""Progress: silent for short work, one changing line on a terminal, rare lines elsewhere."""

import sys
import time

import pytest

from nvgraft_cli.shell.progress import Progress

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_short_work_is_silent(clock: list[float], capsys: Captured) -> None:
    """Nothing within the first second."""
    with Progress("planning", 3, "pairs") as shown:
        for _ in range(3):
            clock[0] += 0.3
            shown.step()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_few_lines(clock: list[float], capsys: Captured) -> None:
    """After a second, then every ten; each is a line of its own."""
    with Progress("planning", 2000, "pairs") as shown:
        for _ in range(104):
            clock[0] += 0.125
            shown.step(10)
    assert capsys.readouterr().err.splitlines() == [
        "nvgraft: planning: 80 of 2,000 pairs",
        "nvgraft: planning: 880 of 2,000 pairs",
    ]


def test_a_terminal_gets_one_line_that_goes_away(
    clock: list[float], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is overwritten, and blank in the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("reading", 0, "layers") as shown:
        for _ in range(13):
            clock[0] += 0.125
            shown.step()
    text = capsys.readouterr().err
    assert "\n" not in text
    assert text.split("\r")[1].startswith("nvgraft: reading: 8 layers")
    assert text.endswith("\r")
    assert text.split("\r")[-2].strip() == ""
