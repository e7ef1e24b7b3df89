"""The verdict of a device program on one access, found by evaluating its instructions.

The kernel asks the device programs of a cgroup and of all cgroups above it, and each of them has to
allow an access. It has no call that tells the verdict of one without the access. Programs of
runtimes and of systemd compare the fields of their context with constants and jump forward; these
can be evaluated. Others (maps, functions, memory) cannot.

This module is loaded only where the cgroups above a container's have device programs.
"""

from __future__ import annotations

from nvgraft.apply import bpf
from nvgraft.base._stdlib import struct
from nvgraft.base.finding import Finding
from nvgraft.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.plan.actions import AllowDevice

_INSN = struct.Struct("<BBhi")
#: The most instructions that one evaluation takes: a program of systemd has some dozens.
_MOST_STEPS = 100_000

# Classes of instructions, their operations and the flag of a second register: linux/bpf_common.h,
# linux/bpf.h.
_LDX, _ALU32, _JMP, _JMP32, _ALU64 = 1, 4, 5, 6, 7
_REGISTER = 0x08
_LOAD_SIZES = {0x61: 4, 0x69: 2, 0x71: 1, 0x79: 8}
_CONTEXT_SIZE = 12
_EXIT, _JA = 0x95, 0x05
_MASK = {_ALU32: (1 << 32) - 1, _ALU64: (1 << 64) - 1, _JMP: (1 << 64) - 1, _JMP32: (1 << 32) - 1}

_DEV_CHAR = 2
_ACCESS = {"r": 2, "w": 4}


#: The fix for cgroups that deny the GPU.
ABOVE = (
    "allow the GPU's device numbers in the cgroups above it; a container in a container gets only"
    " what the outer one has, so start that with the GPU"
)


class Unknown(Exception):
    """The program has an instruction that is not evaluated here."""


def look_at(programs: Sequence[int], rules: Sequence[AllowDevice], path: str) -> list[Finding]:
    """Return a warning if one of the device programs above the cgroup ``path`` denies a node of
    ``rules``, or may.
    """
    denied: dict[str, None] = {}
    unknown = []
    for program in programs:
        try:
            code = read_code(program)
            for rule in rules:
                if not allows(code, rule.major, rule.minor, rule.access):
                    denied[f"{rule.major}:{rule.minor}"] = None
        except (Unknown, bpf.ProgramError):
            unknown.append(str(program))
    if denied:
        names = list(denied)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        message = (
            f"a cgroup above {path} denies the device {names[0]}{more}: programs in the container"
            " cannot open it"
        )
        return [Finding("cgroup-denies", "warning", message, ABOVE)]
    if unknown:
        message = (
            f"a cgroup above {path} has device programs that cannot be evaluated"
            f" ({', '.join(unknown)}): they may deny the GPU"
        )
        return [Finding("cgroup-denies", "warning", message, ABOVE)]
    return []


def read_code(program: int) -> bytes:
    """Return the instructions of the device program with this id.

    :raises nvgraft.apply.bpf.ProgramError: it cannot be opened or read.
    """
    fd = bpf.open_program(program)
    try:
        return bpf.fetch(fd)
    finally:
        syscalls.close(fd)


def allows(code: bytes, major: int, minor: int, access: str) -> bool:
    """Tell whether the device program ``code`` allows to open a character device for ``access``.

    :param access: the letters r and w.
    :raises Unknown: the program cannot be evaluated.
    """
    wanted = sum(_ACCESS[letter] for letter in set(access))
    # struct bpf_cgroup_dev_ctx
    context = struct.pack("<III", wanted << 16 | _DEV_CHAR, major, minor)
    program = list(_INSN.iter_unpack(code))
    # Register 1 has the address of the context, which is None here; all others are numbers.
    registers: dict[int, int | None] = {1: None}
    at = 0
    for _ in range(_MOST_STEPS):
        if not 0 <= at < len(program):
            raise Unknown
        operation, pair, offset, immediate = program[at]
        at += 1
        to, other = pair & 15, pair >> 4
        kind = operation & 7
        if operation == _EXIT:
            return _number(registers, 0) & 0xFFFFFFFF != 0
        if operation == _JA:
            at += offset
        elif kind == _LDX:
            registers[to] = _load(context, operation, registers.get(other, 0), offset)
        elif operation == 0xBF and registers.get(other, 0) is None:
            registers[to] = None  # a second name for the context
        elif kind in (_ALU32, _ALU64):
            value = _number(registers, other) if operation & _REGISTER else immediate
            before = 0 if operation & 0xF0 == 0xB0 else _number(registers, to)
            registers[to] = _computed(operation & 0xF0, before, value, kind)
        elif kind in (_JMP, _JMP32):
            value = _number(registers, other) if operation & _REGISTER else immediate
            if _jumps(operation & 0xF0, _number(registers, to), value, _MASK[kind]):
                at += offset
        else:
            raise Unknown
    raise Unknown


def _number(registers: dict[int, int | None], register: int) -> int:
    value = registers.get(register)
    if value is None:
        raise Unknown
    return value


def _load(context: bytes, operation: int, base: int | None, offset: int) -> int:
    size = _LOAD_SIZES.get(operation)
    if size is None or base is not None or not 0 <= offset <= _CONTEXT_SIZE - size:
        raise Unknown
    return int.from_bytes(context[offset : offset + size], "little")


def _computed(operation: int, before: int, value: int, kind: int) -> int:
    mask = _MASK[kind]
    before, value = before & mask, value & mask
    shift = value & (31 if kind == _ALU32 else 63)
    results = {
        0x00: before + value,
        0x10: before - value,
        0x40: before | value,
        0x50: before & value,
        0x60: before << shift,
        0x70: before >> shift,
        0xA0: before ^ value,
        0xB0: value,
    }
    if operation not in results:
        raise Unknown
    return results[operation] & mask


def _jumps(operation: int, before: int, value: int, mask: int) -> bool:
    before, value = before & mask, value & mask
    results = {
        0x10: before == value,
        0x20: before > value,
        0x30: before >= value,
        0x40: before & value != 0,
        0x50: before != value,
        0xA0: before < value,
        0xB0: before <= value,
    }
    if operation not in results:
        raise Unknown
    return results[operation]
