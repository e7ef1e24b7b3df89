"""Build the static program that starts a hook: nvgraft-cdi-hook, and with ``./dev install
--launcher`` also nvgraft-hook.

The interpreter of a script is a dynamic program, in which code from LD_PRELOAD runs before the
first line. An explicit env in the registration prevents that (SECURITY R1). This program prevents
it for registrations without env: it passes only the variables that the hook reads. It has a few
hundred bytes and no libraries, and is assembled from launcher_MACHINE.s at installation (binutils).
"""

import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

#: uname -m -> e_machine. There is a source for each.
MACHINES = {"x86_64": 62, "aarch64": 183}

#: The programs of binutils that are needed.
TOOLS = ("as", "objcopy")

#: The interpreter's options, as bytes in the code.
_OPTIONS = b"-ISB\0"

_BASE = 0x400000
_ALIGNMENT = 0x10000  # the largest page size of the two
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_WORDS = struct.Struct("<5Q")
_START = _HEADER.size + 2 * _SEGMENT.size
_IDENTITY = b"\x7fELF\x02\x01\x01" + bytes(9)
_LOAD, _STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1


#: The variables that nvgraft-hook reads. nvgraft-cdi-hook reads none.
HOOK_VARIABLES = (
    "PATH",
    "NVIDIA_CTK_CONFIG_FILE_PATH",
    "XDG_CONFIG_HOME",
    "CUDA_MPS_PIPE_DIRECTORY",
)
_VARIABLES: tuple[tuple[str, ...], ...] = (HOOK_VARIABLES, ())


class LaunchedScript(NamedTuple):
    """The absolute paths that a launcher starts: ``interpreter`` with -ISB, and ``script``, which
    gets ``variables`` of the caller's environment.
    """

    interpreter: str
    script: str
    variables: tuple[str, ...] = HOOK_VARIABLES


def assemble(machine: str, tools: str = "") -> bytes:
    """Return the code of the launcher for ``machine`` (uname -m).

    :param tools: the prefix of binutils for another machine, such as ``aarch64-linux-gnu-``.
    :raises OSError: binutils are not installed.
    :raises subprocess.CalledProcessError: binutils cannot assemble for this machine.
    """
    import tempfile  # imported here: commands that only read launchers import this module

    assembler, extractor = (f"{tools}{name}" for name in TOOLS)
    source = str(Path(__file__).with_name(f"launcher_{machine}.s"))
    with tempfile.TemporaryDirectory() as directory:
        assembled, code = f"{directory}/launcher.o", f"{directory}/code"
        for command in (
            [assembler, "-o", assembled, source],
            [extractor, "-O", "binary", "-j", ".text", assembled, code],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        return Path(code).read_bytes()


def build(target: LaunchedScript, machine: str, code: bytes) -> bytes:
    """Return the program for ``machine`` that starts ``target``, with the ``code`` of
    :func:`assemble`.
    """
    name = target.script.rpartition("/")[2]
    texts = [
        target.interpreter.encode(),
        target.script.encode(),
        f"{name}: {target.interpreter} cannot be started\n".encode(),
    ]
    names = _table(target.variables)
    first = _BASE + _START + len(code) + _WORDS.size
    at = first + len(names)
    addresses = [at, at + len(texts[0]) + 1, at + len(texts[0]) + len(texts[1]) + 2]
    body = code + _WORDS.pack(*addresses, len(texts[2]), first) + names + b"\0".join(texts)
    size = _START + len(body)
    header = _HEADER.pack(
        _IDENTITY,
        2,
        MACHINES[machine],
        1,
        _BASE + _START,
        _HEADER.size,
        0,
        0,
        _HEADER.size,
        _SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    load = _SEGMENT.pack(_LOAD, _READ | _EXECUTE, 0, _BASE, _BASE, size, size, _ALIGNMENT)
    stack = _SEGMENT.pack(_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    return header + load + stack + body


def _table(variables: tuple[str, ...]) -> bytes:
    return b"".join(f"{name}=".encode() + b"\0" for name in variables) + b"\0"


def parse(data: bytes) -> LaunchedScript | None:
    """Return the target of the program ``data``; None for a file that :func:`build` has not made.

    All but the code is compared byte for byte. The code depends on the assembler.
    """
    front, *texts = data.rsplit(b"\0", 2)
    texts.insert(0, front.rpartition(b"\0")[2])  # the word in front of it ends in a zero byte
    try:
        interpreter, script = (text.decode() for text in texts[:2])
    except ValueError:
        return None
    for variables in _VARIABLES:
        target = LaunchedScript(interpreter, script, variables)
        behind = len(_table(variables)) + len(b"\0".join(texts))
        code = data[_START : len(data) - behind - _WORDS.size]
        if _OPTIONS in code and any(build(target, name, code) == data for name in MACHINES):
            return target
    return None
