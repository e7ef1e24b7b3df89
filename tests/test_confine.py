"""What a command that only looks can still do once it is confined.

Every check runs in a process of its own, because confinement cannot be undone.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvgraft_cli.shell.parser import whole_program

#: Attempts of a confined process; each fails with EPERM, or with EACCES by Landlock.
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
    """Run a program after :data:`PREFACE` in a process of its own."""
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
def test_a_confined_process_can_only_look(landlock: bool, tmp_path: Path) -> None:
    """Each attempt fails, also with CAP_DAC_READ_SEARCH.

    Without Landlock the filter still stops everything that changes a file by name.
    """
    attempts = dict(FORBIDDEN)
    without = ""
    if not landlock:
        without = """
def missing(): raise syscalls.MissingFeature(38, "landlock_create_ruleset")
syscalls.landlock_version = missing
"""
        del attempts["write a file"], attempts["add to a file"]
    program = f"""
{without}
missing = confine.look_only()
assert (missing != []) is {not landlock}, missing
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
    """A confined process reads files and directories, loads modules, and writes to /dev/null."""
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
    """Not even root keeps a capability except that of reading, and none can come back."""
    program = """
confine.look_only()
keys = ("Cap", "NoNewPrivs", "Seccomp:")
print(dict(line.split()[:2] for line in open("/proc/self/status") if line.startswith(keys)))
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
    """A command at its own memory limit prints one line and exits with 2."""
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
        == "nvgraft last-error: out of memory | use another input: this one is too large, damaged or malicious\n"
    )


def test_an_input_that_takes_all_time_is_one_line(tmp_path: Path) -> None:
    """A command at its limit of processor time prints one line and exits with 2."""
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
        == "nvgraft: the input takes more than 1 s of processor time | use another input: this one is damaged or malicious\n"
    )


def test_lower_limits_stay(tmp_path: Path) -> None:
    """Lower limits of the caller are not raised.

    A limit above the caller's hard one is not an error.
    """
    program = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (7, 9))
confine.look_only(many_inputs=True)
memory = resource.getrlimit(resource.RLIMIT_AS)[1]
print(resource.getrlimit(resource.RLIMIT_CPU), memory == confine.MEMORY * confine.MANY)
"""
    assert confined(program, tmp_path).stdout == "(7, 9) True\n"


def test_open_first_runs_before_the_command_is_confined(tmp_path: Path) -> None:
    """``open_first`` runs with the caller's rights, and the command itself confined.

    A call of main() from another program confines nothing.
    """
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
added = last_error.add_arguments
def add_arguments(parser):
    added(parser)
    parser.set_defaults(open_first=first, run=run)
last_error.add_arguments = add_arguments
assert main.main(["last-error"]) == 1
sys.argv[1:] = ["last-error"]
raise SystemExit(main.main())
"""
    done = confined(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "new").read_text() == "refused"


def test_a_debug_line_names_what_is_missing(tmp_path: Path) -> None:
    """`nvgraft --debug COMMAND` names what the kernel lacks for confining.

    Without --debug nothing is printed.
    """
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


#: Commands that act or keep running. Every other command must be confined.
ACTING = {
    "inventory",
    "watch",
    "recover",
    "snapshot",
    "simulate",
    "lab",
    "register",
    "unregister",
    "configure",
    "docker-v1",
    "list",
    "info",
}


def test_every_command_that_only_looks_is_confined() -> None:
    """Every command is confined, except those in the list of commands that act."""
    parser = whole_program()
    subparsers = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    looking = {
        name for name, command in subparsers.choices.items() if command.get_default("looks_only")
    }
    assert looking == set(subparsers.choices) - ACTING
