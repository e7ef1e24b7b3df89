"""An attacker changes things while the hook works: rare cases of safety/race.py, made on
purpose.
"""

import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from attacked import make_tree
from containers import Bundle
from harness import run_in_mount_namespace
from nvgraft.base.errors import Refusal
from nvgraft.container import container as containers
from nvgraft.plan.actions import Bind
from nvgraft.system import syscalls
from safety import arena
from safety.arena import CANARY, IMAGE, LIBS, ROOTFS
from safety.attacker import Move, attack, program

pytestmark = pytest.mark.requires("root", "gcc", "ldconfig")

MS_SHARED, MS_SLAVE = 1 << 20, 1 << 19


def test_a_neighbour_who_mounts_in_a_volume_that_the_container_hears_of() -> None:
    """T25: mounts come and go on the library directory, a volume; each hook is refused or its own
    mounts are on top.
    """

    def scenario() -> list[arena.Outcome]:
        arena.make_arena()
        volume = arena.PLACE / "volume"
        volume.mkdir()
        syscalls.mount("tmpfs", str(volume), "tmpfs", 0, "mode=755")
        syscalls.mount(None, str(volume), None, MS_SHARED)
        inventory = arena.the_inventory()
        with arena.container_process() as pid:
            plan = arena.in_child(lambda: arena.plan_of_process(pid, inventory))
        (volume / "libs").mkdir()
        for action in plan.actions:
            if isinstance(action, Bind) and action.target.startswith(f"{LIBS}/"):
                (volume / "libs" / os.path.basename(action.target)).touch()
        (volume / "libs/libnvidia-opticalflow.so").touch()
        (volume / "libs/libGLX_indirect.so.0").touch()
        (volume / "other").mkdir()
        before = arena.canary_state()

        def mounts() -> None:
            syscalls.mount(str(volume), f"{ROOTFS}{LIBS}", None, syscalls.MS_BIND)
            syscalls.mount(None, f"{ROOTFS}{LIBS}", None, MS_SLAVE)
            syscalls.mount(f"{ROOTFS}{LIBS}/libs", f"{ROOTFS}{LIBS}", None, syscalls.MS_BIND)

        outcomes = []
        moves = [
            Move("mount", str(volume / "other"), str(volume / "libs")),
            Move("mount", str(CANARY), str(volume / "libs")),
        ]
        for seed in range(10):
            with arena.container_process(mounts) as pid, attack(moves, seed):
                outcomes.append(arena.run_hook(pid, inventory))
                if outcomes[-1].kind != "applied":
                    left = arena.mounts_below(ROOTFS, pid)
                    assert [
                        point for point in left if "/libnvidia" in point or "/nvidia-smi" in point
                    ] == []
            assert arena.canary_state() == before
        return outcomes

    outcomes = run_in_mount_namespace(scenario)
    assert all(outcome.clean for outcome in outcomes), [
        outcome.line for outcome in outcomes if not outcome.clean
    ]
    assert {outcome.kind for outcome in outcomes} <= {"applied", "mount", "container", "ldcache"}


def test_a_number_that_comes_again_never_leads_into_another_container() -> None:
    """T26: during a storm of processes, the container of the state ends, and its number is given to
    others.

    The other processes are containers too, with root file systems of their own; none of them gets a
    mount.
    """

    def storm() -> tuple[int, int]:
        arena.make_arena()
        other = arena.PLACE / "other"
        make_tree(other, IMAGE)
        inventory = arena.the_inventory()
        refused = reused = 0
        for delay in range(24):
            with ExitStack() as first:
                victim = first.enter_context(arena.container_process())
                hook = os.fork()
                if hook == 0:
                    os._exit(
                        0
                        if arena.run_hook(victim, inventory).kind
                        in {"applied", "container", "input", "mount", "ldcache"}
                        else 1
                    )
                time.sleep(delay * 0.0005)
            # The process is dead, and another container gets its number.
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(victim - 1))
            with arena.process(lambda: _other_container(other)) as stranger:
                reused += stranger == victim
                refused += os.waitstatus_to_exitcode(os.waitpid(hook, 0)[1]) == 0
                assert [
                    point
                    for point in arena.mount_points(stranger)
                    if point.startswith(f"{other}/") and "nvidia" in point
                ] == []
                assert [
                    point
                    for point in arena.mount_points(stranger)
                    if point.startswith(f"{ROOTFS}/")
                ] == []
        return reused, refused

    reused, clean = run_in_mount_namespace(storm, own_pids=True)
    assert reused >= 20, "the number did not come again: nothing was shown"
    assert clean == 24


def _other_container(rootfs: Path) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND | syscalls.MS_REC)
    arena.runtime_mounts(rootfs)


def test_a_process_that_takes_the_number_before_the_hook_looks_is_no_container_of_this_rootfs() -> (
    None
):
    """T26: the state names an ended process, and the process that has its number now has another
    root file system.
    """

    def scenario() -> str:
        arena.make_arena()
        other = arena.PLACE / "other"
        make_tree(other, IMAGE)
        with arena.process(lambda: _other_container(other)) as stranger:
            outcome = arena.run_hook(stranger, arena.the_inventory())
            assert [point for point in arena.mount_points(stranger) if "nvidia" in point] == []
            return outcome.line

    assert "is not a mount point in the mount namespace" in run_in_mount_namespace(scenario)


CONTAINERS = 50


def test_fifty_hooks_on_fifty_containers_do_not_meet() -> None:
    """T27: fifty hooks run together; each container has the whole driver in its own rootfs, and no
    lock is left.
    """

    def scenario() -> None:
        arena.make_arena()
        inventory = arena.the_inventory()
        roots = [arena.PLACE / f"rootfs{number}" for number in range(CONTAINERS)]
        for root in roots:
            make_tree(root, IMAGE)
        before = arena.canary_state()
        with ExitStack() as running:
            pids = [
                running.enter_context(arena.process(partial(_other_container, root)))
                for root in roots
            ]
            hooks = []
            for pid, root in zip(pids, roots, strict=True):
                hook = os.fork()
                if hook == 0:
                    outcome = arena.run_hook(pid, inventory, root)
                    print(outcome.line)
                    os._exit(outcome.kind != "applied")
                hooks.append(hook)
            assert [os.waitpid(hook, 0)[1] for hook in hooks] == [0] * CONTAINERS
            for pid, root in zip(pids, roots, strict=True):
                driver = [
                    point
                    for point in arena.mount_points(pid)
                    if "nvidia" in point or "libcuda" in point
                ]
                assert len(driver) >= 20
                assert [point for point in driver if not point.startswith(f"{root}/")] == []
        assert os.listdir("/run/nvgraft/lock") == []
        assert arena.canary_state() == before

    run_in_mount_namespace(scenario)


def test_two_hooks_on_one_container_do_its_work_once() -> None:
    """T27: of two simultaneous hooks one applies the plan and the other finds it done; no mount is
    there twice.
    """

    def scenario() -> list[list[str]]:
        arena.make_arena()
        inventory = arena.the_inventory()
        kinds = []
        for _ in range(5):
            with arena.container_process() as pid:
                results = [os.pipe() for _ in range(2)]
                for _, write in results:
                    if os.fork() == 0:
                        os.write(write, arena.run_hook(pid, inventory).kind.encode())
                        os._exit(0)
                for _ in results:
                    assert os.wait()[1] == 0
                kinds.append(sorted(os.read(read, 100).decode() for read, _ in results))
                points = [
                    point
                    for point in arena.mounts_below(ROOTFS, pid)
                    if point != f"{ROOTFS}/proc/driver/nvidia"
                ]
                assert len(points) == len(set(points))
        return kinds

    assert run_in_mount_namespace(scenario) == [["applied", "nothing to do"]] * 5


def test_a_container_that_ends_while_it_is_configured_is_a_clean_refusal() -> None:
    """The container's first process is killed at any moment of the hook: it is refused, or
    configured before.
    """

    def scenario() -> list[arena.Outcome]:
        arena.make_arena()
        inventory = arena.the_inventory()
        outcomes = []
        for delay in range(12):
            with arena.container_process() as pid:
                killer = os.fork()
                if killer == 0:
                    time.sleep(delay * 0.001)
                    os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                outcomes.append(arena.run_hook(pid, inventory))
                os.waitpid(killer, 0)
        return outcomes

    outcomes = run_in_mount_namespace(scenario)
    assert all(outcome.clean for outcome in outcomes), [
        outcome.line for outcome in outcomes if not outcome.clean
    ]


def test_a_container_s_process_is_held_before_anything_is_read_of_it() -> None:
    """A free process number is refused before anything else."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(Refusal, match="stat failed: /proc/"):
        containers.hold_process(child)


@pytest.mark.requires("runc", "busybox", "overlayfs", "x86_64")
def test_real_containers_start_or_do_not_and_nothing_leads_out(
    bundle: Bundle, tmp_path: Path
) -> None:
    """Under runc, with the installed hook and an attacked image, starts work or are refused
    cleanly, and nothing escapes.
    """
    canary = tmp_path / "canary"
    for directory in ("usr/bin", "usr/lib/x86_64-linux-gnu", "etc"):
        (canary / directory).mkdir(parents=True)
    rootfs = bundle.path / "rootfs"
    moves = []
    for number, name in enumerate(("usr/bin", "usr/lib", "usr/lib/x86_64-linux-gnu", "etc")):
        decoy = rootfs / f".decoy{number}"
        decoy.symlink_to(canary / name)
        moves.append(Move("exchange", str(rootfs / name), str(decoy)))
    attacker = tmp_path / "attacker"
    attacker.write_bytes(os.pread(program(), 1 << 24, 0))
    attacker.chmod(0o755)
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(4096))
    arguments = " ".join(text for move in moves for text in move)
    bundle.set_program("cat /proc/self/mountinfo; echo started")
    rounds = 6
    start = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name}"
    script = "; ".join(
        f"{attacker} {counter} {seed} {arguments} & sleep 0.05; {start}; echo code $?; kill $!; "
        "wait"
        for seed in range(rounds)
    )
    done = bundle.on_host(script)
    assert done.stdout.count("code ") == rounds, done.stderr
    assert [line for line in done.changes if f"{canary}/" in line] == []
    assert "Traceback" not in done.stderr
    assert "report this" not in done.stderr
    assert [
        line for line in done.stdout.splitlines() if " - " in line and str(canary) in line
    ] == []
