"""The static launcher: its file, what it starts, and the four variables of the caller that it
passes on.
"""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from nvgraft_cli.install.launcher import MACHINES, LaunchedScript, assemble, build, parse

MACHINE = os.uname().machine
#: Both sources are assembled and run, the one of the other machine in an emulator.
SOURCES = [
    pytest.param(
        machine,
        marks=pytest.mark.requires(
            f"{machine}-linux-gnu-as", *([] if machine == MACHINE else [f"qemu-{machine}"])
        ),
    )
    for machine in MACHINES
]
#: A replacement for the code where only the form of the file matters.
CODE = b"\x90" * 200 + b"-ISB\0" + b"PATH=\0\0"
SHOW = """#!/usr/bin/python3 -IS
import json, os, sys
environ = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().split("\\0") if entry)
print(json.dumps([sys.argv[1:], environ]))
"""


def launcher(path: Path, target: LaunchedScript, machine: str) -> list[str]:
    """Write a launcher and return the command that starts it on this machine."""
    path.write_bytes(build(target, machine, assemble(machine, f"{machine}-linux-gnu-")))
    path.chmod(0o755)
    return [str(path)] if machine == MACHINE else [f"qemu-{machine}", str(path)]


@pytest.fixture(params=SOURCES)
def show(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command that starts a program through the launcher; the program prints how it was
    started.
    """
    (tmp_path / "interpreter").write_text(SHOW)
    (tmp_path / "interpreter").chmod(0o755)
    target = LaunchedScript(str(tmp_path / "interpreter"), "/lib/script")
    return launcher(tmp_path / "launcher", target, request.param)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_launchers_target_is_read_from_its_file(machine: str) -> None:
    """parse() returns the target of a built launcher, and None for any other file."""
    target = LaunchedScript("/usr/bin/python3", "/usr/lib/nvgraft/hook")
    data = build(target, machine, CODE)
    assert parse(data) == target
    for other in (
        data + b"\0",
        data[:-1],
        b"",
        b"\x7fELF",
        bytes(1000),
        data[:20] + bytes([data[20] ^ 1]) + data[21:],
        data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        data.replace(b"-ISB", b"-ISs"),
        b"\xff" * 600,
    ):
        assert parse(other) is None


@pytest.mark.parametrize("machine", SOURCES)
def test_an_assembled_launcher_is_small_and_recognised(machine: str) -> None:
    """An assembled launcher has less than a kilobyte, and parse() returns its target."""
    target = LaunchedScript("/usr/bin/python3", "/usr/lib/nvgraft/hook")
    data = build(target, machine, assemble(machine, f"{machine}-linux-gnu-"))
    assert len(data) < 1024
    assert parse(data) == target


@pytest.mark.parametrize("machine", MACHINES)
def test_a_launcher_has_no_loader_and_no_writable_code(machine: str) -> None:
    """A launcher has two segments: the file, readable and executable, and a stack that is not
    executable.
    """
    data = build(LaunchedScript("/python", "/script"), machine, CODE)
    count = struct.unpack_from("<H", data, 56)[0]
    segments = [struct.unpack_from("<II", data, 64 + 56 * number) for number in range(count)]
    assert segments == [(1, 5), (0x6474E551, 6)]


@pytest.mark.parametrize("arguments", [[], ["prestart"], ["-config", "a b", ""]])
def test_only_the_hooks_variables_get_through(show: list[str], arguments: list[str]) -> None:
    """The four variables of the hook are passed on in their order with their values; arguments
    follow the script.
    """
    passed = {
        "PATH": "/usr/bin:/bin",
        "XDG_CONFIG_HOME": "",
        "CUDA_MPS_PIPE_DIRECTORY": "/m",
        "NVIDIA_CTK_CONFIG_FILE_PATH": "/c=d",
    }
    other = {
        **dict.fromkeys(
            ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH"),
            "/proc/self/cwd/x.so",
        ),
        **dict.fromkeys(
            (
                "PYTHONPATH",
                "PYTHONHOME",
                "PYTHONSTARTUP",
                "HOME",
                "PATHX",
                "PAT",
                "XPATH",
                "path",
                "XDG_CONFIG_HOM",
            ),
            "/x",
        ),
    }
    mixed = dict(sorted({**passed, **other}.items()))
    done = subprocess.run([*show, *arguments], env=mixed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["-ISB", "/lib/script", *arguments],
        {name: mixed[name] for name in sorted(passed)},
    ]


def test_an_empty_environment(show: list[str]) -> None:
    """A launcher works with an empty environment."""
    done = subprocess.run(["/usr/bin/env", "-i", *show], capture_output=True, text=True)
    assert json.loads(done.stdout) == [["-ISB", "/lib/script"], {}]


@pytest.mark.parametrize("machine", SOURCES)
def test_a_missing_interpreter_is_reported(machine: str, tmp_path: Path) -> None:
    """A missing interpreter gives one line and exit code 127."""
    command = launcher(
        tmp_path / "launcher", LaunchedScript("/nonexistent/python3", "/lib/script"), machine
    )
    done = subprocess.run([*command, "prestart"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        127,
        "",
        "script: /nonexistent/python3 cannot be started\n",
    )
