"""Root file systems made by an attacker: cases T01 to T14 of the catalogue (docs/security.md).

Unless a test says otherwise, a case ends in time in a refusal with its own message, and changes
nothing on the host or in the container. Where an image's links stay inside of it, the container
starts, and everything that is made is inside.
"""

import errno
import hashlib
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attacked import CANARY, LIBS, PLACE, ROOTFS, SECRET, Case, Outcome, bind_rootfs, runtime_mounts
from containers import CGROUPS, CONFIG_TOML, Bundle, Run
from harness import LDCONFIG, run_in_mount_namespace
from nvgraft.apply.cache.ldconfig import LoaderCache
from nvgraft.apply.journal import Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.system import syscalls
from nvgraft_cli.simulate.stubs import shared_object

pytestmark = pytest.mark.requires("root", "overlayfs", "cgroup-v2", "ldconfig", "x86_64")

Attacked = Callable[[Case], Outcome]

SMI = "/usr/bin/nvidia-smi"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
COMPAT = "/usr/local/cuda/compat"
SOCKET = "/run/nvidia-persistenced/socket"
MPS = "/tmp/nvidia-mps"
FIRMWARE = "/lib/firmware/nvidia/535.1/gsp_tu10x.bin"


def points(outcome: Outcome) -> set[str]:
    return {mount[0] for mount in outcome.mounts}


def chain(length: int) -> str:
    return (
        f"{LIBS} -> /l1\n"
        + "".join(f"/l{n} -> /l{n + 1}\n" for n in range(1, length))
        + f"/l{length}/"
    )


# ---- T01: a directory of the image is a link


@pytest.mark.parametrize(
    ("image", "place"),
    [
        (f"{LIBS} -> {CANARY}/directory", f"{CANARY}/directory"),
        (f"{LIBS} -> ../..{CANARY}", str(CANARY)),
        (chain(20), "/l20"),
        (f"/usr/bin -> {CANARY}", str(CANARY)),
        (f"/etc -> {CANARY}\n{CANARY}/debian_version = 12", LIBS),
    ],
    ids=["absolute", "up", "twenty links", "programs", "etc"],
)
def test_t01_links_inside_the_root_are_followed_inside_it(
    attacked: Attacked, image: str, place: str
) -> None:
    """An absolute link to a directory that the host has too leads to the image's directory."""
    done = attacked(Case(image))
    done.grafted()
    name = "nvidia-smi" if image.startswith("/usr/bin") else "libcuda.so.535.1"
    assert f"{place}/{name}" in points(done)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (f"{LIBS} -> ../../../..{CANARY}", f"path error: {LIBS} resolves outside of {ROOTFS}"),
        (f"{LIBS} -> ../../../..", f"path error: {LIBS} resolves outside of {ROOTFS}"),
        (chain(40), f"path error: {ROOTFS}/{LIBS}: too many levels of symbolic links"),
        (f"{LIBS} -> {LIBS}", f"path error: {ROOTFS}/{LIBS}: too many levels of symbolic links"),
        (f"/usr/bin -> ../../..{CANARY}", f"path error: /usr/bin resolves outside of {ROOTFS}"),
        (
            f"/etc/nvidia -> ../..{CANARY}/../..",
            f"path error: {PROFILES} resolves outside of {ROOTFS}",
        ),
        (f"/lib/firmware -> ../..{CANARY}", f"path error: {FIRMWARE} resolves outside of {ROOTFS}"),
        (f"/run -> ..{CANARY}", f"path error: {SOCKET} resolves outside of {ROOTFS}"),
        (f"/tmp -> ..{CANARY}", f"path error: {MPS} resolves outside of {ROOTFS}"),
        (
            f"/usr/local/cuda -> ../../..{CANARY}",
            f"path error: /usr/local/cuda resolves outside of {ROOTFS}",
        ),
    ],
    ids=[
        "up",
        "up to the top",
        "forty links",
        "circle",
        "programs",
        "profiles",
        "firmware",
        "socket",
        "mps",
        "compat",
    ],
)
def test_t01_links_out_of_the_root_are_refused(
    attacked: Attacked, image: str, message: str
) -> None:
    """A directory by ".." above the root, or by too many links, is refused."""
    attacked(Case(image)).refused(message)


# ---- T02: the name of a file to be made is a dangling link to a name of the host


@pytest.mark.parametrize(
    "path", [SMI, f"{LIBS}/libcuda.so.535.1", "/usr/bin/nvidia-cuda-mps-control"]
)
def test_t02_a_dangling_link_at_a_target_is_refused(attacked: Attacked, path: str) -> None:
    """Nothing is made through a dangling link, neither on the host nor in the image."""
    attacked(Case(f"{path} -> /etc/cron.d/x")).refused(
        f"file creation failed: {ROOTFS}{path}: file exists"
    )


@pytest.mark.parametrize("path", [FIRMWARE, SOCKET])
def test_t02_paths_that_the_reference_follows_to_their_end_stay_inside(
    attacked: Attacked, path: str
) -> None:
    """A link at a target of firmware or a socket is followed; its file is made in the image."""
    done = attacked(Case(f"{path} -> /etc/cron.d/x"))
    done.grafted()
    assert "/etc/cron.d/x" in points(done)
    assert any(line.startswith(f"+ {ROOTFS}/etc/cron.d/x f") for line in done.files)


@pytest.mark.parametrize(
    "path", [f"{LIBS}/libcuda.so", f"{LIBS}/libcuda.so.1", "/etc/ld.so.cache", "/etc/ld.so.cache~"]
)
def test_t02_links_that_are_replaced_are_not_written_through(attacked: Attacked, path: str) -> None:
    """A link at a link's or the loader cache's path is not written through."""
    done = attacked(Case(f"{path} -> /etc/cron.d/x\n/etc/cron.d/"))
    done.grafted()
    assert not any("/cron.d/x f" in line for line in done.files)


# ---- T03: links of procfs


@pytest.mark.parametrize(
    ("path", "link"),
    [
        *(
            (LIBS, link)
            for link in ("self/root", "self/fd/3", "1/fd/0", "self/cwd", "1/cwd", "1/ns/mnt")
        ),
        (LIBS, "self/task/1/root"),
        *(
            (path, "1/root")
            for path in (LIBS, "/usr/bin", "/etc/nvidia", "/lib/firmware", "/run", "/tmp")
        ),
        ("/usr/local/cuda", "1/root"),
    ],
)
def test_t03_magic_links_are_refused(attacked: Attacked, path: str, link: str) -> None:
    """A directory by a magic link of /proc, whose text is not its target, is refused."""
    attacked(Case(f"{path} -> /proc/{link}")).refused("path error: ")


def test_t03_a_magic_link_as_the_file_is_refused(attacked: Attacked) -> None:
    """A magic link at a program's target is refused, like any link."""
    attacked(Case(f"{SMI} -> /proc/1/exe")).refused(
        f"file creation failed: {ROOTFS}{SMI}: file exists"
    )


# ---- T04: a target of another kind


def image_dev(rootfs: Path) -> None:
    """Mount /proc, and leave the image its own /dev."""
    bind_rootfs(rootfs)
    syscalls.mount("proc", str(rootfs / "proc"), "proc", 0)


KINDS = {"directory": "/x/", "fifo": " fifo", "socket": " socket", "device": " char 8:0"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path", [SMI, f"{LIBS}/libcuda.so.535.1", FIRMWARE, SOCKET, "/dev/nvidia0", "/dev/nvidiactl"]
)
def test_t04_a_target_of_another_kind_is_refused(attacked: Attacked, path: str, kind: str) -> None:
    """A target of another kind is refused, and not opened, emptied or replaced."""
    case = Case(f"/dev/\n{path}{KINDS[kind]}", mounts=image_dev)
    if (path, kind) == (SOCKET, "socket"):
        attacked(case).grafted()
        return
    reason = "is a directory" if kind == "directory" else "file exists"
    attacked(case).refused(f"file creation failed: {ROOTFS}{path}: {reason}")


@pytest.mark.parametrize("path", [MPS, PROFILES, "/usr/bin", LIBS])
def test_t04_a_file_in_place_of_a_directory_is_refused(attacked: Attacked, path: str) -> None:
    """A file at the path of a directory is refused."""
    attacked(Case(f"{path} = x")).refused("not a directory")


def test_t04_a_setuid_file_keeps_its_bits_and_its_bytes(attacked: Attacked) -> None:
    """A setuid file at a target is covered by the mount, and not changed."""
    files = (ROOTFS / SMI[1:], ROOTFS / LIBS[1:] / "libcuda.so.535.1")

    def prepare() -> None:
        for file in files:
            file.write_text("setuid")
            file.chmod(0o6755)

    def look(_pid: int) -> list[tuple[str, int]]:
        return [(file.read_text(), file.stat().st_mode & 0o7777) for file in files]

    done = attacked(Case(prepare=prepare, look=look))
    done.grafted()
    assert done.seen == [("setuid", 0o6755)] * 2
    assert not any(f" {file} " in line for line in done.files for file in files)


def test_t04_a_hard_link_keeps_the_other_file(attacked: Attacked) -> None:
    """A hard link at a target is covered by the mount; the file's other name is unchanged."""

    def prepare() -> None:
        os.link(ROOTFS / "usr/bin/true", ROOTFS / SMI[1:])

    done = attacked(Case(prepare=prepare))
    done.grafted()
    assert not any("/usr/bin/true " in line or f"{SMI} " in line for line in done.files)


# ---- T05: the files of the image that are read

MODES = ["native", "ldconfig"]


def loader_cache(mode: str) -> dict[str, str]:
    return {"nvgraft": f'ldcache = "{mode}"'}


def make_odd(path: str, kind: str) -> Callable[[], None]:
    """Return a function that puts another kind of file at ``path`` of the image."""

    def prepare() -> None:
        place = ROOTFS / path.lstrip("/")
        place.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "directory":
            (place / "x").mkdir(parents=True)
        elif kind == "device":
            os.mknod(place, stat.S_IFCHR | 0o644, os.makedev(1, 5))  # /dev/zero
        elif kind == "sparse":
            place.touch()
            os.truncate(place, 1 << 40)
        else:
            up = "" if kind == "host" else "../../../.."
            place.symlink_to(f"{up}{CANARY}/shadow")

    return prepare


ODD = ["fifo", "sparse", "host", "up", "directory", "device"]


@pytest.mark.parametrize("kind", ODD)
def test_t05_debian_version(attacked: Attacked, kind: str) -> None:
    """/etc/debian_version of any kind means a Debian image; a link that leads out is refused."""
    done = attacked(Case(prepare=make_odd("/etc/debian_version", kind)))
    if kind == "up":
        done.refused(f"path error: /etc/debian_version resolves outside of {ROOTFS}")
    else:
        done.grafted()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["/etc/ld.so.conf", "/etc/ld.so.cache", "/etc/ld.so.cache~"])
@pytest.mark.parametrize("kind", ODD)
def test_t05_the_loaders_files(attacked: Attacked, path: str, kind: str, mode: str) -> None:
    """Only regular files of limited size are read, and nothing of the host is copied."""
    prepare = make_odd(path, kind)
    done = attacked(Case(prepare=prepare, config=loader_cache(mode), look=lambda _pid: leaked()))
    if done.returncode:
        done.refused(f"{path}: " + ("larger than" if kind == "sparse" else ""))
    else:
        done.grafted()
    assert done.seen == []
    assert (done.returncode == 1) == (kind in refused_kinds(path)), done.stderr


def refused_kinds(path: str) -> set[str]:
    return {"fifo", "sparse", "device"} | (set() if path.endswith("conf") else {"directory"})


def leaked() -> list[Path]:
    """Return the small files of the image that contain the host's secret."""
    files = (
        path
        for path in ROOTFS.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20
    )
    return [path for path in files if SECRET.encode() in path.read_bytes()]


# ---- T06: /proc


def mounting(mount: Callable[[Path], object]) -> Callable[[Path], None]:
    def mounts(rootfs: Path) -> None:
        bind_rootfs(rootfs)
        mount(rootfs)

    return mounts


def covered(rootfs: Path) -> Path:
    """Mount what an engine mounts and a tmpfs on /proc/driver; return that directory."""
    runtime_mounts(rootfs)
    syscalls.mount("tmpfs", str(rootfs / "proc/driver"), "tmpfs", 0)
    return rootfs / "proc/driver"


def tmpfs_with_driver(rootfs: Path) -> None:
    syscalls.mount("tmpfs", str(rootfs / "proc"), "tmpfs", 0)
    (rootfs / "proc/driver/nvidia").mkdir(parents=True)


def bind_proc(source: str) -> Callable[[Path], None]:
    """Return a function that mounts ``source`` at /proc of the image."""
    return lambda rootfs: syscalls.mount(source, str(rootfs / "proc"), None, syscalls.MS_BIND)


NO_DIRECTORY = f"{ROOTFS}/proc/driver/nvidia: not a directory | "
NO_PROCFS = "not procfs: mount a procfs at /proc in config.json"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(f"/proc -> {CANARY}", mounts=bind_rootfs), NO_DIRECTORY),
        (
            Case(
                "/proc -> /p\n/p/",
                mounts=mounting(
                    lambda rootfs: syscalls.mount("proc", str(rootfs / "p"), "proc", 0)
                ),
            ),
            NO_DIRECTORY,
        ),
        (Case("/proc = x", mounts=bind_rootfs), NO_DIRECTORY),
        (
            Case(prepare=lambda: os.rmdir(ROOTFS / "proc"), mounts=bind_rootfs),
            "mount a procfs at /proc in config.json",
        ),
        (Case("/proc/driver/nvidia/", mounts=bind_rootfs), NO_PROCFS),
        (Case(mounts=mounting(tmpfs_with_driver)), NO_PROCFS),
        (Case(mounts=mounting(bind_proc(str(CANARY)))), NO_PROCFS),
        (Case(mounts=mounting(bind_proc("/proc/sys"))), NO_PROCFS),
        (Case(mounts=lambda root: os.symlink(CANARY, covered(root) / "nvidia")), NO_DIRECTORY),
        (Case(mounts=lambda root: (covered(root) / "nvidia").touch()), NO_DIRECTORY),
    ],
    ids=[
        "link",
        "link inside",
        "file",
        "none",
        "directory",
        "tmpfs",
        "bind",
        "part of procfs",
        "driver link",
        "driver file",
    ],
)
def test_t06_a_proc_that_is_not_a_procfs_is_refused(
    attacked: Attacked, case: Case, message: str
) -> None:
    """Anything at /proc but the root of a procfs, and anything at /proc/driver/nvidia but a
    directory, is refused.
    """
    attacked(case).refused(message)


# ---- T07: /dev


def volume_dev(rootfs: Path) -> None:
    bind_rootfs(rootfs)
    syscalls.mount("proc", str(rootfs / "proc"), "proc", 0)
    syscalls.mount(str(CANARY / "empty"), str(rootfs / "dev"), None, syscalls.MS_BIND)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case("/dev -> /etc", mounts=image_dev),
            "path error: /dev/nvidiactl resolves to /etc/nvidiactl",
        ),
        (
            Case(f"/dev -> {CANARY}", mounts=image_dev),
            f"path error: /dev/nvidiactl resolves to {CANARY}/nvidiactl",
        ),
        (
            Case(f"/dev -> ..{CANARY}", mounts=image_dev),
            "path error: /dev/nvidiactl resolves outside of",
        ),
        (
            Case("/dev/nvidia0 -> /dev/sda", mounts=image_dev),
            "path error: /dev/nvidia0 resolves to /dev/sda",
        ),
        (
            Case("/dev/nvidia0 -> nvidia1", mounts=image_dev),
            "path error: /dev/nvidia0 resolves to /dev/nvidia1",
        ),
        (Case("/dev = x", mounts=image_dev), "not a directory"),
        (Case(mounts=volume_dev), f"{ROOTFS}/dev/nvidiactl: it would be made on the volume /dev"),
    ],
    ids=[
        "link to etc",
        "link to a host name",
        "link out",
        "node is a link",
        "node is another's",
        "file",
        "volume",
    ],
)
def test_t07_device_nodes_through_links_or_on_volumes_are_refused(
    attacked: Attacked, case: Case, message: str
) -> None:
    """A node whose path a link changes, or that would be made on a volume, is refused."""
    attacked(case).refused(message)


# ---- T08: compatibility libraries of the image


def library(path: str) -> str:
    return f"{path} elf libcuda.so.1"


@pytest.mark.parametrize(
    "image",
    [
        f"{COMPAT}/libcuda.so.999.1/libcuda.so.999.2 = x",
        f"{COMPAT}/libcuda.so.999.1 -> {CANARY}/shadow",
        f"{COMPAT} -> {CANARY}/directory\n{library(f'{CANARY}/directory/libcuda.so.999.1')}",
        f"{COMPAT} -> /usr/bin\n{library('/usr/bin/libcuda.so.999.1')}\n{SMI} = x",
        f"{COMPAT}/libcuda.so.999.1 -> {PROFILES}/10-container.conf",
        (
            f"{COMPAT} -> {LIBS}\n{library(f'{LIBS}/libcuda.so.999.1')}\n{LIBS}/libcuda.so.535.1 -> "
            "libcuda.so.999.1\n"
        ),
        f"{COMPAT} -> /\n{library('/libcuda.so.999.1')}",
        f"{COMPAT}/libcuda.so.999.1 char 1:3",
        f"{COMPAT} -> /etc\n{library('/etc/libcuda.so.999.1')}",
        (
            f"{COMPAT}/libcuda.so.999.1 -> libcuda.so.998.1\n{COMPAT}/libcuda.so.998.1 -> "
            f"{SMI}\n{SMI} = x"
        ),
    ],
    ids=[
        "directory",
        "link",
        "host name",
        "programs",
        "profile",
        "libraries",
        "root",
        "device",
        "etc",
        "shadowing",
    ],
)
@pytest.mark.parametrize("mode", ["ldconfig", "mount"])
def test_t08_nothing_of_the_image_is_mounted(attacked: Attacked, image: str, mode: str) -> None:
    """Compatibility libraries of the image are never a mount's source."""
    config = {"cli": f'[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "{mode}"'}
    done = attacked(Case(image, config=config))
    if done.returncode:
        done.refused("error: ")
    else:
        done.grafted()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (f"{COMPAT} -> {COMPAT}", "too many levels of symbolic links"),
        (f"{COMPAT} -> ../../../..{CANARY}", f"path error: {COMPAT} resolves outside of {ROOTFS}"),
        (
            (
                f"{COMPAT}/libcuda.so.999.1 -> /a/libcuda.so.999.1\n{COMPAT}/libx.so.999.1 -> "
                "/b/libx.so.999.1"
            ),
            "compat libraries in more than one directory: /a, /b",
        ),
        (
            f"{COMPAT} -> {MPS}\n{library(f'{MPS}/libcuda.so.999.1')}",
            f"{MPS}: hidden by the mount on {MPS}",
        ),
    ],
    ids=["circle", "out", "two directories", "a mount"],
)
def test_t08_directories_that_are_refused(attacked: Attacked, image: str, message: str) -> None:
    """Circles, links out, and directories that a mount of the driver would hide are refused."""
    attacked(Case(image)).refused(message)


# ---- T09: one mount hides another

COMPUTE = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")


@pytest.mark.parametrize("everything", [True, False], ids=["all", "compute"])
@pytest.mark.parametrize(
    ("image", "cover"),
    [
        (f"{LIBS} -> {PROFILES}", PROFILES),
        (f"/usr/bin -> {PROFILES}", PROFILES),
        (f"{PROFILES} -> {LIBS}", LIBS),
        (f"{PROFILES} -> /usr", "/usr"),
        (f"{PROFILES} -> /etc", "/etc"),
        (f"{PROFILES} -> {MPS}", MPS),
        (f"{MPS} -> {LIBS}", LIBS),
        (f"{MPS} -> /usr", "/usr"),
        (f"{MPS} -> /etc", "/etc"),
        (f"{MPS} -> /dev", "/dev"),
        (f"/run/nvidia-persistenced -> {MPS}", MPS),
        (f"/lib/firmware -> {MPS}", ""),
        (f"/lib/firmware -> {LIBS}/libcuda.so.535.1", f"{LIBS}/libcuda.so.535.1"),
    ],
)
def test_t09_no_mount_hides_another(
    attacked: Attacked, image: str, cover: str, everything: bool
) -> None:
    """Links that lead two parts of the driver to one place are refused."""
    case = Case(image) if everything else Case(image, environment=COMPUTE)
    done = attacked(case)
    if PROFILES in image and not everything:
        done.grafted()  # only graphics has profiles
    else:
        done.refused(f"hidden by the mount on {cover}")


# ---- T10: names


def link_libraries_to(target: bytes) -> Callable[[], None]:
    def prepare() -> None:
        shutil.rmtree(ROOTFS / LIBS[1:])
        os.symlink(target, os.fsencode(ROOTFS / LIBS[1:]))

    return prepare


def deep() -> None:
    """Make 2,000 nested directories, and a link to the deepest at the library directory."""
    fd = os.open(ROOTFS, os.O_PATH)
    for _ in range(2000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    link_libraries_to(b"/" + b"d/" * 2000)()


@pytest.mark.parametrize(
    "target",
    [
        b"/etc/shadow\nnvgraft: all is well",
        b"/x\x1b[2Jy\x1b]0;title\x07",
        b"/\xff\xfe\xc0",
        b"/" + b"n" * 255,
        b"/" + b"./" * 2000 + b"x",
    ],
    ids=["newline", "escape", "invalid UTF-8", "255 bytes", "4001 bytes of dots"],
)
def test_t10_odd_names_are_served(attacked: Attacked, target: bytes) -> None:
    """A directory may have any name: it gets the driver, and the log has printable text only."""
    attacked(Case(prepare=link_libraries_to(target), options=("-debug",))).grafted()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            link_libraries_to(b"../../../../x\nnvgraft: all is well"),
            f"path error: {LIBS} resolves outside of",
        ),
        (link_libraries_to(b"/" + b"n" * 256), "file name too long"),
        (link_libraries_to(b"/" + b"/".join([b"d" * 254] * 16)), "file name too long"),
        (link_libraries_to(b"/" + b"e/" * 2000), "file name too long"),
        (deep, "file name too long"),
    ],
    ids=["newline out", "256 bytes", "4080 bytes", "2000 levels to make", "2000 levels"],
)
def test_t10_names_that_cannot_be_served(
    attacked: Attacked, prepare: Callable[[], None], message: str
) -> None:
    """A name that is too long or leads out is refused with one printable line."""
    attacked(Case(prepare=prepare)).refused(message)


@pytest.mark.parametrize("mode", MODES)
def test_t10_odd_names_and_sonames_of_libraries(attacked: Attacked, mode: str) -> None:
    """Paths, newlines and escapes in names and SONAMEs of libraries make no file and no log line.

    ldconfig takes a SONAME with slashes for a path, and makes that link where it may write: in the
    image's own /etc.
    """

    def prepare() -> None:
        place = os.fsencode(ROOTFS / LIBS[1:])
        plain = shared_object(64, "EM_X86_64", "libx.so", [], None)
        names = (b"lib\n.so.1", b"lib\x1b[2J.so", b"lib\xff\xfe.so.1", b"libx.so." + b"1" * 247)
        for name in names:
            Path(os.fsdecode(place + b"/" + name)).write_bytes(plain)
        sonames = ("../../../etc/cron.d/x", "/etc/cron.d/y", "lib\nx.so", "lib\x1b.so")
        for number, soname in enumerate((*sonames, "x" * 3000, "..", ".")):
            odd = shared_object(64, "EM_X86_64", soname, [], None)
            (ROOTFS / f"{LIBS[1:]}/libodd{number}.so.1").write_bytes(odd)

    done = attacked(Case("/etc/cron.d/", prepare=prepare, config=loader_cache(mode)))
    done.grafted()
    assert not any("/cron.d/" in line and " l " not in line for line in done.files)


# ---- T11: the root file system itself


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(root="/"), "input error: invalid rootfs directory"),
        (Case(root="///"), "input error: invalid rootfs directory"),
        (Case(root="/."), "input error: invalid rootfs directory"),
        (Case(root="../.."), "input error: invalid rootfs directory"),
        (
            Case(root="link", prepare=lambda: os.symlink("/", ROOTFS.parent / "link")),
            "link is the host's own root",
        ),
        (
            Case(mounts=lambda root: syscalls.mount("/", str(root), None, syscalls.MS_BIND)),
            "rootfs is the host's own root",
        ),
        (Case(root="/proc/1/root"), "container error: open failed: /proc/1/root"),
        (
            Case(root="/proc/self/root"),
            "container error: open failed: /proc/self/root: too many levels of symbolic links",
        ),
        (
            Case(root="/proc/self/cwd"),
            "container error: open failed: /proc/self/cwd: too many levels of symbolic links",
        ),
        (Case(root="nothing"), "container error: open failed: "),
        (Case(root="config.json"), "config.json: not a directory"),
        (Case(root=""), "is not a mount point in the mount namespace of process"),
        (
            Case(mounts=lambda root: syscalls.mount("proc", str(root / "proc"), "proc", 0)),
            "rootfs is not a mount point in",
        ),
        (
            Case(root="link", prepare=lambda: os.symlink("rootfs", ROOTFS.parent / "link")),
            "it would be made on the volume",
        ),
    ],
    ids=[
        "/",
        "///",
        "/.",
        "up",
        "link to /",
        "bind of /",
        "1/root",
        "self/root",
        "cwd",
        "missing",
        "file",
        "empty",
        "no mount",
        "link",
    ],
)
def test_t11_an_unusable_root_is_refused(attacked: Attacked, case: Case, message: str) -> None:
    """The host's root under any name, no root, and one without a mount are refused."""
    attacked(case).refused(message)


# ---- T12: the inputs of the loader cache


def configuration(text: str) -> Callable[[], None]:
    def prepare() -> None:
        (ROOTFS / "etc/ld.so.conf").write_text(text)

    return prepare


def million_includes() -> None:
    (ROOTFS / "etc/c").mkdir()
    (ROOTFS / "etc/c/f").write_text("include /etc/e/*\n" * 20_000)
    configuration("include /etc/c/*\n" * 50)()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "prepare",
    [
        configuration("include /etc/ld.so.conf\n"),
        configuration("include /etc/*\n"),
        configuration("include x\n" * 100_000),
        configuration("".join(f"/d{number}\n" for number in range(60_000))),
        million_includes,
    ],
    ids=["itself", "everything", "many", "directories", "a million"],
)
def test_t12_configurations_without_end(
    attacked: Attacked, mode: str, prepare: Callable[[], None]
) -> None:
    """Circles and masses of includes and directories end with the driver in place or a refusal."""
    done = attacked(Case(prepare=prepare, config=loader_cache(mode)))
    if done.returncode:
        done.refused("ldcache error: ")
    else:
        done.grafted()


@pytest.mark.parametrize(
    "text",
    ["include /etc/ld.so.conf\n" * 20, "include /etc/fifo\n"],
    ids=["includes that multiply", "a FIFO that is included"],
)
def test_t12_ldconfig_is_ended_when_it_is_late(tmp_path: Path, text: str) -> None:
    """An ldconfig within its other limits is killed at the deadline, and undone."""
    root = tmp_path / "rootfs"
    (root / LIBS[1:]).mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text(text)
    os.mkfifo(root / "etc/fifo")

    def scenario() -> tuple[str, list[str]]:
        bind_rootfs(root)
        fd, undo = os.open(root, os.O_PATH | os.O_DIRECTORY), UndoLog()
        with pytest.raises(Refusal) as caught:
            LoaderCache.prepare(LDCONFIG).update(fd, [LIBS], 0, 0, undo, Journal(), 0.5)
        return caught.value.line(), undo.run()

    line, left = run_in_mount_namespace(scenario)
    assert "terminated with signal 9 | it had not finished after 0.5 seconds" in line
    assert left == []
    assert sorted(os.listdir(root / "etc")) == ["fifo", "ld.so.conf"]


@pytest.mark.parametrize("mode", MODES)
def test_t12_libraries_with_broken_headers(attacked: Attacked, mode: str) -> None:
    """The driver's libraries are found among hundreds of damaged, cut and empty ones."""

    def prepare() -> None:
        good = shared_object(64, "EM_X86_64", "libx.so.1", ["libc.so.6"], [3, 2, 0])
        dice = random.Random(1)
        for number in range(300):
            data = bytearray(good)
            for _ in range(dice.randint(1, 20)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            size = dice.choice([len(data), 0, 4, 64, 100])
            (ROOTFS / f"{LIBS[1:]}/libbad{number}.so.1").write_bytes(data[:size])

    done = attacked(Case(prepare=prepare, config=loader_cache(mode)))
    done.grafted()
    assert any("/libcuda.so.1 l " in line and "libcuda.so.535.1" in line for line in done.files)


# ---- T13: the host's ldconfig

OTHER = {"nvgraft": 'ldcache = "ldconfig"', "cli": f'ldconfig = "@{PLACE}/ld"'}


def other_ldconfig(source: str | bytes, mode: int = 0o755, owner: int = 0) -> Callable[[], None]:
    """Return a function that writes a file's copy, or bytes, to ldconfig's place."""

    def prepare() -> None:
        place = PLACE / "ld"
        place.write_bytes(Path(source).read_bytes() if isinstance(source, str) else source)
        os.chown(place, owner, 0)
        place.chmod(mode)

    return prepare


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (other_ldconfig(b"#!/bin/sh\nexit 0\n"), "it is not an ELF file"),
        (other_ldconfig("/bin/ls"), "it is dynamically linked"),
        (other_ldconfig(LDCONFIG, 0o757), "others than root may write it"),
        (other_ldconfig(LDCONFIG, owner=1000), "it belongs to uid 1000"),
        (lambda: os.mkfifo(PLACE / "ld"), "it is not a regular file"),
        (lambda: None, f"ldcache error: open failed: {PLACE}/ld: no such file or directory"),
    ],
    ids=["script", "dynamic", "writable", "another's", "fifo", "missing"],
)
def test_t13_an_untrusted_ldconfig_is_refused(
    attacked: Attacked, prepare: Callable[[], None], message: str
) -> None:
    """Only a trusted static ELF file is run, and never the image's own ldconfig."""
    image = "/sbin/ldconfig mode=0755\n/mnt/ld mode=0755"
    attacked(Case(image, prepare=prepare, config=OTHER)).refused(message)


def test_t13_memory_that_may_not_be_executed(attacked: Attacked) -> None:
    """Where vm.memfd_noexec = 2, ldconfig cannot run from memory; the refusal names the setting."""

    def forbid() -> None:
        Path("/proc/sys/vm/memfd_noexec").write_text("2")

    config = {"nvgraft": OTHER["nvgraft"]}
    attacked(Case(prepare=forbid, own_pids=True, config=config)).refused(
        "the sysctl vm.memfd_noexec is 2 on this host"
    )
    attacked(Case(own_pids=True, config=config)).grafted()


# ---- T14: the image of ldconfig in memory


@pytest.mark.requires("busybox")
def test_t14_the_copy_of_ldconfig_cannot_be_written(tmp_path: Path) -> None:
    """The copy cannot be written while it runs nor through a descriptor kept past its end."""
    root = tmp_path / "rootfs"
    (root / LIBS[1:]).mkdir(parents=True)
    (root / "etc").mkdir()
    # A shell in ldconfig's place runs this file as a script.
    (root / "etc/ld.so.conf").write_text("while :; do :; done")
    program = tmp_path / "sh"
    shutil.copy(shutil.which("busybox") or "", program)
    program.chmod(0o755)
    before = hashlib.sha256(program.read_bytes()).digest()

    def scenario() -> list[int]:
        hook = os.fork()
        if hook == 0:
            try:
                bind_rootfs(root)
                LoaderCache.prepare(str(program)).update(
                    os.open(root, os.O_PATH), [LIBS], 0, 0, UndoLog(), Journal(), 60
                )
            finally:
                os._exit(0)
        children = Path(f"/proc/{hook}/task/{hook}/children")
        while not (pids := children.read_text().split()):
            time.sleep(0.001)
        image = f"/proc/{pids[0]}/exe"
        while "memfd:ldconfig" not in os.readlink(image):
            time.sleep(0.001)
        kept = os.open(image, os.O_PATH)
        errors = [
            attempt(lambda: os.open(image, os.O_RDWR)),
            attempt(lambda: os.truncate(image, 0)),
        ]
        os.kill(hook, signal.SIGKILL)
        os.waitpid(hook, 0)
        reopened = f"/proc/self/fd/{kept}"
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if attempt(lambda: os.close(os.open(reopened, os.O_RDWR))) != errno.ETXTBSY:
                break
            time.sleep(0.001)
        again = os.open(reopened, os.O_RDWR)
        errors.append(attempt(lambda: os.write(again, b"#!")))
        errors.append(attempt(lambda: os.ftruncate(again, 0)))
        return errors

    assert run_in_mount_namespace(scenario) == [errno.ETXTBSY] * 2 + [errno.EPERM] * 2
    assert hashlib.sha256(program.read_bytes()).digest() == before


def attempt(call: Callable[[], object]) -> int:
    """Return the errno of a failing ``call``, 0 if it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


# ---- the same cases under engines

ENGINES = [
    pytest.param("runc --root /run/runc-test", id="runc"),
    pytest.param(
        "crun --root /run/crun-test --cgroup-manager=disabled",
        id="crun",
        marks=pytest.mark.requires("crun"),
    ),
]
NO_CGROUPS = f"sed -i 's/^.nvidia-container-cli.$/&\\nno-cgroups = true/' {CONFIG_TOML}"


def start(bundle: Bundle, engine: str, script: str = "echo started") -> Run:
    """Start the bundle's container and print the hook's last error, which crun does not show."""

    def change(config: dict[str, Any]) -> None:
        # crun may be older than the runc that has written the file.
        config["ociVersion"] = "1.0.2"

    bundle.edit(change)
    bundle.set_program(script)
    run = f"{engine} run --bundle {bundle.path} {bundle.name}; code=$?"
    command = f"{run}; {bundle.installed.cli} last-error {bundle.name}; exit $code"
    # crun refuses hybrid cgroups, and cannot set up cgroups on every machine.
    if engine.startswith("crun"):
        return bundle.on_host(f"{CGROUPS['v2'].values[0]} && {NO_CGROUPS}; {command}")
    return bundle.on_host(command)


def replace(path: Path, target: str) -> None:
    """Replace a file or directory of the bundle by a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.requires("runc", "busybox", "gcc")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("path", "target", "message"),
    [
        ("usr/bin/nvidia-smi", "/etc/cron.d/x", "rootfs/usr/bin/nvidia-smi: file exists"),
        ("usr/bin", "../../../../../../../CANARY", "path error: /usr/bin resolves outside of"),
        ("usr/bin", "/proc/1/root/CANARY", "too many levels of symbolic links"),
        (
            "usr/bin",
            "/nowhere\nnvgraft: all is well\x1b[2J/../..",
            "path error: /usr/bin resolves outside of",
        ),
    ],
    ids=["t02", "t01", "t03", "t10"],
)
def test_engines_do_not_start_a_refused_container(
    bundle: Bundle, engine: str, path: str, target: str, message: str
) -> None:
    """T01, T02, T03, T10: an engine starts no container; a line says why; no file is made."""
    canary = bundle.path.parent / "canary"
    canary.mkdir()
    replace(bundle.path / "rootfs" / path, target.replace("/CANARY", str(canary)))
    done = start(bundle, engine)
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert message in done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert done.changes == []


@pytest.mark.requires("runc", "busybox", "gcc")
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_t01_links_to_host_names_stay_inside(bundle: Bundle, engine: str) -> None:
    """T01: an absolute link leads to the image's directory, and the container starts."""
    canary = bundle.path.parent / "canary"
    canary.mkdir()
    replace(bundle.path / "rootfs/usr/bin", str(canary))
    done = start(bundle, engine, f"ls {canary}; echo started")
    assert done.returncode == 0, done.stderr
    assert {"nvidia-smi", "started"} <= set(done.stdout.split())
    assert not any(line.split()[1].startswith(str(canary)) for line in done.changes)
