"""The native loader cache step on a directory: with a driver of stubs, and ldconfig's own view of the result."""

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from harness import LDCONFIG
from nvgraft.apply.native_cache import NativeCache
from nvgraft.apply.undo import UndoLog
from nvgraft.components import Component
from nvgraft.container import Container
from nvgraft.journal import Journal
from nvgraft.ldcache import loader_flags
from nvgraft.links import soname_links
from nvgraft.plan import Finding, Plan, UpdateLoaderCache, Why
from nvgraft.tree import open_tree_at
from nvgraft_cli.stubs import shared_object

MACHINE = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[platform.machine()]
FLAGS = loader_flags(platform.machine())[0]
LIBS = f"/usr/lib/{platform.machine()}-linux-gnu"

#: SONAME -> file of a small driver.
DRIVER = {
    "libcuda.so.1": "libcuda.so.570.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.570.1",
    "libnvidia-glcore.so.570.1": "libnvidia-glcore.so.570.1",
    "libGLX_nvidia.so.0": "libGLX_nvidia.so.570.1",
}


def library(path: Path, soname: str | None, *, bits: int = 64, machine: str = MACHINE) -> None:
    """Make a shared object, with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shared_object(bits, machine, soname, ["libc.so.6"], [3, 2, 0]))


def install_driver(root: Path, driver: dict[str, str] = DRIVER, directory: str = LIBS) -> None:
    """Put the driver's files where the hook mounts them."""
    for soname, name in driver.items():
        library(root / directory[1:] / name, soname)


def container_at(root: Path) -> Container:
    """A directory of this mount namespace as a container whose root is whoever runs this."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    container = Container(os.getpid(), None, str(root), fd, os.geteuid(), os.getegid())
    container.read_mounts()
    return container


def update(
    root: Path,
    driver: dict[str, str] = DRIVER,
    *,
    directory: str = LIBS,
    given: tuple[str, ...] | None = None,
    undo: UndoLog | None = None,
    journal: Journal | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> list[Finding]:
    """Run the step as the hook does: look, let the driver appear, write. Return its findings.

    :param undo: takes the way back, for which the root stays open.
    :param meanwhile: makes the driver appear; without it the stubs are written.
    :raises Refusal: the step's.
    """
    container = container_at(root)
    tree = open_tree_at(str(root))
    mounted = [(Component("", "", f"/host/{name}", "", "file", 0o644, 0, soname), directory) for soname, name in driver.items()]
    links, _ = soname_links(tree, mounted)
    tree.close()
    libraries = tuple((f"{directory}/{name}", soname, FLAGS) for soname, name in driver.items())
    action = UpdateLoaderCache((directory,) if given is None else given, Why("", "", ""), libraries)
    plan = Plan("inject", "", {"root": "/"}, {}, {}, (action,), tuple(sorted(links.items())))
    step = NativeCache("/sbin/ldconfig")
    step.prepare()
    try:
        step.survey(container, action)
        if meanwhile is None:
            install_driver(root, driver, directory)
        else:
            meanwhile()
        step.update(container, plan, action, UndoLog() if undo is None else undo, journal or Journal())
    finally:
        step.close()
        if undo is None:
            os.close(container.rootfs_fd)
    return step.findings


def listing(cache: Path) -> list[str]:
    """The lines of `ldconfig -p` for a cache, in its order, without the rows' indentation."""
    done = subprocess.run([LDCONFIG, "-p", "-C", cache], capture_output=True, text=True, env={"LC_ALL": "C"}, check=True)
    return [line.strip() for line in done.stdout.splitlines() if "=>" in line]


def ldconfig(root: Path, *directories: str) -> None:
    """Have this machine's ldconfig do its work in a root file system."""
    argv = [LDCONFIG, "-r", str(root), "-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache", *directories]
    subprocess.run(argv, env={"LC_ALL": "C"}, check=True, stderr=subprocess.DEVNULL)
