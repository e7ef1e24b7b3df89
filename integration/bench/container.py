"""Make a container as a runtime leaves it for its prestart hooks, in milliseconds and without a
runtime.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bench.cases import Case
from nvgraft.system import syscalls
from nvgraft_cli.simulate import ldcache_writer

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_bundle(bundle: str, case: Case) -> None:
    """Make a bundle whose config.json requests what the case says. The container's process mounts
    the rootfs.
    """
    os.makedirs(f"{bundle}/rootfs")
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["sh"], "env": [PATH, *case.variables]},
        "root": {"path": "rootfs"},
    }
    with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    if case.entries:
        rows = [
            (f"libbench{number}.so.1", "libc6,x86-64", f"/usr/lib/bench/libbench{number}.so.1")
            for number in range(case.entries)
        ]
        with open(f"{bundle}/ld.so.cache", "wb") as file:
            file.write(ldcache_writer.cache(rows))
    if case.names:
        with open(f"{bundle}/names", "w", encoding="ascii") as file:
            file.writelines(f"file{number}\n" for number in range(case.names))


def _make_cgroup() -> str:
    """Make a container's cgroup, in the v1 device hierarchy or, without one, in the unified
    hierarchy.
    """
    v1 = "/sys/fs/cgroup/devices"
    # The name has no process id: cgroups are the machine's, and other simulated nodes have the same
    # ids.
    directory = tempfile.mkdtemp(
        prefix="nvgraft-bench-", dir=v1 if os.path.isdir(v1) else "/sys/fs/cgroup"
    )
    if directory.startswith(v1):
        with open(f"{directory}/devices.deny", "w", encoding="ascii") as file:
            file.write("a")
    return directory


def mount_rootfs(bundle: str, image: str) -> str:
    """Mount the root file system of a bundle in this process's mount namespace, and return its
    path.

    It is a copy of ``image`` that is changed in memory, or a nearly empty tmpfs.
    """
    rootfs = f"{bundle}/rootfs"
    if image:
        layers = f"{bundle}/layers"
        os.makedirs(layers, exist_ok=True)
        syscalls.mount("tmpfs", layers, "tmpfs", 0, "mode=755")
        for name in ("upper", "work"):
            os.mkdir(f"{layers}/{name}")
        syscalls.mount(
            "overlay",
            rootfs,
            "overlay",
            0,
            f"lowerdir={image},upperdir={layers}/upper,workdir={layers}/work",
        )
        return rootfs
    syscalls.mount("tmpfs", rootfs, "tmpfs", 0, "mode=755")
    for directory in (
        "dev",
        "etc",
        "lib64",
        "proc",
        "sys",
        "tmp",
        "usr/bin",
        "usr/lib/x86_64-linux-gnu",
    ):
        os.makedirs(f"{rootfs}/{directory}")
    with open(f"{rootfs}/etc/debian_version", "w", encoding="ascii") as file:
        file.write("12.0\n")
    cache = f"{bundle}/ld.so.cache"
    if os.path.exists(cache):
        with open(cache, "rb") as source, open(f"{rootfs}/etc/ld.so.cache", "wb") as target:
            target.write(source.read())
    names = f"{bundle}/names"
    if os.path.exists(names):
        with open(names, encoding="ascii") as file:
            for name in file:
                os.link(
                    f"{rootfs}/etc/debian_version",
                    f"{rootfs}/usr/lib/x86_64-linux-gnu/{name.rstrip()}",
                )
    return rootfs


def leave_mount_namespace() -> None:
    """Enter a new mount namespace, which ends with this process."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _become_container(bundle: str, image: str, cgroup: str) -> None:
    with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    leave_mount_namespace()
    rootfs = mount_rootfs(bundle, image)
    syscalls.mount("proc", f"{rootfs}/proc", "proc", 0)
    # What the loaded kernel module shows on a real node. The reference hook needs it.
    syscalls.mount("tmpfs", f"{rootfs}/proc/driver", "tmpfs", 0, "mode=555")
    os.mkdir(f"{rootfs}/proc/driver/nvidia", 0o555)
    syscalls.mount("tmpfs", f"{rootfs}/dev", "tmpfs", 0, "mode=755")


@contextmanager
def container(bundle: str, image: str) -> Iterator[str]:
    """Start a new container of the bundle and yield its OCI state. The container ends with the
    context.

    :raises SystemExit: when none can be made on this machine.
    """
    cgroup = _make_cgroup()
    reader, writer = os.pipe()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        try:
            _become_container(bundle, image, cgroup)
            os.write(writer, b"1")
            os.read(read_end, 1)
        except OSError as error:
            os.write(2, f"bench: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.close(read_end)
    try:
        if not os.read(reader, 1):
            raise SystemExit("bench: no container can be made here")
        yield json.dumps(
            {
                "ociVersion": "1.0.2",
                "id": "bench",
                "status": "creating",
                "pid": child,
                "bundle": bundle,
            }
        )
    finally:
        os.close(reader)
        os.close(write_end)
        os.waitpid(child, 0)
        for _ in range(50):  # the kernel releases a dead task's cgroup a little later
            with suppress(OSError):
                os.rmdir(cgroup)
                break
            time.sleep(0.01)


def ldconfig_seconds(bundle: str, image: str) -> float:
    """Return the seconds that the machine's ldconfig takes for the root file system, as in the
    reference.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            leave_mount_namespace()
            rootfs = mount_rootfs(bundle, image)
            started = time.perf_counter()
            subprocess.run(
                ["/sbin/ldconfig", "-r", rootfs],
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os.write(writer, str(time.perf_counter() - started).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        raise SystemExit("bench: ldconfig cannot be timed here")
    return float(said)
