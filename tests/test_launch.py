"""How the hook starts: the process state that it inherits is checked and reset."""

import json
import os
import posix
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.system import syscalls
from nvgraft.system.launch import DEADLINE, Interrupted, check_environment, check_identity
from nvgraft_specs.names import HOOK_TIMEOUT


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH"]
)
@pytest.mark.parametrize("value", ["/proc/self/cwd/x.so", ""])
def test_variables_of_the_loader_are_refused(name: str, value: str) -> None:
    """Each variable of the loader, empty or not, is refused by name, with the fix."""
    with pytest.raises(Refusal) as caught:
        check_environment({"PATH": "/bin", name: value})
    assert caught.value.text == f"environment variable {name} is set for the hook"
    assert "env" in caught.value.hint


def test_other_variables_are_accepted() -> None:
    """Python's own variables are accepted: they have no effect under -I."""
    check_environment(
        {"PATH": "/bin", "PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "LD_PRELOAD_": "x"}
    )


def test_an_interpreter_that_is_not_isolated_is_refused() -> None:
    """An interpreter without -I and -S is refused, because it may have run a foreign module
    already.
    """
    check = (
        f"import sys; sys.path += {sys.path!r}; from nvgraft.system.launch import"
        " check_interpreter; check_interpreter()"
    )
    for flags, accepted in (
        (["-ISB"], True),
        (["-IS"], True),
        (["-IB"], False),
        (["-SB"], False),
        ([], False),
    ):
        environ = {} if "-IS" in flags[0:1] else {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, *flags, "-c", check],
            env=environ,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode == 0) is accepted, flags
        assert accepted or "the Python interpreter of the hook is not isolated" in done.stderr


@pytest.mark.parametrize(
    ("ids", "groups", "secure"),
    [
        ((1000, 0, 0), (0, 0, 0), False),
        ((0, 0, 0), (0, 0, 5), False),
        ((0, 1000, 0), (0, 0, 0), False),
        ((0, 0, 0), (0, 0, 0), True),
    ],
)
def test_a_caller_with_fewer_rights_is_refused(
    ids: tuple[int, ...], groups: tuple[int, ...], secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook refuses to run with set-user-ID, set-group-ID or file capabilities."""
    monkeypatch.setattr(posix, "getresuid", lambda: ids)
    monkeypatch.setattr(posix, "getresgid", lambda: groups)
    monkeypatch.setattr(syscalls, "is_secure_execution", lambda: secure)
    with pytest.raises(Refusal) as caught:
        check_identity()
    assert (
        caught.value.reference_line()
        == "nvgraft: permission error: capability change failed: operation not permitted"
    )
    assert "set-user-ID" in caught.value.hint


def test_an_ordinary_caller_is_accepted() -> None:
    """Equal ids without privileges from the program file are accepted."""
    check_identity()


def run(script: str, cwd: Path | str = "/", **settings: Any) -> Any:
    """Run ``script`` in a new interpreter and return what it prints as JSON."""
    head = (
        "import ctypes, os, posix, resource, sys, json, signal\nfrom nvgraft.system import launch\n"
    )
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", head + script],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_process_is_put_into_a_known_state(tmp_path: Path) -> None:
    """Signals, descriptors, umask and limits are reset, as crun starts hooks with foreign ones. The
    old directory is returned.
    """
    script = """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
foreign = [os.open("/", os.O_RDONLY), *(os.dup2(0, fd) for fd in (*range(5, 21), 200))]
os.umask(0o077)
os.close(0)
directory = launch.reset_process()
umask = os.umask(0)
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "core": resource.getrlimit(resource.RLIMIT_CORE), "new privileges": status["NoNewPrivs"] == "0",
    "dumpable": ctypes.CDLL(None).prctl(3), "held": [os.path.samefile(f"/proc/self/fd/{directory}", "."), os.get_inheritable(directory)],
    "directory": launch.path_of(directory), "cwd": os.getcwd(), "umask": umask,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
    "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:3],
    "foreign": [fd for fd in foreign if os.path.exists(f"/proc/self/fd/{fd}") and fd not in (0, directory)],
    "stdin": os.readlink("/proc/self/fd/0"),
}))
"""
    assert run(script, tmp_path) == {
        "core": [0, 0],
        "new privileges": False,
        "dumpable": 0,
        "held": [False, False],
        "directory": str(tmp_path),
        "cwd": "/",
        "umask": 0o022,
        "blocked": 0,
        "ignored": [13, 25],
        "open": [0, 1, 2],
        "foreign": [],
        "stdin": "/dev/null",
    }


@pytest.mark.requires("sh")
@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_closed_standard_stream_becomes_dev_null(closed: list[int], tmp_path: Path) -> None:
    """A file opened early by a library under the number of a closed stream is replaced by
    /dev/null.
    """
    script = f"""
while os.open("/etc/passwd", os.O_RDONLY) < 3:
    pass
before = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in {closed}]
launch.reset_process()
after = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in {closed}]
open({str(tmp_path / "seen")!r}, "w").write(json.dumps([before, after]))
"""
    code = "import json, os, sys\nfrom nvgraft.system import launch\n" + script
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = " ".join(f"{fd}>&-" for fd in closed)
    subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {words}', "sh", sys.executable, "-c", code],
        env=environ,
        check=True,
        timeout=30,
    )
    before, after = json.loads((tmp_path / "seen").read_text())
    assert all(name.startswith(("/etc/", "/usr/")) for name in before), (
        "opened by libffi or by the script"
    )
    assert after == ["/dev/null"] * len(closed)


def test_a_removed_directory_is_replaced_by_the_root(tmp_path: Path) -> None:
    """A removed working directory counts as /: only a relative root.path would need it."""
    script = f"""
os.mkdir("{tmp_path}/d"); os.chdir("{tmp_path}/d"); os.rmdir("{tmp_path}/d")
print(json.dumps(launch.path_of(launch.reset_process())))
"""
    assert run(script) == "/"


@pytest.mark.parametrize("number", [15, 2, 1, 14])
def test_an_ending_signal_interrupts_once(number: int) -> None:
    """An ending signal raises an exception that `except Exception` does not catch; later ones wait
    for the undo.
    """
    script = f"""
launch.reset_process()
try:
    try:
        os.kill(os.getpid(), {number})
        signal.pause()
    except Exception:
        print(json.dumps("swallowed"))
except launch.Interrupted as interrupted:
    for other in launch.ENDING_SIGNALS:
        os.kill(os.getpid(), other)
    print(json.dumps(interrupted.number))
    sys.stdout.flush()
    os._exit(0)
"""
    assert run(script) == number


def test_an_unreadable_directory_is_replaced_by_the_root(tmp_path: Path) -> None:
    """A working directory that the hook may not search counts as /, for a rootless hook started in
    another user's.
    """
    script = f"""
os.mkdir("{tmp_path}/d"); os.chdir("{tmp_path}/d")
opened = os.open
def refused(path, *rest, **more):
    if path == ".":
        raise PermissionError(13, "x")
    return opened(path, *rest, **more)
posix.open = refused
print(json.dumps(launch.path_of(launch.reset_process())))
"""
    assert run(script) == "/"


def test_a_renamed_directory_is_still_used(tmp_path: Path) -> None:
    """Relative paths are looked up in the directory's descriptor, whatever its name is by then."""
    script = f"""
os.mkdir("{tmp_path}/d"); os.chdir("{tmp_path}/d"); open("x", "w").write("content")
directory = launch.reset_process()
os.rename("{tmp_path}/d", "{tmp_path}/e")
print(json.dumps([launch.path_of(directory), os.read(os.open("x", os.O_RDONLY, dir_fd=directory), 9).decode()]))
"""
    assert run(script) == [f"{tmp_path}/e", "content"]


def test_the_deadline_interrupts_a_blocked_read() -> None:
    """The deadline is in wall time and ends a process that sleeps or waits, though signals were
    blocked before.
    """
    script = """
import time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
launch.reset_process()
launch.set_deadline(0.05)
start = time.monotonic()
try:
    os.read(os.pipe()[0], 1)
except launch.Interrupted as interrupted:
    print(json.dumps([interrupted.number, time.monotonic() - start < 5]))
"""
    assert run(script) == [14, True]


def test_the_deadline_leaves_time_to_undo() -> None:
    """The deadline leaves time to undo before the runtime's ends; the message gives the cause, not
    the signal.
    """
    assert 5 <= HOOK_TIMEOUT - DEADLINE < HOOK_TIMEOUT / 2
    assert (
        Interrupted(14).line()
        == f"nvgraft: not done after {DEADLINE} s, and a runtime waits for {HOOK_TIMEOUT} s;"
        " everything was undone"
    )
    assert Interrupted(15).line("cli") == "cli: interrupted by signal 15; everything was undone"
