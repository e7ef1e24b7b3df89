"""Reading commands as nobody, killed at any privileged call (SECURITY R39, T67)."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from harness import CHECKOUT, Installed
from nvgraft_cli.shell import confine
from nvgraft_cli.shell.parser import whole_program

NOBODY = 65534

#: System calls that a command that only reads never makes.
DEADLY = """
    mount umount2 pivot_root chroot open_tree move_mount fsopen fsmount mount_setattr setns unshare
    bpf ptrace perf_event_open process_vm_readv init_module finit_module keyctl io_uring_setup
    socket connect bind sendto sendmsg
    chmod chown mkdir mkdirat mknod mknodat unlink unlinkat rename renameat2 symlinkat linkat kill
"""

#: Runs a command as nobody and without HOME; the calls whose numbers are the first argument kill
#: it.
WRAPPER = """
import os, struct, sys
from nvgraft.system import syscalls
import prctl
numbers = [int(word) for word in sys.argv[1].split(",")]
steps = [(0x20, 0, 0, 0)] + [(0x15, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
steps += [(6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x80000000)]
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
prctl.set_no_new_privs(1)
syscalls.set_seccomp_filter(b"".join(struct.pack("=HBBI", *step) for step in steps))
os.execve(sys.argv[2], sys.argv[2:], {"PATH": "/usr/bin:/bin"})
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a directory that the user nobody can read, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="nvgraft-test."))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the wrapper."""
    column = 0 if os.uname().machine == "x86_64" else 1
    numbers = ",".join(
        str(number)
        for name in DEADLY.split()
        if (number := confine.DENIED[name][column]) is not None
    )
    return subprocess.run(
        [sys.executable, "-c", WRAPPER, numbers, *command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )


@pytest.mark.requires("root")
def test_the_wrapper_kills(place: Path) -> None:
    """The kernel ends a program that makes a forbidden call, so that the tests below can fail."""
    program = "import os; print('started', flush=True); os.mkdir('x')"
    done = run(["/usr/bin/python3", "-ISc", program], place)
    assert (done.returncode, done.stdout) == (-31, "started\n")  # SIGSYS


#: Every command that only reads, with its exit code (None: it depends on the machine).
CASES = [
    (["plan", "--bundle", "web", "--host", "runfile-a10x2"], 0),
    (["--debug", "plan", "--bundle", "web", "--host", "eks-t4", "--format", "json"], 0),
    (["plan", "--bundle", "none", "--host", "eks-t4"], 0),
    (["plan", "--bundle", "refused", "--host", "eks-t4"], 1),
    (["plan", "--bundle", "lost", "--host", "eks-t4"], 2),
    (["plan", "--bundle", "web", "--host", "bad.json"], 2),
    (["matrix", "eks-t4", "mig-h100", "--bundles", "web", "none", "--jobs", "2"], 0),
    (["diff", "eks-t4", "runfile-a10x2", "--bundle", "web"], 1),
    (["plan", "--bundle", "web", "--host", "runfile-a10x2", "--format", "cdi"], 0),
    (["cdi", "generate", "--host", "mig-h100"], 0),
    (["cdi", "generate", "--host", "bad.json"], 2),
    (["cdi", "list", "--spec-dir", "specifications"], 0),
    (["cdi", "validate", "bad.json"], 1),
    (["cdi", "transform", "root", "--from", "/", "--to", "/x", "--input", "bad.json"], 2),
    (["export", "pod-volumes", "--host", "eks-t4"], 0),
    (["dra", "slices", "--host", "eks-t4"], 0),
    (["plan", "--pod", "pod.yaml", "--host", "runfile-a10x2"], 0),
    (["prove", "--bundle", "web", "--host", "eks-t4"], 1),
    (["why", "nvidia-smi", "--bundle", "web", "--host", "eks-t4"], 0),
    (["doctor", "--bundle", "web", "--host", "eks-t4"], 1),
    (["doctor"], None),
    (["explain", "--bundle", "web", "--host", "eks-t4"], 0),
    (["explain", "--bundle", "refused", "--host", "eks-t4", "--format", "json"], 1),
    (
        [
            "explain-error",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded \x1b[2J",
        ],
        0,
    ),
    (["last-error"], None),
    (["help", "driver", "root"], 0),
    (["help", "nvml-slow"], 0),
]


def test_every_command_that_only_looks_is_tried() -> None:
    """CASES has a command line for each command that only reads."""
    subparsers = next(
        action
        for action in whole_program()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    looking = {
        name for name, command in subparsers.choices.items() if command.get_default("looks_only")
    }
    assert looking == {
        next(word for word in arguments if not word.startswith("-")) for arguments, _ in CASES
    }


@pytest.mark.requires("root")
@pytest.mark.parametrize(
    ("arguments", "code"),
    CASES,
    ids=[" ".join(arguments[:4]).replace("\x1b", "") for arguments, _ in CASES],
)
def test_a_reading_command_needs_no_privilege(
    arguments: list[str], code: int | None, installed: Installed, place: Path
) -> None:
    """As nobody, without HOME, under the filter, each command answers with its exit code."""
    make_bundle(place / "web", *EVERYTHING)
    make_bundle(place / "none")
    make_bundle(place / "refused", *EVERYTHING, "NVIDIA_REQUIRE_CUDA=cuda>=99")
    make_bundle(place / "lost", *EVERYTHING, root="nowhere")
    (place / "specifications").mkdir()
    (place / "bad.json").write_text('{"name": "\x1b]0;x\x07"}')
    shutil.copy(CHECKOUT / "docs/pods/training.yaml", place / "pod.yaml")
    done = run([str(installed.cli), *arguments], place)
    assert done.returncode in ((1, 2) if code is None else (code,)), done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    if arguments[0] == "--debug":
        assert "missing=nothing" in done.stderr


#: Command lines in which {closed} is a file that nobody may not read.
CLOSED = [
    ["plan", "--bundle", "{closed}", "--host", "eks-t4"],
    ["plan", "--bundle", "{closed}/..", "--host", "eks-t4"],
    ["explain", "--bundle", "web", "--host", "{closed}"],
    ["why", "x", "--bundle", "web", "--host", "eks-t4", "--config", "{closed}"],
    ["doctor", "--host", "eks-t4", "--cdi", "{closed}"],
    ["prove", "--bundle", "web", "--host", "{closed}"],
    ["diff", "{closed}", "eks-t4", "--bundle", "web"],
    ["matrix", "{closed}", "--bundles", "web"],
    ["cdi", "generate", "--host", "{closed}"],
    ["snapshot", "--config", "{closed}"],
    ["simulate", "{closed}", "--", "true"],
]


@pytest.mark.requires("root")
@pytest.mark.parametrize("arguments", CLOSED, ids=lambda words: " ".join(words[:3]))
def test_an_unreadable_file_is_named(
    arguments: list[str], installed: Installed, place: Path
) -> None:
    """A command that may not read its input names path, cause and fix, and ends with 2."""
    make_bundle(place / "web", *EVERYTHING)
    (place / "private").mkdir(mode=0o711)
    closed = place / "private/closed"
    closed.write_text("{}")
    closed.chmod(0)
    if arguments[2] == "{closed}/..":
        closed = place / "private"
        closed.chmod(0)
        arguments = [word.removesuffix("/..") for word in arguments]
    done = run([str(installed.cli), *(word.format(closed=closed) for word in arguments)], place)
    closed.chmod(0o700)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert str(closed) in done.stderr
    assert "permission denied" in done.stderr


@pytest.mark.requires("root")
def test_root_can_read_another_users_bundle(installed: Installed, place: Path) -> None:
    """Root keeps the capability to read a rootless engine's bundle, which others cannot."""
    bundle = make_bundle(place / "web", *EVERYTHING)
    for path in (bundle, *bundle.rglob("*")):
        os.chown(path, 1000, 1000)
        path.chmod(0o700 if path.is_dir() else 0o600)
    done = subprocess.run(
        [installed.cli, "plan", "--bundle", bundle, "--host", "eks-t4"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.requires("root")
def test_this_host_is_read_before_the_command_is_confined(
    installed: Installed, place: Path
) -> None:
    """Without --host the hook's child loads NVML; a confined command could not start this child."""
    make_bundle(place / "web", *EVERYTHING)
    make_bundle(place / "none")
    cli = str(installed.cli)
    simulate = [cli, "simulate", "runfile-a10x2", "--", cli, "plan", "--bundle"]
    done = subprocess.run([*simulate, place / "web"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nvidia0" in done.stdout
    # A plan that needs no driver does not fail when there is none.
    done = subprocess.run(
        [installed.cli, "plan", "--bundle", place / "none"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("skip: ")


#: Commands that read the specifications of this machine.
OF_SPECIFICATIONS = (
    "plan --mode cdi --bundle web",
    "why libcuda.so.1 --mode cdi --bundle web",
    "prove --mode cdi --bundle web",
    "explain --mode cdi --bundle web",
    "doctor --mode cdi --bundle web",
    "diff --mode legacy,cdi web",
)


@pytest.mark.requires("root")
def test_root_reads_a_specification_in_yaml(installed: Installed, place: Path) -> None:
    """Confined root reads /etc/cdi/nvidia.yaml, which no start of a container has converted
    before: each command answers with the devices that it has.
    """
    make_bundle(place / "web", "NVIDIA_VISIBLE_DEVICES=0")
    cli = installed.cli
    script = f"mkdir -p /etc/cdi && {cli} cdi generate -o /etc/cdi/nvidia.yaml\n"
    script += "".join(f"echo == {words}; {cli} {words} 2>&1\n" for words in OF_SPECIFICATIONS)
    done = subprocess.run(
        [cli, "simulate", "runfile-a10x2", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=place,
        timeout=300,
    )
    answers = done.stdout.split("== ")[1:]
    assert len(answers) == len(OF_SPECIFICATIONS), done.stderr
    assert [answer for answer in answers if "unresolvable" in answer] == []
    assert all("libcuda.so" in answer for answer in answers[:4]), answers
