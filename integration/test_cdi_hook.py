"""nvgraft-cdi-hook in real containers, on hostile root file systems, and against the records of
nvidia-cdi-hook.

A runtime starts it at the stage createContainer, where the container's mounts are made and its root
is not changed yet.
"""

import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from containers import CGROUPS, CONFIG, CONFIG_TOML, LOADER_LINE, Bundle, Run, environment
from harness import SHARED_RECORDS, Installed, run_in_mount_namespace
from nvgraft.system import syscalls
from nvgraft_cli.simulate.stubs import shared_object
from nvgraft_specs import cdi_hooks
from test_engines import NO_CGROUPS
from test_hostile_config import hostile_environment, planted

__all__ = ["planted"]  # a fixture

pytestmark = pytest.mark.requires("root", "overlayfs", "x86_64")

LIBS = "/usr/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
CONF = "/etc/ld.so.conf.d"
PARAMS = "/proc/driver/nvidia/params"
COMPAT = "/usr/local/cuda/compat"
RECORDS = SHARED_RECORDS / "cdi"

#: What the runtime names for one container, as the reference does.
STEPS = [
    ["create-symlinks", "--link", f"libown.so.1.2::{LIBS}/libdev.so", "--link", "x::/dev/dri/y"],
    ["enable-cuda-compat", "--host-driver-version=550.54.15"],
    ["update-ldcache", "--folder", "/opt/driver"],
    ["disable-device-node-modification"],
    ["update-application-profile"],
    ["chmod", "--mode", "700", "--path", "/opt/driver"],
]


def hooks(program: Path, steps: list[list[str]], *, one: bool) -> list[dict[str, Any]]:
    """Return the hooks of an edit: one for all steps, or one for each."""
    lines = [cdi_hooks.in_one(steps)] if one else steps
    return [
        {
            "path": str(program),
            "args": [cdi_hooks.PROGRAM, *words],
            "env": list(cdi_hooks.ENVIRONMENT),
        }
        for words in lines
    ]


def cdi_hook(installed: Installed) -> Path:
    return installed.prefix / "bin/nvgraft-cdi-hook"


# ---- the records


@pytest.mark.requires("shared-records", "gcc", "ldconfig")
@pytest.mark.parametrize("name", ["nvgraft-cdi-hook", "nvidia-cdi-hook", "nvidia-ctk hook"])
def test_the_hook_does_what_the_reference_did(
    name: str, installed: Installed, tmp_path: Path
) -> None:
    """Each recorded run leaves the same root file system, under each of its names."""
    rig, records, answers = RECORDS / "rig_hooks.py", RECORDS / "cdi-hooks.jsonl", tmp_path / "a"
    program = f"{installed.prefix}/bin/{name}"
    ran = subprocess.run(
        [sys.executable, rig, "run", records, "-o", answers, "--program", program],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    compared = subprocess.run(
        [sys.executable, rig, "compare", records, answers], capture_output=True, text=True
    )
    count = len(records.read_text().splitlines())
    assert compared.stdout.splitlines()[-1] == f"{count} passed, 0 failed of {count}", (
        compared.stdout
    )


# ---- real containers

RUNTIMES = {
    "runc": pytest.param("runc --root /run/runc-test run", marks=pytest.mark.requires("runc")),
    "crun": pytest.param(
        "crun --root /run/crun-test --cgroup-manager=disabled run",
        marks=pytest.mark.requires("crun", "cgroup-v2"),
    ),
}

SHOW = f"""
{LOADER} --preload libdriver.so.1:libcuda.so.1 --list {LIBS}/libc.so.6
ls -l /dev/dri {LIBS}/libdev.so; stat -c 'mode %a' /opt/driver
cat /etc/nvidia/*/*.conf {CONF}/*
cat /proc/self/mountinfo
"""


def prepare(bundle: Bundle) -> None:
    """Add a driver's directory, a newer libcuda and a GPU's node to the image."""
    root = bundle.path / "rootfs"
    (root / "etc/ld.so.conf").write_text(f"include {CONF}/*.conf\n")
    for path, soname in (
        ("/opt/driver/libdriver.so.550", "libdriver.so.1"),
        ("/opt/driver/libcuda.so.550.54.15", "libcuda.so.1"),
        (f"{COMPAT}/libcuda.so.560.1", "libcuda.so.1"),
        (f"{LIBS}/libown.so.1.2", "libown.so.1"),
    ):
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(shared_object(64, "EM_X86_64", soname, (), None))


def start(
    bundle: Bundle,
    command: str,
    entries: list[dict[str, Any]],
    *lines: str,
    show: str = SHOW,
    after: str = "",
    nodes: bool = True,
) -> Run:
    """Start the bundle with ``entries`` as its createContainer hooks, between shell commands."""

    def change(config: dict[str, Any]) -> None:
        config["ociVersion"] = "1.0.2"
        config["hooks"] = {"createContainer": entries}
        config["process"]["args"] = ["/bin/sh", "-c", show]
        config["linux"]["cgroupsPath"] = f"/{bundle.name}"
        node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
        config["linux"]["devices"] = [node] if nodes else []

    bundle.edit(change)
    run = f"{command} --bundle {bundle.path} {bundle.name} < /dev/null"
    run += f"; code=$?; {after or 'true'}; (exit $code)"
    return bundle.on_host("\n".join([str(CGROUPS["v2"].values[0]), NO_CGROUPS, *lines, run]))


@pytest.mark.requires("busybox")
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES)
def test_one_hook_and_six_leave_the_same_container(bundle: Bundle, command: str) -> None:
    """All steps in one process leave the files that six processes leave, under both runtimes; the
    loader finds the driver, and CUDA's newer libcuda before the driver's.
    """
    prepare(bundle)
    program = cdi_hook(bundle.installed)
    seen = []
    for one in (False, True):
        again = bundle.path.parent / f"again-{one}"
        shutil.copytree(bundle.path, again, symlinks=True)
        other = Bundle.__new__(Bundle)
        other.__dict__ |= {**bundle.__dict__, "path": again}
        done = start(other, command, hooks(program, STEPS, one=one))
        assert done.returncode == 0, done.stderr
        lines = [
            re.sub(r" \(0x[0-9a-f]+\)$", "", line.replace(str(again), "BUNDLE"))
            for line in done.stdout.splitlines()
            if " - " not in line
        ]
        changes = sorted(
            line.replace(str(again), "BUNDLE")
            for line in done.changes
            if "/config.json" not in line
        )
        seen.append((lines, changes))
    assert seen[0] == seen[1]
    lines, changes = seen[1]
    text = "\n".join(lines)
    assert f"libcuda.so.1 => {COMPAT}/libcuda.so.1" in text
    assert "libdriver.so.1 => /opt/driver/libdriver.so.1" in text
    assert "y -> x" in text and f"{LIBS}/libdev.so -> libown.so.1.2" in text
    assert "mode 700" in text and '"EGLVisibleDGPUDevices",0x1]' in text
    assert not [line for line in changes if "/run/" in line or "nvgraft~" in line]


@pytest.mark.requires("busybox")
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES)
def test_a_step_that_fails_leaves_the_image_as_it_was(bundle: Bundle, command: str) -> None:
    """If the last of several steps is refused, no container starts and nothing is left."""
    prepare(bundle)
    (bundle.path / "rootfs/busy").mkdir()
    steps = [*STEPS, ["create-symlinks", "--link", "x::/busy"]]
    done = start(bundle, command, hooks(cdi_hook(bundle.installed), steps, one=True))
    assert done.returncode != 0
    assert [line for line in done.changes if "/rootfs/" in line] == []


@pytest.mark.requires("busybox")
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES)
def test_the_drivers_parameters_are_hidden(bundle: Bundle, command: str) -> None:
    """The container's file of the driver's parameters is covered, read-only, and nothing else."""
    text = "printf 'ModifyDeviceFiles: 1\\nX: 1\\n'"
    root = bundle.path / "rootfs"

    def make(driver: str) -> str:
        return (
            f"mount -t tmpfs t {driver} && mkdir {driver}/nvidia && {text} > {driver}/nvidia/params"
        )

    # No runtime mounts anything there; a real driver's files are in every procfs.
    before = {
        "path": "/bin/sh",
        "args": ["sh", "-c", make(f"{root}/proc/driver")],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
    }
    entries = hooks(cdi_hook(bundle.installed), [["disable-device-node-modification"]], one=False)
    show = f"cat {PARAMS}; (echo > {PARAMS}) 2>&1; cat /proc/self/mountinfo"
    umount = "umount -R -l /proc/driver 2> /dev/null || true"
    done = start(bundle, command, [before, *entries], umount, make("/proc/driver"), show=show)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["ModifyDeviceFiles: 0", "X: 1"]
    assert "Read-only file system" in done.stdout
    mounts = [line.split() for line in done.stdout.splitlines() if " - " in line]
    [options] = [line[5] for line in mounts if line[4] == PARAMS]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(options.split(","))
    assert not [line for line in done.changes if "/rootfs/" in line]


@pytest.mark.requires("busybox")
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES)
def test_a_user_namespace(bundle: Bundle, command: str) -> None:
    """In a user namespace the hook is a process of the container's root: what it makes belongs to
    that, and nothing of the host's /run is needed.
    """
    prepare(bundle)

    def change(config: dict[str, Any]) -> None:
        config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    bundle.edit(change)
    bundle.give_to(100000)
    steps = [step for step in STEPS if step[0] != "update-application-profile"]
    done = start(
        bundle,
        command,
        hooks(cdi_hook(bundle.installed), steps, one=True),
        bundle.reachable,
        nodes=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"libcuda.so.1 => {COMPAT}/libcuda.so.1" in done.stdout
    made = [line.split() for line in done.changes if line.startswith("> ")]
    assert any(words[1].endswith("/etc/ld.so.cache") for words in made)
    assert {words[4] for words in made if "/rootfs/" in words[1]} == {"100000"}


@pytest.mark.requires("runc", "busybox", "cgroup-v2")
@pytest.mark.parametrize("form", ["one", "each"])
def test_a_container_of_the_runtime_finds_its_driver(bundle: Bundle, form: str) -> None:
    """nvgraft-runtime in mode jit-cdi and the hooks that it writes give a container the driver."""
    bundle.set_program(LOADER_LINE)
    bundle.edit(lambda config: config.pop("hooks"))
    bundle.edit(environment("NVIDIA_VISIBLE_DEVICES=0"))
    mode = f"sed -i 's/^mode.*/mode = \"jit-cdi\"/' {CONFIG_TOML}"
    done = bundle.on_host(
        f"{CGROUPS['v2'].values[0]}; {mode}; export NVGRAFT_CDI_HOOKS={form}; {bundle.lifecycle()}"
    )
    assert done.returncode == 0, done.stderr
    output, _, document = done.stdout.partition(CONFIG)
    assert f"libcuda.so.1 => {LIBS}/libcuda.so.1" in output
    entries = json.loads(document)["hooks"]["createContainer"]
    assert (len(entries) == 1) == (form == "one")


# ---- the container's environment (SECURITY R45)


@pytest.mark.requires("busybox", "gcc")
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES)
def test_a_specification_without_env_runs_no_code_of_the_image(
    bundle: Bundle, planted: Path, command: str
) -> None:
    """A hook without an ``env`` begins as a static program: no library or module of the image runs,
    no config.toml that the image names is read, and the hook's work is done.
    """
    prepare(bundle)
    (planted / "config.toml").write_text("this is not TOML")
    entry = {
        "path": f"{bundle.installed.prefix}/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", *STEPS[0]],
    }
    bundle.edit(
        lambda config: config["process"].update(env=["PATH=/bin", *hostile_environment(planted)])
    )
    look = "test -e /run/fired && echo fired"
    done = start(bundle, command, [entry], after=look)
    assert f"{LIBS}/libdev.so -> libown.so.1.2" in done.stdout, done.stderr
    assert "fired" not in done.stdout


@pytest.mark.requires("runc", "busybox", "gcc")
def test_the_environment_of_such_a_hook_has_nothing(bundle: Bundle, planted: Path) -> None:
    """The static program hands on no variable: what the interpreter gets is empty."""
    program = cdi_hook(bundle.installed)
    assert program.read_bytes()[:4] == b"\x7fELF"
    shown = subprocess.run(
        ["strace", "-v", "-s", "1000", "-e", "execve", program, "noop"],
        capture_output=True,
        text=True,
        env={"LD_PRELOAD": f"{planted}/x.so", "PATH": "/bin", "NVIDIA_CTK_CONFIG_FILE_PATH": "/x"},
    )
    calls = [line for line in shown.stderr.splitlines() if line.startswith("execve(")]
    assert len(calls) == 2
    assert calls[1].endswith("], []) = 0")


# ---- hostile root file systems

CANARY = Path("/mnt/canary")
ROOT = Path("/mnt/bundle/rootfs")


class Done(NamedTuple):
    """A run of the hook: what it said, what it changed in the root, and on the host beside it."""

    returncode: int
    stderr: str
    changes: list[str]
    host: list[str]
    seconds: float


def fill(files: dict[str, str | None]) -> None:
    for name, text in files.items():
        path = Path(f"{ROOT}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.mkdir(exist_ok=True)
        elif text.startswith("-> "):
            path.symlink_to(text[3:])
        elif text == "fifo":
            os.mkfifo(path)
        elif text == "sparse":
            with path.open("w") as file:
                file.truncate(1 << 40)
        else:
            path.write_text(text)


def entries(top: Path) -> set[str]:
    """Return each entry below ``top``: path, type and mode, size or link target."""
    found = set()
    for directory, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = Path(directory, name)
            status = path.lstat()
            more = os.readlink(path) if path.is_symlink() else str(status.st_size)
            more = "" if stat.S_ISDIR(status.st_mode) else more
            found.add(f"{path} {status.st_mode:o} {more}")
    return found


def set_up() -> None:
    """Make a host with a canary and a bundle whose root is a mount of its own."""
    syscalls.mount("tmpfs", "/mnt", "tmpfs", 0, "mode=0755")
    CANARY.mkdir()
    (CANARY / "file").write_text("the host's")
    (CANARY / "directory").mkdir()
    ROOT.mkdir(parents=True)
    syscalls.mount("tmpfs", str(ROOT), "tmpfs", 0, "mode=0755,size=64m")
    document = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}}
    (ROOT.parent / "config.json").write_text(json.dumps(document))


def run(program: Path, words: list[str]) -> Done:
    """Run the hook."""
    state = {"id": "c", "pid": os.getpid(), "bundle": str(ROOT.parent)}
    before, host = entries(ROOT), entries(CANARY)
    mounts = Path("/proc/self/mountinfo").read_text()
    began = time.monotonic()
    with subprocess.Popen(
        [program, *words], stdin=-1, stdout=-1, stderr=-1, text=True, umask=0o022
    ) as process:
        _, said = process.communicate(json.dumps(state), timeout=60)
    seconds = time.monotonic() - began
    outside = [*entries(CANARY).symmetric_difference(host)]
    if process.returncode:
        outside += [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if line not in mounts.splitlines()
        ]
    return Done(process.returncode, said, sorted(entries(ROOT) ^ before), sorted(outside), seconds)


Hostile = Callable[[dict[str, str | None], list[str]], Done]


@pytest.fixture
def hostile(installed: Installed) -> Hostile:
    """Return a function that runs a command line on an image of the given files."""

    def attack(files: dict[str, str | None], words: list[str]) -> Done:
        def inside() -> Done:
            set_up()
            fill(files)
            return run(cdi_hook(installed), words)

        return run_in_mount_namespace(inside)

    return attack


LINK = ["create-symlinks", "--link", "x::/a/b/c"]
LDCACHE = ["update-ldcache", "--folder", "/opt/l"]
CUDA = ["enable-cuda-compat", "--host-driver-version=1.2.3"]
CHMOD = ["chmod", "--mode", "777", "--path", "/a"]
LIBCUDA = f"{COMPAT}/libcuda.so.9.9"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
ETC: dict[str, str | None] = {"/etc/debian_version": "12\n", "/proc/x": ""}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"/a": f"-> {CANARY}"}, LINK),
        ({"/a": f"-> ../../../..{CANARY}"}, LINK),
        ({"/a": "-> /proc/self/root/mnt/canary"}, LINK),
        ({"/a/b": "-> b"}, LINK),
        ({"/a/b/c/d": ""}, LINK),
        ({"/a/b/c": "fifo"}, LINK),
        ({"/a/b": "fifo"}, LINK),
        ({"/etc": f"-> {CANARY}"}, LDCACHE),
        ({**ETC, CONF: f"-> {CANARY}/directory"}, LDCACHE),
        ({**ETC, "/etc/ld.so.conf": "fifo"}, LDCACHE),
        ({**ETC, "/etc/ld.so.conf": "sparse"}, LDCACHE),
        ({**ETC, "/etc/ld.so.cache": "fifo"}, LDCACHE),
        ({**ETC, "/etc/ld.so.cache": None}, LDCACHE),
        ({LIBCUDA: "x", CONF: f"-> {CANARY}"}, CUDA),
        ({LIBCUDA: "x", "/etc": f"-> {CANARY}"}, CUDA),
    ],
)
def test_roots_that_are_refused(
    hostile: Hostile, files: dict[str, str | None], words: list[str]
) -> None:
    """A link out of the root, or something else than a file, is refused in time; nothing is made,
    in the root or outside.
    """
    done = hostile(files, words)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1 and " | " in done.stderr
    assert (done.changes, done.host) == ([], [])
    assert done.seconds < 15


@pytest.mark.parametrize(
    ("files", "words", "made"),
    [
        ({"/a": f"-> {CANARY}/file"}, CHMOD, 0),
        ({"/a": f"-> ../../../../..{CANARY}/file"}, CHMOD, 0),
        ({"/a": "-> /proc/self/cwd"}, CHMOD, 0),
        ({f"{CANARY}/file": "ours", "/a": f"-> {CANARY}/file"}, CHMOD, 2),
        ({f"{CANARY}/x": "", "/a": f"-> {CANARY}"}, LINK, 2),
        ({COMPAT: f"-> {CANARY}"}, CUDA, 0),
        ({LIBCUDA: f"-> {CANARY}/file"}, CUDA, 0),
        ({LIBCUDA: "fifo"}, CUDA, 0),
        ({**ETC, "/etc/ld.so.conf": "include /etc/ld.so.conf\n" * 9000}, LDCACHE, 4),
        ({**ETC, "/etc/ld.so.cache": f"-> {CANARY}/file"}, LDCACHE, 6),
        ({**ETC, "/opt/l": f"-> {CANARY}"}, LDCACHE, 5),
        ({"/dev": f"-> {CANARY}"}, ["update-application-profile"], 0),
        ({"/dev/nvidia0": f"-> {CANARY}/file"}, ["update-application-profile"], 0),
    ],
)
def test_roots_whose_links_stay_inside(
    hostile: Hostile, files: dict[str, str | None], words: list[str], made: int
) -> None:
    """Links are followed inside the root only: the host's files keep content and mode, and a file
    of the image in their place is changed instead.
    """
    done = hostile(files, words)
    assert done.returncode == 0, done.stderr
    assert done.host == []
    assert len(done.changes) == made, done.changes


def test_a_profile_through_a_link_stays_inside(hostile: Hostile) -> None:
    """The application profile is never written through a link out of the root."""

    def files(link: str) -> dict[str, str | None]:
        return {f"{PROFILES}/10-container.conf": f"-> {link}"}

    for link in (f"{CANARY}/file", f"../../../../../../..{CANARY}/file"):
        done = hostile(files(link), ["update-application-profile"])
        assert (done.returncode, done.host, done.changes) == (0, [], [])


@pytest.mark.parametrize(
    "names", [f"{LIBS}/lib{{}}.so.1", "/opt/l/lib{}.so.1", f"{COMPAT}/libcuda.so.1.{{}}"]
)
def test_a_directory_without_end_is_bounded(hostile: Hostile, names: str) -> None:
    """100,000 libraries cost a bounded time, and the start goes on or is refused in one line."""
    files: dict[str, str | None] = {**ETC, names.format(0): ""}
    files |= {names.format(number): "" for number in range(100_000)}
    done = hostile(files, ["steps", *CUDA, "--", *LDCACHE])
    assert len([line for line in done.stderr.splitlines() if line.startswith("nvgraft: ")]) <= 2
    assert done.seconds < 20 and done.host == []


@pytest.mark.parametrize("seed", range(6))
def test_random_roots(hostile: Hostile, seed: int) -> None:
    """Whatever links an image has, nothing outside of it changes, and a failure leaves nothing."""
    choose = random.Random(seed)
    names = ["a", "b", "etc", "ld.so.conf.d", "usr", "dev", "proc", "..", "canary", "mnt", "file"]
    files: dict[str, str | None] = {}
    for _ in range(14):
        path = "/" + "/".join(choose.choices(names, k=choose.randint(1, 3))).replace("..", "a")
        if any(path.startswith(f"{name}/") or name.startswith(f"{path}/") for name in files):
            continue
        target = "/".join(choose.choices([*names, "..", "..", ""], k=choose.randint(1, 5)))
        files[path] = choose.choice([None, "", f"-> {target or '/'}", f"-> {CANARY}"])
    words = cdi_hooks.in_one([LINK, CUDA, LDCACHE, ["update-application-profile"], CHMOD])
    done = hostile(files, words)
    assert done.host == [] and done.seconds < 15
    if done.returncode:
        assert done.changes == [], done.stderr
