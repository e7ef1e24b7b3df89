"""Nothing is left after a failure of any system call: the campaigns of safety/faults.py at size
small.
"""

import errno
import random
import signal

import pytest

from harness import run_in_mount_namespace
from nvgraft.apply.undo import UndoLog
from safety.faults import MEASURES, Campaign, Tally, places, soak
from safety.shim import Fault, Site
from safety.stage import on_stage

pytestmark = pytest.mark.requires(
    "root", "overlayfs", "cgroup-v1", "cgroup-v2", "ldconfig", "strace", "x86_64"
)

SEED = 1


@pytest.mark.parametrize("name", MEASURES)
def test_after_a_fault_nothing_is_left_or_all_of_it_is_named(name: str) -> None:
    """Every place of the apply phase is struck once: failed starts leave nothing, successful ones
    lack nothing.
    """
    tally = MEASURES[name]("small", SEED)
    assert tally.problems == ()
    assert tally.runs > 10
    assert tally.undone > 0


def test_starts_and_ends_leave_nothing_that_grows() -> None:
    """Mounts, files, descriptors, cgroups and memory are the same after twenty containers."""
    assert soak(20) == ""


def test_the_campaign_finds_what_an_undo_forgets() -> None:
    """Control: what a forgetful undo log leaves is noticed, and faults without effect are not
    called failures.
    """

    def forgetful() -> tuple[Tally, Tally]:
        with on_stage() as stage:
            campaign = Campaign(stage)
            last = next(
                site
                for site in reversed(campaign.sites)
                if site.call == "rename" and site.place.startswith("apply/")
            )
            campaign.strike(last, Fault("none"))
            harmless = campaign.tally()
            stage.prepare = lambda: setattr(UndoLog, "run", lambda _self: [])
            campaign.strike(last, Fault("error", errno.EPERM))
            return harmless, campaign.tally()

    harmless, found = run_in_mount_namespace(forgetful)
    assert (harmless.unharmed, harmless.undone, harmless.problems) == (1, 0, ())
    (problem,) = found.problems
    assert "left behind" in problem
    assert "mounts" in problem


def test_a_signal_between_a_change_and_its_note_is_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: without held signals, one right after a directory was made leaves it; held, it is
    undone.
    """

    def struck() -> tuple[Tally, Tally]:
        with on_stage() as stage:
            campaign = Campaign(stage)
            made = [
                site
                for site in campaign.sites
                if site.call == "mkdir" and site.place.startswith("apply/targets.py")
            ]
            campaign.strike(made[0], Fault("after", signal.SIGTERM))
            held = campaign.tally()
            stage.prepare = _hold_no_signals
            campaign.strike(made[0], Fault("after", signal.SIGTERM))
            return held, campaign.tally()

    held, loose = run_in_mount_namespace(struck)
    assert (held.undone, held.problems) == (1, ())
    assert len(loose.problems) == 1


def _hold_no_signals() -> None:
    from nvgraft.apply import executor, held_container

    vars(held_container).update(hold_signals=lambda: None)
    vars(executor).update(hold_signals=lambda: None)


def test_chance_is_repeatable() -> None:
    """The same seed strikes the same calls."""
    sites = [Site(0, number, "open", f"place{number % 3}") for number in range(30)]
    first, second = (places(sites, random.Random(7)) for _ in range(2))
    assert first == second
    assert len(first) == 3
