"""A neighbour who changes files and mounts while the hook works, at moments chosen on purpose."""

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


def test_mounts_that_a_neighbour_propagates_into_a_volume() -> None:
    """T25: while mounts come and go on a volume at the library directory, a hook refuses or
    succeeds.

    A hook that succeeds has its own mounts on top.
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
                    points = arena.mounts_below(ROOTFS, pid)
                    assert [point for point in points if "/libnvidia" in point] == []
                    assert [point for point in points if "/nvidia-smi" in point] == []
            assert arena.canary_state() == before
        return outcomes

    outcomes = run_in_mount_namespace(scenario)
    assert all(outcome.clean for outcome in outcomes), [
        outcome.line for outcome in outcomes if not outcome.clean
    ]
    assert {outcome.kind for outcome in outcomes} <= {"applied", "mount", "container", "ldcache"}


def test_a_reused_pid_never_leads_into_another_container() -> None:
    """T26: the container ends at any moment of the hook, and its pid is reused by another
    container.

    The other container has a root file system of its own; it never gets a mount.
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
                    kind = arena.run_hook(victim, inventory).kind
                    os._exit(kind not in {"applied", "container", "input", "mount", "ldcache"})
                time.sleep(delay * 0.0005)
            # The victim is dead, and its pid is given to another container.
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(victim - 1))
            with arena.process(lambda: _other_container(other)) as stranger:
                reused += stranger == victim
                refused += os.waitstatus_to_exitcode(os.waitpid(hook, 0)[1]) == 0
                points = arena.mount_points(stranger)
                in_other = [point for point in points if point.startswith(f"{other}/")]
                assert [point for point in in_other if "nvidia" in point] == []
                assert [point for point in points if point.startswith(f"{ROOTFS}/")] == []
        return reused, refused

    reused, clean = run_in_mount_namespace(storm, own_pids=True)
    assert reused >= 20, "the pid was not reused: the test shows nothing"
    assert clean == 24


def _other_container(rootfs: Path) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND | syscalls.MS_REC)
    arena.runtime_mounts(rootfs)


def test_a_pid_reused_before_the_hook_starts_is_refused() -> None:
    """T26: a pid that belongs to a container of another root file system by now is refused."""

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


def test_fifty_hooks_on_fifty_containers_do_not_disturb_each_other() -> None:
    """T27: fifty hooks that run together give each container the driver; no lock is left."""

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
                points = arena.mount_points(pid)
                driver = [point for point in points if "nvidia" in point or "libcuda" in point]
                assert len(driver) >= 20
                assert [point for point in driver if not point.startswith(f"{root}/")] == []
        assert os.listdir("/run/nvgraft/lock") == []
        assert arena.canary_state() == before

    run_in_mount_namespace(scenario)


def test_two_hooks_on_one_container_apply_its_plan_once() -> None:
    """T27: of two hooks at the same moment, one applies the plan; nothing is mounted twice."""

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
                points = arena.mounts_below(ROOTFS, pid)
                points = [point for point in points if point != f"{ROOTFS}/proc/driver/nvidia"]
                assert len(points) == len(set(points))
        return kinds

    assert run_in_mount_namespace(scenario) == [["applied", "nothing to do"]] * 5


def test_a_container_that_ends_during_the_hook_is_refused_cleanly() -> None:
    """When the container's process is killed, the hook refuses, or was done before."""

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


def test_a_pid_without_a_process_is_refused() -> None:
    """hold_process() refuses the pid of a process that has ended."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(Refusal, match="stat failed: /proc/"):
        containers.hold_process(child)


@pytest.mark.requires("runc", "busybox", "overlayfs", "x86_64")
def test_real_containers_under_attack_start_or_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    """Under runc, the installed hook works or refuses while the image is attacked."""
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
    end = "echo code $?; kill $!; wait"
    script = "; ".join(
        f"{attacker} {counter} {seed} {arguments} & sleep 0.05; {start}; {end}"
        for seed in range(rounds)
    )
    done = bundle.on_host(script)
    assert done.stdout.count("code ") == rounds, done.stderr
    assert [line for line in done.changes if f"{canary}/" in line] == []
    assert "Traceback" not in done.stderr
    assert "report this" not in done.stderr
    mounts = [line for line in done.stdout.splitlines() if " - " in line]
    assert [line for line in mounts if str(canary) in line] == []
