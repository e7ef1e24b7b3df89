"""A static program that starts the hook, for ``./dev install --launcher``: of the caller's environment it hands on only the
variables that the hook reads, so that nothing of it gets to the dynamic loader.

A script's interpreter is a dynamic program: LD_PRELOAD runs in it before its first line. An explicit env at the
registration prevents that (SECURITY R1); this prevents it where somebody has registered the hook without one. The program
is a few hundred bytes without a library. Its code is assembled from launcher_MACHINE.s when it is installed (binutils).
"""

import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

#: uname -m -> ELF's number for it. There is a source for each.
MACHINES = {"x86_64": 62, "aarch64": 183}

#: The programs of binutils that make the code.
TOOLS = ("as", "objcopy")

#: What the code starts the interpreter with.
_OPTIONS = b"-ISB\0"

_BASE = 0x400000
_ALIGNMENT = 0x10000  # the largest page size of the two
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_WORDS = struct.Struct("<4Q")
_START = _HEADER.size + 2 * _SEGMENT.size
_IDENTITY = b"\x7fELF\x02\x01\x01" + bytes(9)
_LOAD, _STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1


class Target(NamedTuple):
    """What a launcher starts: ``interpreter`` with -ISB and ``script``, both absolute."""

    interpreter: str
    script: str


def assemble(machine: str, tools: str = "") -> bytes:
    """Return the code of the launcher for ``machine`` (uname -m).

    :param tools: what the names of the binutils begin with for a machine other than this one, ``aarch64-linux-gnu-``.
    :raises OSError: there are no binutils.
    :raises subprocess.CalledProcessError: they do not know this machine.
    """
    import tempfile  # not at the top: commands that look at launchers load this module

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


def build(target: Target, machine: str, code: bytes) -> bytes:
    """Return the program for ``machine`` that starts ``target`` by the ``code`` of :func:`assemble`."""
    texts = [
        *(text.encode() for text in target),
        f"nvgraft-hook: {target.interpreter} cannot be started\n".encode(),
    ]
    at = _BASE + _START + len(code) + _WORDS.size
    addresses = [at, at + len(texts[0]) + 1, at + len(texts[0]) + len(texts[1]) + 2]
    body = code + _WORDS.pack(*addresses, len(texts[2])) + b"\0".join(texts)
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


def parse(data: bytes) -> Target | None:
    """Return what the program ``data`` starts; None for a file that :func:`build` has not made.

    All but the code is compared byte for byte. The code depends on the assembler.
    """
    front, *texts = data.rsplit(b"\0", 2)
    texts.insert(0, front.rpartition(b"\0")[2])  # the word in front of it ends in a zero byte
    end = len(data) - len(b"\0".join(texts)) - _WORDS.size
    code = data[_START:end]
    try:
        target = Target(*(text.decode() for text in texts[:2]))
    except (UnicodeDecodeError, TypeError):
        return None
    for machine in MACHINES:
        if _OPTIONS in code and build(target, machine, code) == data:
            return target
    return None
