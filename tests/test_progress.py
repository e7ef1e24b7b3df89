"""Progress: silent for short work, one changing line on a terminal, rare lines elsewhere."""

import os
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
    """Work of less than a second prints nothing."""
    with Progress("planning", 3, "pairs") as progress:
        for _ in range(3):
            clock[0] += 0.3
            progress.step()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_every_ten_seconds(clock: list[float], capsys: Captured) -> None:
    """Where stderr is not a terminal, a line is printed after one second and then every ten."""
    with Progress("planning", 2000, "pairs") as progress:
        for _ in range(104):
            clock[0] += 0.125
            progress.step(10)
    assert capsys.readouterr().err.splitlines() == [
        "nvgraft: planning: 80 of 2,000 pairs, 80/s, 24 s left",
        "nvgraft: planning: 880 of 2,000 pairs, 80/s, 14 s left",
    ]


def test_a_terminal_gets_one_line_that_is_cleared(
    clock: list[float], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal one line is overwritten, and blank in the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("reading", 0, "layers") as progress:
        for _ in range(13):
            clock[0] += 0.125
            progress.step()
    text = capsys.readouterr().err
    assert "\n" not in text
    assert text.split("\r")[1].startswith("nvgraft: reading: 8 layers, 8.0/s")
    assert text.endswith("\r")
    assert text.split("\r")[-2].strip() == ""


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(1.0, "1 min 39 s left"), (1.5, "2 min 28 s left"), (90.0, "2 h 28 min left")],
)
def test_the_time_left_follows_from_the_rate(
    clock: list[float], capsys: Captured, seconds: float, left: str
) -> None:
    """The time left is that of the rest at the rate so far."""
    with Progress("planning", 100, "pairs") as progress:
        clock[0] += seconds
        progress.step()
    assert capsys.readouterr().err.endswith(f", {left}\n")


def test_the_line_fits_a_narrow_terminal(
    clock: list[float], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal of 40 columns the line is cut, so that the next one can overwrite it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((40, 24)))
    with Progress("reading a-very-long-name-of-an-image.tar", 0, "entries") as progress:
        clock[0] += 2
        progress.step()
    lines = capsys.readouterr().err.split("\r")
    assert max(map(len, lines)) == 39
