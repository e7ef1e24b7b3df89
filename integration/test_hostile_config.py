"""Hostile state, config.json, environment and config.toml: cases T30 to T40, T52, T53
(docs/security.md).

Unless a test says otherwise, the hook refuses with its own message, in time, and nothing changes on
the host or in the container. What documents alone decide is in tests/test_hostile_requests.py.
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
    """Return a command that runs ``before`` in the hook's own process, started as by its launcher,
    and then the hook.
    """
    path = f"import os, sys; sys.path.append({str(installed.library)!r})"
    return (
        "/usr/bin/python3",
        "-ISB",
        "-c",
        f"{path}\n{before}\nfrom nvgraft.hook import run; run(sys.argv)",
    )


# ---- T30: the pid of the state


@pytest.mark.parametrize("pid", [0, 1, -1, -(1 << 31), 1 << 31, (1 << 32) + 2, (1 << 63) - 1])
def test_t30_numbers_that_are_no_pid(attacked: Attacked, pid: int) -> None:
    """A number that is not a pid is not looked up, and is not truncated on its way to the
    kernel.
    """
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
def test_t30_values_that_are_no_number(attacked: Attacked, pid: str, kind: str) -> None:
    """A pid of another type, or beyond the integers of the reference, is refused."""
    done = attacked(
        Case(state=lambda state: json.dumps({**state, "pid": None}).replace("null", pid))
    )
    done.refused(f"could not decode container state: json: cannot unmarshal {kind}")


def test_t30_the_hook_itself_and_its_parent(attacked: Attacked, installed: Installed) -> None:
    """The hook and its parent are refused by their numbers, before anything is read about them."""
    attacked(Case(state=lambda state: json.dumps({**state, "pid": os.getpid()}))).refused(
        "container error: invalid process id: "
    )
    script = (
        f'exec {installed.hook} "$@" <<EOF\n{{"id": "x", "bundle": "{BUNDLE}", "pid": $$}}\nEOF'
    )
    attacked(Case(hook=("/bin/sh", "-c", script, "sh"))).refused(
        "container error: invalid process id: "
    )


@pytest.mark.requires("kernel-threads")
def test_t30_a_thread_of_the_kernel(attacked: Attacked) -> None:
    """A kernel thread is refused although its namespaces, the machine's first, may differ from the
    hook's.
    """
    done = attacked(Case(state=lambda state: json.dumps({**state, "pid": 2})))
    done.refused("container error: invalid process id: 2 | it is a kernel thread, or has ended")


@pytest.mark.parametrize(
    ("option", "message"),
    [(0, "container error: stat failed: /proc/"), (os.WNOWAIT, "invalid process id: ")],
)
def test_t30_processes_that_have_ended(attacked: Attacked, option: int, message: str) -> None:
    """A process that is gone, or a zombie that was not reaped, is refused."""

    def state(state: State) -> str:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | option)
        return json.dumps({**state, "pid": child})

    done = attacked(Case(state=state))
    assert done.returncode == 1
    assert message in done.stderr
    assert (done.rules, done.mounts, done.files) == (False, (), ())


# ---- T31: documents of every size and kind, measured in processor time, because the machine may be
# busy


class Measured(NamedTuple):
    returncode: int
    stderr: str
    #: Seconds of processor time, MiB, seconds on the clock.
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


#: A small process of its own, because its memory would count for the hook as well.
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
os.killpg(feeder, 9)  # it has made its group before it wrote, or before the hook gave up
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
def test_t31_states(installed: Installed, source: str, message: str) -> None:
    """Whatever comes on stdin takes one line, little time and little memory."""
    done = measured(installed, source)
    done.refused(message)
    assert done.clock < 20


def test_t31_a_stdin_that_stays_open_is_no_reason_to_wait(
    installed: Installed, tmp_path: Path
) -> None:
    """A complete state on an open stdin is enough: the container without GPU starts without
    delay.
    """
    (tmp_path / "config.json").write_text(
        json.dumps({"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "rootfs"}})
    )
    done = measured(installed, f'printf \'{{"pid": 7, "bundle": "{tmp_path}"}}\'; exec sleep 60')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.clock < 20


def config(**members: object) -> bytes:
    document = {
        "ociVersion": "1.0.2",
        "process": {"env": []},
        "root": {"path": "rootfs"},
        **members,
    }
    return json.dumps(document, separators=(",", ":")).encode()


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
def test_t31_configurations(
    installed: Installed, tmp_path: Path, document: bytes, message: str
) -> None:
    """Whatever config.json holds takes one line, little time and little memory."""
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
def test_t31_the_largest_that_is_accepted(
    installed: Installed, tmp_path: Path, members: dict[str, object]
) -> None:
    """Just below the bounds, a document costs no more than one that is refused."""
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
def test_t34_variables_that_lead_to_others(
    attacked: Attacked, variables: dict[str, str], mode: int, owner: int, problem: str
) -> None:
    """A file that another user could have put there is not read."""

    def prepare() -> None:
        place = PLACE / "open/x/nvidia-container-runtime"
        place.mkdir(parents=True)
        for file in (place / "config.toml", place.parent / "config.toml"):
            shutil.copy(CONFIG, file)
        (PLACE / "open").chmod(mode)
        os.chown(PLACE / "open", owner, 0)

    done = attacked(
        Case(prepare=prepare, arguments=("prestart",), variables={"PATH": "/usr/bin", **variables})
    )
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
        (CONFIG.mkdir, f"open {CONFIG}: is a directory | "),
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
def test_t35_files_that_decide_nothing(
    attacked: Attacked, make: Callable[[], None], message: str
) -> None:
    """A file that others can change, another kind of file, and meaningless settings are refused."""
    attacked(Case(prepare=_replaced(make))).refused(message)


def test_t35_one_link_of_roots_is_followed(attacked: Attacked) -> None:
    """An administrator may keep the file elsewhere: a link alone is not a reason for the refusals
    above.
    """
    attacked(Case(prepare=_replaced(lambda: CONFIG.symlink_to("kept.toml")))).grafted()


@pytest.mark.requires("runc", "busybox", "gcc")
def test_t35_a_user_that_does_not_exist(bundle: Bundle) -> None:
    """A missing user is refused, and NVML is not asked as another user instead."""
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
    """A directory on the host with a library and Python modules that leave a mark in /run when they
    run.
    """
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
    """Start the container with ``entry`` at each stage; return for each what happened: fired,
    grafted.
    """
    config = json.loads((bundle.path / "config.json").read_text())
    config["ociVersion"] = "1.0.2"
    config["process"]["args"] = ["/bin/sh", "-c", "cat /proc/self/mountinfo"]
    config["process"]["env"] = ["PATH=/bin", *hostile_environment(place)]
    lines = [str(CGROUPS["v2"].values[0]), NO_CGROUPS]
    for stage in STAGES:
        (bundle.path / f"{stage}.json").write_text(
            json.dumps({**config, "hooks": {stage: [entry]}})
        )
        lines.append(f"cp {bundle.path}/{stage}.json {bundle.path}/config.json; rm -f /run/fired")
        lines.append(
            f"timeout 60 {START[runtime]} --bundle {bundle.path} {bundle.name}-{stage} > "
            "/run/seen 2> /run/said < /dev/null"
        )
        lines.append(
            f'echo "{stage} $(test -e /run/fired && echo fired) $(grep -q libcuda /run/seen && '
            'echo grafted)"'
        )
    done = bundle.on_host("\n".join(lines))
    seen = [
        line.split()
        for line in done.stdout.splitlines()
        if line.split()[:1] and line.split()[0] in STAGES
    ]
    assert [words[0] for words in seen] == list(STAGES), done.stderr
    return {words[0]: words[1:] for words in seen}


OUTSIDE = {stage: ["grafted"] if stage in ("prestart", "createRuntime") else [] for stage in STAGES}


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t36_a_registration_with_an_environment(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """Registered as by nvgraft, at any stage, the image's code never runs in the hook, and does
    nothing in the container.
    """
    assert (
        at_every_stage(bundle, runtime, planted, hook_entry(str(bundle.installed.hook))) == OUTSIDE
    )


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t36_the_static_launcher_without_an_environment(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """Even with the worst registration, the launcher passes nothing of the container's environment
    to the interpreter.
    """
    launcher = bundle.path.parent / "nvgraft-hook"
    launcher.write_bytes(static_launcher("/usr/bin/python3", str(bundle.installed.hook)))
    launcher.chmod(0o755)
    assert (
        at_every_stage(
            bundle, runtime, planted, {"path": str(launcher), "args": ["nvgraft-hook", "prestart"]}
        )
        == OUTSIDE
    )


@pytest.mark.requires("runc", "busybox", "gcc")
def test_t36_positive_control(bundle: Bundle, planted: Path) -> None:
    """Control: without an environment and the launcher, the image's code runs as host root.

    From runc 1.3 on the process that starts createContainer hooks has no environment yet.
    """
    seen = at_every_stage(
        bundle,
        "runc",
        planted,
        {"path": str(bundle.installed.hook), "args": ["nvgraft-hook", "prestart"]},
    )
    version = subprocess.run(
        ["runc", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    major, minor = (int(number) for number in version.split(".")[:2])
    assert ("fired" in seen["createContainer"]) == ((major, minor) < (1, 3))


@pytest.mark.requires("runc", "crun", "busybox")
@pytest.mark.parametrize("runtime", START)
def test_t36_the_hook_is_given_our_variables_and_no_other(
    bundle: Bundle, planted: Path, runtime: str
) -> None:
    """With an explicit environment, variables of the engine and the container do not arrive."""
    entry = {
        **hook_entry("/bin/sh"),
        "args": ["sh", "-c", "tr '\\0' '\\n' < /proc/self/environ > /run/environ"],
    }
    config = json.loads((bundle.path / "config.json").read_text())
    config.update(ociVersion="1.0.2", hooks={"prestart": [entry]})
    config["process"].update(args=["/bin/true"], env=["PATH=/bin", *hostile_environment(planted)])
    (bundle.path / "config.json").write_text(json.dumps(config))
    start = (
        f"{CGROUPS['v2'].values[0]}; SECRET=1 {START[runtime]} --bundle {bundle.path} "
        f"{bundle.name} < /dev/null"
    )
    done = bundle.on_host(f"{start}; cat /run/environ")
    assert [line for line in done.stdout.splitlines() if "=" in line] == entry["env"], done.stderr


# ---- T37: descriptors


def test_t37_foreign_descriptors_and_closed_outputs(
    attacked: Attacked, installed: Installed
) -> None:
    """With host directories and sockets at 3 to 20, and 1 and 2 closed, the hook works and keeps
    none of them.
    """
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
    """A FIFO without a writer is given up, and a closed stdin counts as an empty one."""
    before = (
        f"os.mkfifo({str(PLACE / 'fifo')!r}); os.dup2(os.open({str(PLACE / 'fifo')!r}, "
        "os.O_RDWR), 0)"
    )
    done = attacked(
        Case(hook=prepared(installed, before), look=lambda _: (PLACE / "fifo").unlink())
    )
    done.refused(
        "could not decode container state: read /dev/stdin: i/o timeout | nothing was written to it"
    )
    closed = ("/bin/sh", "-c", f'exec {installed.hook} "$@" <&-', "sh")
    attacked(Case(hook=closed)).refused("could not decode container state: EOF")


# ---- T38: modules planted where the hook stands


def test_t38_modules_in_the_working_directory(attacked: Attacked) -> None:
    """Started in the bundle or in the root file system, the hook loads nothing from there."""

    def plant() -> None:
        for name in (
            "json",
            "os",
            "errno",
            "stat",
            "prctl",
            "pynvml",
            "tomllib",
            "sitecustomize",
            "nvgraft",
            "_ctypes",
            "encodings",
        ):
            for place in (BUNDLE, BUNDLE / "lib", BUNDLE / "lib/python3.11"):
                place.mkdir(exist_ok=True, parents=True)
                (place / f"{name}.py").write_text(f"open({str(CANARY / 'fired')!r}, 'w').close()\n")
        (BUNDLE / "pyvenv.cfg").write_text(f"home = {BUNDLE}\n")

    attacked(
        Case(
            prepare=plant,
            variables={
                "PATH": "/usr/bin",
                "HOME": str(BUNDLE),
                "PYTHONPATH": ".",
                "PYTHONHOME": ".",
            },
        )
    ).grafted()


# ---- T39: volumes where the driver goes


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
    smi, persistence, mps, fabric = (
        "smi debugdump",
        "persistenced",
        "cuda-mps-control cuda-mps-server",
        "nv-fabricmanager",
    )
    for name in (*(f"nvidia-{word}" for word in f"{smi} {persistence} {mps}".split()), fabric):
        (place / name).touch()


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
def test_t39_volumes_over_the_drivers_places(
    attacked: Attacked, mounts: Callable[[Path], None], message: str
) -> None:
    """A target on a volume, or one that others would see, is refused with the volume's name."""
    attacked(Case(mounts=mounts)).refused(message)


@pytest.mark.parametrize("path", ["/proc/driver", "/dev/x", "/usr/share"])
def test_t39_volumes_that_are_in_nobodys_way(attacked: Attacked, path: str) -> None:
    """A volume elsewhere, and the tmpfs of some engines at /proc/driver, do no harm."""
    attacked(Case(mounts=_volume(path))).grafted()


# ---- T52: a child that hangs, and the runtime's patience

HANG = "echo hang 60 >> /etc/nvgraft-nvml.conf"
TIMEOUT = 2


def _ends_in_time(bundle: Bundle, runtime: str, prepare: str) -> Run:
    config = json.loads((bundle.path / "config.json").read_text())
    config["ociVersion"] = "1.0.2"
    config["hooks"]["prestart"][0]["timeout"] = TIMEOUT
    (bundle.path / "config.json").write_text(json.dumps(config))
    start = f"{START[runtime]} --bundle {bundle.path} {bundle.name} < /dev/null"
    left = "ps -eo args | grep -v grep | grep -c '[n]vgraft-hook'"
    timed = (
        f"begin=$(date +%s%N); {start}; code=$?; echo took $((($(date +%s%N) - begin) / "
        f"1000000)); echo left $({left}); exit $code"
    )
    return bundle.on_host(f"{CGROUPS['v2'].values[0]}; {prepare}; {timed}")


@pytest.mark.requires("runc", "crun", "busybox", "gcc")
@pytest.mark.parametrize("runtime", START)
def test_t52_a_driver_that_hangs(bundle: Bundle, runtime: str) -> None:
    """The runtime kills the hook at its time limit, and the child that waits for the driver ends
    with it.
    """
    done = _ends_in_time(bundle, runtime, HANG)
    said = dict(
        line.split() for line in done.stdout.splitlines() if line.startswith(("took", "left"))
    )
    assert done.returncode != 0
    assert TIMEOUT * 1000 <= int(said["took"]) < 60_000, done.stderr
    assert said["left"] == "0"
    assert done.changes == []


def test_t52_a_log_that_is_a_pipe_which_nobody_reads(attacked: Attacked) -> None:
    """The hook warns, and the container starts."""
    log = str(PLACE / "log")
    done = attacked(Case(prepare=lambda: os.mkfifo(log), config={"cli": f'debug = "{log}"'}))
    done.grafted()
    assert f"no debug log: open {log}: no such device or address" in done.stderr


def test_t52_the_hooks_own_deadline(attacked: Attacked, installed: Installed) -> None:
    """Before the runtime's time is up, the hook stops waiting for a lock, takes everything back,
    and says so.
    """
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
    assert (
        "not done after 105 s, and a runtime waits for 120 s; everything was undone" in done.stderr
    )
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
def test_t53_a_stderr_that_takes_nothing(
    attacked: Attacked, installed: Installed, before: str
) -> None:
    """The refusal stays a refusal, in time, and is in the record."""
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


def test_t53_what_is_said_has_an_end(attacked: Attacked) -> None:
    """A long hostile value is cut, its control characters are escaped, and other variables are not
    shown.
    """
    environment = ("NVIDIA_VISIBLE_DEVICES=" + "\u00e9" * 100_000, "PASSWORD=hunter2")
    record = Path("/run/nvgraft/last-error/id-attacked")
    for options in ((), ("-debug",)):
        done = attacked(
            Case(environment=environment, options=options, look=lambda _: record.read_text())
        )
        done.refused("")
        assert "hunter2" not in done.stderr + str(done.seen)
        assert len(str(done.seen)) <= 8192


# ---- R40


def test_r40_a_set_user_id_hook_is_refused(installed: Installed, tmp_path: Path) -> None:
    """An interpreter with the set-user-ID bit would give root to any caller, so the hook
    refuses.
    """
    python = installed.prefix / "python"
    shutil.copy(os.path.realpath("/usr/bin/python3"), python)
    try:
        python.chmod(0o4755)
        script = (
            f"import sys; sys.path.append({str(installed.library)!r}); from nvgraft.hook import "
            "run; run(['h', 'prestart'])"
        )
        user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
        command = [str(python), "-ISB", "-c", script]
        done = subprocess.run(
            command, input="{}", capture_output=True, text=True, env={}, cwd="/", **user
        )
    finally:
        python.unlink()
    assert done.returncode == 1
    assert (
        "nvgraft: permission error: capability change failed: operation not permitted | remove "
        "set-user-ID and set-group-ID bits" in done.stderr
    )


def test_r40_without_privileges_there_is_one_line(attacked: Attacked, installed: Installed) -> None:
    """A hook that may not mount says so before it reads anything."""
    before = (
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)"
    )
    done = attacked(
        Case(
            prepare=lambda: (BUNDLE / "config.json").chmod(0o644), hook=prepared(installed, before)
        )
    )
    done.refused(
        "nvgraft: permission error: capability change failed: operation not permitted | run the "
        "hook as root"
    )
