"""A killed hook leaves only what its journal names: safety/kills.py at its small size."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from containers import Bundle
from harness import run_in_mount_namespace
from nvgraft.apply import journal
from nvgraft.apply.journal import Heading, Journal, JournalEntry
from nvgraft.system import syscalls
from nvgraft_cli.recover.command import recover
from safety.kills import Kills, Tally, kills
from safety.shim import Fault
from safety.stage import on_stage

pytestmark = pytest.mark.requires(
    "root", "overlayfs", "cgroup-v1", "cgroup-v2", "ldconfig", "x86_64"
)


def test_everything_is_recovered_after_a_kill() -> None:
    """After a kill anywhere in apply/, recover or the next start removes everything."""
    tally = kills("small", 1)
    assert tally.problems == ()
    assert tally.kills > 50
    assert tally.restarts > 5
    assert tally.left_most > 10, "no kill left much behind: the measurement shows nothing"


def test_the_measurement_finds_leftovers_that_no_journal_names() -> None:
    """Control: leftovers are reported when the journal announces another file instead."""

    def silent() -> Tally:
        with on_stage() as stage:
            work = Kills(stage)
            last = next(
                site
                for site in reversed(work.sites)
                if site.call == "rename" and site.place.startswith("apply/")
            )
            stage.prepare = _announce_something_else
            work.kill(last, Fault("before", signal.SIGKILL))
            return work.tally()

    tally = run_in_mount_namespace(silent)
    assert tally.left_most > 10
    (problem,) = tally.problems
    assert "after recovery" in problem


def _announce_something_else() -> None:
    records = journal.records
    vars(journal).update(
        records=lambda entries: [(b"file\0/something/else\0", b"") for _ in records(entries)]
    )


def test_recovery_leaves_a_volume_over_a_leftover_alone(tmp_path: Path) -> None:
    """A leftover below a volume stays in the journal, and the volume's file stays."""
    rootfs = tmp_path / "rootfs"
    (rootfs / "data").mkdir(parents=True)
    (rootfs / "proc").mkdir()

    def scenario() -> tuple[list[str], list[str]]:
        syscalls.mount("tmpfs", "/run", "tmpfs", 0)
        fd = os.open(rootfs, os.O_PATH)
        begun = Journal.begin(Heading.of(str(rootfs), fd, 0, 0))
        begun.announce([JournalEntry("file", "/data/made"), JournalEntry("file", "/made")])
        (rootfs / "data/made").touch()
        (rootfs / "made").touch()
        syscalls.mount("tmpfs", str(rootfs / "data"), "tmpfs", 0)
        (rootfs / "data/made").touch()
        (first,) = recover()
        covered = [f"{outcome.fate} {outcome.path}" for outcome in first.outcomes]
        covered += os.listdir(rootfs / "data")
        syscalls.umount2(str(rootfs / "data"), 0)
        (second,) = recover()
        return covered, [f"{outcome.fate} {outcome.path}" for outcome in second.outcomes]

    covered, rest = run_in_mount_namespace(scenario)
    assert covered == ["removed /made", "stuck /data/made", "made"]
    assert rest == ["removed /data/made"]


KILLED_ONCE = """
cat > /run/hook <<'END'
#!/bin/sh
[ -e /run/killed ] || {{ touch /run/killed; kill="strace -qqo /dev/null -e inject=move_mount:signal=KILL:when=9"; }}
exec $kill {hook} prestart
END
chmod 755 /run/hook
runc --root /run/runc-test run --bundle {bundle} {name}; echo first start: $?
"""


def killed_once(bundle: Bundle) -> str:
    """Return a script in which the hook of the first start is killed after some of its mounts."""
    bundle.set_program("ls /usr/bin/nvidia-smi")

    def change(config: dict[str, Any]) -> None:
        config["hooks"]["prestart"][0]["path"] = "/run/hook"

    bundle.edit(change)
    return KILLED_ONCE.format(hook=bundle.installed.hook, bundle=bundle.path, name=bundle.name)


@pytest.mark.requires("runc", "busybox", "strace")
def test_recover_removes_the_leftovers_of_a_container_that_did_not_start(bundle: Bundle) -> None:
    """Under runc: `nvgraft recover` lists and removes what the killed hook has left."""
    cli = bundle.installed.cli
    recovery = f"{cli} recover --dry-run; {cli} recover; echo code $?; ls -R /run/nvgraft"
    done = bundle.on_host(f"{killed_once(bundle)} {recovery}")
    assert "first start: 1" in done.stdout, done.stdout + done.stderr
    assert "would be removed /usr/bin/nvidia-smi" in done.stdout
    assert f"{bundle.path}/rootfs: " in done.stdout
    assert "\n  removed /usr/bin/nvidia-smi\n" in done.stdout
    assert "code 0" in done.stdout
    assert done.changes == []
    assert done.stdout.rstrip().endswith("/run/nvgraft/lock:")


@pytest.mark.requires("runc", "busybox", "strace")
def test_the_next_start_removes_leftovers_and_works(bundle: Bundle) -> None:
    """Under runc: a second start gives the container its driver, and leaves no journal."""
    again = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name}"
    look = f"ls /run/nvgraft/journal; {bundle.installed.cli} recover"
    done = bundle.on_host(f"{killed_once(bundle)} {again}; echo second start: $?; {look}")
    assert "first start: 1" in done.stdout
    assert "/usr/bin/nvidia-smi\nsecond start: 0\nnothing to recover" in done.stdout, (
        done.stdout + done.stderr
    )


#: Shell commands that put into the directory of journals what no hook makes, and a lock of another
#: root file system.
ODD = """
cd /run/nvgraft/journal && mkdir 1-1-1 && mkfifo 1-2-1 && ln -s /dev/zero 1-3-1
truncate -s 65M 1-4-1 && touch 1-5-1 && chmod 666 1-5-1 && touch 1-6-1 && chown 1000 1-6-1
mkdir ../lock/1-7 ../last-error/id-odd ../cache/config-odd ../cache/inventory-odd
"""


@pytest.mark.requires("runc", "busybox")
def test_odd_entries_keep_no_container_from_starting(bundle: Bundle) -> None:
    """Under runc: whatever lies in the directories under /run/nvgraft, containers start and warn of
    it, and recover names each of it and ends with 1.
    """
    bundle.set_program("cat /proc/self/mountinfo")
    start = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name}"
    recovered = f"{bundle.installed.cli} recover; echo code $?"
    done = bundle.on_host(
        f"{start} > /dev/null && ({ODD}) && {start} && {bundle.installed.cli} last-error && {recovered}"
    )
    assert done.returncode == 0, done.stderr
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so." in done.stdout, done.stdout
    warning = "nvgraft: warning: /run/nvgraft/journal/1-1-1 is not used: it is not a regular file"
    assert f"{warning}, and 5 more | run nvgraft recover" in done.stdout
    for number in range(1, 7):
        path = f"/run/nvgraft/journal/1-{number}-1"
        assert f"not used | look at {path}, then remove it" in done.stdout
    assert "look at /run/nvgraft/lock/1-7, then remove it" in done.stdout
    assert "/run/nvgraft/last-error/id-odd is not used" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.endswith("code 1\n")
