"""FUSE file systems in a container, whose servers may never answer: SECURITY R42, under runc.

The servers answer until the hook starts and are silent from then on. Every start ends long before
the hook's own deadline, or the test ends the server and fails.
"""

import os
import re
import subprocess
import time
from typing import Any, NamedTuple

import pytest

from containers import HOST, LOOK, Bundle, set_ldcache
from harness import CHECKOUT
from nvgraft.system.launch import DEADLINE

pytestmark = pytest.mark.requires("root", "overlayfs", "runc", "busybox", "fuse")

#: The file whose presence silences the servers. The bundle's first hook makes it.
SILENCE = "/run/silence"
SERVE = (
    'servers="$servers $(/usr/bin/python3 '
    f'{CHECKOUT}/integration/fuse_server.py {{}} --silent-when {SILENCE})"'
)
ALLOWED = "sed -i '/^simulated-host/a allow-fuse = true' /etc/nvidia-container-runtime/config.toml"


class Started(NamedTuple):
    """What a start has said, with the exit code of runc and the seconds that it took."""

    output: str
    code: int
    seconds: float


def start(
    bundle: Bundle,
    volumes: dict[str, str],
    *,
    prepare: str = "true",
    silent: bool = True,
    fuse_root: str = "",
    after: str = "true",
) -> Started:
    """Start the container on a simulated host with FUSE volumes; their servers end with it.

    :param volumes: path in the container -> path below the volume that is mounted there ("" for all
        of it). The volume is a copy of this directory of the image, if there is one.
    :param fuse_root: type of the FUSE file system that serves the root file system, if one does,
        and further options of the server.
    :param after: a shell command for the end.
    """
    rootfs = bundle.path / "rootfs"
    # A simulated host has a /dev of its own.
    commands = [prepare, "mkdir /run/fuse", "[ -e /dev/fuse ] || mknod /dev/fuse c 10 229"]
    mounts: list[dict[str, Any]] = []
    for number, (place, below) in enumerate(volumes.items()):
        source, point = f"/run/fuse/s{number}", f"/run/fuse/m{number}"
        commands.append(f"mkdir {source} {point}")
        if (rootfs / place[1:]).exists():
            commands.append(f"cp -a {rootfs}{place}{'/.' if not below else ''} {source}/")
        commands.append(SERVE.format(f"{source} {point}"))
        options = ["bind", "nosuid", "nodev"]
        mounts.append(
            {"destination": place, "type": "bind", "source": point + below, "options": options}
        )
    if fuse_root:
        commands.append("mkdir /run/fuse/root")
        commands.append(SERVE.format(f"{rootfs} /run/fuse/root --type {fuse_root}"))

    def change(config: dict[str, Any]) -> None:
        config["mounts"] += mounts
        if silent:
            silence = {"path": "/bin/touch", "args": ["touch", SILENCE]}
            config["hooks"]["prestart"].insert(0, silence)
        if fuse_root:
            config["root"]["path"] = "/run/fuse/root"

    bundle.edit(change)
    run = f"runc --root /run/runc-test run --bundle {bundle.path} {bundle.name}"
    # The server's death aborts every request, so that the test ends where the hook does not.
    kill = "kill -9 $servers"
    commands.append(f"(sleep {DEADLINE / 2:g}; {kill}) > /dev/null 2>&1 & late=$!")
    said = f"{bundle.installed.cli} last-error 2> /dev/null"
    commands.append(
        f"code=0; {run} || code=$?; {said} || true; {after} || true; kill $late; {kill} 2> /dev/null; exit $code"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [str(bundle.installed.cli), "simulate", HOST, "--", "sh", "-ec", "\n".join(commands)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        stdin=subprocess.DEVNULL,
    )
    return Started(done.stdout + done.stderr, done.returncode, time.monotonic() - begun)


def test_a_fuse_volume_that_is_not_needed_is_not_touched(bundle: Bundle) -> None:
    """A silent FUSE volume elsewhere in the container does not disturb: the hook never looks at
    it.
    """
    bundle.set_program(LOOK)
    done = start(bundle, {"/data": ""})
    assert done.code == 0, done.output
    assert "/dev/nvidia0" in done.output
    assert done.seconds < DEADLINE / 2


@pytest.mark.parametrize(
    "place",
    [
        "/usr/lib/x86_64-linux-gnu",
        "/usr",
        "/etc",
        "/etc/ld.so.conf",
        "/usr/bin",
    ],
)
def test_a_fuse_volume_that_must_be_touched_is_refused(bundle: Bundle, place: str) -> None:
    """A silent FUSE volume in the place of what the hook must look at is refused by name."""
    rootfs = bundle.path / "rootfs"
    below = ""
    if place == "/etc/ld.so.conf":
        (rootfs / "etc").mkdir(exist_ok=True)
        (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n")
        below = "/ld.so.conf"
    bundle.set_program("echo started")
    done = start(bundle, {place: below})
    assert done.code != 0, done.output
    assert f"it is on the FUSE volume {place}, which may never answer | " in done.output
    assert "set `allow-fuse = true` in [nvgraft] of config.toml" in done.output
    assert done.seconds < DEADLINE / 2


def test_optional_parts_on_fuse_volumes_are_left_out(bundle: Bundle) -> None:
    """Where only optional parts are on silent FUSE volumes, the container starts without them, and
    warnings name the volumes.
    """
    rootfs = bundle.path / "rootfs"
    (rootfs / "usr/local/cuda/compat").mkdir(parents=True)
    (rootfs / "opt/lib").mkdir(parents=True)
    (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n/srv/link\n")
    (rootfs / "srv").mkdir()
    (rootfs / "srv/link").symlink_to("/opt/lib/below")
    bundle.set_program(LOOK)
    done = start(bundle, {"/usr/local/cuda/compat": "", "/opt/lib": "", "/lib/firmware": ""})
    assert done.code == 0, done.output
    assert "/dev/nvidia0" in done.output
    assert "libcuda.so" in done.output
    volume = "/usr/local/cuda/compat is on the volume /usr/local/cuda/compat"
    assert f"{volume}: its libraries do not come before the driver's" in done.output
    assert "on FUSE volumes, which may never answer, are not in the loader cache: /opt/lib |" in (
        done.output
    )
    assert done.seconds < DEADLINE / 2


def test_an_allowed_fuse_volume_is_used(bundle: Bundle) -> None:
    """With allow-fuse = true, a FUSE volume is treated like any other one."""
    bundle.set_program(LOOK)
    done = start(bundle, {"/usr/local/cuda/compat": ""}, prepare=ALLOWED, silent=False)
    assert done.code == 0, done.output
    assert "/dev/nvidia0" in done.output
    assert "FUSE" not in done.output


def test_a_root_on_fuse_is_refused(bundle: Bundle) -> None:
    """A silent FUSE root file system is refused before anything in it is looked at."""
    bundle.set_program("cat /proc/self/mountinfo")
    done = start(bundle, {}, fuse_root="fuse.sshfs")
    assert done.code != 0, done.output
    assert "it is on a FUSE file system (fuse.sshfs), which may never answer | " in done.output
    assert done.seconds < DEADLINE / 2


@pytest.mark.parametrize(
    ("kind", "prepare"), [("fuse.fuse-overlayfs", "true"), ("fuse.sshfs", ALLOWED)]
)
def test_a_root_on_fuse_that_is_accepted(bundle: Bundle, kind: str, prepare: str) -> None:
    """A root file system by fuse-overlayfs that root has mounted works as any other one, and others
    do with allow-fuse = true.
    """
    bundle.set_program("cat /proc/self/mountinfo")
    done = start(bundle, {}, fuse_root=kind, prepare=prepare, silent=False)
    assert done.code == 0, done.output
    assert " /usr/bin/nvidia-smi ro," in done.output


def test_the_hosts_ldconfig_is_given_up(bundle: Bundle) -> None:
    """With ldcache = "ldconfig", a silent FUSE volume of ld.so.conf holds up the child that runs
    ldconfig, and not the hook.
    """
    rootfs = bundle.path / "rootfs"
    (rootfs / "etc/ld.so.conf").write_text("/opt/lib\n")
    bundle.set_program("echo started")
    done = start(bundle, {"/opt/lib": ""}, prepare=set_ldcache("ldconfig"))
    assert done.code != 0, done.output
    assert "nvgraft: ldcache error: process " in done.output
    assert done.seconds < DEADLINE / 2


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        (
            "/etc",
            1,
            "nvgraft: mount error: path error: {rootfs}/etc: it is on the FUSE volume /etc",
        ),
        ("", 2, "nvgraft plan: {rootfs}: it is on the FUSE file system {rootfs}, which may never"),
        ("/data", 0, ""),
    ],
)
def test_a_command_does_not_wait(bundle: Bundle, place: str, code: int, said: str) -> None:
    """Commands that look at a root file system on which a silent FUSE file system is mounted, or
    that is one, end at once with the cause.
    """
    rootfs = bundle.path / "rootfs"
    (rootfs / "data").mkdir()
    commands = ["[ -e /dev/fuse ] || mknod /dev/fuse c 10 229", "mkdir /run/empty"]
    commands.append(SERVE.format(f"/run/empty {rootfs}{place}"))
    commands.append(f"touch {SILENCE}; (sleep 60; kill -9 $servers) > /dev/null 2>&1 &")
    for command in ("plan", "doctor", "prove", "explain", "why libcuda.so.1"):
        run = f"timeout 60 {bundle.installed.cli} {command} --host {HOST} --bundle {bundle.path}"
        commands.append(f"{run}; echo {command}: $?")
    commands.append("kill -9 $servers")
    line = [str(bundle.installed.cli), "simulate", HOST, "--", "sh", "-c", "\n".join(commands)]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL
    )
    for command in ("plan", "prove", "explain", "why libcuda.so.1"):
        # prove has an exit code of its own for a container that the hook refuses.
        ended = 3 if command == "prove" and code == 1 else code
        assert f"\n{command}: {ended}\n" in "\n" + done.stdout, done.stdout + done.stderr
    assert re.search(r"^doctor: [012]$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert said.format(rootfs=rootfs) in done.stdout + done.stderr


def test_an_undo_where_deleted_files_stay_until_they_are_closed(bundle: Bundle) -> None:
    """On a file system that keeps deleted open files under another name, an undo leaves nothing and
    the refusal is the ordinary one.
    """
    rootfs = bundle.path / "rootfs"
    (rootfs / "etc/ld.so.conf").unlink()
    os.mkfifo(rootfs / "etc/ld.so.conf")  # refused after all mounts
    bundle.set_program("echo started")
    files = f"find {rootfs} | sort"
    done = start(
        bundle,
        {},
        fuse_root="fuse.fuse-overlayfs --hide",
        silent=False,
        prepare=f"{files} > /run/before",
        after=f"{files} | diff /run/before - && echo unchanged",
    )
    assert done.code != 0, done.output
    assert "nvgraft: ldcache error: process /sbin/ldconfig failed with error code" in done.output
    assert "left behind" not in done.output
    made = [line for line in done.output.splitlines() if line.startswith("> ")]
    # runc makes mount points, too.
    assert [line for line in made if "nvidia" in line or "cuda" in line or ".fuse" in line] == []
