"""A hook that is killed leaves what its journal names, and nothing after recovery: safety/kills.py at its small size."""

import signal

import pytest

from harness import run_in_mount_namespace
from nvgraft.journal import Journal
from safety.kills import Kills, Tally, kills
from safety.shim import Fault
from safety.stage import on_stage

pytestmark = pytest.mark.requires("root", "overlayfs", "cgroup-v1", "cgroup-v2", "ldconfig", "x86_64")


def test_after_a_kill_everything_is_recovered() -> None:
    """At a call from each place of the apply phase, then by `nvgraft recover` or by the next start."""
    tally = kills("small", 1)
    assert tally.problems == ()
    assert tally.kills > 50
    assert tally.restarts > 5
    assert tally.left_most > 10, "what is killed late leaves a lot: a measurement that finds nothing measures nothing"


def test_the_measurement_finds_what_no_journal_names() -> None:
    """Control: where nothing is announced, what a kill leaves is found."""

    def silent() -> Tally:
        with on_stage() as stage:
            work = Kills(stage)
            last = next(site for site in reversed(work.sites) if site.call == "fork")
            stage.prepare = lambda: setattr(Journal, "announce", lambda *_: None)
            work.kill(last, Fault("before", signal.SIGKILL))
            return work.tally()

    tally = run_in_mount_namespace(silent)
    assert tally.left_most > 10
    (problem,) = tally.problems
    assert "after recovery" in problem
