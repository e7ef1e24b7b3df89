"""The place of an attack: a host, an image, a driver, and containers without an engine.

Every change of the host is noticed. Everything is on tmpfs in a mount namespace of its own
(``harness.run_in_mount_namespace``), so that nothing reaches this machine. Callers decide on
attackers and victims.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import hosts
from attacked import make_tree
from harness import LDCONFIG
from nvgraft.apply.executor import apply_plan
from nvgraft.base.errors import Refusal
from nvgraft.container import container as containers
from nvgraft.container.container import Container
from nvgraft.container.live_target import LiveTarget
from nvgraft.graft import loader_cache_step
from nvgraft.host.components import Inventory
from nvgraft.plan.actions import Plan
from nvgraft.plan.planner import make_plan
from nvgraft.plan.settings import Settings
from nvgraft.request.request import Request
from nvgraft.system import lock, syscalls
from nvgraft.system.mountinfo import parse_mountinfo

T = TypeVar("T")

PLACE = Path("/mnt")
ROOTFS = PLACE / "rootfs"
DRIVER = PLACE / "driver"
#: The host that must not be reached. It has every directory of the image, so that a link to it
#: looks real.
CANARY = PLACE / "canary"
#: Where the attacker moves things out of the root file system.
OUTSIDE = PLACE / "outside"
#: Where the attacker keeps its replacements; on the same file system as what they replace.
DECOYS = ROOTFS / ".decoys"

SECRET = b"a file of the host"
LIBS = "/usr/lib/x86_64-linux-gnu"
IMAGE = f"""
    /etc/debian_version = 12.1
    /etc/ld.so.conf = {LIBS}\\n
    {LIBS}/libc.so.6 elf libc.so.6 tag=3.2.0
    {LIBS}/deep/er/file = x
    /usr/bin/true mode=0755
    /usr/local/cuda/compat/
    /lib/firmware/nvidia/
    /run/
    /tmp/
    /proc/
    /sys/
    /dev/
"""
CAPABILITIES = ("compute", "display", "graphics", "ngx", "utility", "video")


def image_with(*lines: str) -> str:
    """Return the image with ``lines`` in place of the lines for the same paths."""
    new = [line.split()[0].rstrip("/") for line in lines]
    kept = [
        line
        for line in IMAGE.splitlines()
        if not any(f"{line.strip()}/".replace(" ", "/").startswith(f"{path}/") for path in new)
    ]
    return "\n".join([*kept, *lines])


def make_arena(image: str = IMAGE) -> None:
    """Make the host, its driver and the root file system with ``image``. Call this in a mount
    namespace of its own.
    """
    syscalls.mount("tmpfs", str(PLACE), "tmpfs", 0, "mode=755")
    syscalls.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
    for directory in (ROOTFS, DRIVER, CANARY, OUTSIDE, DECOYS):
        directory.mkdir(parents=True)
    make_tree(ROOTFS, image)
    make_tree(DRIVER, hosts.FULL)
    # It is another file system: anything found on it is an escape.
    syscalls.mount("tmpfs", str(CANARY), "tmpfs", 0, "mode=755")
    make_tree(CANARY, IMAGE)
    for path in CANARY.rglob("*"):
        if path.is_file():
            path.write_bytes(SECRET)


def canary_state() -> list[object]:
    """Return everything that a write to the canary would change: files with their status, and
    mounts.

    A file that was made and removed again has changed the times of its directory.
    """
    state: list[object] = []
    for directory, names, files in os.walk(CANARY):
        for path in [directory, *(os.path.join(directory, name) for name in (*names, *files))]:
            status = os.lstat(path)
            times = (status.st_mtime_ns, status.st_ctime_ns)
            state.append((path, status.st_mode, status.st_size, *times, status.st_uid))
    return [*sorted(state, key=str), *mounts_below(CANARY)]


def mounts_below(place: Path, pid: int | str = "self") -> list[str]:
    """Return the mount points of ``pid`` below ``place``."""
    return [point for point in mount_points(pid) if point.startswith(f"{place}/")]


def mount_points(pid: int | str = "self") -> list[str]:
    """Return the mount points that ``pid`` sees, in order."""
    text = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape")
    return [mount.point for mount in parse_mountinfo(text)]


def in_child(function: Callable[[], T]) -> T:
    """Return the result of ``function``, run in a child process. An AssertionError quotes the
    child's exception.
    """
    answer = os.memfd_create("answer")
    child = os.fork()
    if child == 0:
        try:
            outcome: tuple[str, object] = ("value", function())
        except BaseException:  # noqa: BLE001 - reported by the parent
            outcome = ("error", traceback.format_exc())
        with os.fdopen(answer, "wb") as file:
            pickle.dump(outcome, file)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with os.fdopen(answer, "rb") as file:
        file.seek(0)
        said = file.read()
    assert said, f"a child ended with status {status} and no result"
    kind, value = pickle.loads(said)
    assert kind == "value", value
    return value  # type: ignore[no-any-return]


def enter_container_namespace() -> None:
    """Give this process the mount namespace of a container in which only the root file system is
    mounted.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(str(ROOTFS), str(ROOTFS), None, syscalls.MS_BIND | syscalls.MS_REC)


def runtime_mounts(rootfs: Path = ROOTFS) -> None:
    """Mount what a runtime mounts before its hooks, and the directory that the kernel module
    makes.
    """
    syscalls.mount(
        "proc",
        str(rootfs / "proc"),
        "proc",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
    )
    syscalls.mount("tmpfs", str(rootfs / "proc/driver"), "tmpfs", 0, "mode=755")
    (rootfs / "proc/driver/nvidia").mkdir()
    syscalls.mount("tmpfs", str(rootfs / "dev"), "tmpfs", syscalls.MS_NOSUID, "mode=755")


@contextmanager
def process(prepare: Callable[[], None]) -> Iterator[int]:
    """Start a process that runs ``prepare`` and then waits until the context ends; yield its
    pid.
    """
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(say, b"ready")
            os.close(say)
            while True:
                signal.pause()
        except BaseException:  # noqa: BLE001 - reported by the parent
            os.write(say, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(say)
    try:
        with os.fdopen(said, "rb") as answer:
            text = answer.read()
        assert text == b"ready", text.decode()
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def container_process(mounts: Callable[[], None] = lambda: None) -> AbstractContextManager[int]:
    """A container's first process: its own mount namespace with the runtime's mounts, then
    ``mounts``.
    """

    def prepare() -> None:
        enter_container_namespace()
        runtime_mounts()
        mounts()

    return process(prepare)


def standalone(rootfs: Path = ROOTFS) -> Container:
    """A container in this mount namespace, of which only the root file system is used."""
    container = Container(
        1,
        None,
        str(rootfs),
        os.open(rootfs, os.O_PATH | os.O_DIRECTORY),
        os.geteuid(),
        os.getegid(),
    )
    container.read_mounts()
    return container


class Outcome(NamedTuple):
    """How the hook ended.

    ``applied``, ``nothing to do``, or the stage of its refusal; its line, and whether the line has
    a hint.
    """

    kind: str
    line: str
    clean: bool


def the_inventory() -> Inventory:
    """Return the inventory of the arena's host."""
    return hosts.inventory(hosts.full_host(root=str(DRIVER)))


def plan_for(container: Container, inventory: Inventory) -> Plan:
    """Plan the whole driver for ``container``, from its root file system as it is at this
    moment.
    """
    target = LiveTarget(container, os.uname().machine)
    try:
        return make_plan(
            Request(("all",), CAPABILITIES),
            inventory,
            target,
            Settings(cgroups=False, simulated=False),
        )
    finally:
        target.close()


def plan_of_process(pid: int, inventory: Inventory) -> Plan:
    """Plan for the container of ``pid``."""
    container = containers.open_container(pid, containers.hold_process(pid), str(ROOTFS))
    container.read_mounts()
    return plan_for(container, inventory)


def run_hook(
    pid: int,
    inventory: Inventory,
    rootfs: Path = ROOTFS,
    planned: Callable[[], object] = lambda: None,
    loader_cache: str = "native",
) -> Outcome:
    """Run the hook for the container of ``pid`` in a process of its own: hold, open, lock, plan,
    apply.

    :param planned: called when the plan is made and nothing is changed yet.
    :param loader_cache: the way to write the loader cache, as in config.toml.
    """

    def hook() -> Outcome:
        try:
            pidfd = containers.hold_process(pid)
            container = containers.open_container(pid, pidfd, str(rootfs))
            with lock.lock_rootfs(container.rootfs_fd):
                container.read_mounts()
                plan = plan_for(container, inventory)
                planned()
                changed = apply_plan(
                    plan, container, loader_cache_step(loader_cache, LDCONFIG, pivot=True)
                )
            return Outcome("applied" if changed else "nothing to do", "", True)
        except Refusal as refusal:
            return Outcome(refusal.stage, refusal.line(), True)
        except Exception:  # noqa: BLE001 - any other exception is a figure of its own
            return Outcome("exception", traceback.format_exc(), False)

    return in_child(hook)
