"""A container that is set up repeatedly, the hook on it, and a comparison of all that the hook can
change.

The host, the driver and the image are those of ``attacked``. The hook runs in a forked process
without the start of an interpreter, so that thousands of runs take minutes. The same hook under
strace(1) is slower, and shows that these runs are realistic.
"""

import importlib
import mmap
import os
import pkgutil
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import prctl

import hosts
import nvgraft
from attacked import (
    BUNDLE,
    CONFIG,
    IMAGE,
    LIBS,
    PLACE,
    ROOTFS,
    Case,
    config_toml,
    make_files,
    make_host,
    start_container,
)
from cgroups import FILTER, attach, hierarchy
from harness import CHECKOUT
from nvgraft import cdi_hook, hook
from nvgraft.apply import bpf
from nvgraft.base import jsontext
from nvgraft.system import launch, syscalls
from nvgraft_cli.recover.command import recover
from safety.shim import HOOK, LOG_REGION, Faults, Shim, Site

T = TypeVar("T")

# Import now what each of hundreds of runs would import by itself.
for _module in (
    "tomllib",
    *(module.name for module in pkgutil.walk_packages(nvgraft.__path__, "nvgraft.")),
):
    importlib.import_module(_module)

#: Files of an image that are replaced, and must come back.
FORMER = f"""
    /etc/ld.so.cache = the former one
    /etc/ld.so.cache~ = of a run that was cut short
    {LIBS}/libcuda.so.1 -> libcuda.so.of.another.driver
    {LIBS}/libnvidia-ml.so.1 -> libnvidia-ml.so.535.1
"""

#: Seconds that a run may take: a hook that waits after a failure might wait forever.
DEADLINE = 30

#: Seconds in which the children of an ended hook are gone. The kernel kills them.
_DYING = 1.0

#: Where, below /run/nvgraft, the hook keeps records of no container: messages, and the host's
#: inventory.
_RECORDS = ("last-error", "cache")

_OUTPUT = PLACE / "output"
_LEFT = re.compile(r"left behind: (.*?) \| ")
_LEFT_ITEM = re.compile(r"(?:mount |SONAME links in |device rules? |journal )?[^,()]+? \([^()]*\)")


class State(NamedTuple):
    """Everything that a start changes, for comparisons. Numbers that are new each time are left
    out.
    """

    #: The root file system as the host has it: path, and type, mode, owner, content.
    files: frozenset[tuple[str, str]]
    #: The container's mounts.
    mounts: tuple[str, ...]
    #: The container's device rules, or the code of its device programs.
    rules: tuple[str | bytes, ...]
    #: The ids of the device programs; an undo restores the former ones.
    programs: tuple[int, ...]
    #: Locks and journals.
    run: tuple[str, ...]
    #: The host's mounts, and processes left by the hook.
    host: tuple[str, ...]

    def success(self) -> "State":
        """Return what two successful starts have in common: not the programs' ids, which are
        new.
        """
        return self._replace(programs=())


class Run(NamedTuple):
    """How one run of the hook ended: its ``code`` (negative: a signal's number) and its output."""

    code: int
    stderr: str
    sites: tuple[Site, ...] = ()

    def reported(self) -> list[str]:
        """Return what a failed undo reports as left behind, without the reasons."""
        match = _LEFT.search(self.stderr.replace("\n", " "))
        return (
            [item.rpartition(" (")[0].strip() for item in _LEFT_ITEM.findall(match[1])]
            if match
            else []
        )


class Stage:
    """One container at a time, made by :func:`on_stage`."""

    def __init__(
        self,
        version: int,
        image: str,
        mounts: Callable[[Path], None] | None,
        *,
        tmpfs: bool,
        steps: tuple[str, ...],
    ) -> None:
        self._version = version
        self._steps = steps
        self._image = image
        case = Case(image)
        self._case = case if mounts is None else case._replace(mounts=mounts)
        self.cgroup_path = hierarchy(version) / f"nvgraft-stage-{os.getpid()}"
        self.container = 0
        #: Called in the hook's process before the hook.
        self.prepare: Callable[[], None] = lambda: None
        make_host(self._case)
        if tmpfs:
            syscalls.mount("tmpfs", str(ROOTFS), "tmpfs", 0, "mode=755")
        self.cgroup_path.mkdir()
        self.cgroup = os.open(self.cgroup_path, os.O_RDONLY)
        self._confine()

    def close(self) -> None:
        self.end_container()
        os.close(self.cgroup)
        self.cgroup_path.rmdir()

    def _confine(self) -> None:
        if self._version == 1:
            (self.cgroup_path / "devices.deny").write_text("a")
            (self.cgroup_path / "devices.allow").write_text("c 1:5 rwm")
        else:
            attach(self.cgroup, FILTER)

    def end_container(self) -> None:
        """End the container like a runtime whose hook has failed: its process, and its mounts with
        it.
        """
        if self.container:
            os.kill(self.container, signal.SIGKILL)
            os.waitpid(self.container, 0)
            self.container = 0

    def renew(self, *, files: bool = True) -> None:
        """Set up a new container with new device rules.

        The image is as before the first run, or has the ``files`` as they are.
        """
        self.end_container()
        if files:
            for entry in ROOTFS.iterdir():
                shutil.rmtree(entry)
            shutil.rmtree("/run/nvgraft", ignore_errors=True)
            added = hosts.tree(self._image)
            kept = {path: entry for path, entry in hosts.tree(IMAGE).items() if path not in added}
            make_files(ROOTFS, kept | added)
        os.close(self.cgroup)
        self.cgroup_path.rmdir()
        self.cgroup_path.mkdir()
        self.cgroup = os.open(self.cgroup_path, os.O_RDONLY)
        self._confine()
        self.container = start_container(self._case)
        (self.cgroup_path / "cgroup.procs").write_text(str(self.container))

    def fill(self, room: int) -> None:
        """Mount in the container's namespace until there is ``room`` for that many more mounts."""

        def work() -> int:
            syscalls.setns(syscalls.pidfd_open(self.container), syscalls.CLONE_NEWNS)
            own = len(Path("/proc/self/mountinfo").read_text().splitlines())
            missing = int(Path("/proc/sys/fs/mount-max").read_text()) - own - room - 500
            place = PLACE / "full"
            place.mkdir(exist_ok=True)
            syscalls.mount("tmpfs", str(place), "tmpfs", 0)
            for bit in range(missing.bit_length()):
                if missing >> bit & 1:
                    _mount_doubling(str(place / f"tree{bit}"), bit)
            single = 0
            with suppress(OSError):
                while True:
                    (place / f"single{single}").mkdir()
                    syscalls.mount("tmpfs", f"{place}/single{single}", "tmpfs", 0)
                    single += 1
            for number in range(room):
                syscalls.umount2(f"{place}/single{number}", 0)
            return 0

        code, said = self._in_child(work)
        assert code == 0, said

    def state(self) -> State:
        """Return the present state."""
        # The runtime's /dev exists in the container's mount namespace only.
        files = (
            *_files(str(ROOTFS), ""),
            *_files(f"/proc/{self.container}/root{ROOTFS}/dev", "/dev"),
        )
        return State(
            frozenset(files),
            _mounts(self.container),
            *self._rules(),
            tuple(_run()),
            _host(self.container),
        )

    def _rules(self) -> tuple[tuple[str | bytes, ...], tuple[int, ...]]:
        if self._version == 1:
            return tuple((self.cgroup_path / "devices.list").read_text().split("\n")), ()
        flags, programs = bpf.query(self.cgroup)
        codes: list[str | bytes] = [str(flags)]
        for program in programs:
            fd = bpf.open_program(program)
            codes.append(bpf.fetch(fd))
            os.close(fd)
        return tuple(codes), programs

    def run(self, faults: Faults | None = None, *, record: bool = False) -> Run:
        """Run the hook on the container, with ``faults``."""
        log = mmap.mmap(-1, 4 * LOG_REGION) if record else None
        for name in (
            "lock",
            "journal",
        ):  # each run makes them anew, so that the calls are the same each time
            with suppress(OSError):
                os.rmdir(f"/run/nvgraft/{name}")

        def work() -> int:
            shim = Shim(faults or {}, log)
            self.prepare()
            shim.install()
            if self._steps:
                return cdi_hook.main(["nvgraft-cdi-hook", "--config", str(CONFIG), *self._steps])
            return hook.main(["nvgraft-hook", "-config", str(CONFIG), "prestart"])

        code, said = self._in_child(work)
        return Run(code, said, tuple(_sites(log)) if log is not None else ())

    def trace(self, *options: str) -> Run:
        """Run the hook as a program under strace(1) with ``options``, which do not follow
        children.
        """
        path = [str(CHECKOUT / "hook"), str(CHECKOUT / "specs"), os.path.dirname(prctl.__file__)]
        program = f"import sys; sys.path += {path!r}; from nvgraft.hook import run; run(sys.argv)"
        python = getattr(sys, "_base_executable", sys.executable)

        def work() -> int:
            words = [
                "strace",
                "-qq",
                *options,
                python,
                "-ISB",
                "-c",
                program,
                "-config",
                str(CONFIG),
                "prestart",
            ]
            os.execvpe(words[0], words, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

        return Run(*self._in_child(work))

    def _in_child(self, work: Callable[[], int]) -> tuple[int, str]:
        state = jsontext.dumps(
            {"ociVersion": "1.0.2", "id": "staged", "pid": self.container, "bundle": str(BUNDLE)}
        )
        said = os.memfd_create("stderr")
        read, write = os.pipe()
        os.write(write, state.encode())
        os.close(write)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                for number, fd in enumerate((read, said, said)):
                    os.dup2(fd, number)
                os.environ.clear()
                os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
                os.chdir(BUNDLE)
                launch.check_interpreter = lambda: None  # this interpreter is the one of the tests
                code = work()
            except BaseException as error:  # noqa: BLE001 - whatever it raises is a finding
                os.write(2, f"escaped from the hook: {error!r}".encode())
            finally:
                os._exit(code)
        os.close(read)
        status = self._wait(pid)
        self._reap()
        with os.fdopen(said, "rb") as file:
            file.seek(0)
            return os.waitstatus_to_exitcode(status), file.read().decode("utf-8", "replace")

    def _wait(self, pid: int) -> int:
        signal.alarm(DEADLINE)
        try:
            while True:
                ended, status = os.wait()
                if ended == self.container:
                    self.container = 0
                if ended == pid:
                    return status
        finally:
            signal.alarm(0)

    def _reap(self) -> None:
        """Reap the children of the ended hook for a moment. Processes that go on are seen in the
        state.
        """
        deadline = time.monotonic() + _DYING
        while _children() - {self.container} and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)

    def recover(self) -> bool:
        """Run ``nvgraft recover`` in a process of its own; tell whether it says that nothing is
        left.
        """

        def work() -> int:
            return int(any(report.is_left for report in recover()))

        return self._in_child(work)[0] == 0


def _mount_doubling(place: str, times: int) -> None:
    """Make 2 ** ``times`` mounts."""
    os.mkdir(place)
    syscalls.mount("tmpfs", place, "tmpfs", 0)
    os.mkdir(f"{place}/below")
    for _ in range(times):
        syscalls.mount(place, f"{place}/below", None, syscalls.MS_BIND | syscalls.MS_REC)


def _sites(log: mmap.mmap) -> Iterator[Site]:
    for process in range(HOOK, len(log) // LOG_REGION):
        text = log[process * LOG_REGION : (process + 1) * LOG_REGION].rstrip(b"\0").decode()
        for line in text.splitlines():
            number, count, call, place = line.split(" ", 3)
            yield Site(int(number), int(count), call, place)


def _files(place: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the files below ``place``, under the name ``name``."""
    directories = [place]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                what = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
                if stat.S_ISLNK(status.st_mode):
                    what += f" -> {os.readlink(entry.path)}"
                elif stat.S_ISDIR(status.st_mode):
                    directories.append(entry.path)
                elif stat.S_ISREG(status.st_mode):
                    with open(entry.path, "rb") as file:
                        what += f" {status.st_size} {hash(file.read()) if status.st_size else ''}"
                yield name + entry.path[len(place) :], what


def _mounts(pid: int) -> tuple[str, ...]:
    lines = [line.split(" ") for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return tuple(" ".join(words[3:6]) for words in lines)


def _run() -> Iterator[str]:
    for directory, _, names in os.walk("/run/nvgraft"):
        if os.path.basename(directory) not in _RECORDS:
            yield from (os.path.join(directory, name) for name in sorted(names))


def _children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def _host(container: int) -> tuple[str, ...]:
    # Leave out the options of file systems: the measurements themselves change their size.
    mounts = [
        line.partition(" - ")[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    return (*mounts, *(f"process {pid}" for pid in sorted(_children() - {container})))


@contextmanager
def on_stage(
    version: int = 2,
    *,
    image: str = FORMER,
    mounts: Callable[[Path], None] | None = None,
    tmpfs: bool = False,
    nvgraft: str = "",
    steps: tuple[str, ...] = (),
) -> Iterator[Stage]:
    """Give a stage with a container on it. Use it in a mount namespace of one's own
    (``harness.run_in_mount_namespace``).

    :param version: the cgroup version.
    :param image: lines for the image besides the usual ones.
    :param mounts: the runtime's mounts, in place of the usual ones.
    :param nvgraft: lines for this table of config.toml.
    :param tmpfs: whether the root file system is one of its own, whose size can be changed.
    :param steps: the command line of nvgraft-cdi-hook, which is run in place of nvgraft-hook.
    """
    prctl.set_child_subreaper(True)  # processes that a hook leaves become ours, and are seen
    signal.signal(signal.SIGALRM, _late)
    stage = Stage(version, image, mounts, tmpfs=tmpfs, steps=steps)
    try:
        CONFIG.write_text(config_toml(nvgraft=nvgraft))
        stage.renew()
        yield stage
    finally:
        stage.close()


def _late(_number: int, _frame: object) -> None:
    raise AssertionError(f"the hook has not ended after {DEADLINE} s")
