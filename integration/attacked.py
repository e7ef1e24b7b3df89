"""A container under attack, without an engine: a comparable host, a hostile rootfs, the real hook.

Everything happens in a mount namespace of its own, in which ``/mnt`` is a tmpfs, ``/etc`` is a
layer over this machine's, and the rest is read-only. What an attack reaches on "the host" is seen,
and this machine is never involved. A case is a few lines in the language of ``hosts.tree`` and
costs a tenth of a second. Containers of real engines are in containers.py.
"""

import os
import signal
import stat
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import prctl

import hosts
from bundles import EVERYTHING, make_bundle
from cgroups import FILTER, attach, hierarchy
from harness import Installed, run_in_mount_namespace
from nvgraft.apply import bpf
from nvgraft.base import jsontext
from nvgraft.system import syscalls
from nvgraft_cli.simulate import ldcache_writer, stubs

PLACE = Path("/mnt")
#: The driver root of this host. Everything that may be mounted into a container is here.
DRIVER = PLACE / "driver"
#: Files of "the host" that an attack would like to write or read.
CANARY = PLACE / "canary"
BUNDLE = PLACE / "bundle"
ROOTFS = BUNDLE / "rootfs"
CONFIG = PLACE / "config.toml"
SNAPSHOT = PLACE / "host.json"
_ETC = PLACE / "etc"

#: The content of the host's files, which no message may show.
SECRET = "the-secret-of-the-host"

#: Seconds that a hook may take, whatever the image holds. ldconfig has its own limit of 10 s of
#: processor time.
DEADLINE = 15.0

_OUTSIDE = "not in the container: "

LIBS = "/usr/lib/x86_64-linux-gnu"

#: An image without faults. Cases add to it; a replacement for a directory takes the place of all in
#: it.
IMAGE = f"""
    /etc/debian_version = 12.1
    /etc/ld.so.conf = {LIBS}\\n
    {LIBS}/libc.so.6 elf libc.so.6 tag=3.2.0
    /usr/bin/true mode=0755
    /proc/
    /sys/
    /dev/
    /tmp/
"""

#: find(1)'s format of an entry: path, type, mode, owner, size, link target, time of change.
_ENTRY = "%p %y %m %U:%G %s %l %T@\\n"


class Outcome(NamedTuple):
    """The results of a run of the hook."""

    returncode: int
    stderr: str
    seconds: float
    #: Differences of the host: files, mounts, locks, processes. Empty if all is as before.
    host: tuple[str, ...]
    #: Whether the container's device programs have changed.
    rules: bool
    #: The container's new mounts: (mount point in the container, root of the mount in its file
    #: system, type, options).
    mounts: tuple[tuple[str, str, str, str], ...]
    #: Differences of the rootfs's files, with ``+`` or ``-``. Times of directories do not count.
    files: tuple[str, ...]
    #: What the ``look`` of the case returned.
    seen: Any = None

    def refused(self, message: str) -> None:
        """Check that the hook refused with ``message``, in time, without host secrets or any
        change.
        """
        assert self.returncode == 1, self
        assert message in self.stderr, self.stderr
        self._harmless()
        assert (self.rules, self.mounts, self.files) == (False, (), ()), self

    def grafted(self) -> None:
        """Check that the driver is in the container, and that all mounts are the driver's and
        inside.
        """
        assert self.returncode == 0, self.stderr
        self._harmless()
        assert self.mounts, self.stderr
        for point, root, fstype, _ in self.mounts:
            assert not point.startswith(_OUTSIDE), point
            assert (fstype == "tmpfs" and root == "/") or root.startswith(f"/{DRIVER.name}/"), (
                f"{point}: {root} is not the driver's"
            )

    def _harmless(self) -> None:
        assert self.host == (), self.host
        assert "Traceback" not in self.stderr
        assert SECRET not in self.stderr
        assert all(character == "\n" or character.isprintable() for character in self.stderr), repr(
            self.stderr
        )
        assert all(len(line) <= 4096 for line in self.stderr.splitlines())
        assert self.seconds < DEADLINE


def runtime_mounts(rootfs: Path) -> None:
    """Mount what an engine mounts before its prestart hooks. Call this in the container's mount
    namespace.
    """
    bind_rootfs(rootfs)
    syscalls.mount(
        "proc",
        str(rootfs / "proc"),
        "proc",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
    )
    syscalls.mount("tmpfs", str(rootfs / "dev"), "tmpfs", syscalls.MS_NOSUID, "mode=755")


def bind_rootfs(rootfs: Path) -> None:
    """Make the root file system a mount point, and nothing else."""
    syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND | syscalls.MS_REC)


class Case(NamedTuple):
    """One attack: lines for the image, and other differences from a benign start.

    The callables run in the private mount namespace: ``prepare`` on the host when everything is in
    place, ``mounts`` in the container's own namespace, ``before_exec`` in the hook's process,
    ``look`` (with the container's pid) after the hook.
    """

    image: str = ""
    prepare: Callable[[], None] = lambda: None
    mounts: Callable[[Path], None] = runtime_mounts
    before_exec: Callable[[], None] | None = None
    look: Callable[[int], object] = lambda pid: None
    environment: tuple[str, ...] = EVERYTHING
    config: Mapping[str, str] = {}
    root: str = "rootfs"
    kinds: int = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
    #: The host's id of the container's root, which owns the image's files. An id other than 0 means
    #: a user namespace.
    owner: int = 0
    #: Makes the device programs of the container's cgroup, given its descriptor.
    rules: Callable[[int], object] = lambda cgroup: attach(cgroup, FILTER)
    options: tuple[str, ...] = ()
    #: The program to start in place of the installed hook.
    hook: tuple[str, ...] = ()
    #: Its arguments in place of the usual ones, and its environment.
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = {"PATH": "/usr/sbin:/usr/bin"}
    #: Makes its stdin from the container's true state. Called in the process that starts the hook.
    state: Callable[[dict[str, Any]], str] = jsontext.dumps
    #: Whether host and container are in a pid namespace of their own, whose settings ``prepare``
    #: may change.
    own_pids: bool = False


def attack(installed: Installed, case: Case) -> Outcome:
    """Build the host and the container of ``case``, run the installed hook, and return what
    changed. Root only.
    """
    return run_in_mount_namespace(lambda: _attack(installed, case), own_pids=case.own_pids)


def _attack(installed: Installed, case: Case) -> Outcome:
    prctl.set_child_subreaper(True)  # processes that a hook leaves become ours, and are seen
    make_host(case)
    case.prepare()
    confined = hierarchy(2) / f"nvgraft-attacked-{os.getpid()}"
    confined.mkdir()
    container = 0
    try:
        cgroup = os.open(confined, os.O_RDONLY)
        _kept = case.rules(cgroup)
        container = start_container(case)
        (confined / "cgroup.procs").write_text(str(container))
        return _observe(installed, case, container, cgroup)
    finally:
        if container:
            os.kill(container, signal.SIGKILL)
            os.waitpid(container, 0)
        confined.rmdir()


def make_host(case: Case) -> None:
    syscalls.mount("tmpfs", str(PLACE), "tmpfs", 0, "mode=755")
    for directory in (DRIVER, CANARY, _ETC / "upper", _ETC / "work"):
        directory.mkdir(parents=True)
    syscalls.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
    syscalls.mount(
        "overlay", "/etc", "overlay", 0, f"lowerdir=/etc,upperdir={_ETC}/upper,workdir={_ETC}/work"
    )
    (Path("/etc") / "shadow").write_text(f"root:{SECRET}:\n")
    (Path("/etc") / "cron.d").mkdir(exist_ok=True)
    make_tree(
        CANARY,
        f"/shadow = {SECRET}\n/directory/file = {SECRET}\n/empty/\n/sbin/ldconfig mode=0755\n",
    )
    document = hosts.full_host()
    make_tree(DRIVER, hosts.FULL)
    make_tree(DRIVER, "/tmp/ mode=1777\n/run/\n")
    (DRIVER / "etc").mkdir()
    (DRIVER / "etc/ld.so.cache").write_bytes(
        ldcache_writer.cache(tuple(row) for row in document["ld_so_cache"])
    )
    SNAPSHOT.write_text(jsontext.dumps(document))
    SNAPSHOT.chmod(0o644)
    CONFIG.write_text(config_toml(**case.config))
    make_bundle(BUNDLE, *case.environment, root=case.root, files=())
    added = hosts.tree(case.image)
    kept = {
        path: entry
        for path, entry in hosts.tree(IMAGE).items()
        if not any((path + "/").startswith(new + "/") for new in added)
    }
    make_files(ROOTFS, kept | added)
    if case.owner:
        for path in (ROOTFS, *ROOTFS.rglob("*")):
            os.lchown(path, case.owner, case.owner)
    root = syscalls.open_tree(-1, "/", 0)
    syscalls.mount_setattr(root, syscalls.MOUNT_ATTR_RDONLY)
    os.close(root)


def config_toml(cli: str = "", nvgraft: str = "") -> str:
    """Return a config.toml for the simulated host, with more lines for its tables."""
    return f"""
[nvgraft]
simulated-host = true
host-snapshot = "{SNAPSHOT}"
{nvgraft}
[nvidia-container-cli]
root = "{DRIVER}"
load-kmods = false
{cli if "ldconfig =" in cli else 'ldconfig = "@/sbin/ldconfig"' + chr(10) + cli}
[nvidia-container-runtime]
mode = "legacy"
"""


def make_tree(place: Path, text: str) -> None:
    """Make the files of ``text``, in the language of ``hosts.tree``, below ``place``."""
    make_files(place, hosts.tree(text))


def make_files(place: Path, files: Mapping[str, hosts.Document]) -> None:
    """Make ``files`` of a host document below ``place``."""
    for path, entry in files.items():
        made = place / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        if entry["type"] == "symlink":
            made.symlink_to(entry["target"])
            continue
        if entry["type"] == "dir":
            made.mkdir(exist_ok=True)
        elif entry["type"] == "file":
            made.write_bytes(_content(entry))
        elif entry["type"] == "char":
            os.mknod(made, stat.S_IFCHR, os.makedev(*entry["rdev"]))
        else:
            os.mknod(made, {"socket": stat.S_IFSOCK, "fifo": stat.S_IFIFO}[entry["type"]])
        made.chmod(int(entry["mode"], 8))


def _content(entry: hosts.Document) -> bytes:
    elf = entry.get("elf")
    if elf is None:
        return str(entry.get("content", "")).encode()
    return stubs.shared_object(
        elf["bits"], elf["machine"], elf["soname"], elf["needed"], elf["abi_tag"]
    )


def start_container(case: Case) -> int:
    """Start the container's first process, and return its pid when its mounts are made."""
    said, say = os.pipe()
    listen, tell = os.pipe()
    starter = os.fork()
    if starter == 0:
        try:
            if case.owner:
                syscalls.unshare(syscalls.CLONE_NEWUSER | case.kinds)
                os.write(say, b"map\n")
                os.read(listen, 1)
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
            elif case.kinds:
                syscalls.unshare(case.kinds)
            first = os.fork()
            if first == 0:
                _become_container(case, say)
            os.write(say, f"{first}\n".encode())
        finally:
            os._exit(0)
    os.close(say)
    with os.fdopen(said) as lines:
        if case.owner:
            assert lines.readline() == "map\n"
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{starter}/{name}").write_text(f"0 {case.owner} 65536")
            os.write(tell, b"1")
        os.waitpid(starter, 0)
        words = [lines.readline().strip() for _ in range(2)]
        assert "ready" in words, "\n".join(words) + lines.read()
    os.close(listen)
    os.close(tell)
    return int(next(word for word in words if word != "ready"))


def _become_container(case: Case, say: int) -> None:
    try:
        if case.kinds & syscalls.CLONE_NEWNS:
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        case.mounts(ROOTFS)
        os.write(say, b"ready\n")
        os.close(say)
        while True:
            signal.pause()
    except BaseException:  # noqa: BLE001 - reported by the parent
        os.write(say, traceback.format_exc().encode())
    finally:
        os._exit(1)


def _observe(installed: Installed, case: Case, container: int, cgroup: int) -> Outcome:
    state = case.state(
        {"ociVersion": "1.0.2", "id": "attacked", "pid": container, "bundle": str(BUNDLE)}
    )
    before = _host(container), bpf.query(cgroup), _mounts(container), _files()
    start = time.monotonic()
    done = subprocess.run(
        [
            *(case.hook or (str(installed.hook),)),
            *(case.arguments or ("-config", str(CONFIG), *case.options, "prestart")),
        ],
        input=state.encode(),
        capture_output=True,
        timeout=2 * DEADLINE,
        env=case.variables,
        cwd=BUNDLE,
        preexec_fn=case.before_exec,
    )
    seconds = time.monotonic() - start
    host, rules, mounts, files = before
    return Outcome(
        done.returncode,
        done.stderr.decode("utf-8", "surrogateescape"),
        seconds,
        _difference(host, _host(container)),
        bpf.query(cgroup) != rules,
        tuple(mount for mount in _mounts(container) if mount not in mounts),
        _difference(files, _files()),
        case.look(container),
    )


def _difference(before: list[str], after: list[str]) -> tuple[str, ...]:
    had, has = set(before), set(after)
    return (
        *(f"- {line}" for line in before if line not in has),
        *(f"+ {line}" for line in after if line not in had),
    )


def _host(container: int) -> list[str]:
    """Return as lines everything of the host that an attack could change."""
    files = _find(str(CANARY), str(DRIVER), str(_ETC / "upper"), "-printf", _ENTRY)
    locks = [f"lock {path.name}" for path in Path("/run/nvgraft/lock").glob("*")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        *files,
        *locks,
        *mounts,
        *(f"process {pid}" for pid in children if int(pid) != container),
    ]


def _files() -> list[str]:
    """Return the root file system as the host has it, without the container's mounts."""
    return _find(
        str(ROOTFS), "-xdev", "-type", "d", "-printf", "%p d %m %U:%G\\n", "-o", "-printf", _ENTRY
    )


def _find(*arguments: str) -> list[str]:
    entries = subprocess.run(["find", *arguments], capture_output=True, check=True).stdout
    return entries.decode("utf-8", "surrogateescape").splitlines()


def _mounts(pid: int) -> tuple[tuple[str, str, str, str], ...]:
    """Return the mounts of a process as (mount point below the rootfs, root, type, options)."""
    lines = [
        line.split(" ")
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines()
    ]
    return tuple(
        (_inside(words[4]), words[3], words[words.index("-") + 1], words[5]) for words in lines
    )


def _inside(point: str) -> str:
    return point.removeprefix(str(ROOTFS)) if point.startswith(f"{ROOTFS}/") else _OUTSIDE + point
