"""Nothing is left after a failure of any system call: safety/faults.py at its small sizes."""

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
def test_a_start_with_a_fault_leaves_nothing_or_names_it(name: str) -> None:
    """After a fault anywhere in apply/, nothing is left, or the start is complete."""
    tally = MEASURES[name]("small", SEED)
    assert tally.problems == ()
    assert tally.runs > 10
    assert tally.undone > 0


def test_repeated_starts_leak_nothing() -> None:
    """Mounts, files, descriptors, cgroups and memory do not grow over twenty containers."""
    assert soak(20) == ""


def test_the_campaign_finds_the_leftovers_of_a_broken_undo() -> None:
    """Control: the leftovers of a forgetful undo log are reported; a harmless fault is not."""

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

    harmless, leaking = run_in_mount_namespace(forgetful)
    assert (harmless.unharmed, harmless.undone, harmless.problems) == (1, 0, ())
    (problem,) = leaking.problems
    assert "left behind" in problem
    assert "mounts" in problem


def test_a_signal_between_a_change_and_its_undo_note_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: a mkdir before a signal is undone, and left if signals are not held."""

    def struck() -> tuple[Tally, Tally]:
        with on_stage() as stage:
            campaign = Campaign(stage)
            mkdir = next(
                site
                for site in campaign.sites
                if site.call == "mkdir" and site.place.startswith("apply/targets.py")
            )
            campaign.strike(mkdir, Fault("after", signal.SIGTERM))
            with_held_signals = campaign.tally()
            stage.prepare = _hold_no_signals
            campaign.strike(mkdir, Fault("after", signal.SIGTERM))
            return with_held_signals, campaign.tally()

    with_held_signals, without = run_in_mount_namespace(struck)
    assert (with_held_signals.undone, with_held_signals.problems) == (1, ())
    assert len(without.problems) == 1


def _hold_no_signals() -> None:
    from nvgraft.apply import executor, held_container

    vars(held_container).update(hold_signals=lambda: None)
    vars(executor).update(hold_signals=lambda: None)


def test_a_seed_selects_the_same_calls() -> None:
    """places() selects the same calls for the same seed."""
    sites = [Site(0, number, "open", f"place{number % 3}") for number in range(30)]
    first, second = (places(sites, random.Random(7)) for _ in range(2))
    assert first == second
    assert len(first) == 3
