"""A static program that starts the hook, for ``./dev install --launcher``: whatever the caller's environment holds, only the
variables that the hook reads get to Python, and nothing to the dynamic loader.

A script's interpreter is a dynamic program: LD_PRELOAD runs in it before its first line. An explicit env at the
registration prevents that (SECURITY R1); this prevents it where somebody has registered the hook without one. It is a few
hundred bytes without a library, so it is written here instead of needing a compiler on the node. The standard library alone
is used, as by the installer.
"""

import struct
from typing import NamedTuple

#: uname -m -> what launcher_MACHINE.s assembles to; a test does that again.
CODE = {
    "x86_64": bytes.fromhex(
        "488b3c244885ff0f8485000000488d54fc104889d64889d3488b064883c6084885c0743a4c8d05920000004180380074e74989c1418a0849ffc084c9"
        "7417418a3949ffc14038cf74eb418a0849ffc084c975f6ebd64889034883c308ebba48c70300000000488b05ac0000004889442408488d0540000000"
        "48890424488b3d8d000000488d7424f848893eb83b0000000f05488b158f000000488b3580000000bf02000000b8010000000f05bf7f000000b83c00"
        "00000f052d49534200504154483d004e56494449415f43544b5f434f4e4649475f46494c455f504154483d005844475f434f4e4649475f484f4d453d"
        "00435544415f4d50535f504950455f4449524543544f52593d00000000000000"
    ),
    "aarch64": bytes.fromhex(
        "e00340f9e00300b4e1430091220c008be30302aae40302aa658440f8e50100b426040030c700403987ffff34e90305aac7144038e70000342a154038"
        "ff000a6b80ffff54c7144038e7ffff35f6ffff17858400f8f1ffff179f0000f925050058e50700f9e5010010e50300f960040058e12300d1200000f9"
        "a81b80d2010000d48204005821040058400080d2080880d2010000d4e00f80d2a80b80d2010000d42d49534200504154483d004e56494449415f4354"
        "4b5f434f4e4649475f46494c455f504154483d005844475f434f4e4649475f484f4d453d00435544415f4d50535f504950455f4449524543544f5259"
        "3d00000000000000"
    ),
}

#: uname -m -> ELF's number for it.
_MACHINES = {"x86_64": 62, "aarch64": 183}

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


def build(target: Target, machine: str) -> bytes:
    """Return the program that starts ``target`` on ``machine`` (uname -m).

    :raises KeyError: for a machine that there is no code for.
    """
    code = CODE[machine]
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
        _MACHINES[machine],
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
    """Return what the program ``data`` starts, None for anything but one that :func:`build` has made."""
    for machine, code in CODE.items():
        texts = data[_START + len(code) + _WORDS.size :].split(b"\0")
        try:
            target = Target(*(text.decode() for text in texts[:2]))
        except (UnicodeDecodeError, TypeError):
            continue
        if build(target, machine) == data:
            return target
    return None
