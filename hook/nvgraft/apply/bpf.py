"""Device programs of a cgroup v2: read, extend, load and exchange them.

An access is allowed only when all attached programs allow it, so one more program can only narrow.
The existing programs are rebuilt with new instructions in front instead, and exchanged in place.
They are never detached first, because a cgroup without a program allows every device.

This module knows no containers, pids or paths; the caller brings the cgroup's descriptor.
RLIMIT_MEMLOCK is left alone: since Linux 5.11 programs do not count towards it.
"""

from __future__ import annotations

import errno

from nvgraft.base._stdlib import struct
from nvgraft.system import syscalls
from nvgraft.system._ffi import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.plan.actions import AllowDevice

# Commands, program and attach types, flags: linux/bpf.h.
_PROG_LOAD, _PROG_ATTACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 5, 8, 13, 15, 16
_PROG_TYPE_CGROUP_DEVICE = 15
_CGROUP_DEVICE = 6
_F_ALLOW_MULTI, _F_REPLACE = 2, 4
_F_QUERY_EFFECTIVE = 1

#: Larger than the part of ``union bpf_attr`` that is used here. Kernels that know fewer fields
#: accept the rest as long as it is zero.
_ATTR_SIZE = 128
#: The first fields of ``struct bpf_prog_info``, up to ``map_ids``. The kernel fills as many as fit.
_INFO_SIZE = 64

# Instructions: opcode, dst | src << 4, jump offset, immediate (struct bpf_insn).
_INSN = struct.Struct("<BBhi")
_LDX_W, _MOV_REG, _MOV, _AND, _JNE, _EXIT = 0x61, 0xBF, 0xB7, 0x57, 0x55, 0x95
_CALL, _LD_IMM64 = 0x85, 0x18
#: The register that the kernel's constant blinding uses. A program that names it cannot be loaded.
_BLINDING = 11

_DEV_CHAR = 2
#: Nodes per block, three instructions each. A jump has a 16-bit offset and must reach the block's
#: end.
_BLOCK = 8192
_ACCESS = {"r": 2, "w": 4}
#: Tries of loading a program: a pending signal interrupts it with EAGAIN. libbpf gives up after as
#: many.
_LOAD_TRIES = 5
_QUERY_TRIES = 10


class ProgramError(Exception):
    """A program that cannot be read, rebuilt or exchanged. The text follows "failed to add device
    rules: ".
    """


def _attributes(layout: str, *values: int) -> bytearray:
    return bytearray(struct.pack(layout, *values).ljust(_ATTR_SIZE, b"\0"))


def query(cgroup_fd: int, *, effective: bool = False) -> tuple[int, tuple[int, ...]]:
    """Return the attach flags of the device programs on the cgroup itself, and their ids.

    :param effective: return the ids of the cgroups above it, too: all of them decide.
    :raises ProgramError: when the kernel refuses to list them.
    """
    room = 64
    how = _F_QUERY_EFFECTIVE if effective else 0
    for _ in range(_QUERY_TRIES):
        ids = bytearray(4 * room)
        attributes = _attributes("=IIIIQI", cgroup_fd, _CGROUP_DEVICE, how, 0, address(ids), room)
        try:
            syscalls.bpf(_PROG_QUERY, attributes)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                room = max(room, struct.unpack_from("=I", attributes, 24)[0])
                continue
            raise ProgramError(
                _unable("find any existing device filters attached to the cgroup", "query", error)
            ) from error
        flags, _, count = struct.unpack_from("=IQI", attributes, 12)
        return flags, struct.unpack_from(f"={count}I", ids)
    raise ProgramError(
        "unable to find any existing device filters attached to the cgroup: their number does not "
        "stop growing"
    )


def open_program(program: int) -> int:
    """Open the program with the id ``program``. The descriptor keeps it alive for an undo.

    :raises ProgramError: when it cannot be opened. Extending only the other programs would not
        help.
    """
    try:
        return syscalls.bpf(_PROG_GET_FD_BY_ID, _attributes("=I", program))
    except OSError as error:
        raise ProgramError(f"unable to open device filter {program}: {reason(error)}") from error


def fetch(program_fd: int) -> bytes:
    """Return the instructions of a program.

    The kernel shows rewritten instructions. Calls and addresses among them cannot be loaded again,
    and some would load with another meaning, so programs with any of them are refused here.
    :func:`load` compares the others after loading.

    :raises ProgramError: when the program uses maps, functions or addresses, or cannot be read.
    """
    _, code, maps = _info(program_fd)
    if maps:
        raise ProgramError("unable to rebuild a device filter that uses maps")
    check_code(code)
    return code


def check_code(code: bytes) -> None:
    """Refuse instructions that cannot be loaded again in the form in which the kernel shows them.

    :raises ProgramError: as :func:`fetch`.
    """
    if len(code) % _INSN.size:
        raise ProgramError("unable to rebuild a device filter of which the kernel shows a part")
    second_half = False
    for operation, registers, _, _ in _INSN.iter_unpack(code):
        if not second_half and (operation == _CALL or (operation == _LD_IMM64 and registers >> 4)):
            raise ProgramError("unable to rebuild a device filter that calls functions")
        if _BLINDING in (registers & 15, registers >> 4):
            raise ProgramError(
                "unable to rebuild a device filter that the kernel has hardened (sysctl "
                "net.core.bpf_jit_harden is 2)"
            )
        second_half = operation == _LD_IMM64 and not second_half


def _info(program_fd: int) -> tuple[int, bytes, int]:
    """Return the id, the instructions and the number of maps of a program.

    The kernel is asked twice: the first answer gives the length of the code.
    """
    length = 0
    code = bytearray(_INSN.size)
    while True:
        info = bytearray(
            struct.pack("=16xIIQQ", 0, length, 0, address(code)).ljust(_INFO_SIZE, b"\0")
        )
        try:
            syscalls.bpf(
                _OBJ_GET_INFO_BY_FD,
                _attributes("=IIQ", program_fd, len(info), address(info)),
            )
        except OSError as error:
            raise ProgramError(f"unable to read a device filter: {reason(error)}") from error
        needed, _, readable = struct.unpack_from("=IQQ", info, 20)
        if needed == length:
            break
        length = needed
        code = bytearray(length)
    if not readable or not length:
        # The length is 0 without CAP_BPF. The kernel clears the pointer for a program that
        # net.core.bpf_jit_harden has hardened.
        raise ProgramError("unable to read a device filter: operation not permitted")
    return (
        struct.unpack_from("=I", info, 4)[0],
        bytes(code[:length]),
        struct.unpack_from("=I", info, 52)[0],
    )


def allow_code(rules: Sequence[AllowDevice]) -> bytes:
    """Return instructions that allow the nodes of ``rules``, to be put in front of a program.

    An access is allowed when it needs only the letters of its rule (reference behaviour 7.3), so
    mknod never is. The rules of one major number share a block, and a match exits directly. The
    verifier then has one open branch at a time to return to, which keeps hundreds of nodes cheap.
    """
    blocks: dict[tuple[int, int], list[int]] = {}
    for rule in rules:
        access = sum(_ACCESS[letter] for letter in set(rule.access))
        blocks.setdefault((access, rule.major), []).append(rule.minor)
    # struct bpf_cgroup_dev_ctx: the first word has the access in its upper half and the type in its
    # lower half; then come major and minor.
    code = [(_LDX_W, 3 | 1 << 4, 0, 0), (_LDX_W, 4 | 1 << 4, 4, 0), (_LDX_W, 5 | 1 << 4, 8, 0)]
    for (access, major), minors in blocks.items():
        for start in range(0, len(minors), _BLOCK):
            part = minors[start : start + _BLOCK]
            # The mask is sign-extended, so AND clears only the access bits of the rule.
            code += [
                (_MOV_REG, 2 | 3 << 4, 0, 0),
                (_AND, 2, 0, ~(access << 16)),
                (_JNE, 2, 3 * len(part) + 1, _DEV_CHAR),
                (_JNE, 4, 3 * len(part), major),
            ]
            for minor in part:
                code += [(_JNE, 5, 2, minor), (_MOV, 0, 0, 1), (_EXIT, 0, 0, 0)]
    return b"".join(_INSN.pack(*instruction) for instruction in code)


def load(code: bytes) -> int:
    """Load ``code`` as a device program and return its descriptor.

    :raises ProgramError: when the verifier rejects it, or when the kernel stores other
        instructions: then it had not shown the whole original.
    """
    instructions = bytearray(code)
    licence = bytearray(b"Apache\0\0")
    values = (
        _PROG_TYPE_CGROUP_DEVICE,
        len(code) // _INSN.size,
        address(instructions),
        address(licence),
    )
    for attempt in range(_LOAD_TRIES):
        try:
            fd = syscalls.bpf(_PROG_LOAD, _attributes("=IIQQ", *values))
            break
        except OSError as error:
            if error.errno != errno.EAGAIN or attempt == _LOAD_TRIES - 1:
                raise ProgramError(
                    f"unable to load the extended device filter: {reason(error)}"
                ) from error
    try:
        _, loaded, _ = _info(fd)
        if loaded != code:
            raise ProgramError(
                "unable to rebuild a device filter: the kernel changes it while loading"
            )
    except ProgramError:
        syscalls.close(fd)
        raise
    return fd


def replace(cgroup_fd: int, old: int, new: int, flags: int) -> None:
    """Exchange the attached program ``old`` for ``new`` in one step. ``flags`` are those of
    :func:`query`.

    :raises ProgramError: when ``old`` is not attached as a plain program. A program attached by a
        link belongs to the holder of that link.
    """
    try:
        _attach(cgroup_fd, old, new, flags)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ProgramError(
                "unable to replace a device filter that is attached by a BPF link"
            ) from error
        if error.errno == errno.E2BIG:
            # The kernel checks for room before it looks at REPLACE. Detaching one first would widen
            # access in between.
            raise ProgramError(
                "unable to replace a device filter of a cgroup that has as many as the kernel "
                "takes (64)"
            ) from error
        raise ProgramError(_unable("attach new device filters program", "attach", error)) from error


def put_back(cgroup_fd: int, new: int, old: int, flags: int) -> None:
    """Undo :func:`replace`. It is not an error if ``new`` is not attached or the cgroup is gone.

    :raises OSError: when ``new`` cannot be removed.
    """
    try:
        _attach(cgroup_fd, new, old, flags)
    except OSError as error:
        if error.errno != errno.ENOENT and _may_be_attached(cgroup_fd, new):
            raise


def _may_be_attached(cgroup_fd: int, program_fd: int) -> bool:
    try:
        return _info(program_fd)[0] in query(cgroup_fd)[1]
    except ProgramError:
        return True


def _attach(cgroup_fd: int, old: int, new: int, flags: int) -> None:
    # A cgroup without ALLOW_MULTI holds at most one program, and attaching another with the same
    # flags replaces it.
    multi = flags & _F_ALLOW_MULTI
    how, target = (_F_ALLOW_MULTI | _F_REPLACE, old) if multi else (flags, 0)
    syscalls.bpf(_PROG_ATTACH, _attributes("=IIIII", cgroup_fd, new, _CGROUP_DEVICE, how, target))


def _unable(what: str, call: str, error: OSError) -> str:
    return f"unable to {what}: bpf_prog_{call}(BPF_CGROUP_DEVICE) failed: {reason(error)}"


def reason(error: Exception) -> str:
    """Return the text of ``error`` in lower case, as the reference puts it at the end of a line."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
