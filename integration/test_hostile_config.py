"""Hostile state, config.json, environment and config.toml: cases T30 to T40, T52 and T53 of the
catalogue (docs/security.md).

Unless a test says otherwise, the hook refuses in time with its own message, and nothing changes on
the host or in the container. Cases of documents alone are in tests/test_hostile_requests.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import break_nvml
from attacked import BUNDLE, CANARY, CONFIG, LIBS, PLACE, ROOTFS, Case, Outcome, runtime_mounts
from containers import CGROUPS, Bundle, Run
from harness import Installed
from nvgraft.system import syscalls
from nvgraft_cli.install.install import static_launcher
from nvgraft_cli.register.installation import hook_entry
from test_engines import NO_CGROUPS

pytestmark = pytest.mark.requires("root", "overlayfs", "cgroup-v2", "ldconfig", "x86_64")

Attacked = Callable[[Case], Outcome]
State = dict[str, Any]

UNTRUSTED = "failed to load specified config file: "


def prepared(installed: Installed, before: str) -> tuple[str, ...]:
    """Return a command that runs ``before`` and then the hook, in a process like the launcher's."""
    path = f"import os, sys; sys.path.append({str(installed.library)!r})"
    script = f"{path}\n{before}\nfrom nvgraft.hook import run; run(sys.argv)"
    return ("/usr/bin/python3", "-ISB", "-c", script)


# ---- T30: the pid of the state


@pytest.mark.parametrize("pid", [0, 1, -1, -(1 << 31), 1 << 31, (1 << 32) + 2, (1 << 63) - 1])
def test_t30_numbers_that_are_not_a_pid(attacked: Attacked, pid: int) -> None:
    """A number that cannot be a pid is refused without a look-up, and never truncated."""
    done = attacked(Case(state=lambda state: json.dumps({**state, "pid": pid})))
    done.refused(f"container error: invalid process id: {pid} | ")


@pytest.mark.parametrize(
    ("pid", "kind"),
    [
        ('"1"', "string"),
        ("true", "bool"),
        ("1.0", "number"),
        ("1e3", "number"),
        (str(1 << 63), "number"),
        ("[7]", "array"),
    ],
)
def test_t30_values_that_are_not_an_integer(attacked: Attacked, pid: str, kind: str) -> None:
    """A pid of another type, or beyond the reference's integers, cannot be decoded."""

    def state(state: State) -> str:
        return json.dumps({**state, "pid": None}).replace("null", pid)

    done = attacked(Case(state=state))
    done.refused(f"could not decode container state: json: cannot unmarshal {kind}")


def test_t30_the_hook_and_its_parent_are_not_containers(
    attacked: Attacked, installed: Installed
) -> None:
    """The pids of the hook and of its parent are refused without a look at the processes."""
    message = "container error: invalid process id: "
    done = attacked(Case(state=lambda state: json.dumps({**state, "pid": os.getpid()})))
    done.refused(message)
    state = f'{{"id": "x", "bundle": "{BUNDLE}", "pid": $$}}'
    script = f'exec {installed.hook} "$@" <<EOF\n{state}\nEOF'
    attacked(Case(hook=("/bin/sh", "-c", script, "sh"))).refused(message)


@pytest.mark.requires("kernel-threads")
def test_t30_a_kernel_thread_is_not_a_container(attacked: Attacked) -> None:
    """A kernel thread, whose initial namespaces may differ from the hook's, is refused."""
    done = attacked(Case(state=lambda state: json.dumps({**state, "pid": 2})))
    done.refused("container error: invalid process id: 2 | it is a kernel thread, or has ended")


@pytest.mark.parametrize(
    ("option", "message"),
    [(0, "container error: stat failed: /proc/"), (os.WNOWAIT, "invalid process id: ")],
)
def test_t30_ended_processes_are_refused(attacked: Attacked, option: int, message: str) -> None:
    """A process that has ended is refused, whether it was reaped or is a zombie."""

    def state(state: State) -> str:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | option)
        return json.dumps({**state, "pid": child})

    done = attacked(Case(state=state))
    assert done.returncode == 1
    assert message in done.stderr
    assert (done.rules, done.mounts, done.files) == (False, (), ())


# ---- T31: documents of every size and kind, measured in processor time: the machine may be busy


class Measured(NamedTuple):
    returncode: int
    stderr: str
    #: Seconds of processor time, MiB of memory, seconds on the clock.
    processor: float
    memory: int
    clock: float

    def refused(self, message: str) -> None:
        assert self.returncode == 1, self
        assert message in self.stderr, self.stderr[:500]
        assert "Traceback" not in self.stderr
        assert self.stderr.removeprefix("Auto-detected mode as 'legacy'\n").count("\n") == 1
        self.cheap()

    def cheap(self) -> None:
        assert self.processor < 1, self
        assert self.memory < 128, self


#: Runs in a small process of its own, because its memory counts for the hook too.
MEASURE = """
import os, sys, time
hook, source = sys.argv[1:3]
reader, writer = os.pipe()
feeder = os.fork()
if not feeder:
    os.setpgid(0, 0); os.dup2(writer, 1); os.close(reader); os.close(writer)
    os.execv("/bin/sh", ["sh", "-c", source])
os.close(writer)
errors, said = os.pipe()
start = time.monotonic()
child = os.fork()
if not child:
    os.dup2(reader, 0); os.dup2(said, 2)
    os.execve(hook, [hook, "prestart"], {"XDG_CONFIG_HOME": "/nonexistent"})
os.close(said); os.close(reader)
text = open(errors).read()
_, status, used = os.wait4(child, 0)
clock = time.monotonic() - start
os.killpg(feeder, 9)  # its group exists since before its first write
print(repr((os.waitstatus_to_exitcode(status), text, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10, clock)))
"""


def measured(installed: Installed, source: str) -> Measured:
    """Run the hook with the output of the shell command ``source`` as its state."""
    command = [sys.executable, "-ISc", MEASURE, str(installed.hook), source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return Measured(*eval(done.stdout))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("head -c 1073741824 /dev/zero | tr '\\0' ' '", "read /dev/stdin: file too large"),
        ("head -c 1000000 /dev/zero | tr '\\0' '['", "document too large"),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "exceeded max depth"),
        ("printf '{\"pid\": NaN}'", "invalid character 'N'"),
        ('printf \'{"pid": 7, "pid": 8}\'', 'duplicate member "pid"'),
        ('printf \'{"pid": 7, "PID": 8}\'', 'duplicate member "pid"'),
        ("printf '\\000'", "invalid character '\\u0000'"),
        (
            'printf \'{"pid": 7, "bundle": "/\\\\ud800"}\'',
            "could not open OCI spec: open /\\ud800/config.json: invalid argument",
        ),
        ("exec sleep 60", "read /dev/stdin: i/o timeout | nothing was written to it"),
        (
            "printf '{\"pid\": 7'; exec sleep 60",
            "read /dev/stdin: i/o timeout | stdin stalled after 9 bytes",
        ),
    ],
)
def test_t31_bad_states_are_refused_cheaply(
    installed: Installed, source: str, message: str
) -> None:
    """A malformed, huge or silent stdin is refused with one line, in little time and memory."""
    done = measured(installed, source)
    done.refused(message)
    assert done.clock < 20


def test_t31_the_hook_does_not_wait_for_the_end_of_stdin(
    installed: Installed, tmp_path: Path
) -> None:
    """With a complete state the hook goes on although stdin stays open."""
    (tmp_path / "config.json").write_bytes(config())
    done = measured(installed, f'printf \'{{"pid": 7, "bundle": "{tmp_path}"}}\'; exec sleep 60')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.clock < 20


def config(**members: object) -> bytes:
    document = {"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "rootfs"}}
    return json.dumps({**document, **members}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"a":' * 1_000_000, "document too large"),
        (b"[" * 100_000, "exceeded max depth"),
        (b"[" + b"{}," * 4_700_000 + b"{}]", "file too large"),
        (b"[" + b"{}," * 2_600_000 + b"{}]", "document too large"),
        (config(process={"env": ["A="] * 1_000_000}), "document too large"),
        (config(ociVersion=float("nan")), "invalid character 'N'"),
        (
            b'{"ociVersion":"1","process":{"env":[],"ENV":["NVIDIA_VISIBLE_DEVICES=all"]},"root":{}}',
            'duplicate member "env"',
        ),
        (config(process={"env": ["NVIDIA_VISIBLE_DEVICES=\udcff"]}), "NVIDIA_VISIBLE_DEVICES"),
        (config(process={"env": ["NVIDIA_VISIBLE_DEVICES=0\0"]}), "NVIDIA_VISIBLE_DEVICES"),
        (b'{"x":' + b"9" * 5000 + b"}", "number out of range"),
        (b'{"x":"' + b'\\"' * 3_900_000, "unexpected EOF"),
        (
            config(root={"path": "/\0etc"}, process={"env": ["NVIDIA_VISIBLE_DEVICES=all"]}),
            "invalid rootfs directory",
        ),
    ],
    ids=[
        "depth",
        "brackets",
        "14 MiB",
        "8 MiB",
        "variables",
        "NaN",
        "duplicate",
        "surrogate",
        "NUL",
        "digits",
        "string",
        "root",
    ],
)
def test_t31_bad_configurations_are_refused_cheaply(
    installed: Installed, tmp_path: Path, document: bytes, message: str
) -> None:
    """A malformed or huge config.json is refused with one line, in little time and memory."""
    (tmp_path / "config.json").write_bytes(document)
    done = measured(installed, f'printf \'{{"pid": 7, "bundle": "{tmp_path}"}}\'')
    done.refused(message)


@pytest.mark.parametrize(
    "members",
    [
        {"x": [{}] * 120_000},
        {"process": {"env": [f"VARIABLE_{number}=value" for number in range(200_000)]}},
        {"x": "\U0001f600" + "a" * 8_000_000},
    ],
    ids=["objects", "variables", "text"],
)
def test_t31_the_largest_accepted_documents_are_cheap(
    installed: Installed, tmp_path: Path, members: dict[str, object]
) -> None:
    """A document just below the limits costs no more than a refused one."""
    (tmp_path / "config.json").write_bytes(
        config(**members).replace(b"\\ud83d\\ude00", "\U0001f600".encode())
    )
    done = measured(installed, f'printf \'{{"pid": 7, "bundle": "{tmp_path}"}}\'')
    assert (done.returncode, done.stderr) == (0, "")
    done.cheap()


# ---- T34, T35: config.toml


@pytest.mark.parametrize(
    "variables",
    [
        {"NVIDIA_CTK_CONFIG_FILE_PATH": f"{PLACE}/open/x/config.toml"},
        {"XDG_CONFIG_HOME": f"{PLACE}/open/x"},
    ],
    ids=["file", "directory"],
)
@pytest.mark.parametrize(
    ("mode", "owner", "problem"),
    [
        (0o777, 0, f"{PLACE}/open: group or others may write it"),
        (0o1777, 0, f"{PLACE}/open: group or others may write it"),
        (0o755, 1000, f"{PLACE}/open: it belongs to user 1000"),
    ],
)
def test_t34_configuration_files_in_directories_of_others_are_refused(
    attacked: Attacked, variables: dict[str, str], mode: int, owner: int, problem: str
) -> None:
    """A variable that leads to a file which another user could have made is refused."""

    def prepare() -> None:
        place = PLACE / "open/x/nvidia-container-runtime"
        place.mkdir(parents=True)
        for file in (place / "config.toml", place.parent / "config.toml"):
            shutil.copy(CONFIG, file)
        (PLACE / "open").chmod(mode)
        os.chown(PLACE / "open", owner, 0)

    environment = {"PATH": "/usr/bin", **variables}
    done = attacked(Case(prepare=prepare, arguments=("prestart",), variables=environment))
    done.refused(f"is not trusted: {problem} | ")


def _replaced(make: Callable[[], None]) -> Callable[[], None]:
    def prepare() -> None:
        CONFIG.rename(PLACE / "kept.toml")
        make()

    return prepare


def _two_links() -> None:
    CONFIG.symlink_to("second")
    (PLACE / "second").symlink_to("kept.toml")


def _huge() -> None:
    with CONFIG.open("wb") as file:
        file.truncate(100 << 20)


def _foreign_directory() -> None:
    (PLACE / "foreign").mkdir()
    shutil.copy(PLACE / "kept.toml", PLACE / "foreign/config.toml")
    os.chown(PLACE / "foreign", 1000, 1000)
    CONFIG.symlink_to("foreign/config.toml")


def _writable() -> None:
    shutil.copy(PLACE / "kept.toml", CONFIG)
    CONFIG.chmod(0o666)


def _foreign() -> None:
    shutil.copy(PLACE / "kept.toml", CONFIG)
    os.chown(CONFIG, 1000, 0)


def _with(old: str, new: str) -> Callable[[], None]:
    def make() -> None:
        text = (PLACE / "kept.toml").read_text()
        assert old in text
        CONFIG.write_text(text.replace(old, new))

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            _two_links,
            f"{CONFIG} is not trusted: {PLACE}/second: a second symbolic link on the way | ",
        ),
        (
            _foreign_directory,
            f"{CONFIG} is not trusted: {PLACE}/foreign: it belongs to user 1000 | ",
        ),
        (_writable, f"{CONFIG} is not trusted: {CONFIG}: group or others may write it | "),
        (_foreign, f"{CONFIG} is not trusted: {CONFIG}: it belongs to user 1000 | "),
        (_huge, f"open {CONFIG}: file too large | "),
        (lambda: os.mkfifo(CONFIG, 0o600), f"open {CONFIG}: invalid argument | "),
        (CONFIG.mkdir, f"read {CONFIG}: is a directory | "),
        (
            _with('"@/sbin/ldconfig"', '"/sbin/ldconfig"'),
            "is not host-relative (does not start with a '@')",
        ),
        (
            _with(f'"{PLACE}/driver"', '"/proc/self/cwd"'),
            "nvidia-container-cli.root is /proc/self/cwd | ",
        ),
        (
            _with(f'"{PLACE}/driver"', '"/proc/1/root"'),
            "nvidia-container-cli.root is /proc/1/root | ",
        ),
    ],
    ids=[
        "links",
        "target",
        "writable",
        "owner",
        "huge",
        "FIFO",
        "directory",
        "ldconfig",
        "cwd",
        "root",
    ],
)
def test_t35_untrusted_configuration_files_are_refused(
    attacked: Attacked, make: Callable[[], None], message: str
) -> None:
    """A config.toml that others can change, or with a dangerous value, is refused."""
    attacked(Case(prepare=_replaced(make))).refused(message)


def test_t35_one_link_of_root_is_followed(attacked: Attacked) -> None:
    """One symbolic link of root is followed, so that the refusals above have other reasons."""
    attacked(Case(prepare=_replaced(lambda: CONFIG.symlink_to("kept.toml")))).grafted()


@pytest.mark.requires("runc", "busybox", "gcc")
def test_t35_an_unknown_user_is_refused(bundle: Bundle) -> None:
    """An unknown user in config.toml is refused: NVML is not asked as another user instead."""
    name = 's/^.nvidia-container-cli.$/&\\nuser = "no-such-user"/'
    done = bundle.run(prepare=f"sed -i '{name}' /etc/nvidia-container-runtime/config.toml")
    assert done.returncode != 0
    assert "nvgraft: input error: parse user/group failed" in done.stderr
    assert done.changes == []


# ---- T36: the container's environment

STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

CANARY_SOURCE = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void fire(void) { close(open("/run/fired", O_WRONLY | O_CREAT, 0666)); }
"""


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory with a library and Python modules that write /run/fired when they run."""
    place = tmp_path_factory.mktemp("planted")
    (place / "x.c").write_text(CANARY_SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "x.so", place / "x.c"], check=True)
    for name in ("sitecustomize", "usercustomize", "os", "json", "errno", "prctl"):
        (place / f"{name}.py").write_text("open('/run/fired', 'w').close()\n")
    return place


def hostile_environment(place: Path) -> list[str]:
    names = ("LD_PRELOAD", "LD_AUDIT")
    return [
        *(f"{name}={place}/x.so" for name in names),
        f"LD_LIBRARY_PATH={place}",
        *(f"{name}={place}" for name in ("PYTHONPATH", "PYTHONHOME", "HOME")),
        f"PYTHONSTARTUP={place}/os.py",
        "GLIBC_TUNABLES=glibc.malloc.check=3",
        f"NVIDIA_CTK_CONFIG_FILE_PATH={place}/config.toml",
        "NVIDIA_VISIBLE_DEVICES=all",
    ]


START = {
    "runc": "runc --root /run/runc-test run",
    "crun": "crun --root /run/crun-test --cgroup-manager=disabled run",
}


def at_every_stage(
    bundle: Bundle, runtime: str, place: Path, entry: dict[str, Any]
) -> dict[str, list[str]]:
    """Start a container with ``entry`` at each stage; return each one's signs."""
    config = json.loads((bundle.path / "config.json").read_text())
    config["ociVersion"] = "1.0.2"
    config["process"]["args"] = ["/bin/sh", "-c", "cat /proc/self/mountinfo"]
    config["process"]["env"] = ["PATH=/bin", *hostile_environment(place)]
    lines = [str(CGROUPS["v2"].values[0]), NO_CGROUPS]
    for stage in STAGES:
        if stage == "poststart":
            # While crun waits for a hook with a time limit, it counts on one SIGCHLD for each of its
            # children. If the program and the hook end together, it gets one for both, and waits
            # until the limit with all signals blocked. The limit is of no interest here.
            entry = {name: value for name, value in entry.items() if name != "timeout"}
        document = json.dumps({**config, "hooks": {stage: [entry]}})
        (bundle.path / f"{stage}.json").write_text(document)
        lines.append(f"cp {bundle.path}/{stage}.json {bundle.path}/config.json; rm -f /run/fired")
        start = f"timeout 60 {START[runtime]} --bundle {bundle.path} {bundle.name}-{stage}"
        lines.append(f"{start} > /run/seen 2> /run/said < /dev/null")
        fired = "$(test -e /run/fired && echo fired)"
        lines.append(f'echo "{stage} {fired} $(grep -q libcuda /run/seen && echo grafted)"')
    done = bundle.on_host("\n".join(lines))
    rows = [line.split() for line in done.stdout.splitlines()]
    rows = [words for words in rows if words and words[0] in STAGES]
    assert [words[0] for words in rows] == list(STAGES), done.stderr
    return {words[0]: words[1:] for words in rows}


OUTSIDE = {stage: ["grafted"] if stage in ("prestart", "createRuntime") else [] for stage in STAGES}


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t36_a_registration_with_an_environment(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """The registered entry, with its environment, runs no code of the image at any stage.

    At the stages inside of the container the hook does nothing.
    """
    entry = hook_entry(str(bundle.installed.hook))
    assert at_every_stage(bundle, runtime, planted, entry) == OUTSIDE


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t36_the_static_launcher_without_an_environment(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """Without one in the entry, the launcher keeps the container's environment away."""
    launcher = bundle.path.parent / "nvgraft-hook"
    launcher.write_bytes(static_launcher("/usr/bin/python3", str(bundle.installed.hook)))
    launcher.chmod(0o755)
    entry = {"path": str(launcher), "args": ["nvgraft-hook", "prestart"]}
    assert at_every_stage(bundle, runtime, planted, entry) == OUTSIDE


@pytest.mark.requires("runc", "busybox", "gcc")
def test_t36_positive_control(bundle: Bundle, planted: Path) -> None:
    """Control: without environment and launcher, code of the image runs as root of the host.

    From runc 1.3 on, the process that starts createContainer hooks has no environment yet.
    """
    entry = {"path": str(bundle.installed.hook), "args": ["nvgraft-hook", "prestart"]}
    signs = at_every_stage(bundle, "runc", planted, entry)
    command = ["runc", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    major, minor = (int(number) for number in done.stdout.split()[2].split(".")[:2])
    assert ("fired" in signs["createContainer"]) == ((major, minor) < (1, 3))


@pytest.mark.requires("runc", "crun", "busybox")
@pytest.mark.parametrize("runtime", START)
def test_t36_the_hook_gets_only_the_variables_of_its_entry(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """With an environment in the entry, no variable of engine or container arrives."""
    show = "tr '\\0' '\\n' < /proc/self/environ > /run/environ"
    entry = {**hook_entry("/bin/sh"), "args": ["sh", "-c", show]}
    config = json.loads((bundle.path / "config.json").read_text())
    config.update(ociVersion="1.0.2", hooks={"prestart": [entry]})
    config["process"].update(args=["/bin/true"], env=["PATH=/bin", *hostile_environment(planted)])
    (bundle.path / "config.json").write_text(json.dumps(config))
    start = f"SECRET=1 {START[runtime]} --bundle {bundle.path} {bundle.name} < /dev/null"
    done = bundle.on_host(f"{CGROUPS['v2'].values[0]}; {start}; cat /run/environ")
    assert [line for line in done.stdout.splitlines() if "=" in line] == entry["env"], done.stderr


# ---- T37: descriptors


def test_t37_foreign_descriptors_and_closed_outputs(
    attacked: Attacked, installed: Installed
) -> None:
    """Inherited directories and sockets are closed, and closed outputs become /dev/null."""
    before = f"""
import socket, nvgraft.system.launch as launch
directory = os.open({str(CANARY)!r}, os.O_RDONLY)
for fd in range(5, 21):
    os.dup2(directory, fd)
os.set_inheritable(directory, True)
pair = socket.socketpair()
os.close(1); os.close(2)
reset = launch.reset_process
def checked():
    held = reset()
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if int(fd) > 2 and int(fd) != held and name != "/proc/%d/fd" % os.getpid():
            os._exit(77)
    if [os.readlink("/proc/self/fd/%d" % fd) for fd in (1, 2)] != ["/dev/null"] * 2:
        os._exit(78)
    return held
launch.reset_process = checked
"""
    attacked(Case(hook=prepared(installed, before))).grafted()


def test_t37_a_stdin_that_is_a_pipe_without_a_writer(
    attacked: Attacked, installed: Installed
) -> None:
    """A FIFO as stdin on which nothing comes is refused, and a closed stdin counts as empty."""
    fifo = PLACE / "fifo"
    before = f"os.mkfifo({str(fifo)!r}); os.dup2(os.open({str(fifo)!r}, os.O_RDWR), 0)"
    done = attacked(Case(hook=prepared(installed, before), look=lambda _: fifo.unlink()))
    cause = "read /dev/stdin: i/o timeout | nothing was written to it"
    done.refused(f"could not decode container state: {cause}")
    closed = ("/bin/sh", "-c", f'exec {installed.hook} "$@" <&-', "sh")
    attacked(Case(hook=closed)).refused("could not decode container state: EOF")


# ---- T38: modules planted in the hook's working directory


def test_t38_modules_in_the_working_directory_are_not_loaded(attacked: Attacked) -> None:
    """Python modules in the bundle, which is the hook's working directory, are not loaded."""

    def plant() -> None:
        names = ["json", "os", "errno", "stat", "prctl", "pynvml", "tomllib", "sitecustomize"]
        for name in [*names, "nvgraft", "_ctypes", "encodings"]:
            for place in (BUNDLE, BUNDLE / "lib", BUNDLE / "lib/python3.11"):
                place.mkdir(exist_ok=True, parents=True)
                (place / f"{name}.py").write_text(f"open({str(CANARY / 'fired')!r}, 'w').close()\n")
        (BUNDLE / "pyvenv.cfg").write_text(f"home = {BUNDLE}\n")

    variables = {"PATH": "/usr/bin", "HOME": str(BUNDLE), "PYTHONPATH": ".", "PYTHONHOME": "."}
    attacked(Case(prepare=plant, variables=variables)).grafted()


# ---- T39: volumes at the driver's targets


def _volume(
    path: str, *, shared: bool = False, fill: Callable[[Path], None] = lambda place: None
) -> Callable[[Path], None]:
    def mounts(rootfs: Path) -> None:
        runtime_mounts(rootfs)
        place = rootfs / path.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        syscalls.mount("tmpfs", str(place), "tmpfs", 0, "mode=755")
        fill(place)
        if shared:
            syscalls.mount(None, str(place), None, 1 << 20)  # MS_SHARED

    return mounts


def _placeholders(place: Path) -> None:
    for word in ("smi", "debugdump", "persistenced", "cuda-mps-control", "cuda-mps-server"):
        (place / f"nvidia-{word}").touch()
    (place / "nv-fabricmanager").touch()


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        (_volume("/usr/lib"), "it would be made on the volume /usr/lib"),
        (_volume(LIBS), f"it would be made on the volume {LIBS}"),
        (
            _volume("/usr/bin", shared=True, fill=_placeholders),
            "/usr/bin is shared: the driver would appear outside of the container",
        ),
        (
            _volume("/dev", shared=True),
            "/dev is shared: the driver would appear outside of the container",
        ),
        (
            _volume("/proc/driver", shared=True),
            "/proc/driver is shared: the driver would appear outside of the container",
        ),
    ],
    ids=["usr/lib", "libraries", "shared", "dev", "proc"],
)
def test_t39_volumes_at_the_drivers_targets_are_refused(
    attacked: Attacked, mounts: Callable[[Path], None], message: str
) -> None:
    """A target that would be made on a volume, or seen through a shared mount, is refused."""
    attacked(Case(mounts=mounts)).refused(message)


@pytest.mark.parametrize("path", ["/proc/driver", "/dev/x", "/usr/share"])
def test_t39_other_volumes_do_not_matter(attacked: Attacked, path: str) -> None:
    """A volume elsewhere, or the tmpfs that some engines mount at /proc/driver, does not matter."""
    attacked(Case(mounts=_volume(path))).grafted()


# ---- T52: a child that hangs, and the runtime's time limit

HANG = break_nvml.command("nvml-hang=60")
TIMEOUT = 2


def _ends_in_time(bundle: Bundle, runtime: str, prepare: str) -> Run:
    config = json.loads((bundle.path / "config.json").read_text())
    config["ociVersion"] = "1.0.2"
    config["hooks"]["prestart"][0]["timeout"] = TIMEOUT
    (bundle.path / "config.json").write_text(json.dumps(config))
    start = f"{START[runtime]} --bundle {bundle.path} {bundle.name} < /dev/null"
    left = "ps -eo args | grep -v grep | grep -c '[n]vgraft-hook'"
    took = "$((($(date +%s%N) - begin) / 1000000))"
    timed = f"begin=$(date +%s%N); {start}; code=$?; echo took {took}; echo left $({left})"
    return bundle.on_host(f"{CGROUPS['v2'].values[0]}; {prepare}; {timed}; exit $code")


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t52_a_hanging_driver_ends_with_the_runtimes_time_limit(
    bundle: Bundle, runtime: str
) -> None:
    """When the runtime kills the hook at its time limit, the child that waits for NVML ends too."""
    done = _ends_in_time(bundle, runtime, HANG)
    lines = done.stdout.splitlines()
    figures = dict(line.split() for line in lines if line.startswith(("took", "left")))
    assert done.returncode != 0
    assert TIMEOUT * 1000 <= int(figures["took"]) < 60_000, done.stderr
    assert figures["left"] == "0"
    assert done.changes == []


def test_t52_a_log_file_that_is_a_pipe_without_a_reader(attacked: Attacked) -> None:
    """A debug log that is a FIFO without a reader is a warning, and the container starts."""
    log = str(PLACE / "log")
    done = attacked(Case(prepare=lambda: os.mkfifo(log), config={"cli": f'debug = "{log}"'}))
    done.grafted()
    assert f"no debug log: open {log}: no such device or address" in done.stderr


def test_t52_the_hooks_own_deadline(attacked: Attacked, installed: Installed) -> None:
    """A hook that waits for a lock gives up and undoes everything in time."""
    before = f"""
import nvgraft.system.launch as launch
launch.set_deadline.__defaults__ = (0.5,)
root = os.stat({str(ROOTFS)!r})
os.makedirs("/run/nvgraft/lock", 0o700)
name = "/run/nvgraft/lock/%x-%x" % (root.st_dev, root.st_ino)
if not os.fork():
    from nvgraft.system import syscalls
    import time
    syscalls.flock(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), syscalls.LOCK_EX)
    open("/run/held", "w")
    for fd in range(3):
        os.close(fd)
    time.sleep(3)
    os.unlink(name)
    os._exit(0)
while not os.path.exists("/run/held"):
    pass
"""
    done = attacked(Case(hook=prepared(installed, before), look=lambda _: os.wait()))
    assert done.returncode == 1
    line = "not done after 105 s, and a runtime waits for 120 s; everything was undone"
    assert line in done.stderr
    assert (done.rules, done.mounts, done.files) == (False, (), ())
    assert done.seconds < 10


# ---- T53: the hook's output is not read

FULL_PIPE = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writer, True)
os.dup2(writer, 2)
os.dup2(reader, 1)
"""


@pytest.mark.parametrize(
    "before",
    [
        "os.close(2)",
        "reader, writer = os.pipe(); os.dup2(writer, 2); os.close(reader); os.close(writer)",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
        FULL_PIPE,
    ],
    ids=["closed", "no reader", "full disk", "a reader that has stopped"],
)
def test_t53_a_stderr_that_cannot_be_written(
    attacked: Attacked, installed: Installed, before: str
) -> None:
    """With an unwritable stderr, a refusal still comes in time and is in the error record."""
    record = Path("/run/nvgraft/last-error/id-attacked")
    case = Case(
        hook=prepared(installed, before),
        environment=("NVIDIA_VISIBLE_DEVICES=77",),
        look=lambda _: record.read_text(),
    )
    done = attacked(case)
    assert done.returncode == 1
    assert "nvgraft: device error: 77: unknown device" in str(done.seen)
    assert (done.rules, done.mounts, done.files) == (False, (), ())
    assert done.seconds < 10


def test_t53_messages_are_limited(attacked: Attacked) -> None:
    """A message cuts and escapes a hostile variable's long value, and shows no other variable."""
    environment = ("NVIDIA_VISIBLE_DEVICES=" + "\u00e9" * 100_000, "PASSWORD=hunter2")
    record = Path("/run/nvgraft/last-error/id-attacked")
    for options in ((), ("-debug",)):
        case = Case(environment=environment, options=options, look=lambda _: record.read_text())
        done = attacked(case)
        done.refused("")
        assert "hunter2" not in done.stderr + str(done.seen)
        assert len(str(done.seen)) <= 8192


# ---- R40


def test_r40_a_set_user_id_hook_is_refused(installed: Installed, tmp_path: Path) -> None:
    """A set-user-ID interpreter, which would give every caller root, is refused."""
    python = installed.prefix / "python"
    shutil.copy(os.path.realpath("/usr/bin/python3"), python)
    try:
        python.chmod(0o4755)
        path = f"import sys; sys.path.append({str(installed.library)!r})"
        script = f"{path}; from nvgraft.hook import run; run(['h', 'prestart'])"
        user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
        command = [str(python), "-ISB", "-c", script]
        done = subprocess.run(
            command, input="{}", capture_output=True, text=True, env={}, cwd="/", **user
        )
    finally:
        python.unlink()
    assert done.returncode == 1
    words = "nvgraft: permission error: capability change failed: operation not permitted"
    assert f"{words} | remove set-user-ID and set-group-ID bits" in done.stderr


def test_r40_an_unprivileged_hook_is_refused(attacked: Attacked, installed: Installed) -> None:
    """A hook without privileges is refused before it reads anything of the container."""
    ids = "65534, 65534, 65534"
    before = f"os.setgroups([]); os.setresgid({ids}); os.setresuid({ids})"

    def make_readable() -> None:
        (BUNDLE / "config.json").chmod(0o644)

    done = attacked(Case(prepare=make_readable, hook=prepared(installed, before)))
    words = "nvgraft: permission error: capability change failed: operation not permitted"
    done.refused(f"{words} | run the hook as root")
