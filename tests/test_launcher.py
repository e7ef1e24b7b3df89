"""The static launcher: what it is made of, and that nothing of the caller's but four variables gets through it."""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from nvgraft_cli.install import launcher
from nvgraft_cli.install.launcher import CODE, Target, build, parse

SOURCE = Path(launcher.__file__).parent
MACHINE = os.uname().machine
SHOW = """#!/usr/bin/python3 -IS
import json, os, sys
environ = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().split("\\0") if entry)
print(json.dumps([sys.argv[1:], environ]))
"""


@pytest.fixture
def show(tmp_path: Path) -> Path:
    """A launcher of a program that shows how it was started."""
    (tmp_path / "interpreter").write_text(SHOW)
    (tmp_path / "interpreter").chmod(0o755)
    path = tmp_path / "launcher"
    path.write_bytes(build(Target(str(tmp_path / "interpreter"), "/lib/script"), MACHINE))
    path.chmod(0o755)
    return path


@pytest.mark.requires("gcc")
def test_the_code_is_what_the_source_assembles_to(tmp_path: Path) -> None:
    """On the machine of this test; nobody has to trust bytes."""
    subprocess.run(["as", "-o", tmp_path / "o", SOURCE / f"launcher_{MACHINE}.s"], check=True)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", tmp_path / "o", tmp_path / "bin"], check=True
    )
    assert (tmp_path / "bin").read_bytes() == CODE[MACHINE]


@pytest.mark.parametrize("machine", CODE)
def test_a_launcher_says_what_it_starts(machine: str) -> None:
    """What was built is recognised to the last byte, and nothing else is."""
    target = Target("/usr/bin/python3", "/usr/lib/nvgraft/hook")
    data = build(target, machine)
    assert len(data) < 1024
    assert parse(data) == target
    for other in (
        data + b"\0",
        data[:-1],
        b"",
        b"\x7fELF",
        bytes(1000),
        data[:200] + bytes([data[200] ^ 1]) + data[201:],
        b"\xff" * 600,
    ):
        assert parse(other) is None


@pytest.mark.parametrize("machine", CODE)
def test_a_launcher_has_no_loader_and_no_writable_code(machine: str) -> None:
    """Two segments: the file, to be read and executed, and a stack that is not."""
    data = build(Target("/python", "/script"), machine)
    count = struct.unpack_from("<H", data, 56)[0]
    segments = [struct.unpack_from("<II", data, 64 + 56 * number) for number in range(count)]
    assert segments == [(1, 5), (0x6474E551, 6)]


@pytest.mark.parametrize("arguments", [[], ["prestart"], ["-config", "a b", ""]])
def test_only_the_hooks_variables_get_through(show: Path, arguments: list[str]) -> None:
    """Whole names, in their order, with their values; arguments are handed on behind the script."""
    wanted = {
        "PATH": "/bin",
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
    mixed = dict(sorted({**wanted, **other}.items()))
    done = subprocess.run([show, *arguments], env=mixed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["-ISB", "/lib/script", *arguments],
        {name: mixed[name] for name in sorted(wanted)},
    ]


def test_an_empty_environment_and_a_broken_entry(show: Path) -> None:
    """Nothing has to be there, and an entry without = is no variable."""
    done = subprocess.run([show], env={}, capture_output=True, text=True)
    assert json.loads(done.stdout) == [["-ISB", "/lib/script"], {}]


def test_an_interpreter_that_is_gone_is_said(tmp_path: Path) -> None:
    """One line, and an exit code that no hook has."""
    path = tmp_path / "launcher"
    path.write_bytes(build(Target("/nonexistent/python3", "/lib/script"), MACHINE))
    path.chmod(0o755)
    done = subprocess.run([path, "prestart"], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        127,
        "",
        "nvgraft-hook: /nonexistent/python3 cannot be started\n",
    )
