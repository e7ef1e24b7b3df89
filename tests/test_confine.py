"""What a command that only looks can do once it is confined. Every check runs in a process of its own: there is no way back."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvgraft_cli.shell import main

#: What a confined process tries; each of them fails with EPERM, or with EACCES where Landlock says no.
FORBIDDEN = {
    "write a file": "open(target, 'w')",
    "add to a file": "open(own, 'a')",
    "remove a file": "os.unlink(own)",
    "change a mode": "os.chmod(own, 0o777)",
    "change a time": "os.utime(own)",
    "make a directory": "os.mkdir(target)",
    "make a link": "os.symlink('x', target)",
    "run a program": "os.execv('/bin/true', ['true'])",
    "end a process": "os.kill(os.getppid(), 0)",
    "open a socket": "socket.socket(socket.AF_UNIX)",
    "open a network socket": "socket.socket(socket.AF_INET)",
    "mount": "syscalls.mount('x', '/', 'tmpfs', 0)",
    "open a mount": "syscalls.open_tree(-100, '/', syscalls.OPEN_TREE_CLONE)",
    "enter a namespace": "syscalls.setns(syscalls.pidfd_open(os.getpid()), syscalls.CLONE_NEWNS)",
    "make a user namespace": "syscalls.unshare(syscalls.CLONE_NEWUSER)",
    "load a program into the kernel": "syscalls.bpf(0, ctypes.create_string_buffer(128))",
    "trace a process": "check(ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0))",
}

PREFACE = """
import ctypes, os, socket, sys
from nvgraft.system import syscalls
from nvgraft_cli.shell import confine
own, target = sys.argv[1:]
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
"""


def confined(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program after :data:`PREFACE`."""
    own = directory / "own"
    own.write_text("text")
    return subprocess.run(
        [sys.executable, "-B", "-c", PREFACE + program, own, directory / "new"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )


@pytest.mark.parametrize("landlock", [True, False], ids=["with Landlock", "without"])
def test_nothing_is_left_but_looking(landlock: bool, tmp_path: Path) -> None:
    """Each attempt fails, also with CAP_DAC_READ_SEARCH; without Landlock the filter still stops all that changes a file by name."""
    attempts = dict(FORBIDDEN)
    without = ""
    if not landlock:
        without = "def missing(): raise syscalls.MissingFeature(38, 'landlock_create_ruleset')\nsyscalls.landlock_version = missing\n"
        del attempts["write a file"], attempts["add to a file"]
    program = f"""
{without}
said = confine.look_only()
assert (said != []) is {not landlock}, said
for name, attempt in {attempts!r}.items():
    try:
        eval(attempt)
    except OSError as error:
        print(name + ": " + ("refused" if error.errno in (1, 13) else str(error)))
    else:
        print(name + ": done")
"""
    done = confined(program, tmp_path)
    assert done.stdout.splitlines() == [f"{name}: refused" for name in attempts], done.stderr
    assert (tmp_path / "own").read_text() == "text"
    assert not (tmp_path / "new").exists()


def test_looking_still_works(tmp_path: Path) -> None:
    """Files and directories are read, modules are loaded, and what nobody reads goes to /dev/null."""
    program = """
before = os.open(own, os.O_PATH)
assert confine.look_only() == []
assert open(own).read() == "text"
assert open(f"/proc/self/fd/{before}").read() == "text"
assert "own" in os.listdir(os.path.dirname(own))
import wave, tomllib
open(os.devnull, "w").write("x")
print("looked")
"""
    done = confined(program, tmp_path)
    assert done.stdout == "looked\n", done.stderr


def test_no_privilege_is_left(tmp_path: Path) -> None:
    """Not even root has a capability but that of reading, and none comes back."""
    program = """
confine.look_only()
print({line.split()[0]: line.split()[1] for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))})
"""
    status = eval(confined(program, tmp_path).stdout)
    allowed = 1 << 2  # CAP_DAC_READ_SEARCH
    assert int(status["CapPrm:"], 16) | allowed == allowed
    assert int(status["CapEff:"], 16) | allowed == allowed
    assert (status["CapInh:"], status["CapAmb:"], status["NoNewPrivs:"], status["Seccomp:"]) == (
        "0" * 16,
        "0" * 16,
        "1",
        "2",
    )


def test_an_input_that_takes_all_memory_is_one_line(tmp_path: Path) -> None:
    """Exit 2 and no traceback: the command has a limit of its own, before the machine has."""
    program = """
from nvgraft_cli.last_error import command as last_error
from nvgraft_cli.shell import main
last_error.run = lambda args: bytearray(confine.MEMORY)
sys.argv[1:] = ["last-error"]
raise SystemExit(main.main())
"""
    done = confined(program, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "nvgraft last-error: out of memory | the input is too large, damaged or malicious\n"
    )


def test_an_input_that_takes_all_time_is_one_line(tmp_path: Path) -> None:
    """Exit 2 when the limit of processor time is reached."""
    program = """
confine.SECONDS = 1
confine.look_only()
while True:
    pass
"""
    done = confined(program, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "nvgraft: the input takes more than 1 s of processor time | it is damaged or malicious\n"
    )


def test_lower_limits_stay(tmp_path: Path) -> None:
    """What the caller has limited further is not raised, nor does a limit above the caller's hard one fail."""
    program = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (7, 9))
confine.look_only(many_inputs=True)
print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_AS)[1] == confine.MEMORY * confine.MANY)
"""
    assert confined(program, tmp_path).stdout == "(7, 9) True\n"


def test_what_a_command_needs_before_is_done_before(tmp_path: Path) -> None:
    """``open_first`` runs with the caller's rights, the command itself without; a call from another program confines nothing."""
    program = """
from nvgraft_cli.last_error import command as last_error
from nvgraft_cli.shell import main
def first(args):
    os.chmod(own, 0o600)
    args.opened = open(target, "w")
def run(args):
    try:
        os.chmod(own, 0o644)
    except PermissionError:
        args.opened.write("refused")
        return 0
    return 1
added = last_error.add_parser
def add_parser(subparsers):
    added(subparsers)
    subparsers.choices["last-error"].set_defaults(open_first=first, run=run)
last_error.add_parser = add_parser
assert main.main(["last-error"]) == 1
sys.argv[1:] = ["last-error"]
raise SystemExit(main.main())
"""
    done = confined(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new").read_text() == "refused"


def test_a_debug_line_tells_what_is_missing(tmp_path: Path) -> None:
    """`nvgraft --debug COMMAND` says so on a kernel that cannot confine; without it nothing is said."""
    program = """
from nvgraft_cli.shell import main
def missing(): raise syscalls.MissingFeature(38, "landlock_create_ruleset")
syscalls.landlock_version = missing
sys.argv[1:] = sys.argv[1:][:0] + OPTIONS + ["plan", "--host", "eks-t4", "--bundle", own]
raise SystemExit(main.main())
"""
    loud = confined(program.replace("OPTIONS", "['--debug']"), tmp_path).stderr.splitlines()
    quiet = confined(program.replace("OPTIONS", "[]"), tmp_path).stderr.splitlines()
    assert loud[0].startswith(
        "nvgraft plan: debug: confined: missing=Landlock: landlock_create_ruleset: ENOSYS"
    )
    assert loud[1:] == quiet


#: What acts, or keeps running; everything else that there will ever be is confined.
ACTING = {
    "inventory",
    "watch",
    "recover",
    "snapshot",
    "simulate",
    "register",
    "unregister",
    "configure",
    "list",
    "info",
}


def test_every_command_that_only_looks_is_confined() -> None:
    """A new command is confined, or stands in the list of those that act."""
    parser = main._parser()
    subparsers = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    looking = {
        name for name, command in subparsers.choices.items() if command.get_default("looks_only")
    }
    assert looking == set(subparsers.choices) - ACTING
