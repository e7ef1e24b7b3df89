"""Images and volumes without end: every program ends in time, with little memory, and says which
bound was met (SECURITY R41). tests/test_bounds.py has each bound by itself.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import volumes
from attacked import LIBS, ROOTFS, Case, Outcome, make_tree, runtime_mounts
from bundles import EVERYTHING, make_bundle
from harness import Installed
from nvgraft.system import syscalls
from nvgraft_specs import names
from volumes import Entry, Look, endless, listing

pytestmark = pytest.mark.requires("root", "overlayfs", "cgroup-v2", "x86_64")

Attacked = Callable[[Case], Outcome]
InMountNamespace = Callable[[Callable[[], "list[Ended]"]], "list[Ended]"]

#: What a program may take: seconds of processor time, and MiB of memory.
SECONDS, MEMORY = 10.0, 200
#: Runs a program, and writes its processor time and the peak of its memory behind its messages. The
#: peak of a child counts from its parent's, so a small process is in between.
MEASURE = """
import os, sys
child = os.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
os.write(2, f"\\n{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss >> 10}".encode())
sys.exit(os.waitstatus_to_exitcode(status))
"""

#: Without this key, no file system of FUSE is looked at (integration/test_fuse.py).
ALLOWED = {"nvgraft": "allow-fuse = true"}
COMPAT = "/usr/local/cuda/compat"
PROGRAM = "/usr/bin/app"
_NEEDED_BY_ALL = ("/proc", "/sys", "/dev", "/tmp", "/etc", "/usr", "/usr/bin", "/usr/lib", LIBS)


class Ended(NamedTuple):
    """A program that has ended: its output and, from :data:`MEASURE`, what it took."""

    name: str
    code: int
    said: str
    seconds: float
    memory: int

    @classmethod
    def of(cls, name: str, code: int, output: str) -> "Ended":
        said, _, figures = output.rpartition("\n")
        seconds, memory = figures.split()
        return cls(name, code, said, float(seconds), int(memory))

    def within_bounds(self) -> None:
        assert self.seconds < SECONDS and self.memory < MEMORY, self
        assert self.code in {0, 1, 3} and "Traceback" not in self.said, self


def measured(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-ISc", MEASURE, *command)


def costly() -> Entry:
    """Return a library of 1 PiB with as many entries in its dynamic section as are read."""
    count = 40_000
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 40, 1 << 40, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, 4096, 4096, 4096, count * 16, count * 16, 8)
    start = (b"\x7fELF\2\1\1" + bytes(9) + header + load + dynamic).ljust(4096, b"\0")
    entries = struct.pack("<qQ", 1, 0) * (count - 3) + struct.pack("<qQqQqQ", 5, 64, 10, 9, 0, 0)
    return Entry(size=1 << 50, content=start + entries)


def root(directories: dict[str, Entry], rest: Entry | None = None) -> Look:
    """Return the root file system of a Debian image with these directories; ``rest`` is each of
    their files.
    """
    paths = [*_NEEDED_BY_ALL, *directories]
    above = {str(parent) for path in paths for parent in Path(path).parents} - {"/"}
    found = {path: listing() for path in ("", *above, *_NEEDED_BY_ALL)}
    found |= {"/etc/debian_version": Entry(size=3, content=b"12\n"), **directories}
    return lambda path: found.get(path, rest if path.startswith(tuple(directories)) else None)


LIBRARIES = tuple(f"libcuda.so.9999.{number}" for number in range(19_000))

#: Name -> the root file system, seconds before each answer, seconds that config.toml allows, and
#: the key that a plan names.
TREES: dict[str, tuple[Look, float, int, str]] = {
    "directories without end": (
        lambda path: endless() if path.count("/") < 5 else Entry(size=1 << 50),
        0,
        6,
        "image-names",
    ),
    "long names without end": (root({LIBS: endless("x", 240)}), 0, 6, "image-names"),
    "names of the driver": (root({LIBS: endless("libcuda.so.9999.")}), 0, 6, "image-names"),
    "compat libraries": (root({COMPAT: endless("libcuda.so.9999.")}), 0, 6, "image-"),
    "libraries that take long": (
        root({LIBS: listing(*LIBRARIES)}, costly()),
        0,
        1,
        "image-seconds",
    ),
    "links that lead down": (
        lambda path: (
            endless()
            if path.endswith("/d") or path in {"", "/usr", "/proc", "/sys", "/dev"}
            else Entry(target="d/" * 1000 + "x")
        ),
        0,
        6,
        "file name too long",
    ),
    "a slow volume": (root({LIBS: endless()}), 0.02, 1, "image-seconds"),
}


def commands(installed: Installed, look: Look, delay: float, seconds: int) -> list[Ended]:
    """Run the commands that look at images on a root file system. In a private mount namespace."""
    place = Path("/mnt")
    syscalls.mount("tmpfs", str(place), "tmpfs", 0, "mode=755")
    make_bundle(
        place, *EVERYTHING, files=("x",), process={"env": list(EVERYTHING), "args": [PROGRAM]}
    )
    (place / "config.toml").write_text(f"[nvgraft]\nallow-fuse = true\nimage-seconds = {seconds}\n")
    volumes.mount(place / "rootfs", look, delay)
    ended = []
    for name in ("plan", "doctor", "prove", "explain"):
        options = ["--bundle", str(place), "--host", "eks-t4", "--config", f"{place}/config.toml"]
        done = subprocess.run(
            measured(str(installed.cli), name, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            env={"PATH": "/usr/bin", names.CONFIG_VARIABLE: f"{place}/config.toml"},
        )
        ended.append(Ended.of(name, done.returncode, done.stdout.decode()))
    return ended


@pytest.mark.parametrize("tree", TREES)
def test_a_root_file_system_without_end(
    tree: str, attacked: Attacked, installed: Installed, in_mount_namespace: InMountNamespace
) -> None:
    """Hook and commands end within the goal, and the plan's refusal names the bound."""
    look, delay, seconds, key = TREES[tree]

    def mounts(rootfs: Path) -> None:
        volumes.mount(rootfs, look, delay)
        for name, kind in (("proc", "proc"), ("dev", "tmpfs")):
            syscalls.mount(kind, str(rootfs / name), kind, 0)

    done = attacked(
        Case(
            mounts=mounts,
            hook=measured(str(installed.hook)),
            config={"nvgraft": f"allow-fuse = true\nimage-seconds = {seconds}"},
        )
    )
    hook = Ended.of("hook", done.returncode, done.stderr)
    everything = [hook, *in_mount_namespace(lambda: commands(installed, look, delay, seconds))]
    for ended in everything:
        ended.within_bounds()
    for ended in everything[:2]:
        assert ended.code == 1 and key in ended.said, ended
    assert (done.mounts, done.files, done.host) == ((), (), ())


@pytest.mark.parametrize(
    ("point", "image", "words"),
    [
        (COMPAT, f"{COMPAT}/", f"{COMPAT} is on the volume {COMPAT}"),
        ("/vol", f"/vol/\n/etc/ld.so.conf = /vol\\n{LIBS}\\n", "/vol is on a volume"),
        ("/vol", "/vol/\n/etc/ld.so.conf = include /vol/*\\n", "/vol is on a volume"),
    ],
    ids=["compat", "ld.so.conf", "include"],
)
def test_a_volume_without_end_is_not_listed(
    point: str, image: str, words: str, attacked: Attacked, installed: Installed
) -> None:
    """A volume in which nothing is mounted is left out, and a warning says so."""

    def mounts(rootfs: Path) -> None:
        runtime_mounts(rootfs)
        volumes.mount(rootfs / point.lstrip("/"), lambda path: None if path else endless("lib.so."))

    done = attacked(Case(image, mounts=mounts, hook=measured(str(installed.hook)), config=ALLOWED))
    done.grafted()
    ended = Ended.of("hook", done.returncode, done.stderr)
    ended.within_bounds()
    assert words in ended.said


def test_the_hosts_ldconfig_has_the_same_time(attacked: Attacked, installed: Installed) -> None:
    """With ``ldcache = "ldconfig"``, a volume without end that ld.so.conf names ends in a refusal
    that names the bound.
    """

    def mounts(rootfs: Path) -> None:
        runtime_mounts(rootfs)
        volumes.mount(rootfs / "vol", lambda path: None if path else endless("lib.so."))

    keys = 'allow-fuse = true\nldcache = "ldconfig"\nimage-seconds = 1'
    done = attacked(
        Case(
            f"/vol/\n/etc/ld.so.conf = /vol\\n{LIBS}\\n",
            mounts=mounts,
            hook=measured(str(installed.hook)),
            config={"nvgraft": keys},
        )
    )
    ended = Ended.of("hook", done.returncode, done.stderr)
    ended.within_bounds()
    assert "it had not finished after " in ended.said and "raise image-seconds" in ended.said
    assert (done.mounts, done.files, done.host) == ((), (), ())


def test_a_library_directory_on_a_volume_without_end_is_refused(
    attacked: Attacked, installed: Installed
) -> None:
    """A volume that has every file of the driver is listed, within the bound."""

    def mounts(rootfs: Path) -> None:
        runtime_mounts(rootfs)
        volumes.mount(
            rootfs / LIBS.lstrip("/"),
            lambda path: Entry(content=b"x", size=1) if path else endless(),
        )

    done = attacked(Case(mounts=mounts, hook=measured(str(installed.hook)), config=ALLOWED))
    ended = Ended.of("hook", done.returncode, done.stderr)
    ended.within_bounds()
    assert ended.code == 1 and done.mounts == ()


def test_a_huge_honest_image_is_configured(attacked: Attacked, installed: Installed) -> None:
    """50,000 files and 3,000 libraries, without a loader cache, are within the bounds."""

    def fill() -> None:
        rootfs = Path("/mnt/bundle/rootfs")
        make_tree(
            rootfs, "\n".join(f"{LIBS}/libreal{n}.so.1 elf libreal{n}.so.1" for n in range(9))
        )
        for number in range(3000):
            os.link(
                rootfs / LIBS[1:] / f"libreal{number % 9}.so.1",
                rootfs / LIBS[1:] / f"lib{number}.so.1",
            )
        for number in range(50_000):
            os.link(rootfs / "etc/debian_version", rootfs / LIBS[1:] / f"file{number}")

    done = attacked(Case(prepare=fill, hook=measured(str(installed.hook))))
    done.grafted()
    ended = Ended.of("hook", done.returncode, done.stderr)
    ended.within_bounds()
    assert "bounds" not in ended.said and ended.seconds < 3


def cache(*, old: bool) -> bytes:
    """Return a loader cache of just below 16 MiB, in which every row is the driver's library."""
    name, path = b"libcuda.so.1\0", b"/usr/lib/libcuda.so.1\0"
    if old:
        count = ((16 << 20) - 100) // 12
        header = b"ld.so-1.7.0\0" + struct.pack("<I", count)
        return header + struct.pack("<iII", 0x303, 0, len(name)) * count + name + path
    count = ((16 << 20) - 200) // 24
    start = 48 + count * 24
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, len(name + path), 2, 0)
    row = struct.pack("<iIIIQ", 0x303, start, start + len(name), 0, 0)
    return header + row * count + name + path


@pytest.mark.parametrize("old", [False, True], ids=["new format", "old format"])
@pytest.mark.parametrize("known", [False, True], ids=["searched", "newer than all"])
def test_the_largest_loader_cache(
    old: bool, known: bool, attacked: Attacked, installed: Installed
) -> None:
    """A loader cache and a leftover of it, each as large as they may be, stay within the goal."""

    def fill() -> None:
        etc = ROOTFS / "etc"
        (etc / "ld.so.cache").write_bytes(cache(old=old))
        (etc / "ld.so.cache~").write_bytes(os.urandom(16 << 20))
        if not known:
            os.utime(etc / "ld.so.cache", (1, 1))

    done = attacked(Case(prepare=fill, hook=measured(str(installed.hook))))
    Ended.of("hook", done.returncode, done.stderr).within_bounds()
    assert done.host == ()


def test_any_number_of_mounts(attacked: Attacked, installed: Installed) -> None:
    """A container with 11,000 mounts is configured in time."""

    def mounts(rootfs: Path) -> None:
        runtime_mounts(rootfs)
        place = rootfs / "srv"
        syscalls.mount("tmpfs", str(place), "tmpfs", 0)
        points = [place / str(number) for number in range(10)]
        for point in points:
            point.mkdir()
            syscalls.mount("tmpfs", str(point), "tmpfs", 0)
        for point in points:  # each doubles the mounts
            syscalls.mount(str(place), str(point), None, syscalls.MS_BIND | syscalls.MS_REC)

    done = attacked(Case("/srv/", mounts=mounts, hook=measured(str(installed.hook))))
    assert done.returncode == 0, done.stderr
    Ended.of("hook", done.returncode, done.stderr).within_bounds()
