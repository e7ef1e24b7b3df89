"""The loader cache step with real mounts, the host's ldconfig and hostile stand-ins for it."""

import errno
import hashlib
import os
import platform
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import prctl
import pytest

from harness import LDCONFIG, run_in_mount_namespace
from ldcaches import tree
from nvgraft.apply.cache.ldconfig import LoaderCache
from nvgraft.apply.journal import Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.system import jail, privileges, seccomp, syscalls
from nvgraft.system.child import Child
from nvgraft.system.launch import Interrupted
from nvgraft_cli.simulate.stubs import shared_object

pytestmark = pytest.mark.requires("root", "ldconfig")

LIBS = "/usr/lib/x86_64-linux-gnu"
ABSENT = "/usr/lib/i386-linux-gnu"
CAPABILITIES = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
MACHINE = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[platform.machine()]


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """Make an image with two libraries without SONAME links, and one in another directory."""
    root = tmp_path / "rootfs"
    for name in ("etc", "proc", "sys", "dev", "bin", "opt/lib", "var/cache/ldconfig", LIBS[1:]):
        (root / name).mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text("/opt/lib\n")
    _library(root / LIBS[1:] / "libcuda.so.560.35.03", "libcuda.so.1")
    _library(root / LIBS[1:] / "libnvidia-ml.so.560.35.03", "libnvidia-ml.so.1")
    _library(root / "opt/lib/libother.so.2.1", "libother.so.2")
    return root


def _library(path: Path, soname: str) -> None:
    path.write_bytes(shared_object(64, MACHINE, soname, ["libc.so.6"], [3, 2, 0]))


def _update(
    rootfs: Path,
    *,
    program: str = LDCONFIG,
    directories: tuple[str, ...] = (LIBS, ABSENT),
    uid: int = 0,
    undo: UndoLog | None = None,
    timeout: float = 20,
    pivot: bool = True,
    prepared: Callable[[], None] = lambda: None,
) -> str:
    """Make ``rootfs`` a mount point and run the step in this mount namespace.

    Return the refusal's line, or "" after a success.
    """
    syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND | syscalls.MS_REC)
    prepared()
    cache = LoaderCache.prepare(program)
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    undo = UndoLog() if undo is None else undo
    try:
        cache.update(fd, directories, uid, uid, undo, Journal(), timeout, pivot=pivot)
    except Refusal as refusal:
        return refusal.line()
    finally:
        os.close(fd)
        cache.close()
    return ""


def _no_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


@pytest.fixture
def shell(tmp_path: Path) -> str:
    """Return busybox's shell to run in ldconfig's place.

    Its argument ``-f /etc/ld.so.conf`` makes it run the image's configuration as a script.
    """
    path = tmp_path / "sh"
    shutil.copy(shutil.which("busybox") or "", path)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("pivot", [True, False])
def test_makes_the_cache_and_the_links_and_nothing_else(rootfs: Path, pivot: bool) -> None:
    """The step makes the cache and the SONAME links of the given directories, and nothing else."""
    before = tree(rootfs)
    assert run_in_mount_namespace(lambda: _update(rootfs, pivot=pivot)) == ""
    after = tree(rootfs)
    new = {path: after[path][3] for path in after if before.get(path) != after[path]}
    cache = new.pop("etc/ld.so.cache")
    assert new == {
        f"{LIBS[1:]}/libcuda.so.1": "libcuda.so.560.35.03",
        f"{LIBS[1:]}/libnvidia-ml.so.1": "libnvidia-ml.so.560.35.03",
    }
    assert before.keys() <= after.keys()
    assert cache is not None
    assert after["etc/ld.so.cache"][:3] == ("-rw-r--r--", 0, 0)
    command = [LDCONFIG, "-p", "-C", str(rootfs / "etc/ld.so.cache")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "libcuda.so.1 (libc6" in listing
    assert f"=> {LIBS}/libnvidia-ml.so.1\n" in listing
    assert "libother.so.2" in listing, "the cache lacks the image's own search path"


def test_sees_libraries_that_are_mounted_in_the_directory(rootfs: Path, tmp_path: Path) -> None:
    """The SONAME link of a placeholder is made for the driver library that is mounted on it."""
    _library(tmp_path / "driver.so", "libnvcuvid.so.1")
    placeholder = rootfs / LIBS[1:] / "libnvcuvid.so.560.35.03"
    placeholder.touch()

    def mount_driver() -> None:
        syscalls.mount(str(tmp_path / "driver.so"), str(placeholder), None, syscalls.MS_BIND)

    assert run_in_mount_namespace(lambda: _update(rootfs, prepared=mount_driver)) == ""
    assert os.readlink(placeholder.with_name("libnvcuvid.so.1")) == placeholder.name


def test_leaves_the_host_and_its_own_process_alone(rootfs: Path) -> None:
    """The step leaves the host's loader cache, this process and the mounts as before."""

    def state() -> object:
        kinds = ("mnt", "net", "ipc", "uts", "pid", "pid_for_children")
        mount_lines = Path("/proc/self/mountinfo").read_text().splitlines()
        host = hashlib.sha256(Path("/etc/ld.so.cache").read_bytes()).hexdigest()
        fields = ("Uid", "Gid", "Cap", "SigB", "SigI", "SigC")
        status_lines = Path("/proc/self/status").read_text().splitlines()
        return (
            [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds],
            [line.split(" ", 1)[1] for line in mount_lines],
            host,
            len(os.listdir("/proc/self/fd")),
            [line for line in status_lines if line.startswith(fields)],
        )

    def scenario() -> None:
        syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND)
        # MS_SHARED: a mount on a copy of the tree must not come back to the original.
        syscalls.mount(None, "/", None, syscalls.MS_REC | 1 << 20)
        states = []
        for _ in range(2):
            cache = LoaderCache.prepare(LDCONFIG)
            fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
            undo = UndoLog()
            cache.update(fd, [LIBS], 0, 0, undo, Journal(), 20)
            undo.forget()
            os.close(fd)
            cache.close()
            states.append(state())
        assert states[0] == states[1]
        assert os.fork() or os._exit(0)
        assert os.wait()[1] == 0, "a later child was put into the pid namespace that has ended"

    before = Path("/etc/ld.so.cache").read_bytes()
    run_in_mount_namespace(scenario)
    assert Path("/etc/ld.so.cache").read_bytes() == before


def test_an_image_without_etc_fails_like_the_reference(rootfs: Path) -> None:
    """Without /etc the step fails with error code 1, names the cause, and changes nothing."""
    shutil.rmtree(rootfs / "etc")
    before = tree(rootfs)
    line = run_in_mount_namespace(lambda: _update(rootfs))
    assert line.startswith(
        f"nvgraft: ldcache error: process {LDCONFIG} failed with error code: 1 | "
    )
    assert "no /etc" in line
    assert tree(rootfs) == before


def test_follows_the_images_own_etc_inside_the_root(rootfs: Path) -> None:
    """An absolute link at /etc leads to a directory of the image, not of the host."""
    (rootfs / "etc").rename(rootfs / "config")
    (rootfs / "etc").symlink_to("/config")
    assert run_in_mount_namespace(lambda: _update(rootfs)) == ""
    assert (rootfs / "config/ld.so.cache").exists()


@pytest.mark.parametrize("uid", [0, 100000])
def test_undo_restores_what_ldconfig_replaced_or_removed(rootfs: Path, uid: int) -> None:
    """Undo restores cache, links and an old temporary file with content and owners."""
    libs = rootfs / LIBS[1:]
    (libs / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    (libs / "libgone.so.1").symlink_to("libgone.so.1.0")
    (rootfs / "etc/ld.so.cache").write_bytes(os.urandom(70_000))
    (rootfs / "etc/ld.so.cache~").write_bytes(b"left by a run that was cut short")
    for path in (rootfs, *rootfs.rglob("*")):
        os.lchown(path, uid, uid)
    os.chown(rootfs / "etc/ld.so.cache", uid + 5, uid + 6)
    (rootfs / "etc/ld.so.cache").chmod(0o640)
    os.lchown(libs / "libgone.so.1", uid + 7, uid + 8)
    before = tree(rootfs)

    def scenario() -> list[str]:
        undo = UndoLog()
        assert _update(rootfs, undo=undo, uid=uid) == ""
        assert os.readlink(libs / "libcuda.so.1") == "libcuda.so.560.35.03"
        assert not (libs / "libgone.so.1").is_symlink()
        return undo.run()

    assert run_in_mount_namespace(scenario) == []
    assert tree(rootfs) == before


def test_a_hard_link_at_the_temporary_name_is_not_written_to(rootfs: Path) -> None:
    """An ld.so.cache~ that is a hard link is replaced, where ldconfig would truncate the file."""
    (rootfs / "etc/passwd").write_text("root:x:0:0")
    os.link(rootfs / "etc/passwd", rootfs / "etc/ld.so.cache~")
    assert run_in_mount_namespace(lambda: _update(rootfs)) == ""
    assert (rootfs / "etc/passwd").read_text() == "root:x:0:0"


def test_undo_removes_what_was_not_there(rootfs: Path) -> None:
    """Undo removes a cache and links that did not exist before."""
    before = tree(rootfs)

    def scenario() -> list[str]:
        undo = UndoLog()
        assert _update(rootfs, undo=undo) == ""
        return undo.run()

    assert run_in_mount_namespace(scenario) == []
    assert tree(rootfs) == before


def test_works_as_an_unprivileged_id(rootfs: Path) -> None:
    """With a mapped container root, the made files belong to the root's id on the host."""
    for path in (rootfs, *rootfs.rglob("*")):
        os.lchown(path, 100000, 100000)
    assert run_in_mount_namespace(lambda: _update(rootfs, uid=100000)) == ""
    for path in (rootfs / "etc/ld.so.cache", rootfs / LIBS[1:] / "libcuda.so.1"):
        assert path.lstat().st_uid == 100000


def test_works_in_the_mount_namespace_of_a_user_namespace(rootfs: Path) -> None:
    """Cache, links and undo work on a rootfs that belongs to a user namespace with mapped ids."""
    for path in (rootfs, *rootfs.rglob("*")):
        os.lchown(path, 100000, 100000)
    before = tree(rootfs)

    def scenario() -> list[str]:
        ready, ready_end = os.pipe()
        go, go_end = os.pipe()
        container = os.fork()
        if container == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
                os.write(ready_end, b"1")
                os.read(go, 1)
                syscalls.mount(str(rootfs), str(rootfs), None, syscalls.MS_BIND | syscalls.MS_REC)
                syscalls.mount("tmpfs", str(rootfs / "dev"), "tmpfs", 0)
                os.write(ready_end, b"2")
                signal.pause()
            finally:
                os._exit(1)
        assert os.read(ready, 1) == b"1"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{container}/{name}").write_text("0 100000 65536")
        os.write(go_end, b"1")
        assert os.read(ready, 1) == b"2"
        cache = LoaderCache.prepare(LDCONFIG)
        fd = os.open(f"/proc/{container}/root{rootfs}", os.O_PATH | os.O_DIRECTORY)
        syscalls.setns(syscalls.pidfd_open(container), syscalls.CLONE_NEWNS)
        undo = UndoLog()
        cache.update(fd, [LIBS], 100000, 100000, undo, Journal(), 20)
        assert (rootfs / "etc/ld.so.cache").stat().st_uid == 100000
        assert (rootfs / LIBS[1:] / "libcuda.so.1").is_symlink()
        left = undo.run()
        os.kill(container, signal.SIGKILL)
        return left

    assert run_in_mount_namespace(scenario) == []
    assert tree(rootfs) == before


def test_a_read_only_root_is_refused_and_stays_read_only(rootfs: Path) -> None:
    """A rootfs that is read-only for the container is read-only for ldconfig; the line says so."""
    before = tree(rootfs)

    def scenario() -> str:
        remount = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
        return _update(rootfs, prepared=lambda: syscalls.mount(None, str(rootfs), None, remount))

    line = run_in_mount_namespace(scenario)
    assert f"process {LDCONFIG} failed with error code: 1 | " in line
    assert "read-only" in line
    assert tree(rootfs) == before


@pytest.mark.parametrize("name", ["ld.so.cache", "ld.so.cache~"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "sparse"])
def test_a_cache_that_could_not_be_restored_is_refused_before_anything_changes(
    rootfs: Path, name: str, kind: str
) -> None:
    """A cache that is a FIFO, a directory or too large is refused immediately, unread."""
    path = rootfs / "etc" / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    line = run_in_mount_namespace(lambda: _update(rootfs))
    reason = "larger than 16 MiB" if kind == "sparse" else "not a regular file"
    words = f"nvgraft: ldcache error: process {LDCONFIG} failed with error code: 1"
    assert line == f"{words} | it was not started: /etc/{name}: {reason}"
    assert not (rootfs / LIBS[1:] / "libcuda.so.1").is_symlink()


def test_an_included_fifo_does_not_block_the_start(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ldconfig that blocks in opening an included FIFO is killed before its deadline."""
    conf = rootfs / "etc/ld.so.conf.d"
    conf.mkdir(exist_ok=True)
    os.mkfifo(conf / "x.conf")
    (rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    monkeypatch.setattr(jail, "_STILL", 0.5)
    start = time.monotonic()
    line = run_in_mount_namespace(lambda: _update(rootfs, timeout=60))
    assert line.endswith(
        "terminated with signal 9 | it had waited for 0.5 seconds for something in the image: a "
        "FIFO in a file's place?"
    )
    assert time.monotonic() - start < 30


@pytest.mark.requires("busybox")
class TestHostile:
    """A shell in ldconfig's place does what a compromised ldconfig could do."""

    def test_ends_at_the_deadline_with_no_process_left(self, rootfs: Path, shell: str) -> None:
        """A program that spins or floods its output is killed at the deadline."""
        for script in ("while :; do :; done", "while :; do echo flood; done"):
            (rootfs / "etc/ld.so.conf").write_text(script)

            def scenario() -> tuple[str, float, bool]:
                start = time.monotonic()
                line = _update(rootfs, program=shell, timeout=0.3)
                return line, time.monotonic() - start, _no_children()

            line, took, alone = run_in_mount_namespace(scenario)
            words = f"nvgraft: ldcache error: process {shell} terminated with signal 9"
            assert line == f"{words} | it had not finished after 0.3 seconds"
            assert took >= 0.3
            assert alone

    def test_reports_the_exit_code_and_the_last_line(self, rootfs: Path, shell: str) -> None:
        """The refusal ends with the program's last line, control characters escaped."""
        (rootfs / "etc/ld.so.conf").write_text("echo first; printf 'cannot \\033[1mdo\\n'; exit 3")
        line = run_in_mount_namespace(lambda: _update(rootfs, program=shell))
        words = f"nvgraft: ldcache error: process {shell} failed with error code: 3"
        assert line == f"{words} | cannot \\x1b[1mdo"

    def test_writes_nowhere_else(
        self, rootfs: Path, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every other directory and volume is read-only, and ".." does not lead out."""
        monkeypatch.setitem(seccomp.ALLOWED, "dup2", (33, 24))  # a shell cannot redirect without it
        (rootfs / LIBS[1:] / "volume").mkdir()
        volume = tmp_path / "volume"
        volume.mkdir()
        places = ["", "/bin", "/usr", "/opt/lib", "/var/cache/ldconfig", "/proc", "/sys", "/dev"]
        places += [f"{LIBS}/volume", "/..", f"/..{tmp_path}"]
        tries = "\n".join(f"echo text > {place}/x" for place in places)
        (rootfs / "etc/ld.so.conf").write_text(f"{tries}\necho text > {LIBS}/allowed\nexit 4\n")
        before = tree(tmp_path)

        def mount_volume() -> None:
            target = str(rootfs / LIBS[1:] / "volume")
            syscalls.mount(str(volume), target, None, syscalls.MS_BIND)

        line = run_in_mount_namespace(lambda: _update(rootfs, program=shell, prepared=mount_volume))
        assert "error code: 4" in line
        after = tree(tmp_path)
        assert after.keys() - before.keys() == {f"rootfs{LIBS}/allowed"}

    def test_has_no_privilege_descriptor_or_environment(
        self, rootfs: Path, shell: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The program has a filter, namespaces, no capability, environment or descriptor."""
        (rootfs / "etc/ld.so.conf").write_text("echo started; while :; do :; done")
        seen: dict[str, object] = {}

        def observe(
            child: Child, _deadline: float, _kept: int, _still: float
        ) -> tuple[bool, bytes]:
            proc = Path(f"/proc/{child.pid}")
            assert os.read(child.output, 8) == b"started\n"
            lines = (proc / "status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            for name in (*CAPABILITIES, "NoNewPrivs", "Seccomp"):
                seen[name] = status[name].strip()
            for name in ("Uid", "Gid", "Groups", "SigBlk", "SigIgn"):
                seen[name] = status[name].split()
            seen["pid"] = status["NSpid"].split()[-1]
            seen["fds"] = sorted(int(fd) for fd in os.listdir(proc / "fd"))
            seen["environ"] = (proc / "environ").read_bytes()
            kinds = ("mnt", "net", "ipc", "uts", "pid")
            seen["shared"] = [
                kind for kind in kinds if (proc / "ns" / kind).samefile(f"/proc/self/ns/{kind}")
            ]
            seen["limits"] = (proc / "limits").read_text()
            seen["mounts"] = (proc / "mountinfo").read_text()
            try:
                (proc / "exe").open("r+b")
            except OSError as error:
                seen["image"] = error.errno
            return True, b""

        def scenario() -> dict[str, object]:
            monkeypatch.setattr(Child, "follow", observe)
            os.setgroups([4, 24])
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            leaked = os.dup(0)
            os.set_inheritable(leaked, True)
            _update(rootfs, program=shell, uid=100000)
            return seen

        seen = run_in_mount_namespace(scenario)
        none = "0" * 16
        assert {name: seen[name] for name in CAPABILITIES} == dict.fromkeys(CAPABILITIES, none)
        assert (seen["NoNewPrivs"], seen["Seccomp"], seen["pid"]) == ("1", "2", "1")
        assert (seen["Uid"], seen["Gid"], seen["Groups"]) == (["100000"] * 4, ["100000"] * 4, [])
        assert seen["SigBlk"] == [none]
        assert seen["SigIgn"] in ([none], ["0000000000000004"]), (
            "a signal is ignored that is not SIGQUIT, which the shell itself may ignore"
        )
        # 10 is the script, which the shell itself has opened.
        assert seen["fds"] == [0, 1, 2, 10]
        assert seen["environ"] == b""
        assert seen["shared"] == []
        limit_lines = str(seen["limits"]).splitlines()
        limits = {line[:26].strip(): line[26:].split()[:2] for line in limit_lines}
        assert limits["Max cpu time"] == ["10", "10"]
        assert limits["Max open files"] == ["64", "64"]
        assert limits["Max address space"] == [str(2 << 30)] * 2
        mounts = str(seen["mounts"]).splitlines()
        tmpfs = (" - tmpfs tmpfs ", " - tmpfs none ")
        covered = {line.split()[4] for line in mounts if any(kind in line for kind in tmpfs)}
        assert {"/proc", "/sys", "/dev"} <= covered, (
            "a kernel interface of the container is in reach"
        )
        writable = [line.split()[4] for line in mounts if line.split()[5].startswith("rw")]
        assert writable == ["/etc", LIBS]
        assert seen["image"] in {errno.EPERM, errno.EACCES, errno.ETXTBSY}

    def test_execve_as_root_gives_no_capability_back(
        self, rootfs: Path, shell: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A capability unknown to python-prctl stays in the bounding set, not effective."""
        (rootfs / "etc/ld.so.conf").write_text("echo started; while :; do :; done")
        seen: list[str] = []

        def observe(
            child: Child, _deadline: float, _kept: int, _still: float
        ) -> tuple[bool, bytes]:
            assert os.read(child.output, 8) == b"started\n"
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            seen.extend(line for line in lines if line.startswith("Cap"))
            return True, b""

        def scenario() -> list[str]:
            monkeypatch.setattr(Child, "follow", observe)
            older = tuple(number for number in prctl.ALL_CAPS if number != prctl.CAP_SYS_ADMIN)
            monkeypatch.setattr(privileges, "_all", lambda: older)
            _update(rootfs, program=shell)
            return seen

        values = dict(line.split(":\t") for line in run_in_mount_namespace(scenario))
        # Without this the next line shows nothing.
        assert int(values["CapBnd"], 16) == 1 << prctl.CAP_SYS_ADMIN
        assert int(values["CapEff"], 16) == 0

    @pytest.mark.parametrize("uid", [0, 100000])
    def test_dies_with_the_hook(self, rootfs: Path, shell: str, uid: int) -> None:
        """When the hook is killed, the kernel kills the program too, also after a change of ids."""
        (rootfs / "etc/ld.so.conf").write_text("while :; do :; done")

        def scenario() -> bool:
            hook = os.fork()
            if hook == 0:
                try:
                    _update(rootfs, program=shell, timeout=60, uid=uid)
                finally:
                    os._exit(0)
            children = Path(f"/proc/{hook}/task/{hook}/children")
            while not (pids := children.read_text().split()):
                time.sleep(0.001)
            while "memfd:ldconfig" not in os.readlink(f"/proc/{pids[0]}/exe"):
                time.sleep(0.001)
            program = syscalls.pidfd_open(int(pids[0]))
            os.kill(hook, signal.SIGKILL)
            os.waitpid(hook, 0)
            return bool(select.select([program], [], [], 3)[0])

        assert run_in_mount_namespace(scenario)

    def test_an_interrupted_hook_leaves_no_process(self, rootfs: Path, shell: str) -> None:
        """When a signal handler raises, the program is killed and reaped first."""
        (rootfs / "etc/ld.so.conf").write_text("while :; do :; done")

        def raising(number: int, _frame: object) -> None:
            raise Interrupted(number)

        def scenario() -> bool:
            signal.signal(signal.SIGALRM, raising)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupted):
                _update(rootfs, program=shell, timeout=60)
            return _no_children()

        assert run_in_mount_namespace(scenario)


def test_a_regular_file_in_place_of_a_link_is_kept(rootfs: Path) -> None:
    """A regular file at a SONAME link's path stays (reference behaviour 6.7); the step succeeds."""
    (rootfs / LIBS[1:] / "libcuda.so.1").write_bytes(b"not a link")
    assert run_in_mount_namespace(lambda: _update(rootfs)) == ""
    assert (rootfs / LIBS[1:] / "libcuda.so.1").read_bytes() == b"not a link"


@pytest.fixture(autouse=True)
def _no_leftover_mounts() -> Iterator[None]:
    before = Path("/proc/self/mountinfo").read_text()
    yield
    assert Path("/proc/self/mountinfo").read_text() == before
