"""Run the native loader cache step on a directory with a driver of stubs.

`ldconfig -p` says what a cache then holds.
"""

import os
import platform
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from harness import LDCONFIG
from nvgraft.apply.cache.native import NativeCache
from nvgraft.apply.journal import Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.container.container import Container
from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.tree import Bounds, open_tree_at
from nvgraft.plan.actions import Bind, MountedLibrary, Plan, UpdateLoaderCache, Why
from nvgraft.plan.soname_links import soname_links
from nvgraft_cli.simulate.stubs import shared_object

MACHINE = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[platform.machine()]
FLAGS = loader_flags(platform.machine())[0]
LIBS = f"/usr/lib/{platform.machine()}-linux-gnu"
CONF = "/etc/ld.so.conf"

#: A small driver: SONAME -> file name.
DRIVER = {
    "libcuda.so.1": "libcuda.so.570.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.570.1",
    "libnvidia-glcore.so.570.1": "libnvidia-glcore.so.570.1",
    "libGLX_nvidia.so.0": "libGLX_nvidia.so.570.1",
}


def library(path: Path, soname: str | None, *, bits: int = 64, machine: str = MACHINE) -> None:
    """Write a shared object, and the directories it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shared_object(bits, machine, soname, ["libc.so.6"], [3, 2, 0]))


def install_driver(root: Path, driver: dict[str, str] = DRIVER, directory: str = LIBS) -> None:
    """Write the driver's files to the paths at which the hook mounts them."""
    for soname, name in driver.items():
        library(root / directory[1:] / name, soname)


#: Names and directories for small images, and the kinds of files that may be there. An entry's
#: third member is a kind, or the target of a symbolic link.
NAMES = ["liba.so.1", "liba.so.1.2", "liba.so.1.10", "liba.so", "libb.so.9", "ld-x.so.1", "readme"]
PLACES = [
    LIBS,
    "/usr/lib",
    "/usr/local/lib",
    "/opt/lib",
    f"{LIBS}/glibc-hwcaps/x86-64-v2",
    "/opt/lib/glibc-hwcaps/v9",
]
KINDS = ["file", "nameless", "text", "empty", "narrow", "directory"]
LINES = [
    "/opt/lib",
    "/usr/local/lib",
    "include ld.so.conf.d/*.conf",
    "/opt/lib/",
    "# /none",
    "/none",
]
ENTRIES = st.tuples(
    st.sampled_from(PLACES),
    st.sampled_from(NAMES),
    st.sampled_from(KINDS) | st.sampled_from([*NAMES, "/opt/lib/liba.so.1"]),
)


def make_image(
    root: Path, entries: list[tuple[str, str, str]], conf: list[str], *, merged: bool
) -> None:
    """Make a small image of ``ENTRIES`` and the lines of its ld.so.conf.

    :param merged: make its /lib a link to usr/lib.
    """
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    (root / "usr/lib").mkdir(parents=True)
    if merged:
        (root / "lib").symlink_to("usr/lib")
    (root / "etc/ld.so.conf").write_text("\n".join(conf))
    (root / "etc/ld.so.conf.d/x.conf").write_text(f"/lib/x86_64-linux-gnu\n{LIBS}\n")
    for directory, name, kind in entries:
        add_entry(root, directory, name, kind)


def add_entry(root: Path, directory: str, name: str, kind: str) -> None:
    """Add one of ``ENTRIES`` to an image."""
    path = root / directory[1:] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        library(path, "liba.so.1" if name.startswith("liba") else name)
    elif kind == "nameless":
        library(path, None)
    elif kind == "narrow":
        library(path, f"narrow-{name}", bits=32, machine="EM_386")
    elif kind == "directory":
        path.mkdir()
    elif kind in {"text", "empty"}:
        path.write_text("GROUP ( x )" * 20 if kind == "text" else "")
    else:
        path.symlink_to(kind)


def container_at(root: Path) -> Container:
    """Return a directory of this mount namespace as a container.

    Its root is the user of this process.
    """
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    container = Container(os.getpid(), None, str(root), fd, os.geteuid(), os.getegid())
    container.read_mounts()
    return container


def plan_for(
    root: Path,
    driver: dict[str, str] = DRIVER,
    *,
    directory: str = LIBS,
    given: tuple[str, ...] | None = None,
) -> Plan:
    """Return the plan for a small driver whose files lie in the same directory on the host."""
    tree = open_tree_at(str(root))
    libraries = tuple(
        MountedLibrary(directory, name, soname, FLAGS) for soname, name in driver.items()
    )
    links, _ = soname_links(tree, libraries)
    tree.close()
    why = Why("", "", "")
    paths = [f"{directory}/{name}" for name in driver.values()]
    binds = [Bind("file", "driver", path, path, ("ro",), 0o644, why) for path in paths]
    cache = UpdateLoaderCache((directory,) if given is None else given, why, libraries)
    return Plan("inject", "", (*binds, cache), tuple(sorted(links.items())))


def update(
    root: Path,
    driver: dict[str, str] = DRIVER,
    *,
    directory: str = LIBS,
    given: tuple[str, ...] | None = None,
    undo: UndoLog | None = None,
    journal: Journal | None = None,
    meanwhile: Callable[[], None] | None = None,
    bounds: Bounds | None = None,
) -> list[Finding]:
    """Run the step as the hook does: survey, let the driver appear, write. Return its findings.

    :param undo: records how to take the changes back; the root then stays open for it.
    :param meanwhile: makes the driver appear; by default the stubs are written.
    :raises Refusal: when the step refuses.
    """
    container = container_at(root)
    plan = plan_for(root, driver, directory=directory, given=given)
    action = plan.actions[-1]
    assert isinstance(action, UpdateLoaderCache)
    container.bounds = bounds or container.bounds
    step = NativeCache("/sbin/ldconfig")
    step.prepare()
    try:
        step.survey(container, action)
        if meanwhile is None:
            install_driver(root, driver, directory)
        else:
            meanwhile()
        step.update(
            container, plan, action, UndoLog() if undo is None else undo, journal or Journal()
        )
    finally:
        step.close()
        if undo is None:
            os.close(container.rootfs_fd)
    return step.findings


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that can be observed of a tree, except the times of directories."""
    result: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode) and status.st_size < 1 << 30:
            content = (path.read_bytes(), status.st_mtime_ns)
        result[str(path.relative_to(root))] = (
            stat.filemode(status.st_mode),
            status.st_uid,
            status.st_gid,
            content,
        )
    return result


def listing(cache: Path) -> list[str]:
    """Return the lines that `ldconfig -p` prints for a cache, in its order, without indentation."""
    done = subprocess.run(
        [LDCONFIG, "-p", "-C", cache],
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
        check=True,
    )
    return [line.strip() for line in done.stdout.splitlines() if "=>" in line]


def ldconfig(root: Path, *directories: str) -> None:
    """Run this machine's ldconfig on a root file system.

    Without chroot(2), ldconfig replaces files by links and refuses relative includes: a general
    image needs root.
    """
    options = ["-r", str(root), "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache"]
    subprocess.run(
        [LDCONFIG, *options, *directories],
        env={"LC_ALL": "C"},
        check=True,
        stderr=subprocess.DEVNULL,
    )


def image_with_cache(root: Path) -> Path:
    """Make an image with two libraries in its search path and ldconfig's cache of them."""
    (root / "etc").mkdir(parents=True)
    (root / CONF[1:]).write_text(f"/opt/lib\n{LIBS}\n")
    library(root / "opt/lib/libother.so.2.1", "libother.so.2")
    library(root / LIBS[1:] / "libz.so.1.2", "libz.so.1")
    ldconfig(root)
    return root


def cache_lines(root: Path) -> list[str]:
    """Return the rows of an image's cache."""
    return listing(root / "etc/ld.so.cache")


def refused_update(root: Path) -> str:
    """Return why the step refuses an image."""
    with pytest.raises(Refusal) as caught:
        update(root)
    line = caught.value.line()
    assert line.startswith(
        "nvgraft: ldcache error: process /sbin/ldconfig failed with error code: 1 | the"
        " loader cache was not written: "
    )
    return line.partition(" | the loader cache was not written: ")[2]
