"""Published vulnerabilities of such programs, tried on a naive implementation and on the hook.

A replay counts when the attack succeeds on the naive one: it is real then, and the hook's result
means something.
"""

import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import hosts
from harness import LDCONFIG, run_in_mount_namespace
from nvgraft.apply import executor
from nvgraft.apply.cache.ldconfig import LoaderCache
from nvgraft.apply.detached_mounts import open_sources
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.plan.actions import Bind, Why
from nvgraft.plan.device_selection import select_devices
from nvgraft.system import launch, syscalls
from nvgraft_cli.register.installation import hook_entry
from safety import arena
from safety.arena import CANARY, DRIVER, LIBS, OUTSIDE, PLACE, ROOTFS, SECRET
from safety.figures import Figure

_MS_SHARED = 1 << 20
_WHY = Why("", "replay", "replay")

Scene = Callable[[], object]


class Replay(NamedTuple):
    """One vulnerability, in an image with the lines ``image``.

    ``naive`` must fall for it, by changing the canary or by returning True. ``ours`` returns what
    the hook did.
    """

    holes: str
    what: str
    image: tuple[str, ...]
    naive: Callable[[], object]
    ours: Callable[[], str]


class Result(NamedTuple):
    """Whether the naive way fell for it, what the hook did, and whether that reached the host."""

    reproduced: bool
    answer: str
    escaped: bool


def replay(case: Replay) -> Result:
    """Try ``case`` on both, each on an arena of its own."""

    def tried(way: Callable[[], object]) -> tuple[object, bool]:
        arena.make_arena(arena.image_with(*case.image))
        before = arena.canary_state()
        said = way()
        return said, arena.canary_state() != before

    caught, reached = run_in_mount_namespace(lambda: tried(case.naive))
    answer, escaped = run_in_mount_namespace(lambda: tried(case.ours))
    return Result(caught is True or reached, str(answer), escaped)


def hook(*, planned: Scene = lambda: None, mounts: Scene | None = None) -> str:
    """Run the hook on a container and return what it did. Its mounts must be the driver's, and
    inside.
    """
    inventory = arena.the_inventory()

    def own_mounts() -> None:
        arena.enter_container_namespace()
        assert mounts is not None
        mounts()

    with arena.container_process() if mounts is None else arena.process(own_mounts) as pid:
        before = arena.mount_points(pid)
        outcome = arena.run_hook(pid, inventory, planned=planned)
        assert outcome.clean, outcome.line
        mounted = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
        for words in mounted:
            if words[4] not in before:
                assert words[4].startswith(f"{ROOTFS}/"), words
                assert words[3] == "/" or words[3].startswith(f"/{DRIVER.name}/"), (
                    f"{words[4]} has its source elsewhere: {words[3]}"
                )
    if outcome.kind == "applied":
        return "everything lands inside"
    return "refused: " + outcome.line.removeprefix("nvgraft: ").partition(" | ")[0].replace(
        str(ROOTFS), "ROOTFS"
    ).replace(str(CANARY), "HOST")


def exchange(path: str) -> Callable[[], None]:
    """A move of the attacker: ``path`` of the image becomes a link to the host."""

    def swap() -> None:
        (ROOTFS / path.lstrip("/")).rename(ROOTFS / ".decoys/old")
        (ROOTFS / path.lstrip("/")).symlink_to(f"{CANARY}{path}")

    return swap


def reads_secret(path: Path) -> bool:
    return path.read_bytes() == SECRET


# ---- naive ways


def _source_from_the_image() -> bool:
    arena.enter_container_namespace()
    (ROOTFS / "tmp/x").mkdir()
    syscalls.mount(
        f"{ROOTFS}/usr/local/cuda/compat/libcuda.so.9", f"{ROOTFS}/tmp/x", None, syscalls.MS_BIND
    )
    return reads_secret(ROOTFS / "tmp/x/debian_version")


def _empty_files() -> None:
    os.makedirs(f"{ROOTFS}/lib/firmware/nvidia/535.1")
    (ROOTFS / "lib/firmware/nvidia/535.1/gsp_tu10x.bin").touch()


def _link_through_links() -> None:
    os.symlink("libcuda.so.1", f"{ROOTFS}{LIBS}/libcuda.so")


def _program_by_path() -> None:
    program = CANARY / "usr/bin/true"
    program.write_bytes(Path(shutil.which("sleep") or "").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen(["sleep", "5"], executable=program) as running:
        image = os.open(f"/proc/{running.pid}/exe", os.O_PATH)
        running.kill()
    os.close(os.open(f"/proc/self/fd/{image}", os.O_WRONLY | os.O_TRUNC))


def _program_sealed() -> str:
    cache = LoaderCache.prepare(LDCONFIG)
    try:
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                if "memfd:ldconfig" in os.readlink(f"/proc/self/fd/{name}"):
                    with suppress(PermissionError):
                        os.write(os.open(f"/proc/self/fd/{name}", os.O_WRONLY), b"x")
                        return "written"
                    return "refused by the kernel: what runs is a sealed copy in memory (EPERM)"
    finally:
        cache.close()
    return "no copy found"


_EVIL = f"#!/bin/sh\\ntouch {CANARY}/etc/was-here\\n"


def _ldconfig_of_the_image() -> None:
    (ROOTFS / "sbin/ldconfig").chmod(0o755)
    subprocess.run([ROOTFS / "sbin/ldconfig"], check=True)


def _ldconfig_left_alone() -> str:
    (ROOTFS / "sbin/ldconfig").chmod(0o755)
    return hook()


def _checked_then_swapped(path: str, kind: str) -> Callable[[], bool]:
    def naive() -> bool:
        arena.enter_container_namespace()
        place = f"{ROOTFS}{path}"
        real = os.path.realpath(place)
        assert real.startswith(f"{ROOTFS}/")
        exchange(path)()
        if kind == "mount":
            syscalls.mount(str(DRIVER / "usr/bin"), real, None, syscalls.MS_BIND)
        elif kind == "link":
            os.symlink("x", f"{real}/libcuda.so")
        else:
            os.makedirs(f"{real}/new/er")
        return False

    return naive


def _environment_of_the_container() -> None:
    subprocess.run(["/bin/true"], env={"LD_PRELOAD": _preload()}, check=True)


def _preload() -> str:
    """A library whose constructor leaves a file on the host."""
    library = str(PLACE / "poc.so")
    code = (
        f"#include <fcntl.h>\n__attribute__((constructor)) static void f(void) {{ "
        f'creat("{CANARY}/etc/was-here", 0644); }}\n'
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=code.encode(), check=True
    )
    return library


def _own_environment() -> str:
    preload = _preload()
    entry = hook_entry("/usr/local/bin/nvgraft-hook")
    entries = entry["env"]
    assert isinstance(entries, list)
    environment = {name: value for name, _, value in (line.partition("=") for line in entries)}
    subprocess.run(["/bin/true"], env=environment, check=True)
    try:
        launch.check_environment({"LD_PRELOAD": preload})
    except Refusal as refusal:
        line = refusal.line().removeprefix("nvgraft: ").partition(" | ")[0]
        return f"registered with an environment of its own; without: refused: {line}"
    return "not noticed"


def _cache_through_a_link() -> None:
    (ROOTFS / "etc/ld.so.cache").write_bytes(b"a new cache")


def _shared_volume(*, hooked: bool) -> tuple[list[str], str]:
    """Make a volume that the host shares with the container, and return what the host then sees on
    it.
    """
    volume = PLACE / "volume"
    volume.mkdir()
    syscalls.mount("tmpfs", str(volume), "tmpfs", 0, "mode=755")
    syscalls.mount(None, str(volume), None, _MS_SHARED)
    (volume / "nvidia-mps").mkdir()

    def namespace() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(str(ROOTFS), str(ROOTFS), None, syscalls.MS_BIND)
        syscalls.mount(str(volume), f"{ROOTFS}/tmp", None, syscalls.MS_BIND)
        arena.runtime_mounts()
        if not hooked:
            syscalls.mount(
                str(DRIVER / "usr/bin"), f"{ROOTFS}/tmp/nvidia-mps", None, syscalls.MS_BIND
            )

    line = ""
    with arena.process(namespace) as pid:
        if hooked:
            line = arena.run_hook(pid, arena.the_inventory()).line
        return arena.mounts_below(volume), line


def _leak_refused() -> str:
    seen, line = _shared_volume(hooked=True)
    assert seen == []
    return "refused: " + line.removeprefix("nvgraft: ").partition(" | ")[0]


def _proc_is_a_link() -> None:
    arena.enter_container_namespace()
    os.makedirs(f"{ROOTFS}/proc/driver/nvidia")
    syscalls.mount("tmpfs", f"{ROOTFS}/proc/driver/nvidia", "tmpfs", 0)


def _dev_is_a_link() -> None:
    (ROOTFS / "dev/nvidia0").touch()


def _no_dev() -> None:
    syscalls.mount("proc", str(ROOTFS / "proc"), "proc", 0)
    syscalls.mount("tmpfs", str(ROOTFS / "proc/driver"), "tmpfs", 0, "mode=755")
    (ROOTFS / "proc/driver/nvidia").mkdir()


def _inherited_descriptor() -> bool:
    leaked = os.open(CANARY, os.O_RDONLY)
    command = ["cat", f"/proc/self/fd/{leaked}/etc/debian_version"]
    return subprocess.run(command, pass_fds=(leaked,), capture_output=True).stdout == SECRET


def _descriptors_closed() -> str:
    leaked = os.open(CANARY, os.O_RDONLY)
    os.chdir(CANARY)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        launch.reset_process()
        with suppress(OSError):
            os.write(2, f"{os.fstat(leaked)} is open".encode())
        os.write(2, os.getcwd().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000) == b"/"
    return "closed at the start; the working directory is /"


def _source_is_swapped() -> None:
    node = DRIVER / "dev/nvidia0"
    node.unlink()
    node.symlink_to(CANARY / "etc/debian_version")


def _swapped_source_mounted() -> bool:
    arena.enter_container_namespace()
    (ROOTFS / "tmp/nvidia0").touch()
    _source_is_swapped()
    syscalls.mount(str(DRIVER / "dev/nvidia0"), f"{ROOTFS}/tmp/nvidia0", None, syscalls.MS_BIND)
    return reads_secret(ROOTFS / "tmp/nvidia0")


def make_fake_proc() -> Path:
    """Make a directory that looks like /proc, and whose descriptors all lead to the mount
    OUTSIDE.
    """
    fake = PLACE / "fake"
    (fake / "self/fd").mkdir(parents=True)
    syscalls.mount("tmpfs", str(OUTSIDE), "tmpfs", 0)
    for number in range(256):
        (fake / f"self/fd/{number}").symlink_to(OUTSIDE)
    return fake


def detach_with_fake_proc(open_procfs: Callable[[], int]) -> list[str]:
    """Attach a mount, undo it through ``open_procfs`` with a false /proc; return which mounts are
    left.
    """
    fake = make_fake_proc()
    sources = open_sources(
        [
            Bind(
                "file",
                "driver",
                str(DRIVER / "usr/bin/nvidia-smi"),
                "/tmp/there",
                ("ro",),
                0o644,
                _WHY,
            )
        ],
        0,
        0,
    )
    (ROOTFS / "tmp/there").touch()
    mount_fd = sources.mounts[0][1]
    syscalls.move_mount(mount_fd, os.open(ROOTFS / "tmp/there", os.O_PATH))
    real = os.open("/proc", os.O_PATH)
    syscalls.mount(str(fake), "/proc", None, syscalls.MS_BIND)
    procfs = open_procfs()
    mounted = executor._Mounted(procfs, mount_fd)
    mounted.attached = True
    mounted.detach()
    os.fchdir(real)
    syscalls.umount2("/proc", syscalls.MNT_DETACH)
    return [
        point
        for point in arena.mount_points()
        if point == str(OUTSIDE) or point.startswith(f"{ROOTFS}/")
    ]


def own_procfs() -> int:
    """The hook's way to name descriptors in its undo."""
    return executor._open_procfs(Container(1, 0, "", -1, 0, 0))


def _undo_through_fake_proc() -> bool:
    arena.enter_container_namespace()
    return str(OUTSIDE) not in detach_with_fake_proc(lambda: os.open("/proc", os.O_PATH))


def _undo_through_own_proc() -> str:
    arena.enter_container_namespace()
    assert detach_with_fake_proc(own_procfs) == [str(OUTSIDE)]
    return "the undo takes back its own mount, through a procfs of its own"


def _environment_as_options() -> bool:
    (PLACE / "mounted").mkdir()
    capabilities = "all,mode=0777"
    syscalls.mount(
        "tmpfs", str(PLACE / "mounted"), "tmpfs", 0, f"mode=0755,{capabilities.partition(',')[2]}"
    )
    return stat.S_IMODE((PLACE / "mounted").stat().st_mode) == 0o777


def _environment_selects() -> str:
    try:
        select_devices(("mode=0777",), hosts.inventory(hosts.full_host()).report.gpus)
    except Refusal as refusal:
        return "refused: " + refusal.line().removeprefix("nvgraft: ").partition(" | ")[0]
    return "accepted"


def _fifo_is_read() -> bool:

    def tired(_number: int, _frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, tired)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        (ROOTFS / "etc/ld.so.conf").read_bytes()
    except TimeoutError:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def _staging_directory() -> bool:
    os.umask(0)
    os.mkdir("/mnt/staging")
    return bool(Path("/mnt/staging").stat().st_mode & 0o022)


def _no_staging_directory() -> str:
    before = {str(path) for path in Path("/tmp").iterdir()}
    os.umask(0)
    assert hook() == "everything lands inside"
    assert {str(path) for path in Path("/tmp").iterdir()} <= before
    assert stat.S_IMODE(Path("/run/nvgraft").stat().st_mode) == 0o700
    return "makes none; what it keeps is in /run/nvgraft, mode 0700"


REPLAYS = (
    Replay(
        "NCT 2024-0132, buildah 2024-1753",
        "a source of a mount comes out of the image",
        (
            f"/usr/local/cuda/compat/libcuda.so.9 -> {CANARY}/etc",
            f"/usr/local/cuda/compat/libcuda.so.999.1 -> {CANARY}/etc",
        ),
        _source_from_the_image,
        hook,
    ),
    Replay(
        "NCT 2024-0133",
        "empty files where a link of the image leads",
        (f"/lib/firmware -> {CANARY}/etc",),
        _empty_files,
        hook,
    ),
    Replay(
        "NCT 2024-0134",
        "links where a link of the image leads",
        (f"{LIBS} -> {CANARY}{LIBS}",),
        _link_through_links,
        hook,
    ),
    Replay(
        "NCT 2024-0135, runc 2019-5736",
        "a program of the host is written through /proc/PID/exe",
        (),
        _program_by_path,
        _program_sealed,
    ),
    Replay(
        "NCT 2024-0136, 2024-0137",
        "the image's ldconfig is run",
        (f"/sbin/ldconfig = {_EVIL}",),
        _ldconfig_of_the_image,
        _ldconfig_left_alone,
    ),
    Replay(
        "NCT 2025-23359",
        "a target is swapped between check and mount",
        (),
        _checked_then_swapped(f"{LIBS}/deep/er", "mount"),
        lambda: hook(planned=exchange(LIBS)),
    ),
    Replay(
        "NCT 2025-23266",
        "the container's LD_PRELOAD reaches the hook",
        (),
        _environment_of_the_container,
        _own_environment,
    ),
    Replay(
        "NCT 2025-23267",
        "the loader cache is written through a link",
        (f"/etc/ld.so.cache -> {CANARY}/etc/debian_version",),
        _cache_through_a_link,
        hook,
    ),
    Replay(
        "NCT 2026-24260",
        "a directory is swapped before a link is made in it",
        (),
        _checked_then_swapped(LIBS, "link"),
        lambda: hook(planned=exchange("/usr/lib")),
    ),
    Replay(
        "NCT mount leaks",
        "mounts appear on the host through a shared volume",
        (),
        lambda: bool(_shared_volume(hooked=False)[0]),
        _leak_refused,
    ),
    Replay(
        "runc 2021-30465, buildah 2024-11218",
        "a parent of a target is swapped",
        (),
        _checked_then_swapped("/usr/bin", "mount"),
        lambda: hook(planned=exchange("/usr/bin")),
    ),
    Replay(
        "runc 2023-28642, 2023-27561, 2019-19921",
        "/proc is a link",
        (f"/proc -> {CANARY}/etc",),
        _proc_is_a_link,
        lambda: hook(mounts=lambda: None),
    ),
    Replay(
        "runc 2024-21626",
        "a leaked descriptor and working directory",
        (),
        _inherited_descriptor,
        _descriptors_closed,
    ),
    Replay(
        "runc 2024-45310, moby GHSA-vp62",
        "directories are made after a swap",
        (),
        _checked_then_swapped("/etc", "directories"),
        lambda: hook(planned=exchange("/etc")),
    ),
    Replay(
        "runc 2025-31133, 2025-52565",
        "a source is swapped for a link",
        (),
        _swapped_source_mounted,
        lambda: hook(planned=_source_is_swapped),
    ),
    Replay(
        "runc 2025-52881",
        "a made-up /proc redirects an operation",
        (),
        _undo_through_fake_proc,
        _undo_through_own_proc,
    ),
    Replay(
        "runc 2026-41579",
        "/dev is a link",
        (f"/dev -> {CANARY}/etc",),
        _dev_is_a_link,
        lambda: hook(mounts=_no_dev),
    ),
    Replay(
        "podman 2024-9407",
        "a container's text becomes mount options",
        (),
        _environment_as_options,
        _environment_selects,
    ),
    Replay(
        "podman 2024-9675, 2024-9676",
        "a FIFO is read as a file",
        ("/etc/ld.so.conf fifo",),
        _fifo_is_read,
        hook,
    ),
    Replay(
        "Singularity 2020-25039, 2020-25040",
        "a staging directory for everybody",
        (),
        _staging_directory,
        _no_staging_directory,
    ),
)


def figures(size: str, seed: int) -> list[Figure]:
    """Replay each vulnerability; ``size`` and ``seed`` change nothing."""
    del size, seed
    rows = []
    for case in REPLAYS:
        result = replay(case)
        value = (
            f"naive: {'reproduced' if result.reproduced else 'NOT reproduced'}; nvgraft: "
            f"{result.answer}"
        )
        rows.append(
            Figure(
                f"{case.holes}: {case.what}",
                value,
                "reproduced; the host untouched",
                result.reproduced and not result.escaped,
            )
        )
    return rows
