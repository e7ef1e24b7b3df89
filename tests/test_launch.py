"""The hook's first moments: whatever a runtime hands down is put into a known state."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft.errors import Refusal
from nvgraft.launch import check_environment


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH"])
@pytest.mark.parametrize("value", ["/proc/self/cwd/x.so", ""])
def test_variables_of_the_loader_are_refused(name: str, value: str) -> None:
    """Each one, empty or not, by name and with the fix."""
    with pytest.raises(Refusal) as caught:
        check_environment({"PATH": "/bin", name: value})
    assert caught.value.text == f"environment variable {name} is set for the hook"
    assert "env" in caught.value.hint


def test_other_variables_are_harmless() -> None:
    """Python's own do nothing under -I."""
    check_environment({"PATH": "/bin", "PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "LD_PRELOAD_": "x"})


def run(script: str, cwd: Path | str = "/", **settings: Any) -> Any:
    """Run ``script`` in a new interpreter and return what it prints as JSON."""
    head = "import os, sys, json, signal\nfrom nvgraft import launch\n"
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", head + script], cwd=cwd, env=environ, capture_output=True, text=True, timeout=30, **settings
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_process_is_put_into_a_known_state(tmp_path: Path) -> None:
    """As crun starts hooks: all signals blocked or ignored, foreign descriptors, another umask. The old directory is returned."""
    script = """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
foreign = [os.open("/", os.O_RDONLY), os.dup2(0, 200)]
os.umask(0o077)
os.close(0)
directory = launch.reset_process()
umask = os.umask(0)
print(json.dumps({
    "directory": launch.path_of(directory), "cwd": os.getcwd(), "umask": umask,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignored": [number for number in (15, 2, 1, 14, 17) if signal.getsignal(number) == signal.SIG_IGN],
    "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:3],
    "foreign": [fd for fd in foreign if os.path.exists(f"/proc/self/fd/{fd}") and fd > 3],
    "stdin": os.readlink("/proc/self/fd/0"),
}))
"""
    assert run(script, tmp_path) == {
        "directory": str(tmp_path),
        "cwd": "/",
        "umask": 0o022,
        "blocked": 0,
        "ignored": [],
        "open": [0, 1, 2],
        "foreign": [],
        "stdin": "/dev/null",
    }


def test_a_directory_that_is_gone_counts_as_the_root(tmp_path: Path) -> None:
    """Only a relative root.path would need it."""
    script = f"""
os.mkdir("{tmp_path}/d"); os.chdir("{tmp_path}/d"); os.rmdir("{tmp_path}/d")
print(json.dumps(launch.path_of(launch.reset_process())))
"""
    assert run(script) == "/"


@pytest.mark.parametrize("number", [15, 2, 1, 14])
def test_an_ending_signal_interrupts_once(number: int) -> None:
    """It becomes an exception that no `except Exception` swallows, and from then on the others have to wait for the undo."""
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
